"""The importance ratio of a loss, and the two metrics that every loss with one reports."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparrow.algorithms.masked import inside, log_ratio
from sparrow.algorithms.types import Mean, Metrics, PolicyInputs


@dataclass(frozen=True)
class Ratio:
    """What a clipped loss starts from; zeros (ratio: ones) outside the mask.

    Attributes:
        advantages_BT: advantages.
        log_BT: dense - old, clamped to +-20, with gradient.
        value_BT: exp of it.
        mask_BT: the mask.
    """

    advantages_BT: Tensor
    log_BT: Tensor
    value_BT: Tensor
    mask_BT: Tensor


def policy_ratio(inputs: PolicyInputs) -> Ratio:
    """r = exp(dense - old) per token."""
    log_BT = log_ratio(inputs.dense_logprobs_BT, inputs.old_logprobs_BT.detach(), inputs.mask_BT)
    return Ratio(inside(inputs.advantages_BT, inputs.mask_BT), log_BT, log_BT.exp(), inputs.mask_BT)


def loss_metrics(ratio: Ratio, clipped_BT: Tensor) -> Metrics:
    """`actor/pg_clipfrac`, the share of tokens whose gradient the loss cut; `actor/ppo_kl` = mean(old - dense)."""
    return {
        "actor/pg_clipfrac": Mean.of(clipped_BT.expand_as(ratio.mask_BT), ratio.mask_BT),
        "actor/ppo_kl": Mean.of(-ratio.log_BT, ratio.mask_BT),
    }


def clipped_surrogate(
    ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) and where the clip decided."""
    plain_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(plain_BT, clipped_BT), clipped_BT > plain_BT
