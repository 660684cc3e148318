"""Which sequences run in the next decode step, and who gets the free pages.

Continuous batching over a limited pool. A prompt is prefilled once for its n samples: they share its full pages and
each gets its own copy of the partly filled one (the last sample takes the original over). Sequences are admitted in
order while rows and pages last.

A sequence that needs a page and gets none sits out the step; its pages stay, so nothing is ever prefilled again and
no history mixes dense and sparse attention. Deadlock is impossible by the banker's rule, with admission order as
the order of completion: a page is granted only if afterwards the first sequence could still grow to its greatest
length from the free pages, the second from those and the first one's, and so on. So the first sequence in order is
never refused. Shared prompt pages count as never returned, which errs on the safe side.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparrow.rollout.pool import PagePool

IntArray = NDArray[np.int64]


@dataclass
class Group:
    """The samples of one prompt. Until all are admitted it holds the prompt's pages itself."""

    prompt_index: int
    token_ids: Sequence[int]
    samples: int
    admitted: int = 0
    full_pages: list[int] = field(default_factory=list)
    partial_page: int | None = None
    hidden_E: Tensor | None = None
    """Final hidden state of the prompt's last token, kept for samples that are admitted later."""


@dataclass(frozen=True)
class Admission:
    """What to do before the next decode step: prefill ``prompts``, copy pages, and draw a first token per sample.

    ``slots`` and ``groups`` run in parallel over the new samples; ``copies`` are (from, to) pages.
    """

    prompts: list[Group]
    slots: list[int]
    groups: list[Group]
    copies: list[tuple[int, int]]


class Scheduler:
    """Slots, pages and the order of sequences of one ``generate`` call.

    Args:
        pool: pages to hand out; all free.
        prompts: token ids per prompt.
        samples: n, samples of each prompt.
        max_new_tokens: greatest response length.
        max_batch: most sequences at a time.
        reserve: share of its possible growth that must be free for a sequence to be admitted. 1: no sequence ever waits
            for a page; less admits more at a time when responses tend to be shorter than the limit.
        prefill_tokens: prompts are taken in packs of about this many tokens.
    """

    def __init__(
        self,
        pool: PagePool,
        prompts: Sequence[Sequence[int]],
        *,
        samples: int,
        max_new_tokens: int,
        max_batch: int,
        reserve: float,
        prefill_tokens: int,
    ) -> None:
        self.pool, self.reserve, self.prefill_tokens = pool, reserve, prefill_tokens
        self.max_new_tokens = max_new_tokens
        self._waiting = deque(Group(i, token_ids, samples) for i, token_ids in enumerate(prompts))
        longest = max((len(token_ids) for token_ids in prompts), default=0) + max_new_tokens - 1
        self.page_table = np.zeros((max_batch, max(1, -(-longest // pool.page_size))), dtype=np.int32)
        self.sequence = np.full(max_batch, -1, dtype=np.int64)  # prompt_index * n + sample; -1: the slot is free
        self.cached = np.zeros(max_batch, dtype=np.int64)
        self._held = np.zeros(max_batch, dtype=np.int64)  # pages of its own
        self._growth = np.zeros(max_batch, dtype=np.int64)  # further pages it may come to need
        self._free_slots = list(range(max_batch - 1, -1, -1))
        self._order = np.zeros(0, dtype=np.int64)  # occupied slots in order of admission
        self._stalled = False
        self.paused = 0

    @property
    def unfinished(self) -> bool:
        """Whether any sequence is running or waiting."""
        return bool(self._waiting) or self._order.size > 0

    def admit(self) -> Admission | None:
        """Admit what fits now; None if nothing does."""
        admission = Admission([], [], [], [])
        tokens = 0
        while self._waiting and self._free_slots and not self._stalled:
            group = self._waiting[0]
            new = group.admitted == 0
            if (new and tokens >= self.prefill_tokens) or not self._fits(group):
                break
            if new:
                self._start(group)
                admission.prompts.append(group)
                tokens += len(group.token_ids)
            self._place(group, admission)
            if group.admitted == group.samples:
                self._waiting.popleft()
        return admission if admission.slots else None

    def plan(self, tokens: IntArray | None = None) -> IntArray:
        """Slots that take part in the next decode step, oldest first, with room for their new tokens.

        Args:
            tokens: how many each slot is about to cache; None: one each. They must stay within its greatest length.
        """
        order = self._order
        if order.size == 0:
            return order
        new = 1 if tokens is None else tokens[order]
        grows = self._pages(self.cached[order] + new) - self._pages(self.cached[order])
        if grows.any():
            granted = self._grant(order, grows)
            self.paused += int(order.size - granted.sum())
            self._stalled = not granted.all()
            self._give_pages(order[granted], grows[granted])
            order = order[granted]
        else:
            self._stalled = False
        self.cached[order] += 1 if tokens is None else tokens[order]
        return order

    def rewind(self, slots: IntArray, cached: IntArray) -> None:
        """Take back planned tokens: ``cached`` is what remains of each slot. Pages that empty are free again.

        What was written to the slots behind ``cached`` stays in the pages that remain, landmarks included. Nothing
        reads it: attention stops at ``cached``, a page is scored only when full, and whoever fills it writes every one
        of these slots and then its landmark anew.
        """
        before, after = self._pages(self.cached[slots]), self._pages(cached)
        for row in np.flatnonzero(before > after):
            slot = slots[row]
            self.pool.release(self.page_table[slot, after[row] : before[row]].tolist())
            self._held[slot] -= before[row] - after[row]
            self._growth[slot] += before[row] - after[row]
        self.cached[slots] = cached

    def finish(self, slots: Sequence[int]) -> None:
        """Free the slots and pages of sequences that have ended."""
        if not slots:
            return
        for slot in slots:
            pages = self._pages(self.cached[slot : slot + 1])[0]
            self.pool.release(self.page_table[slot, :pages].tolist())
            self.sequence[slot] = -1
            self._free_slots.append(slot)
        self._order = self._order[~np.isin(self._order, slots)]
        self._stalled = False

    def _pages(self, cached: IntArray) -> IntArray:
        """Pages that hold ``cached`` tokens."""
        return -(-cached // self.pool.page_size)

    def _most_pages(self, group: Group) -> int:
        """Pages a sample comes to at its greatest length. The last token is drawn but never cached."""
        return -(-(len(group.token_ids) + self.max_new_tokens - 1) // self.pool.page_size)

    def _fits(self, group: Group) -> bool:
        """Whether one more sample of the group can be admitted, with its prompt if that is new."""
        full, partial = divmod(len(group.token_ids), self.pool.page_size)
        own = 1 if partial else 0
        last = group.admitted == group.samples - 1
        base = full + own if group.admitted == 0 else 0
        free = self.pool.num_free - base - (0 if last else own)
        if free < 0:
            return False
        growth = np.append(self._growth[self._order], self._most_pages(group) - full - own)
        held = np.append(self._held[self._order], own)
        if not _is_safe(free, growth, held):
            return False
        return self._order.size == 0 or free >= self.reserve * float(growth.sum())

    def _start(self, group: Group) -> None:
        full, partial = divmod(len(group.token_ids), self.pool.page_size)
        group.full_pages = self.pool.take(full)
        group.partial_page = self.pool.take(1)[0] if partial else None

    def _place(self, group: Group, admission: Admission) -> None:
        """Give the next sample of a group a slot and its pages."""
        slot = self._free_slots.pop()
        last = group.admitted == group.samples - 1
        full = len(group.full_pages)
        if not last:
            self.pool.share(group.full_pages)
        self.page_table[slot, :full] = group.full_pages
        own = 0
        if group.partial_page is not None:
            own = 1
            page = group.partial_page if last else self.pool.take(1)[0]
            if not last:
                admission.copies.append((group.partial_page, page))
            self.page_table[slot, full] = page
        self.sequence[slot] = group.prompt_index * group.samples + group.admitted
        self.cached[slot] = len(group.token_ids)
        self._held[slot] = own
        self._growth[slot] = self._most_pages(group) - full - own
        self._order = np.append(self._order, slot)
        group.admitted += 1
        admission.slots.append(slot)
        admission.groups.append(group)

    def _grant(self, order: IntArray, grows: IntArray) -> NDArray[np.bool_]:
        """Which of the slots in ``order`` may run: those that need no page, and those that get all they need."""
        growth, held, free = self._growth[order], self._held[order], self.pool.num_free
        if _is_safe(free - int(grows.sum()), growth - grows, held + grows):
            return np.ones(order.size, dtype=np.bool_)
        granted: NDArray[np.bool_] = grows == 0
        for row in np.flatnonzero(grows):
            wanted = int(grows[row])
            growth[row] -= wanted
            held[row] += wanted
            if _is_safe(free - wanted, growth, held):
                granted[row] = True
                free -= wanted
            else:
                growth[row] += wanted
                held[row] -= wanted
        return granted

    def _give_pages(self, slots: IntArray, counts: IntArray) -> None:
        """``counts`` further pages to each of ``slots``."""
        total = int(counts.sum())
        index = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)  # 0, 1, ... within each slot
        page = np.repeat(self._pages(self.cached[slots]), counts) + index
        self.page_table[np.repeat(slots, counts), page] = self.pool.take(total)
        self._held[slots] += counts
        self._growth[slots] -= counts


def _is_safe(free: int, growth: IntArray, held: IntArray) -> bool:
    """Whether all sequences can finish one after the other in this order, each at its greatest length."""
    if free < 0:
        return False
    returned = np.cumsum(held) - held
    return bool((growth <= free + returned).all())
