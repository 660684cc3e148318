"""The model families the rollout decoder knows, and a flat view of their weights.

Qwen3, Qwen2 and Llama share one decoder block (RMSNorm, grouped-query attention with RoPE, gated MLP); they differ in
biases and in the per-head norms of query and key. `decoder_weights` reads all of that from a transformers model into
plain tensors. In the model's own dtype these are the live parameters themselves, so an optimizer step or a loaded
checkpoint shows at once and nothing can go stale. In another dtype they are copies, rewritten in place by the next call
with the same `copies`.

Projections stay separate: a fused copy of q, k and v measured no faster than the three products it replaces, and
would be a second version of the weights to keep in step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

SUPPORTED_FAMILIES = ("qwen3", "qwen2", "llama")
SUPPORTED_ROPE = ("default", "linear", "llama3", "yarn")
"""RoPE variants whose frequencies do not depend on the sequence at hand."""

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""``x @ weight.T + bias``, as `torch.nn.functional.linear`."""


@dataclass(frozen=True)
class LowRank:
    """One LoRA branch of a projection: ``scaling * (x A^T) B^T``, with A [rank, in] and B [out, rank]."""

    a: Tensor
    b: Tensor
    scaling: float


@dataclass(frozen=True)
class Projection:
    """A linear layer and its LoRA branches, which are never merged into the weight."""

    weight: Tensor
    bias: Tensor | None = None
    branches: tuple[LowRank, ...] = ()

    def apply(self, x: Tensor, adapter: bool, linear: Linear = F.linear) -> Tensor:
        """[..., in] -> [..., out]; the branches take part when ``adapter`` is true. ``linear`` makes the products."""
        out = linear(x, self.weight, self.bias)
        if adapter:
            for branch in self.branches:
                out = out + linear(linear(x, branch.a, None), branch.b, None) * branch.scaling
        return out


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. The norms of query and key are None in families without them."""

    input_norm_E: Tensor
    q: Projection
    k: Projection
    v: Projection
    o: Projection
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    post_norm_E: Tensor
    gate: Projection
    up: Projection
    down: Projection
    activation: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DecoderWeights:
    """All weights of a causal language model, and the few numbers needed to run it.

    ``rotary`` is the model's own module: ``rotary(x, position_ids [1, T]) -> cos, sin`` of [1, T, D], in the dtype of
    x. ``max_positions`` is the context length in tokens.
    """

    family: str
    layers: tuple[LayerWeights, ...]
    embed_VE: Tensor
    final_norm_E: Tensor
    head_VE: Tensor
    rotary: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    max_positions: int

    @property
    def scale(self) -> float:
        """What multiplies q . k."""
        return float(self.head_dim**-0.5)

    @property
    def has_adapter(self) -> bool:
        """Whether any projection carries a LoRA branch."""
        return any(p.branches for w in self.layers for p in (w.q, w.k, w.v, w.o, w.gate, w.up, w.down))


def check_family(config: Any) -> None:
    """Check that a transformers config describes a model the decoder computes exactly.

    Raises:
        ValueError: another family, sliding-window layers, quantised weights, an activation or RoPE variant outside the
            supported ones; the message names the key, the value and what is allowed.
    """
    family = getattr(config, "model_type", None)
    if family not in SUPPORTED_FAMILIES:
        raise ValueError(f"model_type={family!r} is not supported: must be one of {', '.join(SUPPORTED_FAMILIES)}")
    sliding = [i for i, kind in enumerate(getattr(config, "layer_types", None) or []) if kind != "full_attention"]
    if sliding:
        raise ValueError(
            f"{family} layer_types[{sliding[0]}]={config.layer_types[sliding[0]]!r}: must be full_attention"
        )
    if getattr(config, "use_sliding_window", False):
        raise ValueError(f"{family} use_sliding_window=True is not supported: must be False")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{family} quantization_config is set: quantised weights are not supported, load them in fp32")
    if config.hidden_act != "silu":
        raise ValueError(f"{family} hidden_act={config.hidden_act!r} is not supported: must be silu")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in SUPPORTED_ROPE:
        raise ValueError(f"{family} rope_type={rope!r} is not supported: must be one of {', '.join(SUPPORTED_ROPE)}")


def decoder_weights(
    model: nn.Module,
    dtype: torch.dtype | None = None,
    head_dtype: torch.dtype | None = None,
    copies: dict[str, Tensor] | None = None,
) -> DecoderWeights:
    """Read the weights of a Qwen3, Qwen2 or Llama causal language model, PEFT-wrapped or not.

    Args:
        model: transformers model, or a PeftModel around one. LoRA layers are seen through: the base weight and each
            active adapter's branch are read apart.
        dtype: dtype to compute in; None: that of the parameters. Parameters in this dtype are not copied.
        head_dtype: dtype of the LM head; None: as its parameter.
        copies: where casts live between calls; give the same dict again to have them rewritten in place.

    Raises:
        ValueError: an unsupported config (see :func:`check_family`), a sharded parameter, a merged adapter, a LoRA
            variant other than the plain one, or an adapter on embeddings or head.
    """
    base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    config = base.config
    check_family(config)
    body, head = base.model, base.lm_head
    copies = {} if copies is None else copies
    read = _Reader(dtype if dtype is not None else body.embed_tokens.weight.dtype, copies)
    read_head = _Reader(head_dtype if head_dtype is not None else head.weight.dtype, copies)
    for name, module in (("embed_tokens", body.embed_tokens), ("lm_head", head)):
        if hasattr(module, "base_layer") or hasattr(module, "modules_to_save"):
            raise ValueError(f"{name} carries an adapter: only attention and MLP projections may")
    return DecoderWeights(
        family=config.model_type,
        layers=tuple(_layer(read, f"layers.{i}", layer) for i, layer in enumerate(body.layers)),
        embed_VE=read.tensor("embed_tokens", body.embed_tokens.weight),
        final_norm_E=read.tensor("norm", body.norm.weight),
        head_VE=read_head.tensor("lm_head", head.weight),
        rotary=body.rotary_emb,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=body.layers[0].self_attn.head_dim,
        eps=config.rms_norm_eps,
        max_positions=config.max_position_embeddings,
    )


class _Reader:
    """Turns parameters into tensors of one dtype, and keeps the casts."""

    def __init__(self, dtype: torch.dtype, copies: dict[str, Tensor]) -> None:
        self.dtype, self.copies = dtype, copies

    def tensor(self, name: str, parameter: Tensor) -> Tensor:
        if isinstance(parameter, DTensor):
            raise ValueError(f"{name} is sharded over devices: gather the full parameters before rollout")
        if parameter.dtype == self.dtype:
            return parameter.detach()
        held = self.copies.get(name)
        if held is None or held.shape != parameter.shape or held.device != parameter.device:
            held = self.copies[name] = torch.empty_like(parameter, dtype=self.dtype, requires_grad=False)
        return held.copy_(parameter.detach())

    def projection(self, name: str, module: Any) -> Projection:
        base = getattr(module, "base_layer", module)
        if type(base) is not nn.Linear:
            raise ValueError(f"{name} is a {type(base).__name__}: must be a plain torch.nn.Linear (no quantisation)")
        bias = None if base.bias is None else self.tensor(f"{name}.bias", base.bias)
        branches = () if base is module else self._branches(name, module)
        return Projection(self.tensor(f"{name}.weight", base.weight), bias, branches)

    def _branches(self, name: str, module: Any) -> tuple[LowRank, ...]:
        if not hasattr(module, "lora_A"):
            raise ValueError(f"{name} carries a {type(module).__name__} adapter: only LoRA is supported")
        if module.merged:
            raise ValueError(f"{name}: adapter {module.merged_adapters} is merged into the weights; unmerge it first")
        active = [adapter for adapter in module.active_adapters if adapter in module.lora_A]
        for adapter in active:
            if adapter in module.lora_variant or module.lora_bias[adapter]:
                raise ValueError(f"{name}: adapter '{adapter}' is a LoRA variant (DoRA, bias, ...): only plain LoRA")
        return tuple(
            LowRank(
                self.tensor(f"{name}.{adapter}.a", module.lora_A[adapter].weight),
                self.tensor(f"{name}.{adapter}.b", module.lora_B[adapter].weight),
                float(module.scaling[adapter]),
            )
            for adapter in active
        )


def _layer(read: _Reader, name: str, layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    norms = {
        key: read.tensor(f"{name}.{key}", getattr(attention, key).weight) if hasattr(attention, key) else None
        for key in ("q_norm", "k_norm")
    }
    return LayerWeights(
        input_norm_E=read.tensor(f"{name}.input_norm", layer.input_layernorm.weight),
        q=read.projection(f"{name}.q_proj", attention.q_proj),
        k=read.projection(f"{name}.k_proj", attention.k_proj),
        v=read.projection(f"{name}.v_proj", attention.v_proj),
        o=read.projection(f"{name}.o_proj", attention.o_proj),
        q_norm_D=norms["q_norm"],
        k_norm_D=norms["k_norm"],
        post_norm_E=read.tensor(f"{name}.post_norm", layer.post_attention_layernorm.weight),
        gate=read.projection(f"{name}.gate_proj", mlp.gate_proj),
        up=read.projection(f"{name}.up_proj", mlp.up_proj),
        down=read.projection(f"{name}.down_proj", mlp.down_proj),
        activation=mlp.act_fn,
    )
