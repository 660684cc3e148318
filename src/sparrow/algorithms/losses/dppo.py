"""DPPO: a token is dropped when the policy moved too far in probability, not in ratio (arXiv 2602.04879).

A ratio of 2 on a token of probability 1e-4 is no move at all; a ratio of 1.3 on one of 0.7 is. The divergence is that
of the two-way distribution (this token, any other). The anchor is `old`; with `corrections.Bypass` it is the sparse
actor, as in the paper and prime-rl.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow.algorithms.losses.ratio import Ratio, loss_metrics, policy_ratio
from sparrow.algorithms.masked import inside
from sparrow.algorithms.types import Mean, PolicyInputs, TokenLoss
from sparrow.ranges import Cap, Width


def dppo_tv(
    inputs: PolicyInputs, *, delta_low: Width = 0.2, delta_high: Width = 0.2, ratio_cap: Cap = 20.0
) -> TokenLoss:
    """-sg(min(r, ratio_cap)) A log p, dropped if A > 0 and p - p_old > delta_high, or A < 0 and p_old - p >
    delta_low.

    Args:
        inputs: reads dense and old log-probs, advantages, mask.
        delta_low: largest fall of a probability that a negative advantage may still push.
        delta_high: largest rise that a positive advantage may still push.
        ratio_cap: bound on the detached ratio (verl 20).
    """
    ratio = policy_ratio(inputs)
    new_BT, old_BT = _probabilities(inputs, ratio)
    moved_BT = new_BT - old_BT
    return _masked_reinforce(inputs, ratio, moved_BT > delta_high, -moved_BT > delta_low, ratio_cap)


def dppo_kl(
    inputs: PolicyInputs, *, delta_low: Width = 0.05, delta_high: Width = 0.05, ratio_cap: Cap = 20.0
) -> TokenLoss:
    """As `dppo_tv`, with the binary KL(old || dense) as distance, counted only in the direction of the push.

    KL = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)).

    Args:
        inputs: reads dense and old log-probs, advantages, mask.
        delta_low: largest divergence downwards that a negative advantage may still push.
        delta_high: largest divergence upwards that a positive advantage may still push.
        ratio_cap: bound on the detached ratio (verl 20).
    """
    ratio = policy_ratio(inputs)
    new_BT, old_BT = _probabilities(inputs, ratio)
    rest_BT = (1 - old_BT) * (torch.log1p(-old_BT.clamp(max=_ONE)) - torch.log1p(-new_BT.clamp(max=_ONE)))
    divergence_BT = -old_BT * ratio.log_BT.detach().double() + rest_BT
    up_BT = (divergence_BT > delta_high) & (new_BT > old_BT)
    down_BT = (divergence_BT > delta_low) & (new_BT < old_BT)
    return _masked_reinforce(inputs, ratio, up_BT, down_BT, ratio_cap)


_ONE = 1 - 1e-8
"""A probability of 1 leaves nothing to the other tokens; their log is taken here instead."""


def _probabilities(inputs: PolicyInputs, ratio: Ratio) -> tuple[Tensor, Tensor]:
    new_BT = inside(inputs.dense_logprobs_BT.detach(), ratio.mask_BT).double().exp()
    return new_BT, inside(inputs.old_logprobs_BT.detach(), ratio.mask_BT).double().exp()


def _masked_reinforce(
    inputs: PolicyInputs, ratio: Ratio, too_high_BT: Tensor, too_low_BT: Tensor, ratio_cap: float
) -> TokenLoss:
    advantages_BT = ratio.advantages_BT
    dropped_BT = ((advantages_BT > 0) & too_high_BT) | ((advantages_BT < 0) & too_low_BT)
    weight_BT = ratio.value_BT.detach().clamp(max=ratio_cap)
    loss_BT = -weight_BT * advantages_BT * inside(inputs.dense_logprobs_BT, ratio.mask_BT)
    capped_BT = (ratio.value_BT > ratio_cap) & ~dropped_BT
    metrics = loss_metrics(ratio, dropped_BT) | {"actor/pg_clipfrac_lower": Mean.of(capped_BT, ratio.mask_BT)}
    return TokenLoss(inside(loss_BT, ratio.mask_BT & ~dropped_BT), metrics)
