"""The engine's predicted memory against the tensors that are alive while it samples."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparrow.rollout import RolloutEngine, pool
from sparrow.schedule import BudgetSchedule


def excess(live_bytes: Any, lengths: list[int], options: dict[str, Any], temperature: float = 1.0, **sizes: int) -> Any:
    """Most bytes alive besides the cache in a call of eight tokens, and the prediction of it."""
    config = LlamaConfig(**{"vocab_size": 2000, "max_position_embeddings": 8192, **sizes})
    engine = RolloutEngine(LlamaForCausalLM(config).eval(), BudgetSchedule.constant(8), **options)
    prompts = [[i % 2000 for i in range(length)] for length in lengths]
    predicted = engine.memory(prompts, max_new_tokens=8, temperature=temperature)
    with live_bytes:
        engine.generate(prompts, max_new_tokens=8, temperature=temperature, seed=0, eos_token_ids=())
    return live_bytes.peak - predicted.pages - predicted.landmarks, predicted.working


@pytest.fixture(autouse=True)
def counted_cache(monkeypatch: Any) -> None:
    """The cache in memory that the count sees: huge pages are asked for from the system, not from torch."""
    monkeypatch.setattr(
        pool, "cache_zeros", lambda shape, dtype, device: torch.zeros(shape, dtype=dtype, device=device)
    )


SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("lengths", "changes"),
    [
        ([300] * 4, {"head_dim": 64, "num_key_value_heads": 8}),
        ([300] * 4, {"head_dim": 32, "num_key_value_heads": 2, "intermediate_size": 3000}),
        ([400] * 20, {"head_dim": 64, "num_key_value_heads": 8}),
        ([400] * 20, {"head_dim": 32, "num_key_value_heads": 2, "intermediate_size": 1500}),
        ([5000], {"head_dim": 64, "num_key_value_heads": 2}),
    ],
    ids=["projections", "mlp", "projections_8000_tokens", "mlp_8000_tokens", "attention_of_one_prompt"],
)
def test_a_prefill_holds_what_was_worked_out(lengths: list[int], changes: dict[str, int], live_bytes: Any) -> None:
    measured, working = excess(live_bytes, lengths, {"prefill_tokens": 8192, "max_batch": 32}, **{**SIZES, **changes})
    assert measured == pytest.approx(working, rel=0.1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_drawing_holds_what_was_worked_out(temperature: float, draft_tokens: int, live_bytes: Any) -> None:
    sizes = {**SIZES, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    options = {"draft_tokens": draft_tokens, "max_batch": 8}
    measured, working = excess(live_bytes, [5] * 8, options, temperature, **{**sizes, "vocab_size": 20000})
    assert measured == pytest.approx(working, rel=0.1)
