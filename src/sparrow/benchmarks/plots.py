"""The plot of the rollout suite."""

from pathlib import Path

from matplotlib.figure import Figure

LABELS = {
    "sparse": "Sparrow, sparse",
    "dense": "Sparrow, dense",
    "generate_dynamic": "generate, dynamic cache",
    "generate_static": "generate, static cache",
    "empty": "Sparrow, almost empty cache",
}


def plot_steps(path: Path, medians: dict[int, dict[str, float]]) -> None:
    """Step time over the context length.

    Args:
        path: PNG file to write.
        medians: seconds per step by context length and system.
    """
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    ax = figure.subplots()
    for name, label in LABELS.items():
        points = [(tokens, steps[name] * 1000) for tokens, steps in medians.items() if name in steps]
        if points:
            style = ":" if name == "empty" else "-"
            ax.plot(*zip(*points, strict=True), marker="o", linestyle=style, label=label)
    ax.set(xlabel="cached tokens", ylabel="ms per step", ylim=(0, None), title="Time of a decode step")
    ax.grid(alpha=0.3)
    ax.legend()
    figure.savefig(path, dpi=130)
