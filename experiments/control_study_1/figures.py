"""Figures of the study, from finished runs.

python -m experiments.control_study_1.figures
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from experiments.control_study_1.analysis import RunData, collapsed, gain, load_runs, predictors, reward_kept

HERE = Path(__file__).parent


def by_budget(runs: Sequence[RunData], means: str) -> dict[str, list[RunData]]:
    """Runs of one kind, by budget in the order of their KV cache read, largest first."""
    grouped: dict[str, list[RunData]] = {}
    for run in runs:
        if run["means"] == means:
            grouped.setdefault(run["budget"], []).append(run)

    def read(name: str) -> float:
        return -float(grouped[name][0]["history"][0]["schedule/kv_fraction_sparse_layers"])

    return {name: grouped[name] for name in sorted(grouped, key=read)}


def band(axes: Axes, curves: Sequence[Sequence[float]], label: str, colour: str) -> None:
    """Mean of some curves over their common steps, and the interval of that mean over 1000 bootstrap draws of seeds."""
    steps = min(len(curve) for curve in curves)
    values = np.asarray([curve[:steps] for curve in curves])
    draws = np.random.default_rng(0).integers(0, len(values), (1000, len(values)))
    low, high = np.quantile(values[draws].mean(1), [0.05, 0.95], axis=0)
    x = np.arange(1, steps + 1)
    axes.plot(x, values.mean(0), color=colour, label=label)
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def least_p5(row: dict[str, float]) -> float:
    """P5 of the least bin of a step."""
    return min(value for key, value in row.items() if key.startswith("tail/alpha_p05/"))


def curves(runs: Sequence[RunData], path: Path) -> None:
    """Share of right answers and p5 of the least bin over the steps, a column per kind of run."""
    kinds = list(dict.fromkeys(run["means"] for run in runs))
    rows: tuple[tuple[str, Callable[[dict[str, float]], float]], ...] = (
        ("share of right traces", lambda row: row["rewards/outcome/correct"]),
        ("p5 of alpha, least bin", least_p5),
    )
    figure, grid = plt.subplots(
        2, len(kinds), figsize=(3.6 * len(kinds), 6), sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    colours = {name: f"C{index}" for index, name in enumerate(dict.fromkeys(run["budget"] for run in runs))}
    for column, means in enumerate(kinds):
        for line, (label, read) in enumerate(rows):
            axes = grid[line, column]
            for name, of in by_budget(runs, means).items():
                band(axes, [[read(row) for row in run["history"]] for run in of], name, colours[name])
            axes.grid(alpha=0.3)
            if column == 0:
                axes.set_ylabel(label)
        grid[0, column].set_title(means)
        grid[1, column].set_xlabel("RL step")
        grid[0, column].legend(fontsize="small")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def scatter(runs: Sequence[RunData], path: Path) -> None:
    """Every predictor at the start against what training gained; collapsed runs are crosses."""
    names = list(predictors(runs[0]))
    figure, grid = plt.subplots(1, len(names), figsize=(3.0 * len(names), 3.2), sharey=True, layout="constrained")
    kinds = list(dict.fromkeys(run["means"] for run in runs))
    for axes, name in zip(grid, names, strict=True):
        for run in runs:
            mark = "x" if collapsed(run) else "o"
            axes.plot(predictors(run)[name], gain(run), mark, color=f"C{kinds.index(run['means'])}", alpha=0.8)
        axes.set(xlabel=name)
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("exact match, after less before")
    for index, means in enumerate(kinds):
        grid[0].plot([], [], "o", color=f"C{index}", label=means)
    grid[0].legend(fontsize="small")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def surviving(runs: Sequence[RunData], decisive: float, path: Path) -> None:
    """Share of the dense reward that each budget's actor keeps, against what the proposal predicts."""
    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    kept = reward_kept(runs)
    for name, (share, spread) in kept.items():
        axes.plot(spread, share, "o", label=name)
    x = np.linspace(0, max([spread for _, spread in kept.values()] + [1.0]), 200)
    axes.plot(x, np.exp(-decisive * x), "k--", label=f"exp(-{decisive:.2f} D)")
    axes.set(xlabel="D: disagreements per trace, first steps", ylabel="reward kept")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Command line: where the runs are, and where figures go."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=HERE / "runs")
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    runs = load_runs(options.runs)
    curves(runs, options.output / "curves.png")
    scatter(runs, options.output / "predictors.png")
    decisive = json.loads((HERE / "decisive.json").read_text())["share"]
    surviving(runs, decisive, options.output / "survival.png")


if __name__ == "__main__":
    main()
