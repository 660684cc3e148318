"""Statistics of groups of samples, by group id: the sums that every group-relative advantage starts from.

Sums run in float64, and a group whose rewards are all equal is recognised by comparing, not by its variance: 0.1 three
times has a mean that is off by one rounding, and its advantage must still be exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sparrow.algorithms.types import GroupedRewards


@dataclass(frozen=True)
class GroupStatistics:
    """Per-sample view of its group: every field is [B], float64 unless said otherwise.

    Attributes:
        rewards_B: the rewards.
        size_B: samples in the group.
        mean_B: mean reward of the group.
        std_B: sample standard deviation (n - 1) of the group; 0 for a group of one.
        uniform_B: bool, all rewards of the group are equal (a group of one is).
        index_B: int64, the group as 0 .. groups-1.
    """

    rewards_B: Tensor
    size_B: Tensor
    mean_B: Tensor
    std_B: Tensor
    uniform_B: Tensor
    index_B: Tensor


Estimator = Callable[..., Tensor]

_LEAST: dict[Estimator, Callable[..., int]] = {}


def needs_samples(least: Callable[..., int]) -> Callable[[Estimator], Estimator]:
    """Mark an estimator that gives nothing but zeros in smaller groups.

    Args:
        least: from the estimator's own settings to the samples of a prompt from which on it can tell them apart.
    """

    def mark(estimator: Estimator) -> Estimator:
        _LEAST[estimator] = least
        return estimator

    return mark


def a_pair(**settings: object) -> int:
    """Two: a sample is compared with the others of its group."""
    return 2


def least_samples(estimator: Estimator) -> int:
    """Samples of a prompt that an estimator, or the one that a partial was made of, needs; 1 for one not marked."""
    plain, settings = (estimator.func, estimator.keywords) if isinstance(estimator, partial) else (estimator, {})
    return _LEAST[plain](**settings) if plain in _LEAST else 1


def group_sum(values_B: Tensor, index_B: Tensor) -> Tensor:
    """Sum of `values_B` over the group of each sample, [B]."""
    groups = int(index_B.max()) + 1 if len(index_B) else 0
    totals = torch.zeros(groups, dtype=values_B.dtype, device=values_B.device)
    return totals.index_add(0, index_B, values_B)[index_B]


def group_extreme(values_B: Tensor, index_B: Tensor, reduce: str) -> Tensor:
    """Largest ("amax") or least ("amin") value in the group of each sample, [B]."""
    groups = int(index_B.max()) + 1 if len(index_B) else 0
    start = torch.zeros(groups, dtype=values_B.dtype, device=values_B.device)
    return start.scatter_reduce(0, index_B, values_B, reduce, include_self=False)[index_B]


def group_statistics(rewards: GroupedRewards) -> GroupStatistics:
    """Size, mean, standard deviation and uniformity of each sample's group."""
    rewards_B = rewards.rewards_B.double()
    index_B = torch.unique(rewards.group_B, return_inverse=True)[1]
    size_B = group_sum(torch.ones_like(rewards_B), index_B)
    mean_B = group_sum(rewards_B, index_B) / size_B
    squares_B = group_sum((rewards_B - mean_B) ** 2, index_B)
    std_B = (squares_B / (size_B - 1).clamp(min=1)).sqrt()
    uniform_B = group_extreme(rewards_B, index_B, "amax") == group_extreme(rewards_B, index_B, "amin")
    return GroupStatistics(rewards_B, size_B, mean_B, std_B, uniform_B, index_B)


def finish(advantages_B: Tensor, rewards: GroupedRewards, zero_B: Tensor) -> Tensor:
    """Exact zeros where `zero_B`, in the dtype of the rewards (float32 for integer rewards)."""
    dtype = rewards.rewards_B.dtype if rewards.rewards_B.is_floating_point() else torch.float32
    return torch.where(zero_B, 0.0, advantages_B).to(dtype)
