"""REINFORCE (Williams 1992), and CISPO, which is REINFORCE with a clipped, detached ratio in front."""

from __future__ import annotations

from sparrow.algorithms.losses.ratio import loss_metrics, policy_ratio
from sparrow.algorithms.masked import inside
from sparrow.algorithms.types import Mean, PolicyInputs, TokenLoss
from sparrow.ranges import Proportion, Width


def reinforce(inputs: PolicyInputs) -> TokenLoss:
    """-A log p(token); off-policy only through the weight of the correction.

    Args:
        inputs: reads dense log-probs, advantages, mask (old ones for `actor/ppo_kl`).
    """
    ratio = policy_ratio(inputs)
    loss_BT = -ratio.advantages_BT * inside(inputs.dense_logprobs_BT, ratio.mask_BT)
    return TokenLoss(inside(loss_BT, ratio.mask_BT), {"actor/ppo_kl": Mean.of(-ratio.log_BT, ratio.mask_BT)})


def cispo(inputs: PolicyInputs, *, clip_low: Proportion = 1.0, clip_high: Width = 4.0) -> TokenLoss:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p(token): the clip bounds the weight, no token loses its
    gradient.

    MiniMax-M1 (arXiv 2506.13585). Convention: offsets from 1, as in verl, SkyRL, NeMo-RL and slime. TRL's
    `epsilon_high` is the bound itself: its 5 is our clip_high = 4. The defaults are no lower bound (as in the paper)
    and an upper bound of 5 (ScaleRL, arXiv 2510.13786).

    Args:
        inputs: reads dense and old log-probs, advantages, mask.
        clip_low: the weight is at least 1 - clip_low; 1 means no lower bound.
        clip_high: the weight is at most 1 + clip_high.
    """
    ratio = policy_ratio(inputs)
    value_BT = ratio.value_BT.detach()
    weight_BT = value_BT.clamp(1 - clip_low, 1 + clip_high)
    loss_BT = -weight_BT * ratio.advantages_BT * inside(inputs.dense_logprobs_BT, ratio.mask_BT)
    return TokenLoss(inside(loss_BT, ratio.mask_BT), loss_metrics(ratio, weight_BT != value_BT))
