"""The page of one run: what it ended with, its curves, samples with their agreement, and what it was made of."""

from html import escape

from sparrow.reporting.figures import FIGURES
from sparrow.reporting.html import document, heat_map, table
from sparrow.reporting.run import Run, Trace

SHOWN_TRACES = 12


def run_page(run: Run) -> str:
    """The page as text.

    Raises:
        ValueError: the run has not finished a step.
    """
    if not run.rows:
        raise ValueError(f"run={run.folder}: metrics.csv has no row; at least one RL step is needed")
    title = f"{run.folder.resolve().name}: {len(run.rows)} RL steps"
    figures = [svg for figure in FIGURES if (svg := figure(run)) is not None]
    parts = [
        f"<h1>{escape(title)}</h1>",
        verdict(run),
        *_held_out(run),
        '<div class="figures">',
        *(f"<figure>{svg}</figure>" for svg in figures),
        "</div>",
        *_summary(run),
        *_traces(run),
        *_origin(run),
    ]
    return document(title, parts)


def verdict(run: Run) -> str:
    """One sentence on the tail: the least p5 over the bins of the last ten steps, against tau."""
    keys = run.keys("tail/alpha_p05/bin_")
    last = [row[key] for row in run.rows[-10:] for key in keys if key in row]
    if not last:
        return "<p>The run did not measure exact alpha.</p>"
    steps = min(10, len(run.rows))
    text = f"Over the last {steps} steps the least p5 of exact alpha of a bin in a step was {min(last):.3f}"
    if run.schedule is None or run.schedule.tau is None:
        return f"<p>{text}; its schedule names no threshold.</p>"
    tau, estimator = run.schedule.tau, run.schedule.estimator
    if estimator != "exact":
        return f"<p>{text}; tau = {tau:g} is in units of {escape(str(estimator))} and cannot be compared with it.</p>"
    share = sum(value < tau for value in last) / len(last)
    return f"<p>{text}; {share:.0%} of the readings lie below tau = {tau:g}. Bins with few tokens read noisily.</p>"


def _held_out(run: Run) -> list[str]:
    before, after = (run.summary.get(f"exact_match_{when}") for when in ("before", "after"))
    if before is None or after is None:
        return []
    return [f"<p>Held-out exact match of the dense policy: {before:.3f} before, {after:.3f} after.</p>"]


def _summary(run: Run) -> list[str]:
    if not run.summary:
        return ["<h2>Result</h2>", "<p>The run has not ended: there is no summary.</p>"]
    rows = [(key, "not measured" if value is None else value) for key, value in run.summary.items()]
    return ["<h2>Result</h2>", table(rows)]


def _traces(run: Run) -> list[str]:
    if not run.traces:
        return []
    parts = ["<h2>Samples</h2>", "<p>Red: the actor and the policy disagree; outlined: below tau. Latest first.</p>"]
    exact = run.schedule is not None and run.schedule.estimator == "exact"
    tau = run.schedule.tau if run.schedule is not None and exact else None
    for trace in sorted(run.traces, key=lambda trace: -trace.step)[:SHOWN_TRACES]:
        parts += [f"<p>{_heading(trace)}</p>", f'<div class="trace prompt">{escape(trace.prompt)}</div>']
        parts.append(heat_map(trace.tokens, trace.alpha, tau))
    return parts


def _heading(trace: Trace) -> str:
    measured = [value for value in trace.alpha if value is not None]
    least = f"least alpha {min(measured):.3f}, disagreements {sum(1 - a for a in measured):.2f}" if measured else ""
    return escape(
        f"step {trace.step}, reward {trace.reward:g} ({trace.outcome}), advantage {trace.advantage:+.2f}, "
        f"{len(trace.tokens)} tokens, {least}"
    )


def _origin(run: Run) -> list[str]:
    parts = ["<h2>Made of</h2>", table(sorted(run.provenance.items()))]
    if run.schedule is not None:
        fields = {key: str(value) for key, value in run.schedule.to_dict().items()}
        parts += ["<h2>Schedule</h2>", table(list(fields.items()))]
    if run.config:
        parts.append(f"<details><summary>Configuration</summary><pre>{escape(run.config)}</pre></details>")
    return parts
