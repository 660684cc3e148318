"""The cheapest monotone schedule that holds tau in every bin: bin by bin, on the cache that earlier choices left."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparrow.evaluation.intervals import Estimate
from sparrow.schedule import ALL_PAGES

Path = tuple[int, ...]
"""Pages of bins 0, 1, ...; the last entry is the one in question."""


@dataclass(frozen=True)
class Trial:
    """One budget tried in one bin.

    Attributes:
        path: pages of the bins before it, and its own.
        value: the tail statistic over all tokens of the bin.
        low: lower end of its interval over prompts; this is what must hold tau.
        high: upper end.
        holds: whether it does.
    """

    path: Path
    value: float
    low: float
    high: float
    holds: bool

    @property
    def index(self) -> int:
        """The bin."""
        return len(self.path) - 1

    @property
    def pages(self) -> int:
        """The budget tried there."""
        return self.path[-1]


@dataclass(frozen=True)
class Choice:
    """A schedule's table and how it came about.

    Attributes:
        pages: budget per bin, up to the last filled one.
        trials: every budget that was tried, in order; per bin the last one was taken.
        first_filled: bins before this one held too few tokens and take its budget.
    """

    pages: Path
    trials: tuple[Trial, ...]
    first_filled: int

    @property
    def holds(self) -> bool:
        """Whether every filled bin holds tau."""
        return all(self.taken(index).holds for index in range(self.first_filled, len(self.pages)))

    def taken(self, index: int) -> Trial:
        """The trial that decided a filled bin."""
        return [trial for trial in self.trials if trial.index == index][-1]

    def refused(self, index: int) -> Trial | None:
        """The largest smaller budget that was tried in a bin and failed; None where monotony alone set the budget."""
        smaller = [trial for trial in self.trials if trial.index == index and trial.pages < self.pages[index]]
        return smaller[-1] if smaller else None


def choose_bin_by_bin(
    read: Callable[[Path], Estimate | None], grid: Sequence[int], num_bins: int, tau: float
) -> Choice:
    """Take in each bin the least budget, not below the bin's before, whose interval lies above tau.

    Budgets are tried from below, so all smaller ones that monotony allows have failed. Where none on the grid holds,
    every page is read; if even that fails, the trial says so.

    Args:
        read: the tail of the last bin of a path and its interval; None where the bin is not filled.
        grid: budgets, ascending.
        num_bins: bins there are.
        tau: what the lower end of the interval must reach.

    Raises:
        ValueError: no bin is filled.
    """
    path: Path = ()
    trials: list[Trial] = []
    first_filled: int | None = None
    for index in range(num_bins):
        floor = path[-1] if path and first_filled is not None else 0
        candidates = [pages for pages in (*grid, ALL_PAGES) if pages >= floor]
        for pages in candidates:
            # Bins that were not filled before the first filled one share its budget.
            candidate = (*path, pages) if first_filled is not None else (pages,) * (index + 1)
            estimate = read(candidate)
            if estimate is None:
                break
            holds = estimate.low >= tau
            trials.append(Trial(candidate, estimate.value, estimate.low, estimate.high, holds))
            if holds or pages == candidates[-1]:
                path, first_filled = candidate, index if first_filled is None else first_filled
                break
        if estimate is None and first_filled is not None:
            break
    if first_filled is None:
        raise ValueError("no bin is filled; allowed: more prompts or samples, longer responses, or a smaller `filled`")
    return Choice(path, tuple(trials), first_filled)


def propose_from_constants(constants: Mapping[int, Sequence[Estimate | None]], tau: float, num_bins: int) -> Path:
    """The schedule that constant budgets suggest, each bin read as if the budget had been the same all along.

    Args:
        constants: pages -> estimate per bin, None where the bin is not filled.
        tau: what the lower end of the interval must reach.
        num_bins: bins of the table.
    """
    path: Path = ()
    for index in range(num_bins):
        floor = path[-1] if path else 0
        readings = [(pages, constants[pages][index]) for pages in sorted(constants) if pages >= floor]
        holding = [pages for pages, estimate in readings if estimate is None or estimate.low >= tau]
        path = (*path, holding[0] if holding else ALL_PAGES)
    # Bins that were not filled before the first filled one share its budget, as in `choose_bin_by_bin`.
    filled = [index for index in range(num_bins) if any(curve[index] is not None for curve in constants.values())]
    first = filled[0] if filled else 0
    return path[first : first + 1] * first + path[first:]
