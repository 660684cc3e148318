"""GRPO: reward relative to the group, in units of its spread (Shao et al. 2024, arXiv 2402.03300)."""

from __future__ import annotations

from torch import Tensor

from sparrow.algorithms.advantages.groups import a_pair, finish, group_statistics, needs_samples
from sparrow.algorithms.types import GroupedRewards
from sparrow.ranges import NotNegative


@needs_samples(a_pair)
def grpo(rewards: GroupedRewards, *, epsilon: NotNegative = 1e-6, normalize_std: bool = True) -> Tensor:
    """A = (R - mean) / (std + epsilon) within the group, sample standard deviation.

    Args:
        rewards: rewards and group ids of the whole step.
        epsilon: added to the standard deviation.
        normalize_std: False leaves the division out (Dr. GRPO).

    Returns:
        Advantages, [B]; exactly 0 in a group of one sample and in a group of equal rewards.
    """
    group = group_statistics(rewards)
    centred_B = group.rewards_B - group.mean_B
    advantages_B = centred_B / (group.std_B + epsilon) if normalize_std else centred_B
    return finish(advantages_B, rewards, group.uniform_B)
