"""Early warning of collapse: which signals of a run have left their range, and for how long.

Training on samples of another policy seldom fails at once. The tail of agreement thins out, correction weights spread,
traces grow or shrink, entropy runs off, gradients jump; reward follows later. Each of these is a number with a limit;
a step on which one of them is beyond it is suspect, and several such steps in a row are a warning.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MEASURED = ("p05", "share_below", "response_length", "entropy", "grad_norm", "chi2")
"""What a step is judged on; a number that was not measured is left out."""


@dataclass(frozen=True)
class HealthLimits:
    """Limits of the signals; null turns one off.

    Attributes:
        p05: least p5 of alpha over filled bins; below it is suspect.
        share_below: share of tokens with an alpha below tau; above it is suspect.
        length_slope: change of the mean response length per step, relative to its mean, in either direction.
        entropy_rise: the same of the mean entropy, where it rises; in the collapsed runs of `experiments/quickstart` it
            does, by .04 to .08 a step, while in healthy ones it falls by up to .06.
        entropy_fall: the same where it falls.
        grad_norm: gradient norm over the median of the window before.
        chi2: chi-square of the correction weights, mean of w^2 less 1, before truncation.
        window: steps that slopes and the median are taken over.
        patience: suspect steps in a row that make a warning.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    p05: float | None = None
    share_below: float | None = 0.05
    length_slope: float | None = 0.02
    entropy_rise: float | None = 0.1
    entropy_fall: float | None = 0.2
    grad_norm: float | None = 10.0
    chi2: float | None = 0.5
    window: int = 10
    patience: int = 3

    def __post_init__(self) -> None:
        for key in ("p05", "share_below", "length_slope", "entropy_rise", "entropy_fall", "grad_norm", "chi2"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"health.{key}={value}: must be above 0, or null")
        for key, least in (("window", 3), ("patience", 1)):
            if getattr(self, key) < least:
                raise ValueError(f"health.{key}={getattr(self, key)}: must be {least} or more")


@dataclass
class HealthMonitor:
    """What has been seen of a run.

    Attributes:
        limits: of the signals.
        history: the last steps of what slopes and the median are taken over.
        streak: suspect steps in a row, up to now.
        last_healthy: last step on which nothing was suspect; 0 before the first.
    """

    limits: HealthLimits
    history: dict[str, list[float]] = field(default_factory=dict)
    streak: int = 0
    last_healthy: int = 0

    def observe(self, step: int, measured: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
        """Judge one step.

        Args:
            step: its number.
            measured: those of `MEASURED` that are known.

        Returns:
            The value of every signal there is, and the names of those beyond their limit. A value that is not finite
            is beyond any limit.

        Raises:
            ValueError: an unknown name.
        """
        if unknown := set(measured) - set(MEASURED):
            raise ValueError(f"unknown health signal: {sorted(unknown)[0]} (allowed: {', '.join(MEASURED)})")
        signals = self._signals(measured)
        suspect = [name for name, value in signals.items() if self._beyond(name, value)]
        for name in ("response_length", "entropy", "grad_norm"):
            if name in measured and math.isfinite(measured[name]):
                self.history[name] = [*self.history.get(name, []), measured[name]][-self.limits.window :]
        self.streak = self.streak + 1 if suspect else 0
        if not suspect:
            self.last_healthy = step
        return signals, suspect

    @property
    def warning(self) -> bool:
        """Whether the run has been suspect for long enough."""
        return self.streak >= self.limits.patience

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        history = {name: list(values) for name, values in self.history.items()}
        return {"history": history, "streak": self.streak, "last_healthy": self.last_healthy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` gave."""
        self.history = {name: list(values) for name, values in state["history"].items()}
        self.streak, self.last_healthy = state["streak"], state["last_healthy"]

    def _signals(self, measured: Mapping[str, float]) -> dict[str, float]:
        signals = {name: measured[name] for name in ("p05", "share_below", "chi2") if name in measured}
        for name, source in (("length_slope", "response_length"), ("entropy_slope", "entropy")):
            if source in measured:
                rows = [*self.history.get(source, []), measured[source]][-self.limits.window :]
                if len(rows) == self.limits.window:
                    signals[name] = relative_slope(rows)
        if "grad_norm" in measured:
            seen = self.history.get("grad_norm", [])
            if not math.isfinite(measured["grad_norm"]):
                signals["grad_norm"] = math.inf
            elif len(seen) == self.limits.window and statistics.median(seen) > 0:
                signals["grad_norm"] = measured["grad_norm"] / statistics.median(seen)
        return signals

    def _beyond(self, name: str, value: float) -> bool:
        if name == "entropy_slope":
            name = "entropy_rise" if value > 0 else "entropy_fall"
        limit: float | None = getattr(self.limits, name)
        if limit is None:
            return False
        if not math.isfinite(value):
            return True
        return value < limit if name == "p05" else abs(value) > limit


def relative_slope(values: Sequence[float]) -> float:
    """Slope of the least-squares line per step, over the mean of the absolute values.

    >>> round(relative_slope([90.0, 100.0, 110.0]), 3)
    0.1
    """
    array = np.asarray(values, dtype=float)
    scale = float(np.abs(array).mean())
    if not math.isfinite(scale):
        return math.inf
    steps = np.arange(len(array)) - (len(array) - 1) / 2
    return 0.0 if scale == 0 else float(steps @ array / (steps @ steps) / scale)
