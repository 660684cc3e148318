"""The tail of acceptance along the sequence: the quantity that decides whether sparse rollouts train stably.

Alpha is pooled by position into fixed histograms, one per bin of sequence length. Counts add up, so ranks, shards and
steps merge exactly. Exact alpha and its estimators read different numbers on the same pair: each gets its own
instance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sparrow.metrics.functional.quantiles import histogram, histogram_quantile, unit_centres, unit_edges

FILLED_MINIMUM = 1000
"""Tokens from which a bin is judged."""

ROUNDING = 1e-3
"""Alpha may pass 1 (or 0) by this much through rounding; it is then set to 1 (or 0)."""


def quantile_name(quantile: float) -> str:
    """Key of a quantile: 0.05 -> "p05"."""
    return f"p{round(quantile * 100):02d}"


def least_filled(quantiles: Tensor, counts: Tensor, minimum: int) -> Tensor:
    """Least value over bins with at least `minimum` tokens; NaN when none is."""
    filled = quantiles[counts >= minimum]
    return filled.min() if len(filled) else torch.full((), torch.nan, dtype=quantiles.dtype)


class TailAcceptance(Metric):
    """Mean, low quantiles and minimum of alpha, and one quantile per bin of sequence length.

    A token at position `t` (cached tokens of the query that predicted it, rounded up to full pages if the bins are to
    match a schedule's) counts in bin `min(t // bin_tokens, num_bins - 1)`.

    Args:
        quantile: level of the per-bin statistic.
        bin_tokens: width of a bin in tokens.
        num_bins: number of bins; the last one is open.

    >>> tail = TailAcceptance(bin_tokens=2, num_bins=2)
    >>> tail.update(torch.tensor([1.0, 0.5, 0.75]), torch.tensor([0, 1, 9]))
    >>> tail.compute()["count_bins"]
    tensor([2, 1])
    """

    full_state_update = False
    is_differentiable = False
    counts: Tensor
    sums: Tensor
    least: Tensor

    def __init__(self, quantile: float = 0.05, bin_tokens: int = 2000, num_bins: int = 20, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 < quantile < 1:
            raise ValueError(f"quantile is {quantile}; allowed: above 0, below 1")
        for name, value in (("bin_tokens", bin_tokens), ("num_bins", num_bins)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.quantile, self.bin_tokens, self.num_bins = quantile, bin_tokens, num_bins
        empty = torch.zeros(num_bins, len(unit_edges()), dtype=torch.int64)
        self.add_state("counts", empty, dist_reduce_fx="sum")
        self.add_state("sums", torch.zeros(num_bins, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("least", torch.full((), torch.inf, dtype=torch.float64), dist_reduce_fx="min")

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """TorchMetrics squeezes every tensor of one element; the value of a single bin must stay a list of bins."""
        squeezed = super()._wrap_compute(compute)

        @functools.wraps(compute)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            found = squeezed(*arguments, **options)
            return {name: value.reshape(-1) if name.endswith("_bins") else value for name, value in found.items()}

        return wrapped

    def update(self, alpha: Tensor, position: Tensor, mask: Tensor | None = None) -> None:
        """Count some tokens.

        Args:
            alpha: acceptance in [0, 1], any shape.
            position: the same shape, integers >= 0.
            mask: bool, the same shape: tokens to count. What lies outside is not read.

        Raises:
            ValueError: shapes differ, or a counted alpha or position is not in its range.
        """
        mask = torch.ones_like(alpha, dtype=torch.bool) if mask is None else mask
        if not alpha.shape == position.shape == mask.shape:
            raise ValueError(
                f"shapes differ: alpha {tuple(alpha.shape)}, position {tuple(position.shape)}, mask {tuple(mask.shape)}"
            )
        values, where = alpha.detach()[mask].double(), position[mask].long()
        self._check(values, where)
        values = values.clamp(0.0, 1.0)
        row = (where // self.bin_tokens).clamp(max=self.num_bins - 1)
        device = self.counts.device
        sums = torch.zeros(self.num_bins, dtype=torch.float64, device=values.device).index_add(0, row, values)
        self.counts = self.counts + histogram(values, unit_edges(), row, self.num_bins).to(device)
        self.sums = self.sums + sums.to(device)
        if len(values):
            self.least = torch.minimum(self.least, values.min().to(device))

    def compute(self) -> dict[str, Tensor]:
        """`mean`, `p01`, `p05`, `p10`, `min` over all tokens; `p05_bins` (named after `quantile`) and `count_bins`.

        Empty bins, and everything when nothing was counted, read NaN.
        """
        pooled, number = self.counts.sum(0), self.counts.sum()
        result = {"mean": self.sums.sum() / number}
        for level in (0.01, 0.05, 0.10):
            result[quantile_name(level)] = histogram_quantile(pooled, level, unit_centres())
        result["min"] = torch.where(number > 0, self.least, torch.nan)
        result[f"{quantile_name(self.quantile)}_bins"] = self.quantile_bins()
        result["count_bins"] = self.count_bins()
        return result

    def quantile_bins(self) -> Tensor:
        """The quantile of each bin, float64 [Q]; NaN where a bin is empty. Of this process's tokens."""
        return histogram_quantile(self.counts, self.quantile, unit_centres())

    def count_bins(self) -> Tensor:
        """Tokens of each bin, int64 [Q]. Of this process's tokens."""
        return self.counts.sum(-1)

    def filled(self, minimum: int = FILLED_MINIMUM) -> Tensor:
        """Bool [Q]: bins with enough tokens to be judged."""
        return self.count_bins() >= minimum

    def fraction_below(self, threshold: float) -> Tensor:
        """Share of tokens whose alpha lies below `threshold`, to the width of a bin (0.0005)."""
        below = unit_centres().to(self.counts.device) < threshold
        return self.counts[:, below].sum() / self.counts.sum().double()

    def merge(self, other: TailAcceptance) -> None:
        """Add the tokens of another shard.

        Raises:
            ValueError: the bins differ.
        """
        for name in ("quantile", "bin_tokens", "num_bins"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"cannot merge: {name} is {getattr(self, name)} here, {getattr(other, name)} there")
        device = self.counts.device
        self.counts = self.counts + other.counts.to(device)
        self.sums = self.sums + other.sums.to(device)
        self.least = torch.minimum(self.least, other.least.to(device))
        self._update_count += other._update_count  # else an own `update` would be missed at `compute`
        self._computed = None

    def _check(self, values: Tensor, where: Tensor) -> None:
        bad = ~((values >= -ROUNDING) & (values <= 1 + ROUNDING))
        if bool(bad.any()):
            index = int(bad.nonzero()[0])
            raise ValueError(f"alpha is {values[index].item()} at position {int(where[index])}; allowed: 0 .. 1")
        if bool((where < 0).any()):
            raise ValueError(f"position is {int(where.min())}; it must be at least 0")
