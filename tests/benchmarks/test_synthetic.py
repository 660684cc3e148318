"""All systems of the rollout suite decode from the same cache: their greedy tokens are the same."""

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from sparrow.benchmarks.synthetic import Context, Generate, SyntheticEngine
from sparrow.schedule import BudgetSchedule

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
}


def make(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel
    if family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=12)).eval()
    else:
        model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    model.generation_config = GenerationConfig()
    return model


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("tokens", [32, 45])
@torch.no_grad()
def test_dense_engine_and_generate_draw_the_same_tokens(family: str, tokens: int) -> None:
    model = make(family)
    context = Context.random(model, batch=3, tokens=tokens, seed=1)
    dense = BudgetSchedule.dense(page_size=4, dense_layers=[0])
    engine = SyntheticEngine(model, dense, max_batch=3)
    ours = engine.decode(context, dense, 9, 0.0)
    assert [len(row) for row in ours.token_ids] == [9, 9, 9]
    assert engine.last_stats is not None
    assert engine.last_stats.decode_steps == 9
    assert engine.last_stats.tokens_cached == 3 * 3 * 2 * sum(tokens + i for i in range(1, 10))
    for static in (False, True):
        generate = Generate(model, context, steps=9, static=static, temperature=0.0)
        for _ in range(2):  # the second call must start from the same cache
            assert generate.decode().token_ids == ours.token_ids
    assert engine.decode(context, dense, 9, 0.0).token_ids == ours.token_ids


@torch.no_grad()
def test_sparse_engine_reads_its_budget_of_the_same_cache() -> None:
    model = make("llama")
    context = Context.random(model, batch=2, tokens=80, seed=1)
    sparse = BudgetSchedule.constant(4, page_size=4, dense_layers=[0])
    engine = SyntheticEngine(model, sparse, max_batch=2)
    decoded = engine.decode(context, sparse, 5, 0.0)
    assert engine.last_stats is not None
    # Of 81 .. 85 tokens 7 pages of 4 are read, the last one with 1, 2, 3, 4 and 1 tokens.
    assert engine.last_stats.tokens_read_sparse == 2 * 2 * 2 * (25 + 26 + 27 + 28 + 25)
    assert decoded.seconds_per_step == decoded.seconds / 5 > 0


@torch.no_grad()
def test_sampling_runs_at_a_temperature() -> None:
    model = make("llama")
    context = Context.random(model, batch=2, tokens=20, seed=1)
    torch.manual_seed(0)
    decoded = Generate(model, context, steps=8, static=False, temperature=1.0).decode()
    greedy = Generate(model, context, steps=8, static=False, temperature=0.0).decode()
    assert [len(row) for row in decoded.token_ids] == [8, 8]
    assert decoded.token_ids != greedy.token_ids
