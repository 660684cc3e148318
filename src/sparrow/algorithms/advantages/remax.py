"""ReMax: the reward of the greedy answer as baseline (Li et al. 2023, arXiv 2310.10505)."""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow.algorithms.advantages.groups import finish
from sparrow.algorithms.types import GroupedRewards


def remax(rewards: GroupedRewards) -> Tensor:
    """A = R - R(greedy answer to the same prompt).

    Returns:
        Advantages, [B].

    Raises:
        ValueError: `rewards.baseline_B` is None, or a baseline is not finite (the message names the sample).
    """
    if rewards.baseline_B is None:
        raise ValueError("remax needs GroupedRewards.baseline_B, the reward of the greedy answer; it is None")
    bad = (~torch.isfinite(rewards.baseline_B)).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"baseline_B of sample {int(bad[0])} is {rewards.baseline_B[bad[0]].item()}; it must be finite"
        )
    advantages_B = rewards.rewards_B.double() - rewards.baseline_B.double()
    return finish(advantages_B, rewards, advantages_B == 0)
