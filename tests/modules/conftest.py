"""A small random policy and a rollout of it, for tests of the update."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from sparrow.modules import Experience, collect
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule

PROMPTS = [[1, 2, 3, 4, 5], [6, 7, 8]]


def small_model(seed: int = 0, vocab_size: int = 13) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5) if parameter.ndim > 1 else None
    return model


@pytest.fixture
def make_model() -> Callable[[], PreTrainedModel]:
    """The same random Qwen3 every time it is called."""
    return small_model


@pytest.fixture
def roll() -> Callable[..., Experience]:
    """Samples an experience from a model: 2 prompts, 4 samples each, made-up advantages."""

    def sample(model: PreTrainedModel, schedule: BudgetSchedule | None = None, temperature: float = 1.0) -> Experience:
        engine = RolloutEngine(model, schedule, max_batch=8)
        completions = engine.generate(
            PROMPTS, n=4, max_new_tokens=40, temperature=temperature, seed=3, eos_token_ids=(12,), record=("hidden",)
        )
        group_B = torch.tensor([completion.prompt_index for completion in completions])
        advantages_B = torch.linspace(-1.5, 1.5, len(completions))
        prompts = [PROMPTS[completion.prompt_index] for completion in completions]
        return collect(prompts, completions, [0.0] * len(completions), advantages_B, group_B)

    return sample
