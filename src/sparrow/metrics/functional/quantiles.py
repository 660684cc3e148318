"""Quantiles from fixed histograms: constant memory, and shards merge by adding counts.

The grid of [0, 1] is made for acceptance: bins of 0.0005 up to 0.999, 25 a decade from there to 1 - 1e-8, one for 1
itself. An order statistic always lies in the bin its rank falls into, so a quantile is right to half a bin's width
(0.00025), at whatever level and for whatever distribution; near 1 much closer.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

COARSE_WIDTH = 0.0005
FINE_FROM = 0.999
FINE_TO_EXPONENT = 8
FINE_PER_DECADE = 25


@lru_cache(maxsize=1)
def unit_edges() -> Tensor:
    """Lower edges of the bins of [0, 1], ascending, float64 [grid]; the last bin holds 1 (to within 1e-8)."""
    coarse = torch.arange(round(FINE_FROM / COARSE_WIDTH), dtype=torch.float64, device="cpu") * COARSE_WIDTH
    steps = torch.arange((FINE_TO_EXPONENT - 3) * FINE_PER_DECADE + 1, dtype=torch.float64, device="cpu")
    return torch.cat([coarse, 1 - 10 ** (-3 - steps / FINE_PER_DECADE)])


@lru_cache(maxsize=1)
def unit_centres() -> Tensor:
    """The value that stands for each bin of `unit_edges`: its middle, and 1 for the last."""
    edges = unit_edges()
    return torch.cat([(edges[1:] + edges[:-1]) / 2, torch.ones(1, dtype=torch.float64, device="cpu")])


@lru_cache(maxsize=1)
def log_ratio_edges() -> Tensor:
    """Lower edges for log-ratios in [-20, 20]: 0.0005 wide near 0, growing by 0.5 % of |x|; float64 [grid]."""
    steps = torch.arange(2200, dtype=torch.float64, device="cpu")
    positive = 0.1 * torch.expm1(0.005 * steps)
    positive = positive[positive <= 21.0]
    return torch.cat([-positive.flip(0), positive[1:]])


@lru_cache(maxsize=1)
def log_ratio_centres() -> Tensor:
    """The value that stands for each bin of `log_ratio_edges`."""
    edges = log_ratio_edges()
    return torch.cat([(edges[1:] + edges[:-1]) / 2, edges[-1:]])


def histogram(values: Tensor, edges: Tensor, row: Tensor | None = None, num_rows: int = 1) -> Tensor:
    """Counts of `values` in the bins that start at `edges`, one histogram per row.

    Args:
        values: [X], each at or above the first edge (a smaller one counts in the first bin).
        edges: ascending lower edges, float64 [grid].
        row: int64 [X], the histogram each value goes to; None: all to one.
        num_rows: number of histograms.

    Returns:
        int64 [num_rows, grid].

    >>> histogram(torch.tensor([0.1, 0.6, 0.7]), torch.tensor([0.0, 0.5], dtype=torch.float64))
    tensor([[1, 2]])
    """
    edges = edges.to(values.device)
    index = torch.bucketize(values.double(), edges[1:].contiguous(), right=True)
    if row is not None:
        index = index + row * len(edges)
    return torch.bincount(index, minlength=num_rows * len(edges)).reshape(num_rows, len(edges))


def histogram_quantile(counts: Tensor, quantile: float, centres: Tensor) -> Tensor:
    """Quantile of each histogram, defined as `torch.quantile` does (linear between order statistics).

    Args:
        counts: int64 [..., grid].
        quantile: in [0, 1].
        centres: value of each bin, [grid].

    Returns:
        float64 [...]; NaN where a histogram is empty.

    Raises:
        ValueError: quantile outside [0, 1].

    >>> counts = torch.tensor([[1, 1, 0], [0, 0, 0]])
    >>> histogram_quantile(counts, 0.25, torch.tensor([0.0, 1.0, 2.0]))
    tensor([0.2500,    nan], dtype=torch.float64)
    """
    if not 0 <= quantile <= 1:
        raise ValueError(f"quantile is {quantile}; allowed: 0 .. 1")
    centres = centres.to(counts.device, torch.float64)
    cumulated = counts.cumsum(-1)
    size = cumulated[..., -1:]
    rank = quantile * (size - 1).clamp(min=0).double()
    below = rank.floor()
    ranks = torch.cat([below, torch.minimum(below + 1, (size - 1).clamp(min=0).double())], -1).long()
    index = torch.searchsorted(cumulated, ranks, right=True).clamp(max=len(centres) - 1)
    low, high = centres[index].unbind(-1)
    value = low + (rank - below).squeeze(-1) * (high - low)
    return torch.where(size.squeeze(-1) > 0, value, torch.nan)
