"""Rejection by divergence, the veto on impossible tokens, and the off-policy sequence mask. All weigh 1 or drop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparrow.algorithms.corrections.rule import Rule, health, kept, mismatch
from sparrow.algorithms.masked import inside, log_ratio, row_mean, row_sum
from sparrow.algorithms.types import Correction, Mean, PolicyInputs
from sparrow.ranges import Cap, NotNegative, Width

Measure = Literal["k1", "k2", "k3", "exp_abs"]
Reduce = Literal["mean", "sum", "max"]

MEASURES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": torch.abs,
    "k2": lambda delta: delta.square() / 2,
    "k3": lambda delta: torch.expm1(delta) - delta,
    "exp_abs": lambda delta: delta.abs().exp(),
}
"""Size of a token's mismatch: |Delta|, Delta^2 / 2, e^Delta - 1 - Delta, e^|Delta|. (Signed k1: see `masks`.)"""


def _row_max(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, values_BT, -torch.inf).amax(-1, keepdim=True)


REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mean": row_mean, "sum": row_sum, "max": _row_max}


def _allowed(name: str, value: str, table: dict[str, Callable[..., Tensor]]) -> None:
    if value not in table:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(table)}")


def _check_reachable(high: float, measure: str) -> None:
    """exp_abs is 1 where actor and policy agree: below that nothing would be left."""
    if measure == "exp_abs" and high < 1:
        raise ValueError(f"high={high} with measure='exp_abs': must be 1 or more, its value where nothing differs")


@dataclass(frozen=True)
class TokenReject(Rule):
    """Drop tokens whose measure is above `high` (verl `token_k2`, `token_k3`).

    Attributes:
        high: largest value that stays.
        measure: k1, k2, k3 or exp_abs of Delta.
    """

    high: Width
    measure: Measure = "k3"

    def __post_init__(self) -> None:
        super().__post_init__()
        _allowed("measure", self.measure, MEASURES)
        _check_reachable(self.high, self.measure)

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        delta_BT, mask_BT = mismatch(self, inputs)
        keep_BT = mask_BT & (MEASURES[self.measure](delta_BT) <= self.high)
        return kept(torch.ones_like(delta_BT), keep_BT, inputs, health(delta_BT, mask_BT))


@dataclass(frozen=True)
class SequenceReject(Rule):
    """Drop sequences whose mean, sum or maximum of a measure is above `high`.

    verl `seq_mean_k3` and the like (k3 0.01); `exp_abs` with "mean" is NeMo-RL's sequence error gate. Two of them in
    a `Chain` are trust region masking (arXiv 2512.23075).

    Attributes:
        high: largest value that stays.
        measure: k1, k2, k3 or exp_abs of Delta.
        reduce: over the tokens of a sequence.
    """

    high: Width = 0.01
    measure: Measure = "k3"
    reduce: Reduce = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        _allowed("measure", self.measure, MEASURES)
        _allowed("reduce", self.reduce, REDUCTIONS)
        _check_reachable(self.high, self.measure)

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        delta_BT, mask_BT = mismatch(self, inputs)
        value_B1 = REDUCTIONS[self.reduce](MEASURES[self.measure](delta_BT), mask_BT)
        return kept(torch.ones_like(delta_BT), mask_BT & (value_B1 <= self.high), inputs, health(delta_BT, mask_BT))


@dataclass(frozen=True)
class Veto(Rule):
    """Drop a whole sequence if the policy finds one of its tokens nearly impossible: any w_t < low.

    slime `rs_veto_threshold` 1e-4; Sparse-RL (arXiv 2601.10079) relies on it. SkyRL `outlier_token` also has an upper
    bound (100).

    Attributes:
        low: least ratio that a token may have.
        high: largest, or None.
    """

    low: NotNegative = 1e-4
    high: Cap | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high is not None and not self.low < self.high:
            raise ValueError(f"low={self.low}, high={self.high}; allowed: 0 <= low < high")

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        delta_BT, mask_BT = mismatch(self, inputs)
        bad_BT = mask_BT & (delta_BT.exp() < self.low)
        if self.high is not None:
            bad_BT = bad_BT | (mask_BT & (delta_BT.exp() > self.high))
        metrics = health(delta_BT, mask_BT) | {"rollout_corr/veto_token_fraction": Mean.of(bad_BT, mask_BT)}
        keep_BT = mask_BT & ~bad_BT.any(-1, keepdim=True)
        return kept(torch.ones_like(delta_BT), keep_BT, inputs, metrics)


@dataclass(frozen=True)
class OPSM(Rule):
    """Drop tokens of negative advantage in sequences with mean_t(sparse - dense) > delta (DeepSeek-V3.2, arXiv
    2512.02556).

    It answers for staleness as well as for the mismatch, so it alone among the corrections reads the current
    log-probs (detached; equal to the old ones at the first optimizer step). TRL `off_policy_mask_threshold` (example
    0.5); slime 1e-4.

    Attributes:
        delta: largest mean log-ratio from policy to actor that stays.
    """

    delta: Width = 0.5

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        delta_BT, mask_BT = mismatch(self, inputs)
        drift_BT = log_ratio(inputs.sparse_logprobs_BT.detach(), inputs.dense_logprobs_BT.detach(), mask_BT)
        far_B1 = row_mean(drift_BT, mask_BT) > self.delta
        drop_BT = far_B1 & (inside(inputs.advantages_BT, mask_BT) < 0)
        return kept(torch.ones_like(delta_BT), mask_BT & ~drop_BT, inputs, health(delta_BT, mask_BT))
