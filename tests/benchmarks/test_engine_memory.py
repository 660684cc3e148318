"""The engine's predicted memory against the tensors that are alive while it samples."""

from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule


@pytest.mark.parametrize("intermediate", [256, 3000], ids=["rotation_is_the_peak", "mlp_is_the_peak"])
def test_a_prefill_holds_what_was_worked_out(intermediate: int, live_bytes: Any) -> None:
    config = LlamaConfig(
        vocab_size=2000,
        hidden_size=256,
        intermediate_size=intermediate,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
    )
    engine = RolloutEngine(LlamaForCausalLM(config).eval(), BudgetSchedule.constant(8), max_batch=8)
    prompts = [list(range(300))] * 8
    predicted = engine.memory(prompts, max_new_tokens=3)
    with live_bytes:
        engine.generate(prompts, max_new_tokens=3, seed=0, eos_token_ids=())
    assert live_bytes.peak - predicted.pages - predicted.landmarks == pytest.approx(predicted.working, rel=0.1)
