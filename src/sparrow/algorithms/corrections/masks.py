"""Masked importance sampling: a token or a sequence whose weight leaves a range is dropped, not capped.

`TokenMIS`, `IcePop` and `SequenceMIS` keep the weight of what remains; `TokenMask`, `GeometricMask` and `ProductMask`
only mask (weight 1) and are meant to be combined in a `Chain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparrow.algorithms.corrections.rule import Rule, health, kept, mismatch
from sparrow.algorithms.masked import LOG_RATIO_LIMIT, row_mean, row_sum
from sparrow.algorithms.types import Correction, Mean, PolicyInputs
from sparrow.ranges import Cap, NotNegative


@dataclass(frozen=True)
class TokenMask(Rule):
    """Drop tokens with w_t outside [low, high]; weight 1 on the rest (SkyRL `token_mask`, [0.5, 2]).

    Attributes:
        low: least ratio that stays.
        high: largest.
    """

    low: NotNegative = 0.5
    high: Cap = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.low < self.high:
            raise ValueError(f"low={self.low}, high={self.high}; allowed: 0 <= low < high")

    def level(self, delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The log of the ratio that is compared: [B, T], or [B, 1] for one per sequence."""
        return delta_BT

    def weight(self, log_level: Tensor) -> Tensor:
        """Weight of what is kept."""
        return torch.ones_like(log_level)

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        delta_BT, mask_BT = mismatch(self, inputs)
        log_level = self.level(delta_BT, mask_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio_BT = log_level.exp().expand_as(delta_BT)
        high_BT, low_BT = ratio_BT > self.high, ratio_BT < self.low
        metrics = health(delta_BT, mask_BT) | {
            "rollout_corr/rollout_rs_ratio_fraction_high": Mean.of(high_BT, mask_BT),
            "rollout_corr/rollout_rs_ratio_fraction_low": Mean.of(low_BT, mask_BT),
        }
        return kept(self.weight(log_level), mask_BT & ~high_BT & ~low_BT, inputs, metrics)


@dataclass(frozen=True)
class GeometricMask(TokenMask):
    """Drop sequences with exp(mean_t Delta_t) outside [low, high]; weight 1 on the rest.

    verl `seq_mean_k1` 0.999..1.001, slime 0.9999..1.0001, SkyRL 0.99..1.01, NeMo-RL 0.999..1.002.
    """

    low: NotNegative = 0.999
    high: Cap = 1.001

    def level(self, delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return row_mean(delta_BT, mask_BT)


@dataclass(frozen=True)
class ProductMask(TokenMask):
    """Drop sequences with exp(sum_t Delta_t) outside [low, high]; weight 1 on the rest (verl `seq_sum_k1`, SkyRL)."""

    def level(self, delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return row_sum(delta_BT, mask_BT)


@dataclass(frozen=True)
class IcePop(TokenMask):
    """w_t where low <= w_t <= high, else the token is dropped (Ling team 2025; verl, OpenRLHF, NeMo-RL [0.5, 5])."""

    high: Cap = 5.0
    importance: ClassVar[bool] = True

    def weight(self, log_level: Tensor) -> Tensor:
        return log_level.exp()


@dataclass(frozen=True)
class TokenMIS(IcePop):
    """w_t where w_t <= high, else the token is dropped: `IcePop` without a lower bound."""

    low: NotNegative = 0.0
    high: Cap = 2.0


@dataclass(frozen=True)
class SequenceMIS(IcePop):
    """w = exp(sum_t Delta_t) where w <= high, else the sequence is dropped (TRL's default `sequence_mask`, 3)."""

    low: NotNegative = 0.0
    high: Cap = 3.0

    def level(self, delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return row_sum(delta_BT, mask_BT)
