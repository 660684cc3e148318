"""The figures of a run, as SVG text: each from the rows alone, and None where the run did not record its keys."""

import io
from collections.abc import Callable, Mapping, Sequence

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from sparrow.reporting.run import Run

Figure = Callable[[Run], str | None]


def lines(title: str, ylabel: str, keys: Mapping[str, str], *, log: bool = False, tau: bool = False) -> Figure:
    """A figure of lines over RL steps.

    Args:
        title: of the figure.
        ylabel: quantity and unit.
        keys: recorded key to legend; those that were not recorded are left out.
        log: whether the axis is logarithmic.
        tau: whether the threshold of the run's schedule is drawn.
    """

    def figure(run: Run) -> str | None:
        found = {key: label for key, label in keys.items() if run.series(key)[0]}
        if not found:
            return None

        def draw(ax: Axes) -> None:
            for key, label in found.items():
                ax.plot(*run.series(key), label=label)
            if log:
                ax.set_yscale("symlog", linthresh=1e-6)
            if tau:
                _draw_tau(ax, run)
            ax.set(xlabel="RL step", ylabel=ylabel, title=title)
            ax.legend(fontsize="small")

        return to_svg(draw)

    return figure


def bins(title: str, ylabel: str, prefix: str, *, tau: bool = False, steps: bool = False) -> Figure:
    """A figure of one line per length bin, from dark (short) to light (long).

    Args:
        title: of the figure.
        ylabel: quantity and unit.
        prefix: of the bins' keys.
        tau: whether the threshold of the run's schedule is drawn.
        steps: whether a value holds until the next one.
    """

    def figure(run: Run) -> str | None:
        keys = run.keys(prefix)
        if not keys:
            return None

        def draw(ax: Axes) -> None:
            for place, key in enumerate(keys):
                color = colormaps["viridis"](place / max(1, len(keys)))
                label = _bin_label(run, key.removeprefix(prefix))
                ax.plot(*run.series(key), color=color, label=label, drawstyle="steps-post" if steps else "default")
            if tau:
                _draw_tau(ax, run)
            ax.set(xlabel="RL step", ylabel=ylabel, title=title)
            ax.legend(fontsize="x-small", ncols=1 + len(keys) // 10)

        return to_svg(draw)

    return figure


def stack(title: str, ylabel: str, keys: Mapping[str, str]) -> Figure:
    """A figure of parts that add up, over RL steps; a part that a step lacks counts as 0."""

    def figure(run: Run) -> str | None:
        found = {key: label for key, label in keys.items() if run.series(key)[0]}
        if not found:
            return None
        xs = [row["training/global_step"] for row in run.rows]
        parts = [[row.get(key, 0.0) for row in run.rows] for key in found]
        return to_svg(lambda ax: _draw_stack(ax, xs, parts, list(found.values()), title, ylabel))

    return figure


def to_svg(draw: Callable[[Axes], None]) -> str:
    """Draw one figure and return it as an ``<svg>`` element, text kept as text."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "sparrow", "font.size": 9}):
        figure = Canvas(figsize=(5.6, 3.2), layout="constrained")
        ax = figure.subplots()
        draw(ax)
        ax.grid(alpha=0.3)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _bin_label(run: Run, name: str) -> str:
    """The tokens of a bin: metrics name them, a schedule's bins are numbered."""
    if not name.isdigit() or run.schedule is None:
        return name.replace("_", " to ")
    index, width = int(name), run.schedule.bin_tokens
    end = f"to {(index + 1) * width}" if index + 1 < run.schedule.num_bins else "on"
    return f"{index * width} {end}"


def _draw_tau(ax: Axes, run: Run) -> None:
    if run.schedule is not None and run.schedule.tau is not None:
        label = f"tau {run.schedule.tau:g} ({run.schedule.estimator})"
        ax.axhline(run.schedule.tau, color="black", linestyle="--", linewidth=1, label=label)


def _draw_stack(
    ax: Axes, xs: Sequence[float], parts: Sequence[Sequence[float]], labels: Sequence[str], title: str, ylabel: str
) -> None:
    ax.stackplot(xs, parts, labels=labels)
    ax.set(xlabel="RL step", ylabel=ylabel, title=title)
    ax.legend(fontsize="small")


FIGURES: list[Figure] = [
    lines(
        "Reward of sparse rollouts", "reward", {"critic/score/mean": "mean", "rewards/outcome/correct": "share correct"}
    ),
    lines(
        "Why samples did not score",
        "share",
        {
            "rewards/outcome/wrong": "wrong",
            "rewards/outcome/unparsable": "unparsable",
            "rewards/outcome/truncated": "truncated",
            "rewards/outcome/timeout": "timeout",
            "rewards/outcome/error": "error",
        },
    ),
    lines(
        "Response length",
        "tokens",
        {"response_length/max": "longest", "response_length/mean": "mean", "response_length/min": "shortest"},
    ),
    lines(
        "Agreement of sparse actor and dense policy",
        "alpha",
        {
            "tail/alpha/mean": "mean",
            "tail/alpha/p10": "p10",
            "tail/alpha/p05": "p5",
            "tail/alpha/p01": "p1",
            "tail/alpha_low/p05": "p5, lower bound",
            "tail/alpha_high/p05": "p5, upper bound",
        },
        tau=True,
    ),
    bins("Tail per length bin", "p5 of alpha", "tail/alpha_p05/bin_", tau=True),
    bins("Page budget per length bin", "pages, reserved ones not counted", "schedule/pages/bin_", steps=True),
    lines(
        "Share of the KV cache read",
        "tokens read / cached",
        {"schedule/kv_fraction": "all layers", "schedule/kv_fraction_sparse_layers": "sparse layers"},
    ),
    lines(
        "Weights of the correction, before truncation",
        "exp(old - sparse)",
        {"rollout_corr/weight_p99": "p99", "rollout_corr/rollout_is_mean": "mean", "rollout_corr/weight_p01": "p1"},
    ),
    lines(
        "Distance of actor and policy",
        "nats, or squared",
        {"rollout_corr/kl": "k1", "rollout_corr/k3_kl": "k3", "rollout_corr/chi2_token": "chi-square"},
        log=True,
    ),
    lines(
        "Tokens that the correction leaves out",
        "share",
        {
            "rollout_corr/rollout_rs_masked_fraction": "tokens",
            "rollout_corr/rollout_rs_seq_masked_fraction": "sequences",
            "rollout_corr/rollout_is_ratio_fraction_high": "truncated above",
        },
    ),
    lines(
        "Adapter: its loss", "mean over tokens", {"distill/divergence": "divergence", "distill/pg_loss": "policy loss"}
    ),
    lines("Entropy of the policy", "nats per token", {"actor/entropy": "dense policy"}),
    lines("Gradient norm, before clipping", "norm", {"actor/grad_norm": "policy", "distill/grad_norm": "adapter"}),
    stack(
        "Time of a step",
        "seconds",
        {
            "timing_s/gen": "rollout",
            "timing_s/reward": "rewards",
            "timing_s/update_actor": "update",
            "timing_s/testing": "validation",
        },
    ),
]
"""What a page shows, in order."""
