"""REINFORCE with a leave-one-out baseline (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740)."""

from __future__ import annotations

from torch import Tensor

from sparrow.algorithms.advantages.groups import a_pair, finish, group_statistics, needs_samples
from sparrow.algorithms.types import GroupedRewards


@needs_samples(a_pair)
def rloo(rewards: GroupedRewards) -> Tensor:
    """A_i = R_i - mean of the other rewards of the group = (R_i - mean) n / (n - 1).

    Returns:
        Advantages, [B]; exactly 0 in a group of one sample and in a group of equal rewards.
    """
    group = group_statistics(rewards)
    scale_B = group.size_B / (group.size_B - 1).clamp(min=1)
    return finish((group.rewards_B - group.mean_B) * scale_B, rewards, group.uniform_B)
