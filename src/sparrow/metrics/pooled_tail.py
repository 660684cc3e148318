"""The tail over the last few steps: one step's bin can be thin, ten steps' bins are not."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparrow.metrics.functional.quantiles import histogram_quantile, unit_centres
from sparrow.metrics.tail_acceptance import FILLED_MINIMUM, TailAcceptance, least_filled


class PooledTail:
    """Sum of the histograms of the last `window` steps.

    Args:
        window: steps to pool.
        quantile: level of the statistic.

    >>> pooled, tail = PooledTail(window=2), TailAcceptance(num_bins=1)
    >>> for alpha in (0.5, 0.75, 1.0):
    ...     tail.update(torch.full((4,), alpha), torch.zeros(4))
    ...     pooled.append(tail)
    ...     tail.reset()
    >>> pooled.count_bins()
    tensor([8])
    >>> round(pooled.p05_min(minimum=8).item(), 3)
    0.75
    """

    def __init__(self, window: int = 10, quantile: float = 0.05) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; it must be at least 1")
        self.window, self.quantile = window, quantile
        self._steps: deque[Tensor] = deque(maxlen=window)

    def append(self, tail: TailAcceptance) -> None:
        """Add one step's tokens, those of all ranks (a collective call when training is distributed)."""
        with tail.sync_context():
            self._steps.append(tail.counts.detach().cpu().clone())

    def counts(self) -> Tensor:
        """Pooled histograms, int64 [Q, grid].

        Raises:
            ValueError: no step was appended yet.
        """
        if not self._steps:
            raise ValueError("no step was appended to PooledTail yet")
        return torch.stack(list(self._steps)).sum(0)

    def count_bins(self) -> Tensor:
        """Tokens of each bin over the window, int64 [Q]."""
        return self.counts().sum(-1)

    def quantile_bins(self) -> Tensor:
        """The quantile of each bin over the window, float64 [Q]; NaN where a bin is empty."""
        return histogram_quantile(self.counts(), self.quantile, unit_centres())

    def p05_min(self, minimum: int = FILLED_MINIMUM) -> Tensor:
        """`tail_p05_min`: the least quantile over bins with at least `minimum` tokens; NaN when there is none."""
        return least_filled(self.quantile_bins(), self.count_bins(), minimum)

    def forget(self, bins: Sequence[int]) -> None:
        """Empty some bins; the others keep what was pooled."""
        kept = torch.ones(len(self._steps[0]), 1, dtype=torch.int64) if self._steps else torch.ones(0, 1)
        kept[list(bins)] = 0
        self._steps = deque((counts * kept for counts in self._steps), maxlen=self.window)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"steps": list(self._steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._steps = deque(state["steps"], maxlen=self.window)
