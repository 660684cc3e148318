"""Health of the correction over a step, merged over micro-batches and ranks; formulas in
`functional.correction_health`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from sparrow.metrics.functional.correction_health import HealthState, empty_health, health_metrics, health_state


class CorrectionHealth(Metric):
    """Mismatch of old and sparse log-probs before truncation or masking; keys as in verl.

    Args:
        low: weights below it count in `rollout_corr/rollout_is_ratio_fraction_low`.
        high: weights above it count in `rollout_corr/rollout_is_ratio_fraction_high`.

    >>> health = CorrectionHealth()
    >>> old, sparse = torch.tensor([[0.6, 0.2]]).log(), torch.tensor([[0.3, 0.4]]).log()
    >>> health.update(old, sparse, torch.ones(1, 2, dtype=torch.bool))
    >>> round(health.compute()["rollout_corr/rollout_is_mean"].item(), 4)
    1.25
    """

    full_state_update = False
    is_differentiable = False
    sums: Tensor
    extremes: Tensor
    counts: Tensor
    rows: list[Tensor]

    def __init__(self, low: float = 0.5, high: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= low < high:
            raise ValueError(f"low={low}, high={high}; allowed: 0 <= low < high")
        self.low, self.high = low, high
        empty = empty_health()
        self.add_state("sums", empty.sums, dist_reduce_fx="sum")
        self.add_state("extremes", empty.extremes, dist_reduce_fx="max")
        self.add_state("counts", empty.counts, dist_reduce_fx="sum")
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, old_logprobs: Tensor, sparse_logprobs: Tensor, mask: Tensor) -> None:
        """Count some rows.

        Args:
            old_logprobs: [B, T], the dense policy under the weights that sampled.
            sparse_logprobs: [B, T], recorded while sampling; NaN where missing (left out).
            mask: bool [B, T]; what lies outside is not read.
        """
        new = health_state(old_logprobs.detach(), sparse_logprobs.detach(), mask, low=self.low, high=self.high)
        device = self.sums.device
        self.sums = self.sums + new.sums.to(device)
        self.extremes = torch.maximum(self.extremes, new.extremes.to(device))
        self.counts = self.counts + new.counts.to(device)
        self.rows.append(new.rows.to(device))

    def compute(self) -> dict[str, Tensor]:
        """All `rollout_corr/*` and `training/rollout_*` numbers, 0-dim."""
        rows = dim_zero_cat(self.rows) if len(self.rows) else empty_health(self.sums.device).rows
        return health_metrics(HealthState(self.sums, self.extremes, self.counts, rows))
