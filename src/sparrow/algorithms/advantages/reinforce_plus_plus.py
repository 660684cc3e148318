"""REINFORCE++: normalised over the whole batch, not the group (Hu et al. 2025, arXiv 2501.03262).

A KL term in the reward is summed over a sample here, and nothing is discounted, so every token of a sample has the same
return, and the token-level whitening of the published code is a mean and variance weighted by response length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow.algorithms.advantages.groups import a_pair, finish, group_statistics, needs_samples
from sparrow.algorithms.types import GroupedRewards
from sparrow.ranges import Positive


def _whiten(values_B: Tensor, rewards: GroupedRewards, epsilon: float) -> Tensor:
    if rewards.length_B is None:
        raise ValueError("reinforce_plus_plus weighs by tokens: GroupedRewards.length_B is None")
    weight_B = rewards.length_B.double()
    tokens = weight_B.sum()
    mean = (weight_B * values_B).sum() / tokens.clamp(min=1)
    variance = (weight_B * (values_B - mean) ** 2).sum() / (tokens - 1).clamp(min=1)
    whitened_B = (values_B - mean) / (variance.sqrt() + epsilon)
    equal = (values_B == values_B[:1]).all()
    return finish(whitened_B, rewards, (weight_B == 0) | equal)


def reinforce_plus_plus(rewards: GroupedRewards, *, epsilon: Positive = 1e-8) -> Tensor:
    """A = (R - mean) / (std + epsilon) over all response tokens of the batch; groups are not used.

    Returns:
        Advantages, [B]; exactly 0 when all rewards are equal, and for a sample without tokens.

    Raises:
        ValueError: `rewards.length_B` is None.
    """
    return _whiten(rewards.rewards_B.double(), rewards, epsilon)


@needs_samples(a_pair)
def reinforce_plus_plus_baseline(rewards: GroupedRewards, *, epsilon: Positive = 1e-8) -> Tensor:
    """The same of R - group mean: the group gives the baseline, the batch the scale.

    Returns:
        Advantages, [B]; exactly 0 when every group has equal rewards, and for a sample without tokens.

    Raises:
        ValueError: `rewards.length_B` is None.
    """
    group = group_statistics(rewards)
    centred_B = torch.where(group.uniform_B, 0.0, group.rewards_B - group.mean_B)
    return _whiten(centred_B, rewards, epsilon)
