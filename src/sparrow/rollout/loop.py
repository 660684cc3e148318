"""One ``generate`` call from admission to the last token.

Control (who runs, which pages, what has ended) lives in numpy arrays on the host; per decode step a few vectorised
operations on them, one forward pass, one draw. Nothing runs per sequence except when one is admitted, takes a page,
or ends.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparrow.kernels.page_bits import num_words
from sparrow.rollout.completion import Completion, FinishReason, RolloutStats
from sparrow.rollout.decoder import Choice, Decoder, DecodeRows, padded_rows
from sparrow.rollout.draw import Draw
from sparrow.rollout.pool import PagePool
from sparrow.rollout.request import Request
from sparrow.rollout.sampler import stream_of, uniforms
from sparrow.rollout.scheduler import Admission, Group, IntArray, Scheduler
from sparrow.rollout.stopping import StopStrings, TextDecoder
from sparrow.rollout.trace import Rows, Trace
from sparrow.schedule import BudgetTable

Progress = Callable[[int, int, int], None]

_PROGRESS_SECONDS = 0.25


class Rollout:
    """The state of one call. Use once: ``Rollout(...).run()``.

    Args:
        request: checked arguments.
        decoder: the forward pass.
        pool: the cache, all free.
        table: page budgets.
        max_batch: most sequences at a time.
        topk: candidates to record.
        reserve: see :class:`Scheduler`.
        prefill_tokens: see :class:`Scheduler`.
        progress: called with (ended sequences, all sequences, tokens so far), at most four times a second.
        tokenizer: reads the text that the request's stop strings are looked for in.
    """

    def __init__(
        self,
        request: Request,
        decoder: Decoder,
        pool: PagePool,
        table: BudgetTable,
        *,
        max_batch: int,
        topk: int,
        reserve: float,
        prefill_tokens: int,
        progress: Progress | None,
        tokenizer: TextDecoder | None = None,
    ) -> None:
        self.request, self.decoder, self.pool, self.table = request, decoder, pool, table
        self.progress = progress
        self.topk = topk if "topk" in request.record else 0
        self.device = decoder.weights.embed_VE.device
        self.scheduler = Scheduler(
            pool,
            request.prompts,
            samples=request.samples,
            max_new_tokens=request.max_new_tokens,
            max_batch=max_batch,
            reserve=reserve,
            prefill_tokens=prefill_tokens,
        )
        self.draw = Draw(request.sampling, self.topk, "hidden" in request.record, self._page_sets())
        self.trace = Trace()
        self._is_stop = np.zeros(decoder.weights.embed_VE.shape[0], dtype=np.bool_)
        self._is_stop[list(request.eos_token_ids)] = True
        self._strings = StopStrings(request.stop, tokenizer) if request.stop and tokenizer is not None else None
        self._stopped: set[int] = set()  # sequences ended by a stop string
        self._budgets = np.array(table.schedule.table, dtype=np.int64)
        # Per slot: the token to feed next, the random stream, and the length at which the sequence must end.
        self._token = np.zeros(max_batch, dtype=np.int64)
        self._stream = np.zeros(max_batch, dtype=np.int64)
        self._limit = np.zeros(max_batch, dtype=np.int64)
        self._ended = self._tokens = self._steps = self._rows = self._max_rows = 0
        self._read = self._cached = 0
        self._reported = 0.0

    def run(self) -> tuple[list[Completion], RolloutStats]:
        """Sample everything; completions in the order (prompt, sample)."""
        start = time.perf_counter()
        while self.scheduler.unfinished:
            admitted = False
            while admission := self.scheduler.admit():
                admitted = True
                self._prefill(admission.prompts)
                self._first_tokens(admission)
            slots = self._plan()
            if slots.size:
                self._decode(slots)
            elif not admitted:
                raise RuntimeError("no sequence can run although some are unfinished: the page accounting is broken")
            self._report()
        self._report(final=True)
        completions = [self._completion(rows) for rows in self.trace.sequences()]
        return completions, self._stats(time.perf_counter() - start)

    def _plan(self) -> IntArray:
        """Slots of the next decode step."""
        return self.scheduler.plan()

    def _prefill(self, groups: Sequence[Group]) -> None:
        if not groups:
            return
        page_size = self.pool.page_size
        lengths = [len(group.token_ids) for group in groups]
        total = sum(lengths)
        packed = np.zeros((3, padded_rows(total)), dtype=np.int64)
        packed[1] = -1
        end = 0
        for group, length in zip(groups, lengths):
            pages = [*group.full_pages, *([] if group.partial_page is None else [group.partial_page])]
            position = np.arange(length)
            packed[:, end : end + length] = (
                group.token_ids,
                np.array(pages)[position // page_size],
                position % page_size,
            )
            end += length
        token_X, page_X, offset_X = self._to_device(packed)
        hidden_BE = self.decoder.prefill(token_X, page_X, offset_X, lengths, self.pool)
        for row, group in enumerate(groups):
            group.hidden_E = hidden_BE[row]

    def _first_tokens(self, admission: Admission) -> None:
        """Give each new sample its copy of the partial page, and draw its first token from the dense prefill."""
        self.pool.copy([source for source, _ in admission.copies], [target for _, target in admission.copies])
        slots = np.array(admission.slots, dtype=np.int64)
        hidden = [group.hidden_E for group in admission.groups if group.hidden_E is not None]
        hidden += [hidden[0]] * (self.decoder.padded_rows(len(hidden)) - len(hidden))
        request = self.request
        for slot, group in zip(admission.slots, admission.groups):
            sample_index = int(self.scheduler.sequence[slot]) % request.samples
            key = request.prompt_keys[group.prompt_index]
            self._stream[slot] = stream_of(request.seed, request.step, key, sample_index)
            self._limit[slot] = len(group.token_ids) + request.max_new_tokens
        self._draw_tokens(slots, torch.stack(hidden), None)

    def _decode(self, slots: IntArray) -> None:
        """One token more for each of ``slots``."""
        rows = self._rows_of(slots, self._token[slots], self.scheduler.cached[slots])
        page_bits: list[Tensor] | None = [] if "page_sets" in self.request.record else None
        self._draw_tokens(slots, self._step(self.decoder, rows, slots.size, page_bits), page_bits)

    def _step(self, decoder: Decoder, rows: DecodeRows, count: int, page_bits: list[Tensor] | None = None) -> Tensor:
        """One forward pass over ``count`` rows and padding, counted."""
        self._count_step(count)
        return decoder.step(rows, self.pool, page_bits)

    def _count_step(self, count: int) -> None:
        self._steps += 1
        self._rows += count
        self._max_rows = max(self._max_rows, count)

    def _rows_of(self, slots: IntArray, token: IntArray, cached: IntArray, sparse: bool = True) -> DecodeRows:
        """The batch of a decode step, padded: ``token`` of each of ``slots``, the last of ``cached`` tokens."""
        count, page_size = slots.size, self.pool.page_size
        position = cached - 1
        packed = np.zeros((5, self.decoder.padded_rows(count)), dtype=np.int64)
        packed[2, count:] = -1
        packed[0, :count] = token
        packed[1, :count] = position
        packed[2, :count] = self.scheduler.page_table[slots, position // page_size]
        packed[3, :count] = position % page_size
        packed[4, :count] = cached
        width = -(-int(cached.max()) // page_size)
        page_table = np.zeros((packed.shape[1], width), dtype=np.int32)
        page_table[:count] = self.scheduler.page_table[slots, :width]
        token_B, position_B, page_B, offset_B, wide_B = self._to_device(packed)
        cached_B = wide_B.int()  # as the kernels of all layers take it
        choice = self._choice(cached, cached_B, sparse)
        return DecodeRows(token_B, position_B, page_B, offset_B, cached_B, self._to_device(page_table), choice)

    def _choice(self, cached: IntArray, cached_B: Tensor, sparse: bool) -> Choice | None:
        """What this step reads; None when that is everything."""
        pages, read = self._pages(cached)
        if not sparse:
            read = pages
        self._count_reads(cached, pages, read)
        if (read == pages).all():
            return None
        schedule = self.table.schedule
        return Choice(self.table.budget(cached_B), schedule.first, schedule.last, int(read.max()))

    def _count_reads(self, cached: IntArray, pages: IntArray, read: IntArray) -> None:
        """Count a step whose rows have ``cached`` tokens on ``pages`` pages and read so many of these."""
        self._cached += int(cached.sum())
        # The last page, full or not, is always among those read.
        self._read += int(cached.sum()) - int((pages - read).sum()) * self.pool.page_size

    def _pages(self, cached: IntArray) -> tuple[IntArray, IntArray]:
        """Pages of sequences with ``cached`` tokens, and how many of them a sparse layer reads."""
        schedule = self.table.schedule
        pages = -(-cached // schedule.page_size)
        bins = np.minimum(pages * schedule.page_size // schedule.bin_tokens, schedule.num_bins - 1)
        return pages, np.minimum(pages, self._budgets[bins] + schedule.reserved)

    def _pages_read(self, cached: IntArray) -> IntArray:
        """Pages that the queries which gave the tokens read in a sparse layer."""
        return self._pages(cached)[1]

    def _draw_tokens(self, slots: IntArray, hidden_BE: Tensor, page_bits: list[Tensor] | None) -> None:
        """Draw the next token of each slot, keep it, and end the sequences that are complete."""
        index = self.scheduler.cached[slots]
        uniform_B = self._uniforms(self._stream[slots], index, hidden_BE.shape[0])
        fields = self.draw.fields(self.decoder, hidden_BE, uniform_B, page_bits)
        self._finish(slots[self._take(slots, index, to_host(fields, slots.size))])

    def _take(self, slots: IntArray, index: IntArray, fields: dict[str, Tensor]) -> NDArray[np.bool_]:
        """Keep what was drawn for place ``index`` of the slots' sequences; which of these end with it."""
        self._refuse_nan(slots, index, fields["logprob"])
        self.trace.add(self.scheduler.sequence[slots], fields)
        self._tokens += slots.size
        token = fields["token"].numpy()
        self._token[slots] = token
        return self._ends(slots, index, token)

    def _uniforms(self, stream: IntArray, index: IntArray, rows: int) -> Tensor:
        """[rows] random numbers of the tokens for place ``index`` of their sequences, padded."""
        numbers = np.zeros((2, rows), dtype=np.int64)
        numbers[:, : stream.size] = stream, index
        stream_B, index_B = self._to_device(numbers)
        return uniforms(stream_B, index_B)

    def _ends(self, slots: IntArray, index: IntArray, token: IntArray) -> NDArray[np.bool_]:
        """Which of the slots end with these tokens, drawn for place ``index`` of their sequences."""
        ends = (index + 1 >= self._limit[slots]) | self._is_stop[token]
        if self._strings is not None:
            for row, sequence in enumerate(self.scheduler.sequence[slots].tolist()):
                if self._strings.push(sequence, int(token[row])):
                    self._stopped.add(sequence)
                    ends[row] = True
        return ends

    def _finish(self, slots: IntArray) -> None:
        self._ended += slots.size
        if self._strings is not None:
            for sequence in self.scheduler.sequence[slots].tolist():
                self._strings.drop(sequence)
        self.scheduler.finish(slots.tolist())

    def _page_sets(self) -> tuple[int, int, int] | None:
        """L_sparse, K and M of recorded page sets, with M the words of the longest possible sequence."""
        if "page_sets" not in self.request.record:
            return None
        layers = sum(landmarks is not None for landmarks in self.pool.landmarks)
        return layers, self.decoder.weights.kv_heads, num_words(self.scheduler.page_table.shape[1])

    def _refuse_nan(self, slots: IntArray, index: IntArray, logprob: Tensor) -> None:
        """Stop at the first token without a probability; ``index`` is its place in its sequence."""
        bad = np.flatnonzero(np.isnan(logprob.numpy()))
        if not bad.size:
            return
        sequence = int(self.scheduler.sequence[slots[bad[0]]])
        prompt, sample_index = divmod(sequence, self.request.samples)
        raise FloatingPointError(
            f"prompt {prompt}, sample {sample_index}, response token "
            f"{int(index[bad[0]]) - len(self.request.prompts[prompt])}: the logits are NaN or infinite; the "
            "weights or the cache hold non-finite values"
        )

    def _completion(self, rows: Rows) -> Completion:
        prompt, sample_index = divmod(rows.sequence, self.request.samples)
        token_ids: list[int] = rows.fields["token"].tolist()
        decoded = len(self.request.prompts[prompt]) + np.arange(1, len(token_ids))
        pages_read = np.concatenate((np.zeros(1, dtype=np.int64), self._pages_read(decoded)))
        stopped = token_ids[-1] in self.request.eos_token_ids or rows.sequence in self._stopped
        reason: FinishReason = "stop" if stopped else "length"
        page_sets = rows.fields.get("page_sets")
        return Completion(
            token_ids=token_ids,
            logprobs=rows.fields["logprob"],
            topk_ids=rows.fields.get("topk_ids"),
            topk_logprobs=rows.fields.get("topk_logprobs"),
            pages_read=torch.from_numpy(pages_read),
            hidden=rows.fields.get("hidden"),
            page_sets=None if page_sets is None else page_sets[1:].permute(1, 2, 0, 3).contiguous(),
            finish_reason=reason,
            prompt_index=prompt,
            sample_index=sample_index,
        )

    def _stats(self, seconds: float) -> RolloutStats:
        layers = len(self.pool.landmarks)
        sparse = sum(landmarks is not None for landmarks in self.pool.landmarks)
        heads = self.decoder.weights.kv_heads
        return RolloutStats(
            prompts_prefilled=len(self.request.prompts),
            prompt_tokens=sum(len(token_ids) for token_ids in self.request.prompts),
            response_tokens=self._tokens,
            decode_steps=self._steps,
            decode_tokens=self._rows,
            max_rows=self._max_rows,
            paused=self.scheduler.paused,
            tokens_read=heads * (sparse * self._read + (layers - sparse) * self._cached),
            tokens_cached=heads * layers * self._cached,
            tokens_read_sparse=heads * sparse * self._read,
            tokens_cached_sparse=heads * sparse * self._cached,
            seconds=seconds,
        )

    def _report(self, final: bool = False) -> None:
        if self.progress is None:
            return
        now = time.monotonic()
        if final or now - self._reported >= _PROGRESS_SECONDS:
            self._reported = now
            self.progress(self._ended, self.request.sequences, self._tokens)

    def _to_device(self, array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def to_host(fields: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """The fields of the first ``count`` rows; the others are padding."""
    return {name: rows[:count].cpu() for name, rows in fields.items()}
