"""Figures of a calibration: every budget and the schedules along the sequence, the tables, and page sizes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparrow.calibration.results import Calibration, Curve
from sparrow.calibration.settings import CalibrationSettings
from sparrow.schedule import BudgetSchedule


def plot_calibration(
    folder: Path, found: Calibration, held: Curve, settings: CalibrationSettings, others: Mapping[str, BudgetSchedule]
) -> None:
    """Write ``tail_budgets.png``, ``schedules.png`` and, with a sweep, ``page_sizes.png``.

    Args:
        folder: where to.
        found: the calibration.
        held: the held-out run's tail per bin.
        settings: names and numbers.
        others: schedules of other models, by name, to lay beside this one.
    """
    figure, ax = _figure(8.8, 4.6)
    _tail(ax, found, held, settings)
    _save(figure, ax, folder / "tail_budgets.png")
    figure, ax = _figure(8.0, 4.0)
    _schedules(ax, {f"this model, tau {settings.tau:g}": found.schedule, **others})
    _save(figure, ax, folder / "schedules.png")
    if found.sweep:
        figure, ax = _figure(8.0, 4.0)
        _page_sizes(ax, found)
        _save(figure, ax, folder / "page_sizes.png")


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Figure, ax: Axes, path: Path) -> None:
    ax.grid(alpha=0.3)
    # Outside: curves fill the whole frame.
    ax.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.savefig(path, dpi=130)


def _line(ax: Axes, curve: Curve, width: int, label: str, style: str, color: Any, size: float) -> None:
    points = [((place + 0.5) * width, e.value) for place, e in enumerate(curve) if e is not None]
    if points:
        ax.plot(*zip(*points, strict=True), style, color=color, label=label, linewidth=size, marker=".")


def _tail(ax: Axes, found: Calibration, held: Curve, settings: CalibrationSettings) -> None:
    width, grays = settings.bin_tokens, colormaps["Greys"]
    for place, (pages, curve) in enumerate(found.constants.items()):
        color = grays(0.35 + 0.6 * place / max(1, len(found.constants) - 1))
        _line(ax, curve, width, f"{pages} pages", "--", color, 1.0)
    for place, (tau, (_, curve)) in enumerate(found.proposed.items()):
        if tau != settings.tau:
            _line(ax, curve, width, f"schedule for {tau:g}", "-", f"C{place}", 1.6)
    own = f"C{list(found.proposed).index(settings.tau)}"
    _line(ax, found.chosen, width, f"schedule for {settings.tau:g}, bin by bin", "-", own, 2.4)
    _line(ax, held, width, "the same, sampled on held-out prompts", ":", own, 2.4)
    for tau in found.proposed:
        ax.axhline(tau, color="black", linewidth=0.5, alpha=0.5)
    name = f"p{round(settings.quantile * 100):d} of alpha ({settings.estimator})"
    ax.set(xlabel="cached tokens", ylabel=name, title="Constant budgets (dashed) and schedules (solid)")


def _schedules(ax: Axes, schedules: Mapping[str, BudgetSchedule]) -> None:
    for name, schedule in schedules.items():
        edges = [index * schedule.bin_tokens for index in range(schedule.num_bins + 1)]
        tokens = [(pages + schedule.reserved) * schedule.page_size for pages in schedule.table]
        ax.step(edges, [*tokens, tokens[-1]], where="post", label=name)
    ax.set(xlabel="cached tokens", ylabel="tokens read, reserved pages included", title="Schedules")
    ax.set_yscale("log", base=2)
    ax.set_xscale("symlog", base=2, linthresh=512)


def _page_sizes(ax: Axes, found: Calibration) -> None:
    for place, size in enumerate(sorted({point.page_size for point in found.sweep})):
        points = [(point.speedup, point.tail) for point in found.sweep if point.page_size == size]
        ax.plot(*zip(*points, strict=True), marker="o", color=f"C{place}", label=f"page size {size}")
    ax.set(xlabel="predicted rollout speed-up", ylabel="least tail of a bin", title="Constant budgets by page size")
