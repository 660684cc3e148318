"""Reductions over padded rows that never read what lies outside the mask.

`torch.where` comes before any arithmetic: a NaN or -inf in the padding then reaches neither the value nor the gradient
(multiplying by a zero mask would keep it: 0 * NaN = NaN).
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before exp (verl, OpenRLHF): e^20 = 4.9e8 still fits fp32 when squared."""


def inside(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`values_BT` with exact zeros outside the mask, in value and in gradient."""
    return torch.where(mask_BT, values_BT, torch.zeros((), dtype=values_BT.dtype, device=values_BT.device))


def row_sum(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum over the mask of each row, [B, 1]; 0 for a fully masked row."""
    return inside(values_BT, mask_BT).sum(-1, keepdim=True)


def row_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the mask of each row, [B, 1]; 0 for a fully masked row."""
    return row_sum(values_BT, mask_BT) / mask_BT.sum(-1, keepdim=True).clamp(min=1)


def log_ratio(upper_BT: Tensor, lower_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`upper - lower`, clamped to +-20; 0 outside the mask."""
    difference_BT = inside(upper_BT, mask_BT) - inside(lower_BT, mask_BT)
    return difference_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
