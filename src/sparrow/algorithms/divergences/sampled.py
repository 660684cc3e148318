"""Divergences estimated from the sampled token alone: d = policy - target (log-probs).

An estimator's value and its gradient can belong to different divergences, because autograd sees only the estimate and
not that the policy also decided what was sampled. Each docstring names both, for tokens drawn from the policy itself.
Tokens drawn from another distribution need a weight (the correction, or r) for either to hold.

The target is a reference policy, or the dense policy when the sparse one is distilled; it never gets a gradient.
`target` may hold anything outside the mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow.algorithms.masked import inside, log_ratio


def k1(policy_BT: Tensor, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """d. Value: unbiased for KL(policy || target), can be negative. Gradient: that of nothing, its expectation is 0.

    Use it in a reward, or as a number to log; as a loss it only adds noise.

    Returns:
        [B, T]; 0 outside the mask.
    """
    return log_ratio(policy_BT, target_BT.detach(), mask_BT)


def k2(policy_BT: Tensor, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """d^2 / 2. Value: biased, >= 0, near KL for small d. Gradient: unbiased for that of KL(policy || target).

    Returns:
        [B, T]; 0 outside the mask.
    """
    return log_ratio(policy_BT, target_BT.detach(), mask_BT).square() / 2


def k3(policy_BT: Tensor, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """e^-d - 1 + d. Value: unbiased for KL(policy || target), >= 0. Gradient: that of KL(target || policy).

    Its gradient is (1 - target / policy) grad log policy, whose mean is -sum_v target grad log policy: forward KL,
    not the reverse KL whose value it estimates. GRPO's KL term and DistillSparse's default.

    Returns:
        [B, T]; 0 outside the mask.
    """
    d_BT = log_ratio(policy_BT, target_BT.detach(), mask_BT)
    return torch.expm1(-d_BT) + d_BT


def k3_straight_through(policy_BT: Tensor, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The value of k3 with the gradient of k2: both belong to KL(policy || target) (verl `k3+`).

    Returns:
        [B, T]; 0 outside the mask.
    """
    gradient_BT = k2(policy_BT, target_BT, mask_BT)
    return inside(k3(policy_BT, target_BT, mask_BT).detach() + gradient_BT - gradient_BT.detach(), mask_BT)
