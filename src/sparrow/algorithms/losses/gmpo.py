"""GMPO: the geometric mean of clipped token ratios (Zhao et al. 2025, arXiv 2507.20673)."""

from __future__ import annotations

import torch

from sparrow.algorithms.losses.ratio import loss_metrics, policy_ratio
from sparrow.algorithms.masked import inside, row_mean
from sparrow.algorithms.types import PolicyInputs, TokenLoss
from sparrow.ranges import Width


def gmpo(inputs: PolicyInputs, *, clip_low: Width = 0.4, clip_high: Width = 0.4) -> TokenLoss:
    """-A exp(mean_t l_t) on every token; l_t = s min(s (dense - old), s clip(dense - old, -clip_low, clip_high)), s =
    sign(A).

    The clip is on log-ratios: the paper's range is (e^-0.4, e^0.4). Pair it with
    `aggregation.sequence_mean_token_mean`.

    Args:
        inputs: reads dense and old log-probs, advantages, mask.
        clip_low: log-ratios are clipped below -clip_low.
        clip_high: log-ratios are clipped above clip_high.
    """
    ratio = policy_ratio(inputs)
    sign_BT = ratio.advantages_BT.sign()
    clipped_BT = ratio.log_BT.clamp(-clip_low, clip_high)
    log_BT = sign_BT * torch.minimum(sign_BT * ratio.log_BT, sign_BT * clipped_BT)
    sequence_B1 = row_mean(log_BT, ratio.mask_BT).exp()
    loss_BT = -ratio.advantages_BT * sequence_B1
    return TokenLoss(inside(loss_BT, ratio.mask_BT), loss_metrics(ratio, (log_BT != ratio.log_BT) & (sign_BT != 0)))
