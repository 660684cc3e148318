"""Decoding from a cache that was never computed: the same random keys and values for every system that is timed.

A prefill of thousands of tokens takes minutes on a CPU and says nothing about a decode step. What a cache holds does
not change the time of a step either, only which pages are chosen, so random keys and values stand in for real ones.
One layer's are drawn; every layer of every system gets a copy in its own memory.
"""

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache

from sparrow.kernels import page_landmarks
from sparrow.rollout import RolloutEngine
from sparrow.rollout.decoder import Decoder
from sparrow.rollout.pool import PagePool
from sparrow.schedule import BudgetSchedule


@dataclass(frozen=True)
class Context:
    """What every sequence has behind it.

    Attributes:
        key_BKTD: [B, K, T, D] keys of each layer.
        value_BKTD: [B, K, T, D] values of each layer.
    """

    key_BKTD: Tensor
    value_BKTD: Tensor

    @classmethod
    def random(cls, model: PreTrainedModel, batch: int, tokens: int, seed: int) -> "Context":
        """Random keys and values that fit ``model``, in its dtype and on its device."""
        config: Any = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes = (batch, config.num_key_value_heads, tokens, head_dim)
        generator = torch.Generator(model.device).manual_seed(seed)
        draw: dict[str, Any] = {"generator": generator, "device": model.device, "dtype": model.dtype}
        return cls(torch.randn(sizes, **draw), torch.randn(sizes, **draw))

    @property
    def batch(self) -> int:
        """B."""
        return self.key_BKTD.shape[0]

    @property
    def tokens(self) -> int:
        """T."""
        return self.key_BKTD.shape[2]


@dataclass
class Decoded:
    """What one timed call gave.

    Attributes:
        seconds: of all decode steps together.
        steps: how many there were.
        token_ids: of each sequence, those that the steps drew.
    """

    seconds: float
    steps: int
    token_ids: list[list[int]]

    @property
    def seconds_per_step(self) -> float:
        """Mean over the steps of the call."""
        return self.seconds / self.steps


class SyntheticDecoder(Decoder):
    """A decoder whose prefill writes given keys and values instead of computing them.

    It returns hidden states of zero, so that the first token is the vocabulary's first under greedy sampling. It notes
    when the logits of the last first token were there: what follows is decode steps, and a captured one does not come
    through here.
    """

    context: Context
    started: float | None = None
    _filled: int = 0
    _admitting: bool = False

    def prefill(self, token_X: Tensor, page_X: Tensor, offset_X: Tensor, lengths: list[int], pool: PagePool) -> Tensor:
        """Fill the pages of the next ``len(lengths)`` sequences of the context."""
        rows = slice(self._filled, self._filled + len(lengths))
        self._filled += len(lengths)
        self._admitting = True
        padding = len(token_X) - sum(lengths)
        key_XKD, value_XKD = (
            nn.functional.pad(state_BKTD[rows].transpose(1, 2).flatten(0, 1), (0, 0, 0, 0, 0, padding))
            for state_BKTD in (self.context.key_BKTD, self.context.value_BKTD)
        )
        for keys, values, landmarks in zip(pool.keys, pool.values, pool.landmarks, strict=True):
            page_landmarks(key_XKD, value_XKD, keys, values, landmarks, page_X, offset_X, self.score)
        embed_VE = self.weights.embed_VE
        return embed_VE.new_zeros(self.padded_rows(len(lengths)), embed_VE.shape[1])

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """Logits as ever; those of a first token start the clock anew."""
        logits_BV = super().logits(hidden_BE)
        if self._admitting:
            self._admitting = False
            self.started = now(logits_BV.device)
        return logits_BV


class SyntheticEngine(RolloutEngine):
    """The engine, decoding from a given context."""

    context: Context
    decoder: SyntheticDecoder | None = None

    def make_decoder(self, *, adapter: bool, max_tokens: int) -> Decoder:
        """The decoder of one call, and those of its graphs."""
        decoder = SyntheticDecoder(self._weights, self.score, adapter=adapter, max_tokens=max_tokens)
        decoder.context = self.context
        self.decoder = self.decoder or decoder
        return decoder

    def decode(self, context: Context, schedule: BudgetSchedule, steps: int, temperature: float) -> Decoded:
        """``steps`` decode steps of the whole batch, as ``generate`` runs them.

        Args:
            context: what the cache holds.
            schedule: page budgets.
            steps: decode steps.
            temperature: of sampling; 0: greedy.
        """
        self.context, self.decoder = context, None
        self.set_schedule(schedule)
        prompts: Sequence[Sequence[int]] = [[0] * context.tokens] * context.batch
        completions = self.generate(
            prompts, max_new_tokens=steps + 1, temperature=temperature, seed=0, eos_token_ids=()
        )
        end = now(context.key_BKTD.device)
        assert self.decoder is not None
        assert self.decoder.started is not None
        # The first token is drawn from the prefill's states and belongs to no step.
        token_ids = [completion.token_ids[1:] for completion in completions]
        return Decoded(end - self.decoder.started, steps, token_ids)


class Generate:
    """``generate`` of transformers, decoding from a given context.

    Args:
        model: the model.
        context: what the cache holds before each call.
        steps: decode steps of a call.
        static: a static cache, kept between calls, or a dynamic one, new for each.
        temperature: of sampling; 0: greedy.
    """

    def __init__(
        self, model: PreTrainedModel, context: Context, *, steps: int, static: bool, temperature: float
    ) -> None:
        self.model, self.context, self.steps, self.static, self.temperature = model, context, steps, static, temperature
        self._cache: Cache | None = None

    def decode(self) -> Decoded:
        """Fill the cache, then let ``generate`` draw ``steps`` tokens, one decode step each."""
        batch, tokens, device = self.context.batch, self.context.tokens, self.context.key_BKTD.device
        cache = self._fill()
        ids_BT = torch.zeros(batch, tokens + 1, dtype=torch.int64, device=device)
        sampling: dict[str, Any] = {"do_sample": False}
        if self.temperature > 0:
            sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        start = now(device)
        model: Any = self.model
        out_BT: Tensor = model.generate(
            input_ids=ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            max_new_tokens=self.steps,
            use_cache=True,
            pad_token_id=0,
            **{_cache_name(self.model): cache},
            **sampling,
        )
        end = now(device)
        return Decoded(end - start, self.steps, out_BT[:, tokens + 1 :].tolist())

    def _fill(self) -> Cache:
        config: Any = self.model.config
        if not self.static:
            self._cache = None  # the old one's memory is free before the new one takes its own
            self._cache = DynamicCache()
        elif self._cache is None:
            self._cache = StaticCache(config=config, max_cache_len=self.context.tokens + self.steps + 1)
        else:
            self._cache.reset()  # in place: compiled code may hold its address
        for layer in range(config.num_hidden_layers):
            self._cache.update(self.context.key_BKTD, self.context.value_BKTD, layer)
        return self._cache


def now(device: torch.device) -> float:
    """Wall time in seconds when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _cache_name(model: PreTrainedModel) -> str:
    """The cache's argument: ``past_key_values``, renamed ``cache`` in later releases of transformers."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
