"""Figures of an audit."""

from collections.abc import Callable
from pathlib import Path

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparrow.auditing.beta_fit import UPPER
from sparrow.auditing.lengths import Blocks, blocks_of
from sparrow.auditing.measurement import Measured
from sparrow.auditing.report import NAMES
from sparrow.auditing.results import ALL, Audit, Reading
from sparrow.evaluation.intervals import Estimate


def plot_audit(folder: Path, audit: Audit, measured: Measured, block_tokens: int) -> list[Path]:
    """Write ``tail_bins.png``, ``length.png``, ``disagreement.png`` and ``corrections.png``; returns their paths."""
    blocks = blocks_of(measured, "exact", block_tokens)
    alpha = measured.alphas["exact"][measured.experience.decoded_BT].double().numpy()
    drawings: dict[str, Callable[[Axes], None]] = {
        "tail_bins.png": lambda ax: _bins(ax, audit),
        "length.png": lambda ax: _length(ax, blocks),
        "disagreement.png": lambda ax: _disagreement(ax, audit, alpha),
        "corrections.png": lambda ax: _corrections(ax, audit),
    }
    paths = []
    for name, draw in drawings.items():
        figure = Figure(figsize=(6.8, 3.8), layout="constrained")
        ax = figure.subplots()
        draw(ax)
        ax.grid(alpha=0.3)
        figure.savefig(folder / name, dpi=110)
        paths.append(folder / name)
    return paths


def _bins(ax: Axes, audit: Audit) -> None:
    for place, (name, reading) in enumerate(audit.readings.items()):
        labels, estimates = _of(reading)
        centres = list(range(len(labels)))
        ends = [[e.value - e.low for e in estimates], [e.high - e.value for e in estimates]]
        values = [e.value for e in estimates]
        ax.errorbar(centres, values, yerr=ends, fmt="-o", color=f"C{place}", capsize=3, label=NAMES[name])
        floor = audit.floors[name].bins.get(ALL)
        if floor is not None:
            ax.axhline(floor["p05"].value, color=f"C{place}", linestyle=":", linewidth=1)
        ax.set_xticks(centres, [label.removesuffix(" cached tokens") for label in labels], fontsize="x-small")
    ax.axhline(audit.threshold.tau, color="black", linestyle="--", label=f"tau ({audit.threshold.estimator})")
    ax.set(xlabel="cached tokens", ylabel="p5 of alpha", title="Tail per bin; dotted: dense against dense")
    ax.legend(fontsize="x-small")


def _of(reading: Reading) -> tuple[list[str], list[Estimate]]:
    places = [name for name in reading.bins if name != ALL]
    return places, [reading.bins[name]["p05"] for name in places]


def _length(ax: Axes, blocks: Blocks) -> None:
    ax.scatter(blocks.position, blocks.tail, s=6, label="p5 of a block")
    ax.scatter(blocks.position, blocks.mean, s=6, label="mean of a block")
    ax.set(xlabel="cached tokens", ylabel="exact alpha", title="Blocks of consecutive tokens along the sequence")
    ax.legend(fontsize="x-small")


def _disagreement(ax: Axes, audit: Audit, alpha: numpy.ndarray) -> None:
    below = alpha[alpha < UPPER]
    if len(below):
        ax.hist(below, bins=50, range=(0, UPPER), density=True, alpha=0.5, label=f"{len(below)} of {len(alpha)} tokens")
    if audit.beta is not None:
        grid = numpy.linspace(0.005, UPPER - 0.005, 300)
        ax.plot(grid, audit.beta.density(grid), label=f"Beta({audit.beta.a:.2f}, {audit.beta.b:.2f})")
    ax.set(xlabel="exact alpha", ylabel="density", title="The part below 0.999")
    if len(below):
        ax.legend(fontsize="x-small")


def _corrections(ax: Axes, audit: Audit) -> None:
    names = list(audit.effects)
    rows = numpy.arange(len(names))
    ax.barh(rows + 0.2, [audit.effects[name].rejected for name in names], 0.35, label="tokens rejected")
    kept = [audit.effects[name].gradient_kept for name in names]
    ax.barh(rows - 0.2, numpy.nan_to_num(kept), 0.35, label="gradient norm kept")
    ax.set_yticks(rows, names, fontsize="x-small")
    ax.set(xlabel="share", title="What corrections would keep")
    ax.legend(fontsize="x-small")
