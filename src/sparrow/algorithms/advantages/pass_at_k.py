"""Advantages that reward a group for having one right answer, not for having many."""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow.algorithms.advantages.groups import (
    a_pair,
    finish,
    group_extreme,
    group_statistics,
    group_sum,
    needs_samples,
)
from sparrow.algorithms.types import GroupedRewards
from sparrow.ranges import Count, NotNegative, Positive


def _none_right(wrong_B: Tensor, size_B: Tensor, draws: int) -> Tensor:
    """C(wrong, draws) / C(size, draws): the chance that `draws` samples without replacement are all wrong."""
    chance_B = torch.ones_like(wrong_B)
    for i in range(draws):
        chance_B = chance_B * ((wrong_B - i).clamp(min=0) / (size_B - i).clamp(min=1))
    return chance_B


def _one_more(k: int = 4, **settings: object) -> int:
    """In a group of k the one subgroup is the group itself, and all of it is as good as its best sample."""
    return k + 1


@needs_samples(_one_more)
def pass_at_k(rewards: GroupedRewards, *, k: Count = 4, epsilon: Positive = 1e-6) -> Tensor:
    """The expected advantage of a sample when subgroups of k share the reward of their best (Chen et al. 2025).

    With `wrong` of `n` samples wrong: P = 1 - C(wrong, k) / C(n, k), std = sqrt(P (1 - P));
    a right sample gets (1 - P) / (std + epsilon), a wrong one
    (1 - P - C(wrong - 1, k - 1) / C(n - 1, k - 1)) / (std + epsilon). arXiv 2508.10751, analytical form. k = 1 is
    GRPO with the population standard deviation.

    Args:
        rewards: rewards must be 0 or 1.
        k: samples of a subgroup; a group of k samples is one subgroup, in which every advantage is 0.
        epsilon: added to the standard deviation.

    Returns:
        Advantages, [B]; exactly 0 in a group of equal rewards, and in one that holds a right answer in every subgroup
        for its right samples.

    Raises:
        ValueError: a reward is neither 0 nor 1, k < 1, or k is larger than a group.
    """
    group = group_statistics(rewards)
    binary_B = (group.rewards_B == 0) | (group.rewards_B == 1)
    if not bool(binary_B.all()):
        row = int((~binary_B).nonzero()[0])
        raise ValueError(f"pass_at_k: reward of sample {row} is {rewards.rewards_B[row].item()}; allowed: 0, 1")
    if k < 1 or bool((group.size_B < k).any()):
        raise ValueError(f"pass_at_k: k is {k}; allowed: 1 .. {int(group.size_B.min())} (the smallest group)")
    wrong_B = group_sum(1 - group.rewards_B, group.index_B)
    miss_B = _none_right(wrong_B, group.size_B, k)
    scale_B = (miss_B * (1 - miss_B)).sqrt() + epsilon
    others_miss_B = _none_right(wrong_B - 1, group.size_B - 1, k - 1)
    advantages_B = torch.where(group.rewards_B == 1, miss_B, miss_B - others_miss_B) / scale_B
    return finish(advantages_B, rewards, group.uniform_B)


@needs_samples(a_pair)
def best_minus_second(rewards: GroupedRewards, *, epsilon: NotNegative = 1e-6, normalize_std: bool = True) -> Tensor:
    """The best sample of a group gets (R_best - R_second) / (std + epsilon), all others 0 (arXiv 2503.19595).

    verl's `grpo_passk`. Of several best samples none gets anything: the difference is 0.

    Returns:
        Advantages, [B]; exactly 0 in a group of one sample.
    """
    group = group_statistics(rewards)
    best_B = group_extreme(group.rewards_B, group.index_B, "amax")
    is_best_B = group.rewards_B == best_B
    lower_B = torch.where(is_best_B, -torch.inf, group.rewards_B)
    tied_B = group_sum(is_best_B.double(), group.index_B) > 1
    second_B = torch.where(tied_B, best_B, group_extreme(lower_B, group.index_B, "amax"))
    gap_B = best_B - second_B
    advantages_B = gap_B / (group.std_B + epsilon) if normalize_std else gap_B
    return finish(advantages_B, rewards, ~is_best_B | group.uniform_B)
