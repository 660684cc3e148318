"""Dr. GRPO: the group mean as baseline, nothing divided by the spread (Liu et al. 2025, arXiv 2503.20783)."""

from __future__ import annotations

from torch import Tensor

from sparrow.algorithms.advantages.groups import a_pair, needs_samples
from sparrow.algorithms.advantages.grpo import grpo
from sparrow.algorithms.types import GroupedRewards


@needs_samples(a_pair)
def dr_grpo(rewards: GroupedRewards) -> Tensor:
    """A = R - mean of the group.

    The paper pairs it with a sum over tokens divided by a constant (`aggregation.token_sum_constant`).

    Returns:
        Advantages, [B]; exactly 0 in a group of one sample and in a group of equal rewards.
    """
    return grpo(rewards, normalize_std=False)
