"""A rollout that finds no room takes fewer sequences at a time, says so, and gives what it would have given."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparrow.rollout import Completion, RolloutEngine
from sparrow.rollout.decoder import Decoder, DecodeRows
from sparrow.rollout.pool import PagePool
from sparrow.schedule import BudgetSchedule

SPARSE = BudgetSchedule.constant(1, page_size=4, dense_layers=(0,))
ARGUMENTS: dict[str, Any] = {"n": 3, "max_new_tokens": 20, "seed": 4, "eos_token_ids": (7,), "record": ("hidden",)}


class Narrow(Decoder):
    """Has room for so many sequences in a decode step."""

    room = 0

    def step(self, rows: DecodeRows, pool: PagePool, page_bits: list[Tensor] | None = None) -> Tensor:
        held = int((rows.cached_B > 0).sum())
        if held > self.room:
            raise torch.OutOfMemoryError(f"tried to hold {held} sequences")
        return super().step(rows, pool, page_bits)


class NarrowEngine(RolloutEngine):
    """An engine on a device with little memory."""

    room = 0

    def make_decoder(self, *, adapter: bool, max_tokens: int) -> Decoder:
        decoder = Narrow(self._weights, self.score, adapter=adapter, max_tokens=max_tokens)
        decoder.room = self.room
        return decoder


def narrow(model: nn.Module, room: int, **options: Any) -> NarrowEngine:
    engine = NarrowEngine(model, SPARSE, **options)
    engine.room = room
    return engine


def assert_same(left: list[Completion], right: list[Completion]) -> None:
    assert [completion.token_ids for completion in left] == [completion.token_ids for completion in right]
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one.logprobs, other.logprobs)
        assert one.hidden is not None
        assert other.hidden is not None
        assert torch.equal(one.hidden, other.hidden)


def test_the_batch_is_halved_until_it_fits(
    make_model: Callable[..., nn.Module], make_prompts: Callable[..., list[list[int]]]
) -> None:
    model, prompts = make_model("qwen3"), make_prompts([5, 9, 3])
    expected = RolloutEngine(model, SPARSE, max_batch=64).generate(prompts, **ARGUMENTS)
    engine = narrow(model, room=3, max_batch=64)
    with pytest.warns(UserWarning, match="out of memory") as told:
        found = engine.generate(prompts, **ARGUMENTS)
    assert_same(found, expected)
    assert [str(warning.message) for warning in told] == [
        "rollout: out of memory with 9 sequences at a time; goes on with 4 (rollout.max_batch=4 asks for that from the "
        "start): tried to hold 8 sequences",
        "rollout: out of memory with 4 sequences at a time; goes on with 2 (rollout.max_batch=2 asks for that from the "
        "start): tried to hold 4 sequences",
    ]
    assert engine.last_stats is not None
    assert engine.last_stats.max_rows == 2
    assert_same(engine.generate(prompts, **ARGUMENTS), expected)  # and stays there, without a word


def test_a_limited_cache_shrinks_with_it_but_holds_the_longest_sequence(
    make_model: Callable[..., nn.Module], make_prompts: Callable[..., list[list[int]]]
) -> None:
    model, prompts = make_model("qwen3"), make_prompts([5, 9])
    expected = RolloutEngine(model, SPARSE).generate(prompts, **ARGUMENTS)
    engine = narrow(model, room=1, max_batch=8, max_cached_tokens=96)
    with pytest.warns(UserWarning, match="out of memory"):
        assert_same(engine.generate(prompts, **ARGUMENTS), expected)
    assert engine.max_batch == 1
    assert engine.max_cached_tokens is not None
    assert 29 <= engine.max_cached_tokens < 96


def test_no_room_for_one_is_the_end(
    make_model: Callable[..., nn.Module], make_prompts: Callable[..., list[list[int]]]
) -> None:
    engine = narrow(make_model("qwen3"), room=0, max_batch=2)
    with (
        pytest.warns(UserWarning, match="goes on with 1"),
        pytest.raises(torch.OutOfMemoryError, match="no room for a single sequence of 25 tokens: tried to hold 1"),
    ):
        engine.generate(make_prompts([5]), **ARGUMENTS)
