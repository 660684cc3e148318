"""Timing that can be compared: all candidates in one process, in turns, with cold caches, medians.

A number taken alone says little: clocks, other processes and the state of the caches move it by more than what is to
be shown. So candidates run in rounds, each round once through all of them from another start, and before each call a
buffer larger than the last cache is read. In a model every layer has its own pages, which the weights and pages of
the layers between two visits have pushed out; a warm cache would flatter what reads little. Overwriting the buffer
instead would leave the cache full of lines that have yet to be written back, and the candidate would pay for that. On
a CPU the reading pushes out the code as well, which in a model the layer before has just run: a candidate that goes
through several caches in turn (`InTurn`) visits the last of them before the clock starts.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

Candidate = Callable[[], object]
Name = TypeVar("Name")


@dataclass(frozen=True)
class InTurn:
    """The same call on several sets of data, one after the other, as the layers of a model make it.

    Attributes:
        calls: one per set; the time of one is that of all over their number.
    """

    calls: tuple[Candidate, ...]

    def __call__(self) -> None:
        """Make all calls."""
        for call in self.calls:
            call()


@dataclass(frozen=True)
class Timing:
    """Seconds of each call of one candidate."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one: half of the calls took longer."""
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        """The least."""
        return min(self.seconds)

    @property
    def slowest(self) -> float:
        """The greatest."""
        return max(self.seconds)


@dataclass(frozen=True)
class Measured:
    """Timings by candidate, and for those that could not run, why."""

    timings: dict[str, Timing]
    failures: dict[str, str]


class Clock:
    """Times single calls on one device.

    Args:
        device: CUDA calls are timed by events on the stream, CPU calls by the wall clock.
        flush_mib: size of the buffer that is read before each call; 0: caches stay warm.
    """

    def __init__(self, device: torch.device, flush_mib: int) -> None:
        self.device = device
        # Written once: memory that nobody wrote to is one page of zeros, however large.
        self._buffer: Tensor = torch.ones(flush_mib << 18, device=device)

    def time(self, candidate: Candidate) -> float:
        """Seconds of one call; of several in turn, their mean."""
        self._buffer.sum()
        calls = 1
        if isinstance(candidate, InTurn):
            calls = len(candidate.calls)
            candidate.calls[-1]()
        if self.device.type == "cuda":
            return self._time_events(candidate) / calls
        start = time.perf_counter()
        candidate()
        return (time.perf_counter() - start) / calls

    def _time_events(self, candidate: Candidate) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        candidate()
        end.record()
        torch.cuda.synchronize(self.device)
        return float(start.elapsed_time(end)) / 1000


def interleave(
    candidates: Mapping[str, Candidate], clock: Clock, *, repeats: int, warmup: int, budget_s: float = math.inf
) -> Measured:
    """Time all candidates in turns.

    Args:
        candidates: calls by name.
        clock: times one call.
        repeats: rounds that count.
        warmup: calls of each candidate before, which compile and allocate.
        budget_s: time for the calls of one candidate; a slow one sits out the last rounds, from the fourth on.

    Returns:
        Timings of those that ran. One that runs out of memory while warming up is left out with its reason.
    """
    failures: dict[str, str] = {}
    rounds: dict[str, int] = {}
    for name, candidate in candidates.items():
        try:
            warm = [clock.time(candidate) for _ in range(warmup)]
            calls = len(candidate.calls) if isinstance(candidate, InTurn) else 1
            rounds[name] = _affordable([seconds * calls for seconds in warm], repeats, budget_s)
        except torch.OutOfMemoryError as error:
            failures[name] = f"out of memory: {str(error).splitlines()[0]}"
    names = [name for name in candidates if name not in failures]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in rotated([name for name in names if turn < rounds[name]], turn):
            seconds[name].append(clock.time(candidates[name]))
    return Measured({name: Timing(tuple(taken)) for name, taken in seconds.items()}, failures)


def _affordable(warm: Sequence[float], repeats: int, budget_s: float) -> int:
    """Rounds that fit the budget by the last warm-up call, at least three of those asked for."""
    if not warm or math.isinf(budget_s):
        return repeats
    return min(repeats, max(3, int(budget_s / max(warm[-1], 1e-9))))


def rotated(names: list[Name], turn: int) -> list[Name]:
    """The same names starting at another one each turn, so that none always follows the same neighbour's start."""
    start = turn % len(names) if names else 0
    return names[start:] + names[:start]
