"""Truncated importance sampling: the weight is capped, no token is dropped.

Level token is unbiased per token up to the cap; level sequence is the weight of the trace, exp(sum Delta), which at
thousands of tokens is 0 or the cap (watch `rollout_corr/seq_eff_sample_size`); the geometric mean is bounded but
answers for no distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sparrow.algorithms.corrections.rule import Rule, health, kept, mismatch
from sparrow.algorithms.masked import LOG_RATIO_LIMIT, row_mean, row_sum
from sparrow.algorithms.types import Correction, Mean, PolicyInputs
from sparrow.ranges import Cap, NotNegative


@dataclass(frozen=True)
class TokenTIS(Rule):
    """w_t = clamp(exp(Delta_t), floor, cap).

    Attributes:
        cap: upper bound of the weight (verl, slime, FlashRL: 2).
        floor: lower bound (0: none; OpenRLHF clamps to [0.5, 5]).
    """

    cap: Cap = 2.0
    floor: NotNegative = 0.0
    importance: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor < self.cap:
            raise ValueError(f"floor={self.floor}, cap={self.cap}; allowed: 0 <= floor < cap")

    def level(self, delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The log-weight before truncation: [B, T], or [B, 1] for a weight shared by the sequence."""
        return delta_BT

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        delta_BT, mask_BT = mismatch(self, inputs)
        limited = self.level(delta_BT, mask_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        weight_BT = limited.exp().expand_as(delta_BT)
        metrics = health(delta_BT, mask_BT) | {
            "rollout_corr/rollout_is_ratio_fraction_high": Mean.of(weight_BT > self.cap, mask_BT),
            "rollout_corr/rollout_is_ratio_fraction_low": Mean.of(weight_BT < self.floor, mask_BT),
        }
        return kept(weight_BT.clamp(self.floor, self.cap), mask_BT, inputs, metrics)


@dataclass(frozen=True)
class SequenceTIS(TokenTIS):
    """w = clamp(exp(sum_t Delta_t), floor, cap), the same for every token of the sequence (verl 2, SkyRL 5, TRL 3)."""

    def level(self, delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return row_sum(delta_BT, mask_BT)


@dataclass(frozen=True)
class GeometricTIS(TokenTIS):
    """w = clamp(exp(mean_t Delta_t), floor, cap), the same for every token of the sequence."""

    def level(self, delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return row_mean(delta_BT, mask_BT)
