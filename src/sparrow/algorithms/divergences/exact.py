"""Divergences over the whole vocabulary; value and gradient are both those of the divergence named.

They need both distributions' logits at the same positions, [..., V]: pass the tokens of a chunk, never a whole long
trace. The target is detached.
"""

from __future__ import annotations

import torch
from torch import Tensor


def forward_kl(policy_logits: Tensor, target_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(target || policy) = sum_v q (log q - log p), [...]. Covers the target: large where p misses what q does."""
    policy, target = _logprobs(policy_logits, target_logits, temperature)
    return _kl(target, policy)


def reverse_kl(policy_logits: Tensor, target_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(policy || target) = sum_v p (log p - log q), [...]. Seeks modes: large where p does what q would not."""
    policy, target = _logprobs(policy_logits, target_logits, temperature)
    return _kl(policy, target)


def total_variation(policy_logits: Tensor, target_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """sum_v |p - q| / 2 = 1 - acceptance, [...]. What the tail is about; its gradient is blind to the size of p - q."""
    policy, target = _logprobs(policy_logits, target_logits, temperature)
    return (policy.exp() - target.exp()).abs().sum(-1) / 2


def _logprobs(policy_logits: Tensor, target_logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    if policy_logits.shape != target_logits.shape:
        raise ValueError(
            f"policy_logits {tuple(policy_logits.shape)}, target_logits {tuple(target_logits.shape)} differ"
        )
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")
    dtype = torch.promote_types(policy_logits.dtype, torch.float32)
    policy = torch.log_softmax(policy_logits.to(dtype) / temperature, -1)
    return policy, torch.log_softmax(target_logits.detach().to(dtype) / temperature, -1)


def _kl(left: Tensor, right: Tensor) -> Tensor:
    """sum exp(left) (left - right); a token that `left` never takes adds nothing, whatever `right` says."""
    possible = left > -torch.inf
    safe_left, safe_right = torch.where(possible, left, 0.0), torch.where(possible, right, 0.0)
    return (torch.where(possible, safe_left.exp(), 0.0) * (safe_left - safe_right)).sum(-1)
