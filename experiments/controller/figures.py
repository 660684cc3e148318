"""Pages and p5 per bin over the steps of the controlled runs, with the sweep's right answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

BINS = range(1, 5)


def least_holding(sweep: Sequence[dict[str, Any]], line: float) -> int | None:
    """Smallest page count of a sweep from which on every count has a p5 of at least the line; None if none has."""
    least: int | None = None
    for row in sorted(sweep, key=lambda row: -row["pages"]):
        if row["p5"] < line:
            break
        least = row["pages"]
    return least


def plot(results: dict[str, Any], line: float, folder: Path) -> None:
    """``pages.png`` and ``p5.png``.

    Args:
        results: by start: ``history`` of steps, and the sweeps ``frozen`` and ``final``.
        line: p5 that a budget must reach.
        folder: where the figures go.
    """
    _figure(results, "schedule/pages/bin_{0}", "pages, reserved ones not counted", line, True).savefig(
        folder / "pages.png", dpi=130
    )
    _figure(results, "tail/alpha_p05/bin_{1}_{2}", "p5 of alpha in the step", line, False).savefig(
        folder / "p5.png", dpi=130
    )
    plt.close("all")


def _figure(results: dict[str, Any], key: str, label: str, line: float, pages: bool) -> Figure:
    figure, grid = plt.subplots(1, len(BINS), figsize=(14, 3.4), layout="constrained")
    for axes, index in zip(grid, BINS, strict=True):
        name = key.format(index, index * 64, index * 64 + 64)
        for place, (start, found) in enumerate(results.items()):
            rows = found.get("history", [])
            steps = [step for step, row in enumerate(rows, 1) if name in row]
            axes.plot(steps, [rows[step - 1][name] for step in steps], color=f"C{place}", label=f"start: {start}")
            for phase in ("frozen", "final"):
                if phase not in found:
                    continue
                if phase == "frozen":
                    axes.axvline(found[phase]["step"], color="grey", linewidth=0.8)
                answer = least_holding(found[phase]["sweep"][str(index)], line)
                if pages and answer is not None:
                    mark = "v" if phase == "frozen" else "*"
                    axes.plot(found[phase]["step"], answer, mark, color=f"C{place}", markersize=9)
        if not pages:
            axes.axhline(line, color="k", linestyle="--", linewidth=0.8)
        axes.set(xlabel="RL step", title=f"{index * 64} to {index * 64 + 64} tokens")
        axes.set_yscale("log" if pages else "linear")
        axes.grid(alpha=0.3)
    grid[0].set_ylabel(label)
    grid[0].legend(fontsize="small")
    return figure
