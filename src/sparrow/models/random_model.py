"""Models of known sizes with random weights, for whatever depends on sizes alone."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from sparrow.models.architecture import ARCHITECTURES


def random_model(name: str, dtype: torch.dtype, device: str | torch.device = "cpu", seed: int = 0) -> PreTrainedModel:
    """A model of known sizes with random weights: as fast as the trained one, and without a download.

    Args:
        name: a key of :data:`ARCHITECTURES`.
        dtype: of the weights.
        device: where they are made.
        seed: of the weights.

    Raises:
        ValueError: an unknown name; lists the known ones.
    """
    if name not in ARCHITECTURES:
        raise ValueError(f"architecture '{name}': must be one of {', '.join(ARCHITECTURES)}")
    sizes = ARCHITECTURES[name]
    config_class: Any = Qwen3Config if sizes.qk_norm else LlamaConfig
    config = config_class(
        num_hidden_layers=sizes.layers,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocab,
        tie_word_embeddings=sizes.tied,
        max_position_embeddings=40960,
    )
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    model.eval()
    return model
