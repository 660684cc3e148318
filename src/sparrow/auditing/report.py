"""Tables of an audit, once as rows of text that the terminal and the page share."""

from dataclasses import dataclass

from rich.table import Table

from sparrow.auditing.measurement import READINGS
from sparrow.auditing.results import STATISTICS, Audit
from sparrow.auditing.tokens import Shown
from sparrow.evaluation.intervals import Estimate

NAMES = {
    "exact": "exact",
    "bounds": "lower bound (actor's top-k)",
    "bounds_high": "upper bound (actor's top-k)",
    "top20": "top20 (the study's)",
}
WEIGHTS = ("p01", "p05", "p50", "p95", "p99", "max")


@dataclass(frozen=True)
class Grid:
    """A table: title, column heads, rows; the first column is text, the others are numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def rich(self) -> Table:
        """The table for a terminal."""
        table = Table(title=self.title)
        for place, head in enumerate(self.heads):
            table.add_column(head, justify="left" if place == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        return table


def tail_grids(audit: Audit) -> list[Grid]:
    """One table per estimator: a row per filled bin, each number with its interval, floors beside."""
    grids = []
    for name in READINGS:
        reading, floor = audit.readings[name], audit.floors[name]
        rows = []
        for place, statistics in reading.bins.items():
            below = floor.bins.get(place, {}).get("p05")
            cells = [_cell(statistics[key]) for key in STATISTICS]
            beside = "not filled" if below is None else f"{below.value:.4f}"
            rows.append((place, str(reading.tokens[place]), *cells, beside))
        heads = ("where", "tokens", *STATISTICS, "floor: p05, dense against dense")
        grids.append(Grid(f"alpha, {NAMES[name]}", heads, tuple(rows)))
    return grids


def number_grid(audit: Audit) -> Grid:
    """Single numbers: share below tau, correlations, the fit, floors."""
    below = f"tokens below tau {audit.threshold.tau:g} ({audit.threshold.estimator})"
    rows = [(below, _cell(audit.below_tau))]
    rows += [
        (f"Pearson r of block {name} with length", _cell(estimate)) for name, estimate in audit.with_length.items()
    ]
    fit = audit.beta
    if fit is None:
        rows.append(("Beta fit of the part below 0.999", "too few tokens there"))
    else:
        shapes = f"Beta({fit.a:.3f}, {fit.b:.3f}), standard deviation {fit.deviation:.3f}, KS {fit.ks:.3f}"
        rows.append((f"Beta fit of the part below 0.999 ({fit.share:.1%} of tokens)", shapes))
    rows += [
        ("largest weight error, dense against dense", f"{audit.floor_weight_error:.1e}"),
        ("share of the KV cache read, all layers", f"{audit.kv_fraction:.3f}"),
    ]
    return Grid("Numbers", ("what", "value"), tuple(rows))


def weight_grid(audit: Audit) -> Grid:
    """Weights of the sampled tokens before any truncation."""
    health, key = audit.health, "rollout_corr/rollout_is_"
    rows = [(f"weight {name}", f"{health[key + name]:.4f}") for name in WEIGHTS]
    rows += [
        ("effective share of tokens", f"{health[key + 'eff_sample_size']:.4f}"),
        ("effective share of sequences (product of weights)", f"{health[key + 'seq_eff_sample_size']:.4f}"),
        ("chi-square, tokens", f"{health['rollout_corr/chi2_token']:.5f}"),
        ("k3 of the gap, nats", f"{health['rollout_corr/k3_kl']:.6f}"),
    ]
    return Grid("Weights exp(dense - actor) before truncation", ("what", "value"), tuple(rows))


def correction_grid(audit: Audit) -> Grid:
    """What each correction would keep."""
    of_tokens = ("correction", "tokens rejected", "sequences rejected", "mean weight", "effective share")
    of_parts = ("shortest decile rejected", "longest decile rejected", "correct rejected", "not correct rejected")
    rows = []
    for name, effect in audit.effects.items():
        outcome = {share.name: f"{share.rejected:.3f}" for share in effect.by_outcome}
        ends = (effect.by_length[0], effect.by_length[-1])
        rows.append(
            (
                name,
                f"{effect.rejected:.4f}",
                f"{effect.rejected_sequences:.3f}",
                f"{effect.mean_weight:.4f}",
                f"{effect.effective:.4f}",
                *(f"{share.rejected:.3f}" for share in ends),
                outcome.get("correct", "-"),
                outcome.get("not correct", "-"),
                "-" if effect.gradient_kept != effect.gradient_kept else f"{effect.gradient_kept:.3f}",
            )
        )
    title = f"What corrections would keep (gradients: {audit.advantages})"
    return Grid(title, (*of_tokens, *of_parts, "gradient norm kept"), tuple(rows))


def token_grid(audit: Audit) -> Grid:
    """The tokens of least alpha in context."""
    heads = ("context", "token", "sequence", "position", "alpha", "entropy", "dense", "actor")
    rows = [
        (
            f"{_plain(shown.before)}[{_plain(shown.text)}]{_plain(shown.after)}",
            _plain(shown.text),
            str(shown.row),
            str(shown.position),
            f"{shown.alpha:.3f}",
            f"{shown.entropy:.2f}",
            top_text(shown, "dense"),
            top_text(shown, "sparse"),
        )
        for shown in audit.lowest
    ]
    return Grid("Tokens of least alpha", heads, tuple(rows))


def top_text(shown: Shown, side: str) -> str:
    """The likeliest tokens of one side, as text."""
    best: tuple[tuple[str, float], ...] = getattr(shown, side)
    return ", ".join(f"{_plain(text)!r} {probability:.2f}" for text, probability in best)


def _plain(text: str) -> str:
    return text.replace("\n", "\\n")


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
