"""Metrics as functions of tensors, without state."""

from sparrow.metrics.functional.acceptance import (
    acceptance_bounds,
    acceptance_rate,
    acceptance_top_k,
    disagreements,
)
from sparrow.metrics.functional.correction_health import (
    HealthState,
    health_metrics,
    health_state,
    sequence_weight_warning,
)
from sparrow.metrics.functional.quantiles import histogram, histogram_quantile

__all__ = [
    "HealthState",
    "acceptance_bounds",
    "acceptance_rate",
    "acceptance_top_k",
    "disagreements",
    "health_metrics",
    "health_state",
    "histogram",
    "histogram_quantile",
    "sequence_weight_warning",
]
