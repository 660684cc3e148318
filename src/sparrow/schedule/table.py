"""A schedule as one integer tensor on the device, so that changing it needs no recompilation and no new capture."""

import torch
from torch import Tensor

from sparrow.schedule.budget import BudgetSchedule

MAX_BINS = 64
"""Bins the device table has room for: fixed, so that its address and shape never change."""


class BudgetTable:
    """Looks up ``pages(t)`` for many sequences at once.

    Args:
        schedule: the schedule to hold.
        device: where the lookup runs.

    Raises:
        ValueError: the schedule has more bins than the table has room for, or :meth:`load` would change a geometry
            (page size, reserved pages, dense layers) that the cache was laid out for.
    """

    def __init__(self, schedule: BudgetSchedule, device: torch.device | str = "cpu") -> None:
        self.schedule = schedule
        self._table_Q = torch.zeros(MAX_BINS, dtype=torch.int32, device=device)
        self._bin_tokens = torch.ones((), dtype=torch.int64, device=device)
        self.load(schedule)

    def load(self, schedule: BudgetSchedule) -> None:
        """Take over another schedule in place."""
        if schedule.num_bins > MAX_BINS:
            raise ValueError(f"schedule has {schedule.num_bins} bins: at most {MAX_BINS} are supported")
        for key in ("page_size", "first", "last", "dense_layers"):
            held, new = getattr(self.schedule, key), getattr(schedule, key)
            if held != new:
                raise ValueError(f"schedule {key}={new!r} does not fit the running cache, laid out for {held!r}")
        padded = schedule.table + schedule.table[-1:] * (MAX_BINS - schedule.num_bins)
        self._table_Q.copy_(torch.tensor(padded, dtype=torch.int32))
        self._bin_tokens.fill_(schedule.bin_tokens)
        self.schedule = schedule

    def budget(self, cached_B: Tensor) -> Tensor:
        """Scored pages per sequence, reserved ones not counted: int32 [B] for cached token counts [B]."""
        page = self.schedule.page_size
        rounded_B = (cached_B.long() + (page - 1)) // page * page
        bin_B = (rounded_B // self._bin_tokens).clamp_(max=MAX_BINS - 1)
        return self._table_Q[bin_B]
