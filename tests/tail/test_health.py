"""Signals of a collapse by hand, and when they add up to a warning."""

import json
import math
from typing import Any

import numpy as np
import pytest

from sparrow.tail.health import HealthLimits, HealthMonitor, relative_slope

CALM = {"p05": 0.95, "share_below": 0.01, "response_length": 200.0, "entropy": 0.5, "grad_norm": 1.0, "chi2": 0.01}


def monitor(**limits: Any) -> HealthMonitor:
    return HealthMonitor(HealthLimits(**{"p05": 0.9, "window": 4, "patience": 2, **limits}))


def suspects(watch: HealthMonitor, *steps: dict[str, float]) -> list[list[str]]:
    return [watch.observe(number, {**CALM, **step})[1] for number, step in enumerate(steps, 1)]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"p05": 0.89}, "p05"),
        ({"share_below": 0.06}, "share_below"),
        ({"chi2": 0.6}, "chi2"),
        ({"chi2": math.inf}, "chi2"),
        ({"grad_norm": 10.5}, "grad_norm"),
        ({"grad_norm": math.nan}, "grad_norm"),
        ({"response_length": 300.0}, "length_slope"),
        ({"response_length": 120.0}, "length_slope"),
        ({"entropy": 0.9}, "entropy_slope"),
        ({"entropy": 0.1}, "entropy_slope"),
        ({"entropy": math.nan}, "entropy_slope"),
    ],
    ids=str,
)
def test_each_signal_alone(change: dict[str, float], name: str) -> None:
    assert suspects(monitor(entropy_fall=0.1), {}, {}, {}, {}, change) == [[], [], [], [], [name]]
    silent = {"entropy_slope": {"entropy_rise": None, "entropy_fall": None}}.get(name, {name: None})
    assert suspects(monitor(**silent), {}, {}, {}, {}, change)[-1] == []


def test_slopes_and_medians_wait_for_a_full_window() -> None:
    watch = monitor()
    assert suspects(watch, {}, {"response_length": 900.0, "grad_norm": 99.0}) == [[], []]
    signals, _ = watch.observe(3, CALM)
    assert set(signals) == {"p05", "share_below", "chi2"}


def test_slope_is_that_of_the_least_squares_line() -> None:
    values = np.random.default_rng(0).normal(5, 1, 17)
    assert relative_slope(values.tolist()) == pytest.approx(np.polyfit(np.arange(17), values, 1)[0] / values.mean())
    assert relative_slope([0.0, 0.0, 0.0]) == 0.0


def test_entropy_may_fall_faster_than_it_may_rise() -> None:
    watch = monitor(entropy_rise=0.05, entropy_fall=0.2)
    falling = [{"entropy": 0.5 - 0.04 * step} for step in range(5)]
    rising = [{"entropy": 0.5 + 0.04 * step} for step in range(5)]
    assert suspects(watch, *falling)[-1] == []
    assert suspects(monitor(entropy_rise=0.05, entropy_fall=0.2), *rising)[-1] == ["entropy_slope"]


def test_a_warning_takes_suspect_steps_in_a_row() -> None:
    watch, low = monitor(patience=3), {"p05": 0.5}
    steps: list[dict[str, float]] = [{}, low, low, {}, low, low, low, low]
    warned, healthy = [], []
    for number, step in enumerate(steps, 1):
        watch.observe(number, {**CALM, **step})
        warned.append(watch.warning)
        healthy.append(watch.last_healthy)
    assert warned == [False] * 6 + [True, True]
    assert healthy == [1, 1, 1, 4, 4, 4, 4, 4]


def test_what_is_not_measured_is_left_out() -> None:
    watch = monitor()
    assert watch.observe(1, {"p05": 0.95}) == ({"p05": 0.95}, [])
    with pytest.raises(ValueError, match=r"unknown health signal: reward"):
        watch.observe(2, {"reward": 1.0})


def test_a_checkpoint_changes_nothing() -> None:
    watch = monitor()
    suspects(watch, {}, {"p05": 0.2}, {"entropy": 0.9})
    again = monitor()
    again.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    for number in (4, 5, 6):
        step = {**CALM, "entropy": 0.1 * number, "p05": 0.8}
        assert again.observe(number, step) == watch.observe(number, step)
    assert (again.streak, again.last_healthy) == (watch.streak, watch.last_healthy) == (3, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"p05": 0.0}, r"health.p05=0.0: must be above 0, or null"),
        ({"entropy_rise": -1.0}, r"health.entropy_rise=-1.0: must be above 0, or null"),
        ({"window": 2}, r"health.window=2: must be 3 or more"),
        ({"patience": 0}, r"health.patience=0: must be 1 or more"),
    ],
)
def test_wrong_values_name_the_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HealthLimits(**values)
