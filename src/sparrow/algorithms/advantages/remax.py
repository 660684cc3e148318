"""ReMax: the reward of the greedy answer as baseline (Li et al. 2023, arXiv 2310.10505)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from sparrow.algorithms.advantages.groups import finish
from sparrow.algorithms.types import GroupedRewards

Estimator = Callable[[GroupedRewards], Tensor]

_READERS: set[Callable[..., Tensor]] = set()


def reads_baseline(estimator: Estimator) -> Estimator:
    """Mark an estimator that reads `GroupedRewards.baseline_B`: a greedy answer is then sampled for each prompt."""
    _READERS.add(estimator)
    return estimator


def needs_baseline(estimator: Estimator) -> bool:
    """Whether an estimator, or the one that a partial was made of, is marked."""
    return (estimator.func if isinstance(estimator, partial) else estimator) in _READERS


@reads_baseline
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
