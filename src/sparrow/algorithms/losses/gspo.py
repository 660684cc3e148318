"""GSPO: one ratio per sequence, the geometric mean of its token ratios (Zheng et al. 2025, arXiv 2507.18071).

The paper averages over sequences: pair it with `aggregation.sequence_mean_token_mean`. Clip ranges are far narrower
than those of a token ratio, because a mean over thousands of tokens moves little.
"""

from __future__ import annotations

from sparrow.algorithms.losses.ratio import Ratio, clipped_surrogate, loss_metrics, policy_ratio
from sparrow.algorithms.masked import LOG_RATIO_LIMIT, inside, row_mean
from sparrow.algorithms.types import PolicyInputs, TokenLoss
from sparrow.ranges import Proportion, Width


def gspo(inputs: PolicyInputs, *, clip_low: Proportion = 3e-4, clip_high: Width = 4e-4) -> TokenLoss:
    """max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)) on every token; s = exp(mean_t (dense - old)).

    Args:
        inputs: reads dense and old log-probs, advantages, mask.
        clip_low: s is clipped below 1 - clip_low.
        clip_high: s is clipped above 1 + clip_high.
    """
    ratio = policy_ratio(inputs)
    sequence_BT = row_mean(ratio.log_BT, ratio.mask_BT).exp().expand_as(ratio.log_BT)
    return _clip(ratio, Ratio(ratio.advantages_BT, ratio.log_BT, sequence_BT, ratio.mask_BT), clip_low, clip_high)


def gspo_token(inputs: PolicyInputs, *, clip_low: Proportion = 3e-4, clip_high: Width = 4e-4) -> TokenLoss:
    """GSPO with the gradient of each token's own log-prob: s_t = sg(s) exp(dense - sg(dense)).

    The same value and, where all tokens of a sequence share one advantage, the same gradient as `gspo`; here the
    advantage may differ from token to token.

    Args:
        inputs: reads dense and old log-probs, advantages, mask.
        clip_low: s_t is clipped below 1 - clip_low.
        clip_high: s_t is clipped above 1 + clip_high.
    """
    ratio = policy_ratio(inputs)
    dense_BT = inside(inputs.dense_logprobs_BT, ratio.mask_BT)
    sequence_B1 = row_mean(ratio.log_BT, ratio.mask_BT).detach()
    log_BT = (dense_BT - dense_BT.detach() + sequence_B1).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return _clip(ratio, Ratio(ratio.advantages_BT, ratio.log_BT, log_BT.exp(), ratio.mask_BT), clip_low, clip_high)


def _clip(token: Ratio, sequence: Ratio, clip_low: float, clip_high: float) -> TokenLoss:
    loss_BT, clipped_BT = clipped_surrogate(sequence.value_BT, sequence.advantages_BT, clip_low, clip_high)
    return TokenLoss(inside(loss_BT, token.mask_BT), loss_metrics(token, clipped_BT))
