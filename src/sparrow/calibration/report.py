"""A calibration on the terminal, as flat numbers, and as JSON."""

import math
from typing import Any

from rich.table import Table

from sparrow.calibration.results import Calibration, Curve
from sparrow.calibration.settings import CalibrationSettings
from sparrow.evaluation.prompt_tail import quantile_of
from sparrow.schedule import ALL_PAGES, ESTIMATORS


def bin_table(found: Calibration, settings: CalibrationSettings) -> Table:
    """A line per bin: what was chosen, what it reads, what the next smaller budget reads, and the held-out run."""
    name = f"p{round(settings.quantile * 100):d} of alpha ({settings.estimator})"
    table = Table(title=f"Schedule for tau {settings.tau:g}, {name}, intervals over prompts")
    columns = ("cached tokens", "pages", name, "next smaller tried", "its value", "held-out run", "held-out tokens")
    for column in columns:
        table.add_column(column, justify="right")
    held = held_out_curve(found, settings)
    tokens = found.held_out.tail[settings.estimator].tokens()
    for index, pages in enumerate(found.schedule.table):
        low = index * settings.bin_tokens
        span = f"{low} to {low + settings.bin_tokens}"
        if index < found.choice.first_filled:
            table.add_row(span, str(pages), "not filled", "", "", _cell(held[index]), str(tokens[index]))
            continue
        taken, refused = found.choice.taken(index), found.choice.refused(index)
        smaller = ("none: monotone", "") if refused is None else (str(refused.pages), _cell(refused))
        cells = (_cell(taken), *smaller, _cell(held[index]), str(tokens[index]))
        table.add_row(span, "all" if taken.pages == ALL_PAGES else str(pages), *cells)
    return table


def sweep_table(found: Calibration, front: list[int]) -> Table:
    """Page sizes and budgets, the front marked."""
    table = Table(title="Page sizes: least tail of a bin against predicted speed-up")
    for column in ("page size", "tokens read", "least tail", "predicted speed-up", "on the front"):
        table.add_column(column, justify="right")
    for place, point in enumerate(found.sweep):
        mark = "yes" if place in front else ""
        table.add_row(str(point.page_size), str(point.tokens), f"{point.tail:.3f}", f"{point.speedup:.2f}x", mark)
    return table


def held_out_curve(found: Calibration, settings: CalibrationSettings, estimator: str | None = None) -> Curve:
    """The held-out run's tail per bin with intervals; None where a bin is not filled."""
    tail = found.held_out.tail[estimator or settings.estimator]
    return [
        tail.interval(index, quantile_of(settings.quantile), level=settings.level, resamples=settings.resamples)
        if filled
        else None
        for index, filled in enumerate(tail.filled(settings.filled))
    ]


def summary(found: Calibration, settings: CalibrationSettings) -> dict[str, float]:
    """Flat numbers for ``summary.json``; NaN where something could not be measured."""
    held = held_out_curve(found, settings)
    flat = {
        "tau": settings.tau,
        "tail_p05_min": _least(found.chosen),
        "tail_p05_min_heldout": _least(held),
        "tail_p05_low_min_heldout": min((e.low for e in held if e is not None), default=math.nan),
        "mean_pages": found.held_out.mean_pages,
        "kv_fraction": found.held_out.kv_fraction,
        "predicted_speedup": found.predicted_speedup,
        "holds": float(found.choice.holds),
        "repetition": found.repetition,
        "repetition_heldout": found.held_out.repetition,
        "stopped_heldout": found.held_out.stopped,
        "tokens_heldout": float(found.held_out.tokens),
        "teacher_forcing_gap": found.held_out.teacher_forcing_gap,
        "rounds": float(found.rounds),
        "wall_s": sum(found.seconds.values()),
        "cpu_s": found.cpu_seconds,
    }
    for estimator in ESTIMATORS:
        flat[f"floor_{estimator}"] = _least(found.floors[estimator])
        flat[f"tail_p05_min_heldout_{estimator}"] = _least(held_out_curve(found, settings, estimator))
    for index, estimate in enumerate(held):
        if estimate is not None:
            low = index * settings.bin_tokens
            flat[f"tail_p05_heldout_bin_{low}_{low + settings.bin_tokens}"] = estimate.value
    flat |= {f"timing_s/{stage.replace(', ', '_').replace(' ', '_')}": s for stage, s in found.seconds.items()}
    return flat


def details(found: Calibration, settings: CalibrationSettings) -> dict[str, Any]:
    """Every curve, for plots and for whoever asks why."""
    return {
        "bin_tokens": settings.bin_tokens,
        "estimator": settings.estimator,
        "quantile": settings.quantile,
        "table": list(found.schedule.table),
        "trials": [
            {"bin": t.index, "path": list(t.path), "value": t.value, "low": t.low, "high": t.high, "holds": t.holds}
            for t in found.choice.trials
        ],
        "chosen": _plain(found.chosen),
        "constants": {str(pages): _plain(curve) for pages, curve in found.constants.items()},
        "proposed": {
            str(tau): {"pages": list(path), "tail": _plain(curve)} for tau, (path, curve) in found.proposed.items()
        },
        "floors": {name: _plain(curve) for name, curve in found.floors.items()},
        "held_out": {name: _plain(held_out_curve(found, settings, name)) for name in ESTIMATORS},
        "sweep": [vars(point) for point in found.sweep],
    }


def _least(curve: Curve) -> float:
    return min((estimate.value for estimate in curve if estimate is not None), default=math.nan)


def _plain(curve: Curve) -> list[list[float] | None]:
    return [None if estimate is None else [estimate.value, estimate.low, estimate.high] for estimate in curve]


def _cell(estimate: Any) -> str:
    if estimate is None:
        return "not filled"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
