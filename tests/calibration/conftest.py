"""A small random policy with decided attention, and sequences for it."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from sparrow.schedule import BudgetSchedule


def small_model(family: str = "qwen3") -> PreTrainedModel:
    torch.manual_seed(0)
    own = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[family]
    config = own[0](
        vocab_size=37, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=512, initializer_range=0.3,
        tie_word_embeddings=True,
    )  # fmt: skip
    return own[1](config).eval()


@pytest.fixture(params=["qwen3", "llama"])
def model(request):
    return small_model(request.param)


@pytest.fixture
def schedule() -> BudgetSchedule:
    """Three bins of 32 tokens, pages of 4, layer 0 dense."""
    return BudgetSchedule([2, 3, 5], page_size=4, bin_tokens=32, dense_layers=(0,))
