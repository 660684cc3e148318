"""Divergences from the candidates of one side and a bucket for everything else.

Cutting the sum at k candidates can make a KL negative. With the rest of each distribution put in one bucket, the
result is the divergence of two coarser distributions: at least 0 and at most the exact one (data processing). Value
and gradient are those of this lower bound. The candidates are usually the target's top k.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_REST = 1e-8
"""The bucket holds at least this much, so that a rest lost to rounding has a logarithm."""


def forward_kl_top_k(policy_logprobs: Tensor, target_logprobs: Tensor) -> Tensor:
    """Lower bound of KL(target || policy).

    Args:
        policy_logprobs: [..., C] log-probs of the full softmax at the candidates, with gradient.
        target_logprobs: [..., C] likewise of the target; detached. A slot without candidate is -inf on both sides.

    Returns:
        [...], >= 0.
    """
    policy, target = with_rest(policy_logprobs), with_rest(target_logprobs.detach())
    return _bucket_kl(target, policy)


def reverse_kl_top_k(policy_logprobs: Tensor, target_logprobs: Tensor) -> Tensor:
    """Lower bound of KL(policy || target); arguments as `forward_kl_top_k`."""
    policy, target = with_rest(policy_logprobs), with_rest(target_logprobs.detach())
    return _bucket_kl(policy, target)


def total_variation_top_k(policy_logprobs: Tensor, target_logprobs: Tensor) -> Tensor:
    """Lower bound of the total variation; arguments as `forward_kl_top_k`. One minus it is the upper bound of alpha."""
    policy, target = with_rest(policy_logprobs), with_rest(target_logprobs.detach())
    return (policy.exp() - target.exp()).abs().sum(-1) / 2


def with_rest(logprobs: Tensor) -> Tensor:
    """Candidates and, last, the log of all other mass: [..., C] -> [..., C + 1]."""
    mass = torch.where(logprobs > -torch.inf, logprobs, -torch.inf).exp().sum(-1, keepdim=True)
    return torch.cat([logprobs, (1 - mass).clamp(min=SMALLEST_REST).log()], -1)


def _bucket_kl(left: Tensor, right: Tensor) -> Tensor:
    possible = left > -torch.inf
    safe_left, safe_right = torch.where(possible, left, 0.0), torch.where(possible, right, 0.0)
    terms = torch.where(possible, safe_left.exp(), 0.0) * (safe_left - safe_right)
    return terms.sum(-1).clamp(min=0.0)
