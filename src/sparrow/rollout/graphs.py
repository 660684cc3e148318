"""CUDA graphs of decode steps: one per bucket of rows and pages, kept while weights and cache stay in place.

A graph replays addresses. Parameters keep theirs through optimizer steps, casts are rewritten in place, and the budget
table is written in place too, so a new schedule of the same geometry needs no capture. Whatever does move (a pool
that was released, a model loaded anew) is noticed by its address, and everything is captured again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from sparrow.rollout.block import BlockShape, StepBlock
from sparrow.rollout.draw import Draw
from sparrow.rollout.pool import PagePool
from sparrow.schedule import BudgetTable

LEAST_PAGES = 32
"""Narrowest page table of a bucket."""

MOST_GRAPHS = 64
"""Graphs kept; more than a call's buckets come to. With one more all go: calls that differ in how they draw, or in how
long their page sets are, would add theirs for ever."""

WARM_UPS = 2
"""Steps on padding before a capture: they compile kernels and allocate what stays."""


@dataclass(frozen=True)
class Call:
    """What the graphs of one call depend on besides its shapes.

    Attributes:
        weights: what the decoder computes with.
        pool: the cache.
        table: page budgets.
        draw: how tokens are drawn and what is kept.
        stop_ids: token ids that end a response.
        adapter: whether LoRA branches take part.
    """

    weights: Any
    pool: PagePool
    table: BudgetTable
    draw: Draw
    stop_ids: frozenset[int]
    adapter: bool


def bucket(size: int, least: int = 1) -> int:
    """The power of two that ``size`` is rounded up to."""
    return max(least, 1 << max(0, size - 1).bit_length())


class CapturedBlock:
    """A block whose step is one launch.

    Args:
        block: the block; its rows are all padding while it is captured, so the cache stays as it is.
        memory: the pool that all graphs of an engine share.
    """

    def __init__(self, block: StepBlock, memory: Any) -> None:
        self.block = block
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                block.rehearse()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # Reward workers may use the device from other threads meanwhile.
        with torch.cuda.graph(self.graph, pool=memory, capture_error_mode="thread_local"):
            block.step()
        block.advance = self.graph.replay  # type: ignore[method-assign]


class StepGraphs:
    """The captured blocks of an engine.

    Attributes:
        captured: graphs captured so far.
        seconds: time that took.
    """

    def __init__(self) -> None:
        self.captured, self.seconds = 0, 0.0
        self._held: tuple[Any, ...] | None = None
        self._blocks: dict[tuple[Any, ...], CapturedBlock] = {}
        self._memory: Any = None

    def clear(self) -> None:
        """Let go of all graphs, and of the cache and the weights they hold."""
        self._held, self._memory = None, None
        self._blocks.clear()

    def begin(self, call: Call) -> None:
        """Let go of the graphs of other weights or another cache. Once a call: the addresses take milliseconds."""
        held = (*addresses(call.weights), *(x.data_ptr() for x in _tensors(call.pool)), id(call.table))
        if held != self._held:
            self.clear()
            self._held, self._memory = held, torch.cuda.graph_pool_handle()

    def block(self, call: Call, shape: BlockShape, make: Callable[[], StepBlock]) -> StepBlock:
        """The captured block of a shape, in a call that has begun; ``make`` gives a new one to capture."""
        key = (shape, call.draw, call.stop_ids, call.adapter)
        if key not in self._blocks:
            if len(self._blocks) >= MOST_GRAPHS:
                self._blocks.clear()
            started = time.perf_counter()
            self._blocks[key] = CapturedBlock(make(), self._memory)
            torch.cuda.synchronize()
            self.seconds += time.perf_counter() - started
            self.captured += 1
        return self._blocks[key].block


def addresses(weights: Any) -> tuple[Any, ...]:
    """Where all tensors of nested dataclasses and tuples lie, and the numbers beside them, which a graph bakes in."""
    if isinstance(weights, Tensor):
        return (weights.data_ptr(), weights.dtype, tuple(weights.shape))
    if isinstance(weights, tuple):
        return tuple(found for entry in weights for found in addresses(entry))
    if is_dataclass(weights):
        return tuple(found for field in fields(weights) for found in addresses(getattr(weights, field.name)))
    return (weights,) if isinstance(weights, int | float | str) else ()


def _tensors(pool: PagePool) -> list[Tensor]:
    return [*pool.keys, *pool.values, *(landmarks for landmarks in pool.landmarks if landmarks is not None)]
