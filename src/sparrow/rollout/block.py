"""A block of decode steps that does not ask the host: what changes from token to token lives on the device.

The host fills the state of every row once per block and reads what was drawn at its end. In between, a step finds its
page by its own counter, and a row that drew a stop token, or has no room left, goes on as padding. A step has fixed
shapes and addresses, so a CUDA graph can hold it (`sparrow.rollout.graphs`); without one the same code runs eagerly.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparrow.rollout.decoder import Choice, Decoder, DecodeRows
from sparrow.rollout.draw import Draw
from sparrow.rollout.pool import PagePool
from sparrow.rollout.sampler import uniforms
from sparrow.rollout.scheduler import IntArray
from sparrow.schedule import BudgetTable


@dataclass(frozen=True)
class BlockShape:
    """Sizes of a block.

    Attributes:
        rows: B, sequences and padding.
        pages: N, width of the page table.
        max_pages: S, room for the longest list of pages; 0: every layer is dense.
        steps: most steps between two looks of the host.
    """

    rows: int
    pages: int
    max_pages: int
    steps: int


@dataclass(frozen=True)
class BlockStart:
    """Where the sequences of a block stand, one entry per sequence.

    Attributes:
        token_B: token to feed next.
        stream_B: random stream.
        cached_B: tokens cached so far.
        left_B: tokens that may be fed in this block.
        page_table_BN: physical pages, with those that the block will write.
    """

    token_B: IntArray
    stream_B: IntArray
    cached_B: IntArray
    left_B: IntArray
    page_table_BN: NDArray[np.int32]


class StepBlock:
    """Rows on the device, and the step that takes them one token further.

    Args:
        shape: sizes.
        decoder: the forward pass.
        pool: the cache.
        table: page budgets.
        draw: how tokens are drawn and what is kept.
        stop_ids: token ids that end a response.
    """

    def __init__(
        self,
        shape: BlockShape,
        decoder: Decoder,
        pool: PagePool,
        table: BudgetTable,
        draw: Draw,
        stop_ids: Collection[int],
    ) -> None:
        self.shape, self.decoder, self.pool, self.table, self.draw = shape, decoder, pool, table, draw
        embed_VE = decoder.weights.embed_VE
        self._is_stop_V = torch.zeros(embed_VE.shape[0], dtype=torch.bool, device=embed_VE.device)
        self._is_stop_V[torch.tensor(sorted(stop_ids), dtype=torch.int64, device=embed_VE.device)] = True
        self._state_4B = torch.zeros(4, shape.rows, dtype=torch.int64, device=embed_VE.device)
        self._page_table_BN = torch.zeros(shape.rows, shape.pages, dtype=torch.int32, device=embed_VE.device)
        self._place_1 = torch.zeros(1, dtype=torch.int64, device=embed_VE.device)
        self._kept: dict[str, Tensor] = {}  # [X, B, ...], row x from step x of the block

    def run(self, start: BlockStart, steps: int) -> dict[str, Tensor]:
        """Take every sequence up to ``steps`` tokens further.

        Returns:
            What was kept, [steps, sequences, ...] by name, on the CPU; meaningless behind a sequence's last token.
        """
        self._load(start)
        for _ in range(steps):
            self.advance()
        count = start.token_B.size
        return {name: rows[:steps, :count].cpu() for name, rows in self._kept.items()}

    def advance(self) -> None:
        """One step, however it is made."""
        self.step()

    def rehearse(self) -> None:
        """A step before a capture. All rows are padding, so the cache stays as it is; what is kept is made here."""
        self._place_1.zero_()
        self.step()

    def step(self) -> None:
        """One token more for every row that has any left."""
        token_B, stream_B, cached_B, left_B = self._state_4B
        live_B = left_B > 0
        now_B = torch.where(live_B, cached_B + 1, 0)
        page_bits: list[Tensor] | None = None if self.draw.page_sets is None else []
        hidden_BE = self.decoder.step(self._rows(token_B, now_B, live_B), self.pool, page_bits)
        fields = self.draw.fields(self.decoder, hidden_BE, uniforms(stream_B, now_B), page_bits)
        self._keep(fields)
        token_B.copy_(fields["token"])
        cached_B.add_(live_B)
        left_B.sub_(1).clamp_(min=0).masked_fill_(self._is_stop_V[fields["token"]], 0)
        self._place_1.add_(1)

    def _rows(self, token_B: Tensor, cached_B: Tensor, live_B: Tensor) -> DecodeRows:
        page_size, schedule = self.pool.page_size, self.table.schedule
        position_B = (cached_B - 1).clamp(min=0)
        page_B = self._page_table_BN.gather(1, (position_B // page_size).unsqueeze(1)).squeeze(1)
        page_B = torch.where(live_B, page_B.long(), -1)
        short_B = cached_B.int()
        choice = None
        if self.shape.max_pages:
            choice = Choice(self.table.budget(short_B), schedule.first, schedule.last, self.shape.max_pages)
        return DecodeRows(token_B, position_B, page_B, position_B % page_size, short_B, self._page_table_BN, choice)

    def _keep(self, fields: dict[str, Tensor]) -> None:
        for name, rows in fields.items():
            if name not in self._kept:
                self._kept[name] = rows.new_zeros(self.shape.steps, *rows.shape)
            self._kept[name].index_copy_(0, self._place_1, rows.unsqueeze(0))

    def _load(self, start: BlockStart) -> None:
        count, width = start.token_B.size, min(self.shape.pages, start.page_table_BN.shape[1])
        state = np.zeros((4, self.shape.rows), dtype=np.int64)
        state[:, :count] = start.token_B, start.stream_B, start.cached_B, start.left_B
        pages = np.zeros((self.shape.rows, self.shape.pages), dtype=np.int32)
        pages[:count, :width] = start.page_table_BN[:, :width]
        self._state_4B.copy_(torch.from_numpy(state))
        self._page_table_BN.copy_(torch.from_numpy(pages))
        self._place_1.zero_()
