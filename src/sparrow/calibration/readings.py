"""Sequences read again under other budgets: alpha of every token against the dense policy on the same prefix."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparrow.calibration.agreement import Alphas, agreement
from sparrow.calibration.choose import Path
from sparrow.calibration.segment import Past, Segment, SegmentForward
from sparrow.calibration.traces import Trace
from sparrow.schedule import ALL_PAGES, ESTIMATORS, BudgetSchedule


@dataclass(frozen=True)
class Bins:
    """Length bins of a schedule, and which queries fall into each.

    Attributes:
        page_size: tokens per page; positions count in whole pages.
        bin_tokens: width.
        num_bins: number; the last one is open.
    """

    page_size: int
    bin_tokens: int
    num_bins: int

    def start(self, index: int) -> int:
        """Index of the first query of a bin: the least t - 1 with ceil(t / page) * page >= index * width."""
        return max(0, -(-index * self.bin_tokens // self.page_size) - 1) * self.page_size

    def pages(self, index: int) -> int:
        """Most pages that a sequence has in a bin."""
        return ((index + 1) * self.bin_tokens - 1) // self.page_size

    def position(self, start: int, stop: int) -> Tensor:
        """Positions (t in whole pages) of the queries start .. stop - 1."""
        return (torch.arange(start + 1, stop + 1) + self.page_size - 1) // self.page_size * self.page_size


class TeacherForced:
    """Traces under budget paths, with shared work: one dense pass a trace, forks of the cache, and nothing twice.

    A budget that covers a bin makes it dense there, so a path is computed only from where it leaves the dense one.

    Args:
        forward: the policy.
        traces: sequences, each with the same token ids under every budget.
        geometry: page size, reserved pages and dense layers; its table is not read.
        bins: length bins.
        temperature: of the distributions.
    """

    def __init__(
        self,
        forward: SegmentForward,
        traces: Sequence[Trace],
        geometry: BudgetSchedule,
        bins: Bins,
        temperature: float,
    ) -> None:
        self.forward, self.traces, self.geometry, self.bins = forward, traces, geometry, bins
        self.temperature = temperature
        self._dense: list[list[tuple[Segment, Tensor]]] = [[] for _ in traces]
        self._kept: dict[tuple[int, Path], Segment] = {}
        self._alphas: dict[tuple[int, Path], Alphas] = {}
        self.tokens_run = 0
        """Tokens put through the model so far: what the sharing saves shows here."""

    def normalised(self, path: Path) -> Path:
        """The path with every budget that covers its bin written as all pages."""
        return tuple(
            ALL_PAGES if pages + self.geometry.reserved >= self._most_pages(index) else pages
            for index, pages in enumerate(path)
        )

    def under(self, geometry: BudgetSchedule) -> "TeacherForced":
        """The same traces with other pages; the dense passes are shared, and bins stay where they are."""
        other = TeacherForced(self.forward, self.traces, geometry, self.bins, self.temperature)
        other._dense = self._dense
        return other

    def alphas(self, trace: int, paths: Sequence[Path]) -> list[Alphas]:
        """Alpha of a trace's response tokens in the last bin of each path; all paths have the same length."""
        paths = [self.normalised(path) for path in paths]
        wanted = list(dict.fromkeys(path for path in paths if (trace, path) not in self._alphas))
        if wanted:
            index = len(wanted[0]) - 1
            start, stop = self.span(trace, index)
            first = max(self.traces[trace].prompt_len - start, 0)
            if first < stop - start:
                hidden = [self._hidden(trace, path)[first:] for path in wanted]
                dense_XE = self._dense_until(trace, index)[index][1][first:]
                found = agreement(dense_XE, hidden, self.forward.weights.head_VE, self.temperature)
            else:  # the trace has no response token there, and nothing is run for it
                found = [{name: torch.zeros(0) for name in ESTIMATORS} for _ in wanted]
            self._alphas |= {(trace, path): alphas for path, alphas in zip(wanted, found, strict=True)}
        return [self._alphas[trace, path] for path in paths]

    def positions(self, trace: int, index: int) -> Tensor:
        """Positions that belong to :meth:`alphas` of bin ``index``."""
        start, stop = self.span(trace, index)
        return self.bins.position(min(max(start, self.traces[trace].prompt_len), stop), stop)

    def span(self, trace: int, index: int) -> tuple[int, int]:
        """Queries of a trace in a bin, as (first, end): the last token of a trace is never a query."""
        queries = len(self.traces[trace].tokens_T) - 1
        last = index == self.bins.num_bins - 1
        stop = queries if last else min(self.bins.start(index + 1), queries)
        return min(self.bins.start(index), stop), stop

    def keep_only(self, paths: Sequence[Path], traces: Sequence[int] | None = None) -> None:
        """Free the caches that no given path goes through (of the given traces, or all)."""
        prefixes = {self.normalised(path)[:end] for path in paths for end in range(len(path) + 1)}
        chosen = set(range(len(self.traces)) if traces is None else traces)
        self._kept = {key: segment for key, segment in self._kept.items() if key[0] not in chosen or key[1] in prefixes}

    def _hidden(self, trace: int, path: Path) -> Tensor:
        if all(pages == ALL_PAGES for pages in path):
            return self._dense_until(trace, len(path) - 1)[len(path) - 1][1]
        return self._extend(trace, path)[1]

    def _extend(self, trace: int, path: Path) -> tuple[Segment, Tensor]:
        start, stop = self.span(trace, len(path) - 1)
        budget = self.geometry.replace(pages=[path[-1]])
        segment, hidden_XE = self._run(trace, self._past(trace, path[:-1]), start, stop, budget)
        self._kept[trace, path] = segment
        return segment, hidden_XE

    def _past(self, trace: int, path: Path) -> Past:
        past: list[Segment] = []
        for end in range(1, len(path) + 1):
            prefix = path[:end]
            if all(pages == ALL_PAGES for pages in prefix):
                past.append(self._dense_until(trace, end - 1)[end - 1][0])
            elif (trace, prefix) in self._kept:
                past.append(self._kept[trace, prefix])
            else:
                past.append(self._extend(trace, prefix)[0])
        return tuple(past)

    def _dense_until(self, trace: int, index: int) -> list[tuple[Segment, Tensor]]:
        held = self._dense[trace]
        while len(held) <= index:
            start, stop = self.span(trace, len(held))
            past = tuple(segment for segment, _ in held)
            held.append(self._run(trace, past, start, stop, self.geometry.replace(pages=[ALL_PAGES])))
        return held

    def _run(self, trace: int, past: Past, start: int, stop: int, budget: BudgetSchedule) -> tuple[Segment, Tensor]:
        self.tokens_run += stop - start
        held = self.traces[trace]
        return self.forward.extend(past, held.tokens_T[start:stop].to(self._device), held.prompt_len, budget)

    def _most_pages(self, index: int) -> int:
        """Most pages, of the geometry's size, that any trace has in a bin."""
        most = max(self.span(trace, index)[1] for trace in range(len(self.traces)))
        return -(-most // self.geometry.page_size)

    @property
    def _device(self) -> torch.device:
        return self.forward.weights.embed_VE.device
