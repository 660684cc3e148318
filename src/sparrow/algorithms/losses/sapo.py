"""SAPO: a smooth gate in the place of the hard clip (Gao et al. 2025, arXiv 2511.20347)."""

from __future__ import annotations

import torch

from sparrow.algorithms.losses.ratio import loss_metrics, policy_ratio
from sparrow.algorithms.masked import inside
from sparrow.algorithms.types import PolicyInputs, TokenLoss
from sparrow.ranges import Positive


def sapo(inputs: PolicyInputs, *, tau_positive: Positive = 1.0, tau_negative: Positive = 1.05) -> TokenLoss:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A; at r = 1 its gradient is that of -A r.

    `actor/pg_clipfrac` is the share of tokens whose gate passes less than half of the gradient of -A r.

    Args:
        inputs: reads dense and old log-probs, advantages, mask.
        tau_positive: sharpness of the gate where A > 0.
        tau_negative: sharpness where A <= 0; a little higher, since pushing tokens down is the less stable direction.

    Raises:
        ValueError: a tau is not positive.
    """
    if not (tau_positive > 0 and tau_negative > 0):
        raise ValueError(f"tau_positive={tau_positive}, tau_negative={tau_negative}; both must be above 0")
    ratio = policy_ratio(inputs)
    tau_BT = torch.where(ratio.advantages_BT > 0, tau_positive, tau_negative).to(ratio.value_BT.dtype)
    gate_BT = torch.sigmoid(tau_BT * (ratio.value_BT - 1))
    loss_BT = -ratio.advantages_BT * gate_BT * 4 / tau_BT
    passed_BT = 4 * gate_BT * (1 - gate_BT)
    return TokenLoss(inside(loss_BT, ratio.mask_BT), loss_metrics(ratio, passed_BT < 0.5))
