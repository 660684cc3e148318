"""Losses against entropy collapse: tokens with a high covariance of log-prob and advantage (arXiv 2505.22617).

cov_t = (log p_t - mean log p)(A_t - mean A) over the tokens of the batch. A few tokens with a very high one drive the
loss of entropy; `ClipCov` takes some of them out, `KLCov` holds them back with a penalty.

Which tokens are chosen depends on the whole batch, so these two losses are objects with a method `choose`: call it once
over all rows and hand the result in as `PolicyInputs.chosen_BT`; a split into micro-batches then changes nothing. The
covariance is taken with the old log-probs, known before the first optimizer step and equal to the current ones at it
(verl: current, per micro-batch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparrow.algorithms.losses.ratio import clipped_surrogate, loss_metrics, policy_ratio
from sparrow.algorithms.masked import inside
from sparrow.algorithms.types import Mean, PolicyInputs, TokenLoss
from sparrow.ranges import NotNegative, Proportion, Share, Width, check_fields


def covariance(inputs: PolicyInputs) -> Tensor:
    """cov_t over the rows given, float64 [B, T]; 0 outside the mask."""
    mask_BT = inputs.mask_BT
    tokens = mask_BT.sum().clamp(min=1)
    old_BT = inside(inputs.old_logprobs_BT.detach().double(), mask_BT)
    advantages_BT = inside(inputs.advantages_BT.double(), mask_BT)
    product_BT = (old_BT - old_BT.sum() / tokens) * (advantages_BT - advantages_BT.sum() / tokens)
    return inside(product_BT, mask_BT)


def _first(score_BT: Tensor, candidates_BT: Tensor, number: int) -> Tensor:
    """The `number` candidates with the highest score, as a mask."""
    chosen = torch.zeros(score_BT.numel(), dtype=torch.bool, device=score_BT.device)
    number = min(number, int(candidates_BT.sum()))
    order = torch.where(candidates_BT, score_BT, -torch.inf).flatten().argsort(descending=True, stable=True)
    chosen[order[:number]] = True
    return chosen.view_as(score_BT)


@runtime_checkable
class ChoosingLoss(Protocol):
    """A loss that picks tokens over the whole batch before it is split.

    Attributes:
        needs: optional fields of `PolicyInputs` that `choose` reads.
    """

    needs: ClassVar[frozenset[str]]

    def choose(self, inputs: PolicyInputs) -> Tensor:
        """bool [B, T], to be handed in as `chosen_BT`; `inputs` are all rows of the batch."""
        ...

    def __call__(self, inputs: PolicyInputs) -> TokenLoss:
        """Loss of each token of some rows."""
        ...


@dataclass(frozen=True)
class ClipCov:
    """The clipped loss without dual clip; a chosen token that the clip leaves alone gives neither value nor gradient.

    Chosen are fraction x tokens (at least one), drawn at random among those with low < cov < high.

    Attributes:
        fraction: share of the batch's tokens to choose.
        low: least covariance of a candidate.
        high: largest.
        clip_low: the ratio is clipped below 1 - clip_low.
        clip_high: the ratio is clipped above 1 + clip_high.

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    fraction: Share = 2e-4
    low: float = 1.0
    high: float = 5.0
    clip_low: Proportion = 0.2
    clip_high: Width = 0.2
    needs: ClassVar[frozenset[str]] = frozenset({"noise_BT"})

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.low < self.high:
            raise ValueError(f"low={self.low}, high={self.high}; allowed: low < high")

    def choose(self, inputs: PolicyInputs) -> Tensor:
        """The draw over all rows of the batch; the candidates with the largest `noise_BT` are taken."""
        noise_BT = inputs.need("noise_BT", "ClipCov.choose").double()
        cov_BT = covariance(inputs)
        candidates_BT = inputs.mask_BT & (cov_BT > self.low) & (cov_BT < self.high)
        return _first(noise_BT, candidates_BT, _number(inputs, self.fraction))

    def __call__(self, inputs: PolicyInputs) -> TokenLoss:
        ratio = policy_ratio(inputs)
        loss_BT, clipped_BT = clipped_surrogate(ratio.value_BT, ratio.advantages_BT, self.clip_low, self.clip_high)
        taken_BT = inputs.need("chosen_BT", "ClipCov") & ~clipped_BT
        metrics = loss_metrics(ratio, clipped_BT | taken_BT)
        return TokenLoss(inside(loss_BT, ratio.mask_BT & ~taken_BT), metrics)


@dataclass(frozen=True)
class KLCov:
    """-A r, plus coefficient x |dense - old| on chosen tokens; no clip.

    Chosen are the fraction x tokens (at least one) with the highest covariance.

    Attributes:
        fraction: share of the batch's tokens to choose.
        coefficient: of the penalty.

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    fraction: Share = 2e-4
    coefficient: NotNegative = 1.0
    needs: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_fields(self)

    def choose(self, inputs: PolicyInputs) -> Tensor:
        """The tokens with the highest covariance over all rows of the batch."""
        return _first(covariance(inputs), inputs.mask_BT, _number(inputs, self.fraction))

    def __call__(self, inputs: PolicyInputs) -> TokenLoss:
        ratio = policy_ratio(inputs)
        chosen_BT = inputs.need("chosen_BT", "KLCov") & ratio.mask_BT
        penalty_BT = self.coefficient * inside(ratio.log_BT.abs(), chosen_BT)
        metrics = {
            "actor/ppo_kl": Mean.of(-ratio.log_BT, ratio.mask_BT),
            "actor/kl_cov_fraction": Mean.of(chosen_BT, ratio.mask_BT),
        }
        return TokenLoss(inside(-ratio.advantages_BT * ratio.value_BT + penalty_BT, ratio.mask_BT), metrics)


def _number(inputs: PolicyInputs, fraction: float) -> int:
    return max(1, int(fraction * int(inputs.mask_BT.sum())))
