"""The rollout engine: samples from a transformers model, over its own weights, with scheduled sparse attention."""

from collections.abc import Collection, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import torch
from torch import nn

from sparrow.kernels import PageScore, get_page_score
from sparrow.models.families import DecoderWeights, decoder_weights
from sparrow.rollout.blocks import BlockRollout
from sparrow.rollout.completion import Completion, RolloutStats
from sparrow.rollout.decoder import Decoder, decode_block
from sparrow.rollout.graphs import StepGraphs
from sparrow.rollout.loop import Progress, Rollout
from sparrow.rollout.memory import RolloutMemory, predict
from sparrow.rollout.options import Pace, check_options
from sparrow.rollout.out_of_memory import Room
from sparrow.rollout.pool import PagePool
from sparrow.rollout.request import Limits, Request, check_request, most_pages
from sparrow.rollout.sampler import SamplingParams
from sparrow.rollout.speculative import SpeculativeRollout
from sparrow.rollout.stopping import TextDecoder
from sparrow.schedule import BudgetSchedule, BudgetTable

PROBE_TOKENS = 16
"""The probe's text is the first so many token ids of the vocabulary."""


class RolloutEngine:
    """Samples completions; prompts are read densely, decoded tokens with the schedule's page budget.

    Weights. In the model's own dtype the engine computes with the live parameters. Every ``generate`` reads them anew
    (and rewrites its casts, if ``dtype`` or ``head_dtype`` ask for some), and keeps no cache from an earlier call, so
    stale weights, keys or landmarks are impossible. ``refresh`` does the reading at once.

    Same tokens alone and in a batch. A sequence's random numbers depend on (seed, step, prompt key, sample,
    position) only. On CPU in fp32 its hidden states, log-probabilities and tokens are bit-equal whatever runs
    beside it, whatever ``max_batch`` is, and whether or not it had to wait for pages; that rests on products that treat
    each row by itself (see `sparrow.rollout.decoder`), each prompt attending by itself, and decode kernels that do so
    too. It holds for a fixed number of threads. A decoded token and the same token in a prefilled prompt agree to
    rounding only. On a GPU the kernels keep it, but matrix products may not: there, expect equality up to rounding.

    Pages. A full pool makes new sequences wait and pauses growing ones with their pages kept; see
    `sparrow.rollout.scheduler` for why that cannot deadlock. ``last_stats`` holds the counters of the last call.

    Out of memory. A call says so and starts again with half as many sequences at a time; its completions stay the same.

    Lossless mode. With ``draft_tokens`` the sparse actor only proposes, and the dense policy accepts or corrects: the
    samples follow the dense policy exactly, and what is recorded is the dense policy's. See
    `sparrow.rollout.speculative`.

    Args:
        model: a Qwen3, Qwen2 or Llama causal LM of transformers, PEFT-wrapped or not.
        schedule: page budgets; None: dense.
        page_score: name of the page score, or the object.
        max_batch: most sequences decoded at a time.
        max_cached_tokens: size of the KV cache in tokens, rounded down to pages; None: as much as a call can need.
        topk: candidates per token kept by ``record=("topk",)``.
        dtype: dtype to compute in and of the cache; None: that of the parameters.
        head_dtype: dtype of the LM head.
        reserve: share of its possible growth that must be free when a sequence is admitted to a limited cache.
        prefill_tokens: prompts are prefilled in packs of about this many tokens.
        draft_tokens: tokens that the sparse actor proposes at a time to the dense policy; 0: the actor itself samples.
        tokenizer: reads text for stop strings; ``generate`` may be given another one.
        keep_pool: whether the page pool stays allocated between calls, and with it the graphs of decode steps; false:
            their memory is free for training.
        poll_every: decode steps between two looks of the host at what was drawn; None: 8 on a GPU, 1 elsewhere. Tokens
            do not depend on it; a sequence that ends keeps its row and pages until the next look.
        graphs: whether decode steps are captured as CUDA graphs; None: on a GPU, unless the page score has no kernels.

    Raises:
        ValueError: the model is not supported (see `sparrow.models.families`), a value is out of range, or graphs are
            asked for where there can be none.
        KeyError: an unknown page score.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: BudgetSchedule | None = None,
        *,
        page_score: str | PageScore = "mean",
        max_batch: int = 64,
        max_cached_tokens: int | None = None,
        topk: int = 0,
        dtype: torch.dtype | None = None,
        head_dtype: torch.dtype = torch.float32,
        reserve: float = 0.5,
        prefill_tokens: int = 8192,
        draft_tokens: int = 0,
        tokenizer: TextDecoder | None = None,
        keep_pool: bool = True,
        poll_every: int | None = None,
        graphs: bool | None = None,
    ) -> None:
        check_options(
            max_batch=max_batch,
            topk=topk,
            draft_tokens=draft_tokens,
            prefill_tokens=prefill_tokens,
            max_cached_tokens=max_cached_tokens,
            reserve=reserve,
        )
        self.model, self.max_batch, self.max_cached_tokens, self.topk = model, max_batch, max_cached_tokens, topk
        self.dtype, self.head_dtype = dtype, head_dtype
        self.reserve, self.prefill_tokens = reserve, prefill_tokens
        self.draft_tokens, self.tokenizer, self.keep_pool = draft_tokens, tokenizer, keep_pool
        self.score = get_page_score(page_score) if isinstance(page_score, str) else page_score
        self.pace, self._graphs = Pace(poll_every, graphs), StepGraphs()
        self.last_stats: RolloutStats | None = None
        self._copies: dict[str, torch.Tensor] = {}
        self._pool: PagePool | None = None
        self._weights = self._read_weights()
        if not topk <= self._weights.embed_VE.shape[0]:
            raise ValueError(f"topk={topk}: must be at most the vocabulary, {self._weights.embed_VE.shape[0]}")
        self.pace.resolve(self._weights.embed_VE.device.type, self.score, draft_tokens)
        self._check_layers(schedule or BudgetSchedule.dense())
        self._table = BudgetTable(schedule or BudgetSchedule.dense(), self._weights.embed_VE.device)

    @property
    def schedule(self) -> BudgetSchedule:
        """The schedule in force."""
        return self._table.schedule

    def set_schedule(self, schedule: BudgetSchedule) -> None:
        """Use another schedule from the next call on.

        With the same page size, reserved pages and dense layers this writes one small tensor; otherwise the cache is
        laid out anew.

        Raises:
            ValueError: the schedule has more bins than the device table, or keeps a layer dense that does not exist.
        """
        self._check_layers(schedule)
        held = self.schedule
        geometry = ("page_size", "first", "last", "dense_layers")
        if all(getattr(held, key) == getattr(schedule, key) for key in geometry):
            self._table.load(schedule)
            return
        self._table = BudgetTable(schedule, self._weights.embed_VE.device)
        self._drop_pool()

    def refresh(self) -> None:
        """Read the model's weights again, after any change of them. ``generate`` does so by itself too."""
        before, self._weights = self._weights.embed_VE, self._read_weights()
        now = self._weights.embed_VE
        if now.device != before.device:
            self._table = BudgetTable(self.schedule, now.device)
        if (now.dtype, now.device) != (before.dtype, before.device):
            self._drop_pool()  # it holds what the model was

    @torch.no_grad()
    def probe(self, *, adapter: bool = False) -> torch.Tensor:
        """What the weights that the engine holds make of a fixed short text; another value proves other weights.

        After an optimizer step and a refresh it must have changed, and equal what the trained model itself says to
        :data:`PROBE_TOKENS`; with ``adapter=False`` it must not follow the adapter.

        Args:
            adapter: whether the LoRA adapter takes part.

        Returns:
            [V] fp32 log-probabilities of the token that follows, on the CPU.
        """
        weights, vocab = self._weights, self._weights.embed_VE.shape[0]
        device = weights.embed_VE.device
        position_X = torch.arange(PROBE_TOKENS, device=device)
        pool = self._make_pool(1, PROBE_TOKENS, sparse_layers=[])
        with torch.autocast(device.type, enabled=False):
            decoder = self.make_decoder(adapter=adapter, max_tokens=PROBE_TOKENS)
            page_X = torch.zeros_like(position_X)
            hidden_BE = decoder.prefill(position_X % vocab, page_X, position_X, [PROBE_TOKENS], pool)
            return torch.log_softmax(decoder.logits(hidden_BE[:1])[0], dim=-1).cpu()

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n: int = 1,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int,
        step: int = 0,
        prompt_keys: Sequence[int] | None = None,
        eos_token_ids: Collection[int],
        adapter: bool = False,
        record: Collection[str] = (),
        progress: Progress | None = None,
        stop: Sequence[str] = (),
        tokenizer: TextDecoder | None = None,
    ) -> list[Completion]:
        """Sample ``n`` completions of each prompt.

        Args:
            prompts: token ids per prompt.
            n: samples per prompt; the prompt is prefilled once.
            max_new_tokens: greatest response length, the stop token included.
            temperature: divides the logits; 0: greedy, with log-probabilities at temperature 1.
            top_p: see :class:`SamplingParams`; likewise ``top_k`` and ``min_p``.
            top_k: 0: off.
            min_p: 0: off.
            seed: seed of the run.
            step: RL step, so that steps draw different numbers.
            prompt_keys: whole number per prompt, all different, that stands for the prompt in the random numbers; None:
                its index. Give row keys, so that results do not depend on the order or sharding of prompts.
            eos_token_ids: all token ids that end a response.
            adapter: whether the LoRA adapter takes part; with ``draft_tokens`` in the drafts only, since the dense
                policy has none.
            record: some of ``topk``, ``hidden``, ``page_sets``.
            progress: called with (ended sequences, all sequences, tokens so far), at most four times a second.
            stop: texts that end a response. The token that completes one is the last, and is kept with its text, since
                tokens go from here to the trainer as they were drawn; what a reader wants to cut, it cuts.
            tokenizer: reads the text that ``stop`` is looked for in; None: the engine's.

        Returns:
            ``len(prompts) * n`` completions ordered by (prompt, sample).

        Raises:
            ValueError, KeyError: see `sparrow.rollout.request`; nothing has run then.
            FloatingPointError: the model gave NaN; the message names the sample.
            torch.OutOfMemoryError: there is no room for a single sequence.
        """
        reader = tokenizer if tokenizer is not None else self.tokenizer
        request = Request(
            prompts,
            range(len(prompts)) if prompt_keys is None else prompt_keys,
            n,
            max_new_tokens,
            SamplingParams(temperature, top_k, top_p, min_p),
            seed,
            step,
            frozenset(eos_token_ids),
            adapter,
            frozenset((record,) if isinstance(record, str) else record),
            (stop,) if isinstance(stop, str) else tuple(stop),
        )
        self.refresh()
        check_request(request, self._limits(reader))
        while True:
            try:
                return self._run(request, progress, reader)
            except torch.OutOfMemoryError as error:
                told = str(error)
            self._shrink(request, told)  # not where the error still holds on to what did not fit

    def _run(self, request: Request, progress: Progress | None, reader: TextDecoder | None) -> list[Completion]:
        with torch.autocast(self._weights.embed_VE.device.type, enabled=False):
            pool = self._pool_for(request)
            rollout = self._rollout(request, pool, progress, reader)
            try:
                completions, self.last_stats = rollout.run()
            finally:
                # Of an interrupted call the sequences still hold pages.
                if not (self.keep_pool and pool.is_idle):
                    self._drop_pool()
        return completions

    def _shrink(self, request: Request, told: str) -> None:
        """Give the next try half of what this one had."""
        room = Room(self.max_batch, self.prefill_tokens, self.max_cached_tokens)
        least = most_pages(request, self.schedule.page_size) * self.schedule.page_size
        next_room = room.halved(request.sequences, request.max_tokens, least, told)
        self.max_batch, self.prefill_tokens, self.max_cached_tokens = astuple(next_room)

    def _rollout(
        self, request: Request, pool: PagePool, progress: Progress | None, tokenizer: TextDecoder | None
    ) -> Rollout:
        options: dict[str, Any] = {"max_batch": self.max_batch, "topk": self.topk, "reserve": self.reserve}
        options |= {"prefill_tokens": self.prefill_tokens, "progress": progress, "tokenizer": tokenizer}
        decoder = self.make_decoder(adapter=request.adapter, max_tokens=request.max_tokens)
        if not self.draft_tokens:
            return self._plain_rollout(request, decoder, pool, options)
        dense = self.make_decoder(adapter=False, max_tokens=request.max_tokens) if request.adapter else decoder
        options |= {"drafter": decoder, "draft_tokens": self.draft_tokens}
        return SpeculativeRollout(request, dense, pool, self._table, **options)

    def _plain_rollout(self, request: Request, decoder: Decoder, pool: PagePool, options: dict[str, Any]) -> Rollout:
        poll_every, captured = self.pace.resolve(pool.keys[0].device.type, self.score, draft_tokens=0)
        if poll_every == 1 and not captured:
            return Rollout(request, decoder, pool, self._table, **options)
        graphs = self._graphs if captured else None
        make = partial(self.make_decoder, adapter=request.adapter)
        options |= {"poll_every": poll_every, "graphs": graphs, "make_decoder": make}
        return BlockRollout(request, decoder, pool, self._table, **options)

    def memory(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n: int = 1,
        max_new_tokens: int,
        temperature: float = 1.0,
        record: Collection[str] = (),
    ) -> RolloutMemory:
        """Memory that ``generate`` with the same arguments needs, worked out before anything is allocated.

        Args:
            prompts: token ids per prompt.
            n: samples per prompt.
            max_new_tokens: greatest response length.
            temperature: of sampling.
            record: what is recorded; hidden states are counted.
        """
        keys, sampling, none = range(len(prompts)), SamplingParams(temperature), frozenset[int]()
        request = Request(prompts, keys, n, max_new_tokens, sampling, 0, 0, none, False, frozenset(record))
        lengths = [len(token_ids) for token_ids in prompts]
        return predict(
            self.model,
            element=self._weights.embed_VE.element_size(),
            copies=sum(cast.nbytes for cast in self._copies.values()),
            pages=self._pool_pages(request),
            page_size=self.schedule.page_size,
            sparse_layers=len(set(range(len(self._weights.layers))) - set(self.schedule.dense_layers)),
            width=self.score.width,
            sequences=min(self.max_batch, request.sequences),
            draft_tokens=self.draft_tokens,
            scaled=temperature not in (0.0, 1.0),
            # A pack ends with the prompt that fills it, and holds no more prompts than there are places in the batch.
            prefill=min(sum(sorted(lengths)[-self.max_batch :]), self.prefill_tokens + max(lengths, default=0)),
            longest=max(lengths, default=0),
            max_tokens=request.max_tokens,
            recorded=request.sequences * max_new_tokens if "hidden" in request.record else 0,
            block=decode_block(self._weights),
        )

    def make_decoder(self, *, adapter: bool, max_tokens: int) -> Decoder:
        """The forward pass of one call, over the weights as they are; a subclass may give another one.

        Args:
            adapter: whether the LoRA adapter takes part.
            max_tokens: longest sequence of the call.
        """
        return Decoder(self._weights, self.score, adapter=adapter, max_tokens=max_tokens)

    def _check_layers(self, schedule: BudgetSchedule) -> None:
        layers = len(self._weights.layers)
        outside = [layer for layer in schedule.dense_layers if layer >= layers]
        if outside and not schedule.is_dense:
            raise ValueError(
                f"schedule.dense_layers: {outside[0]} is not a layer of this model, which has 0 to {layers - 1}"
            )

    def _read_weights(self) -> DecoderWeights:
        return decoder_weights(self.model, self.dtype, self.head_dtype, self._copies)

    def _limits(self, tokenizer: TextDecoder | None = None) -> Limits:
        page_size = self.schedule.page_size
        return Limits(
            vocab=self._weights.embed_VE.shape[0],
            context=self._weights.max_positions,
            page_size=page_size,
            pool_pages=None if self.max_cached_tokens is None else self.max_cached_tokens // page_size,
            topk=self.topk,
            has_adapter=self._weights.has_adapter,
            draft_tokens=self.draft_tokens,
            reads_text=tokenizer is not None,
        )

    def _pool_pages(self, request: Request) -> int:
        """Pages of the cache: as many as the engine was given, else as many as the request can need."""
        limit = self._limits().pool_pages
        if limit is not None:
            return limit
        return most_pages(request, self.schedule.page_size) * min(self.max_batch, request.sequences) + 1

    def _pool_for(self, request: Request) -> PagePool:
        """The cache, kept between calls unless it is too small."""
        limit = self._pool_pages(request)
        if self._pool is None or self._pool.num_pages < limit:
            self._drop_pool()  # free the old one first
            sparse_layers = [i for i in range(len(self._weights.layers)) if i not in self.schedule.dense_layers]
            self._pool = self._make_pool(limit, self.schedule.page_size, sparse_layers)
        self._pool.tidy()
        return self._pool

    def _drop_pool(self) -> None:
        """Let go of the cache, and of the graphs that hold its addresses."""
        self._pool = None
        self._graphs.clear()

    def _make_pool(self, num_pages: int, page_size: int, sparse_layers: Sequence[int]) -> PagePool:
        weights = self._weights
        return PagePool(
            num_pages,
            layers=len(weights.layers),
            sparse_layers=sparse_layers,
            kv_heads=weights.kv_heads,
            page_size=page_size,
            head_dim=weights.head_dim,
            width=self.score.width,
            dtype=weights.embed_VE.dtype,
            device=weights.embed_VE.device,
        )
