"""Sizes of models: parameters by hand, of the real module trees, and of the published models."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from sparrow.models.architecture import ARCHITECTURES, Architecture, architecture, from_config
from sparrow.models.random_model import random_model
from sparrow.schedule.cost import MODEL_SHAPES


def test_parameters_by_hand() -> None:
    sizes = Architecture(layers=3, hidden=8, intermediate=10, heads=4, kv_heads=2, head_dim=5, vocab=11, tied=True)
    assert sizes.layer_parameters == 8 * 5 * (4 + 2 + 2) + 4 * 5 * 8 + 3 * 8 * 10 + 2 * 8
    assert sizes.outer_parameters == 11 * 8 + 8
    assert sizes.parameters == 3 * 736 + 96


@pytest.mark.parametrize("name", list(MODEL_SHAPES))
def test_presets_agree_with_the_cost_model(name: str) -> None:
    sizes, shape = ARCHITECTURES[name], MODEL_SHAPES[name]
    assert sizes.parameters == shape.parameters
    assert (sizes.layers, sizes.heads, sizes.kv_heads, sizes.head_dim) == (
        shape.layers,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("config_class", "model_class"),
    [(Qwen3Config, Qwen3ForCausalLM), (Qwen2Config, Qwen2ForCausalLM), (LlamaConfig, LlamaForCausalLM)],
    ids=["qwen3", "qwen2", "llama"],
)
def test_parameters_are_those_of_the_module_tree(config_class: Any, model_class: Any, tied: bool) -> None:
    config = config_class(
        vocab_size=50,
        hidden_size=96,
        intermediate_size=200,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = model_class(config)
    assert from_config(config).parameters == model.num_parameters()


def test_a_packaged_model_is_read_from_its_config() -> None:
    sizes = architecture("tiny")
    assert (sizes.layers, sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head_dim) == (4, 128, 4, 2, 32)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        architecture("nowhere")


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_a_random_model_has_the_sizes_of_its_name(name: str) -> None:
    model = random_model(name, torch.bfloat16, "meta")
    assert from_config(model.config) == ARCHITECTURES[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == ARCHITECTURES[name].parameters
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_random_model_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="architecture 'gpt-2': must be one of qwen3-0.6b, "):
        random_model("gpt-2", torch.float32)
