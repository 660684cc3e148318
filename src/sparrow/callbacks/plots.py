"""PNG plots of a run: reward, the tail against tau, pages and KV share, and where the time goes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparrow.callbacks.tail import Tail
from sparrow.schedule import BudgetSchedule

History = list[dict[str, float]]


def plot_run(folder: Path, history: History, tail: Tail, schedule: BudgetSchedule) -> None:
    """Write ``reward.png``, ``tail.png``, ``tail_bins.png`` and ``timing.png`` into ``folder``."""
    _figure(folder / "reward.png", lambda ax: _reward(ax, history))
    _figure(folder / "tail.png", lambda ax: _tail(ax, history, schedule))
    _figure(folder / "tail_bins.png", lambda ax: _bins(ax, tail, schedule))
    _figure(folder / "timing.png", lambda ax: _timing(ax, history))


def _figure(path: Path, draw: Callable[[Axes], None]) -> None:
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    ax = figure.subplots()
    draw(ax)
    ax.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def _line(ax: Axes, history: History, key: str, label: str) -> None:
    points = [(row["training/global_step"], row[key]) for row in history if key in row]
    if points:
        ax.plot(*zip(*points, strict=True), label=label)


def _reward(ax: Axes, history: History) -> None:
    _line(ax, history, "critic/score/mean", "mean reward")
    _line(ax, history, "rewards/outcome/correct", "share correct")
    ax.set(xlabel="RL step", ylabel="reward", title="Reward of sparse rollouts")
    if ax.lines:  # a supervised stage has no rewards
        ax.legend()


def _tail(ax: Axes, history: History, schedule: BudgetSchedule) -> None:
    _line(ax, history, "tail/alpha/mean", "mean alpha")
    _line(ax, history, "tail/alpha/p05", "p5 of alpha")
    _line(ax, history, "tail/alpha/p01", "p1 of alpha")
    if schedule.tau is not None:
        ax.axhline(schedule.tau, color="black", linestyle="--", label=f"tau {schedule.tau:g} ({schedule.estimator})")
    ax.set(xlabel="RL step", ylabel="alpha", title="Agreement of sparse actor and dense policy")
    ax.legend()


def _bins(ax: Axes, tail: Tail, schedule: BudgetSchedule) -> None:
    bins = tail.filled_bins()
    centres = [(low + high) / 2 for low, high, *_ in bins]
    ax.plot(centres, [p5 for *_, p5, _ in bins], marker="o", label="p5 of alpha, last steps pooled")
    if schedule.tau is not None:
        ax.axhline(schedule.tau, color="black", linestyle="--", label=f"tau {schedule.tau:g}")
    pages = ax.twinx()
    if not schedule.is_dense:
        edges = [index * schedule.bin_tokens for index in range(schedule.num_bins)]
        end = max([edges[-1] + schedule.bin_tokens, *(high for _, high, *_ in bins)])  # the last bin has no end
        pages.step([*edges, end], [*schedule.table, schedule.table[-1]], where="post", color="tab:gray")
        pages.set_ylabel("pages (grey), reserved ones not counted")
    ax.set(xlabel="cached tokens", ylabel="p5 of alpha", title="Tail and budget over the sequence")
    ax.legend(loc="lower left")


def _timing(ax: Axes, history: History) -> None:
    steps = [row["training/global_step"] for row in history]
    parts = {"rollout": "timing_s/gen", "rewards": "timing_s/reward", "update": "timing_s/update_actor"}
    ax.stackplot(steps, [[row[key] for row in history] for key in parts.values()], labels=list(parts))
    ax.set(xlabel="RL step", ylabel="seconds", title="Time of a step")
    ax.legend()


def plot_adapter_tail(
    path: Path, found: Mapping[str, Mapping[str, Sequence[tuple[int, int, float, int]]]], schedule: BudgetSchedule
) -> None:
    """Draw p5 of alpha per length bin under several schedules, adapter on (solid) and off (dashed).

    Args:
        path: PNG file to write.
        found: schedule's name -> reading -> (first token, end, p5, tokens) of each filled bin.
        schedule: gives tau.
    """
    _figure(path, lambda ax: _adapter_tail(ax, found, schedule))


def _adapter_tail(
    ax: Axes, found: Mapping[str, Mapping[str, Sequence[tuple[int, int, float, int]]]], schedule: BudgetSchedule
) -> None:
    for index, (name, readings) in enumerate(found.items()):
        for reading, style in (("adapter_off", "--"), ("adapter_on", "-")):
            centres = [(low + high) / 2 for low, high, *_ in readings[reading]]
            values = [p5 for *_, p5, _ in readings[reading]]
            label = f"{name}, {reading.replace('_', ' ')}"
            ax.plot(centres, values, style, color=f"C{index}", marker="o", label=label)
    if schedule.tau is not None:
        ax.axhline(schedule.tau, color="black", linestyle=":", label=f"tau {schedule.tau:g}")
    ax.set(xlabel="cached tokens", ylabel="p5 of alpha", title="Tail with and without the adapter, same pages")
    ax.legend(fontsize="small")
