"""A call that looks at its sequences every few tokens, as a GPU wants it: between two looks nothing waits for the host.

Tokens, records and counters are those of `sparrow.rollout.loop`, which looks at every token. What differs is when
the host learns that a sequence has ended: until the end of its block it keeps its rows and pages.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sparrow.rollout.block import BlockShape, BlockStart, StepBlock
from sparrow.rollout.completion import RolloutStats
from sparrow.rollout.decoder import Decoder
from sparrow.rollout.graphs import LEAST_PAGES, Call, StepGraphs, bucket
from sparrow.rollout.loop import Rollout
from sparrow.rollout.scheduler import IntArray


class BlockRollout(Rollout):
    """A rollout in blocks of decode steps.

    Args:
        *arguments: see :class:`Rollout`.
        poll_every: most decode steps between two looks of the host.
        graphs: where captured steps are kept; None: steps run eagerly.
        make_decoder: called with ``max_tokens``, the forward pass for sequences up to there; a captured step keeps its
            own.
        **options: see :class:`Rollout`.
    """

    def __init__(
        self,
        *arguments: Any,
        poll_every: int,
        graphs: StepGraphs | None,
        make_decoder: Callable[..., Decoder],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.poll_every, self.graphs, self.make_decoder = poll_every, graphs, make_decoder
        self._count = np.ones_like(self._limit)  # per slot: tokens that this block feeds
        weights, adapter = self.decoder.weights, self.decoder.adapter
        self._call = Call(weights, self.pool, self.table, self.draw, self.request.eos_token_ids, adapter)
        self._captured = (0, 0.0)
        if graphs is not None:
            graphs.begin(self._call)
            self._captured = (graphs.captured, graphs.seconds)

    def _plan(self) -> IntArray:
        # The last token of a sequence is drawn and never fed.
        self._count = np.clip(self._limit - self.scheduler.cached - 1, 1, self.poll_every)
        return self.scheduler.plan(self._count)

    def _decode(self, slots: IntArray) -> None:
        """Up to ``poll_every`` tokens more for each of ``slots``, then what the host has to know of them."""
        count_B = self._count[slots]
        cached_B = self.scheduler.cached[slots] - count_B
        start = BlockStart(self._token[slots], self._stream[slots], cached_B, count_B, self.scheduler.page_table[slots])
        steps = int(count_B.max())
        fields = self._block(cached_B, count_B).run(start, steps)
        running_B = np.ones(slots.size, dtype=np.bool_)
        for place in range(steps):
            rows = np.flatnonzero(running_B & (count_B > place))
            if not rows.size:
                break
            cached = cached_B[rows] + place + 1
            self._count_step(rows.size)
            self._count_reads(cached, *self._pages(cached))
            kept = {name: values[place][rows] for name, values in fields.items()}
            running_B[rows[self._take(slots[rows], cached, kept)]] = False
        self._finish(slots[~running_B])

    def _block(self, cached_B: IntArray, count_B: IntArray) -> StepBlock:
        """The rows of a block from ``cached_B`` tokens on: captured, or as large as this block needs."""
        if self.graphs is not None:
            return self._captured_block(cached_B.size, int((cached_B + count_B).max()))
        # Every length that a sequence passes through, but never more than its last.
        place = np.minimum(np.arange(1, self.poll_every + 1), count_B[:, None])
        pages, read = self._pages((cached_B[:, None] + place).reshape(-1))
        max_pages = int(read.max()) if (read < pages).any() else 0
        shape = BlockShape(self.decoder.padded_rows(cached_B.size), int(pages.max()), max_pages, self.poll_every)
        return self._new_block(shape, self.decoder)

    def _captured_block(self, sequences: int, longest: int) -> StepBlock:
        assert self.graphs is not None
        page_size, schedule = self.pool.page_size, self.table.schedule
        pages = bucket(-(-longest // page_size), LEAST_PAGES)
        sparse = any(landmarks is not None for landmarks in self.pool.landmarks) and not schedule.is_dense
        max_pages = min(pages, bucket(min(pages, max(schedule.table) + schedule.reserved))) if sparse else 0
        shape = BlockShape(bucket(sequences), pages, max_pages, self.poll_every)
        return self.graphs.block(
            self._call, shape, lambda: self._new_block(shape, self.make_decoder(max_tokens=pages * page_size))
        )

    def _new_block(self, shape: BlockShape, decoder: Decoder) -> StepBlock:
        return StepBlock(shape, decoder, self.pool, self.table, self.draw, self.request.eos_token_ids)

    def _stats(self, seconds: float) -> RolloutStats:
        stats = super()._stats(seconds)
        if self.graphs is None:
            return stats
        captured, spent = self._captured
        return replace(
            stats, graphs_captured=self.graphs.captured - captured, capture_seconds=self.graphs.seconds - spent
        )
