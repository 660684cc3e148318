"""The sizes of a model, which everything that can be said of its memory follows from, without its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from sparrow.models.families import check_family
from sparrow.models.loading import resolve_model


@dataclass(frozen=True)
class Architecture:
    """Sizes of a decoder of a supported family.

    Attributes:
        layers: L.
        hidden: E.
        intermediate: size inside the gated MLP.
        heads: H.
        kv_heads: K.
        head_dim: D.
        vocab: V.
        tied: whether the LM head is the embedding.
        qk_norm: whether queries and keys are normalised per head (Qwen3).
        qkv_bias: whether their projections have a bias (Qwen2).
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qk_norm: bool = False
    qkv_bias: bool = False

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        projected = (self.heads + 2 * self.kv_heads) * self.head_dim
        attention = self.hidden * (projected + self.heads * self.head_dim)
        small = 2 * self.hidden + self.qk_norm * 2 * self.head_dim + self.qkv_bias * projected
        return attention + 3 * self.hidden * self.intermediate + small

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, and as many of the LM head."""
        return self.vocab * self.hidden

    @property
    def outer_parameters(self) -> int:
        """Everything outside the layers: embedding, head unless it is the same, final norm."""
        return self.embedding_parameters * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, shared ones once."""
        return self.layers * self.layer_parameters + self.outer_parameters


def _qwen3(layers: int, hidden: int, intermediate: int, heads: int, tied: bool) -> Architecture:
    return Architecture(
        layers, hidden, intermediate, heads, kv_heads=8, head_dim=128, vocab=151936, tied=tied, qk_norm=True
    )


ARCHITECTURES: dict[str, Architecture] = {
    "qwen3-0.6b": _qwen3(28, 1024, 3072, heads=16, tied=True),
    "qwen3-1.7b": _qwen3(28, 2048, 6144, heads=16, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 9728, heads=32, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 12288, heads=32, tied=False),
    "qwen3-14b": _qwen3(40, 5120, 17408, heads=40, tied=False),
    "qwen3-32b": _qwen3(64, 5120, 25600, heads=64, tied=False),
    "smollm2-135m": Architecture(30, 576, 1536, heads=9, kv_heads=3, head_dim=64, vocab=49152, tied=True),
}
"""Models whose sizes are known without a download."""


def architecture(name_or_path: str | Path) -> Architecture:
    """Sizes of a model by name.

    Args:
        name_or_path: a key of :data:`ARCHITECTURES`, ``tiny``, a transformers folder or a hub id.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: the model's family is not supported.
    """
    if str(name_or_path) in ARCHITECTURES:
        return ARCHITECTURES[str(name_or_path)]
    source = resolve_model(name_or_path)
    try:
        config: Any = AutoConfig.from_pretrained(source)
    except OSError as error:
        raise FileNotFoundError(f"model '{name_or_path}': no config could be read from '{source}': {error}") from error
    return from_config(config)


def from_config(config: Any) -> Architecture:
    """Sizes from a transformers config.

    Raises:
        ValueError: the model's family is not supported.
    """
    check_family(config)
    return Architecture(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab=config.vocab_size,
        tied=bool(config.tie_word_embeddings),
        qk_norm=config.model_type == "qwen3",
        qkv_bias=config.model_type == "qwen2",
    )
