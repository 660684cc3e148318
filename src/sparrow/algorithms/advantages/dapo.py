"""Two pieces of DAPO that act on rewards before any advantage (Yu et al. 2025, arXiv 2503.14476)."""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow.algorithms.advantages.groups import group_statistics
from sparrow.algorithms.types import GroupedRewards
from sparrow.ranges import NotNegative, check_value


def overlong_penalty(length_B: Tensor, *, max_length: int, buffer: int, scale: NotNegative = 1.0) -> Tensor:
    """Soft punishment of long answers, to be added to the reward.

    0 up to max_length - buffer, then falling linearly to -scale at max_length, -scale beyond.

    Args:
        length_B: response tokens, [B].
        max_length: longest response allowed.
        buffer: tokens before it over which the punishment grows (DAPO: 4096 of 20480).
        scale: punishment at max_length.

    Returns:
        Values in [-scale, 0], float32 [B].

    Raises:
        ValueError: buffer is not in 1 .. max_length, or scale is negative.
    """
    if not 1 <= buffer <= max_length:
        raise ValueError(f"buffer is {buffer}; allowed: 1 .. max_length = {max_length}")
    check_value("scale", scale, NotNegative)
    excess_B = (length_B - (max_length - buffer)).to(torch.float32)
    return -scale * (excess_B / buffer).clamp(0.0, 1.0)


def mixed_groups(rewards: GroupedRewards) -> Tensor:
    """The filter of dynamic sampling: bool [B], True where the group's rewards are not all equal.

    Give it the rewards before shaping: an overlong penalty would make every group mixed.
    """
    return ~group_statistics(rewards).uniform_B
