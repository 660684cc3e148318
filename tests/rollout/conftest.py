"""Small random models of every family, and the packaged tiny policy."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sparrow.models.tiny import tiny_path

FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 12}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
}


def random_model(family: str, seed: int = 0, **changes: Any) -> nn.Module:
    """A 4-layer model with 6 query and 2 KV heads, vocabulary 29, and weights large enough for decided attention."""
    config_class, model_class, own = FAMILIES[family]
    fields: dict[str, Any] = {
        "vocab_size": 29,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": family != "qwen2",
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    model = model_class(config_class(**{**fields, **own, **changes})).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # transformers starts these at 0 and 1: make them count
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


@pytest.fixture
def make_model() -> Callable[..., nn.Module]:
    """``make_model(family, seed=0, **config)``; family ``tiny`` is the packaged policy."""

    def make(family: str, seed: int = 0, **changes: Any) -> nn.Module:
        if family == "tiny":
            return AutoModelForCausalLM.from_pretrained(tiny_path()).eval()
        return random_model(family, seed, **changes)

    return make


@pytest.fixture
def make_prompts() -> Callable[..., list[list[int]]]:
    """``make_prompts(lengths, vocab=16, seed=0)``: random prompts; 16 ids fit every model here."""

    def make(lengths: list[int], vocab: int = 16, seed: int = 0) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]

    return make
