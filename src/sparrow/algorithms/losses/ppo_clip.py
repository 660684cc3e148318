"""The clipped policy loss (Schulman et al. 2017, arXiv 1707.06347) with two clip ranges and the dual clip.

Separate ranges are DAPO's clip-higher (arXiv 2503.14476); the dual clip bounds the loss of a token with negative
advantage whose ratio ran away upwards (Ye et al. 2020, arXiv 1912.09729). With one mini-batch and one epoch `old` is
the detached current value: every ratio is 1 and no clip is active.
"""

from __future__ import annotations

from typing import Annotated

import torch

from sparrow.algorithms.losses.ratio import clipped_surrogate, loss_metrics, policy_ratio
from sparrow.algorithms.masked import inside
from sparrow.algorithms.types import Mean, PolicyInputs, TokenLoss
from sparrow.ranges import Proportion, Range, Width


def ppo_clip(
    inputs: PolicyInputs,
    *,
    clip_low: Proportion = 0.2,
    clip_high: Width = 0.28,
    dual_clip: Annotated[float, Range(1, above=True)] | None = 3.0,
) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), and for A < 0 at most -A dual_clip; r = exp(dense - old).

    Args:
        inputs: reads dense and old log-probs, advantages, mask.
        clip_low: r is clipped below 1 - clip_low.
        clip_high: r is clipped above 1 + clip_high.
        dual_clip: bound on r where A < 0; None leaves it out.

    Raises:
        ValueError: dual_clip is not above 1.
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}; it must be above 1, or None to leave it out")
    ratio = policy_ratio(inputs)
    loss_BT, clipped_BT = clipped_surrogate(ratio.value_BT, ratio.advantages_BT, clip_low, clip_high)
    metrics = loss_metrics(ratio, clipped_BT)
    if dual_clip is not None:
        bound_BT = -ratio.advantages_BT * dual_clip
        bounded_BT = (ratio.advantages_BT < 0) & (loss_BT > bound_BT)
        metrics["actor/pg_clipfrac_lower"] = Mean.of(bounded_BT, ratio.mask_BT)
        loss_BT = torch.where(bounded_BT, bound_BT, loss_BT)
    return TokenLoss(inside(loss_BT, ratio.mask_BT), metrics)
