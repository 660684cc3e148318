"""The sparse actor's forward over whole sequences: attention for transformers models that repeats decode's page choice.

Registered with transformers under the name ``sparrow``; what to do comes with each call::

    with attention_mode(model, "sparrow"):
        model(input_ids=tokens_BT, use_cache=False, sparse_pass=SparsePass(schedule, score, prompt_len_B, length_B))

Batches are left-aligned (prompt, response, padding) and carry no mask: causal attention never looks to the right. The
query at index j sees t = j + 1 cached tokens. In a dense layer, and at a prompt position of any layer, it reads all of
them; at a response position it reads the pages that decode would choose at t. The choice runs through the very
operators of decode, row for row, and carries no gradient; q, k and v get theirs through the attended tokens only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from sparrow.kernels import block_sparse_attention
from sparrow.models.adapter import base_model
from sparrow.models.page_choice import SparsePass, choose_pages

__all__ = ["SPARROW", "SparsePass", "attention_mode", "choose_pages", "sparrow_attention"]

SPARROW = "sparrow"
"""Name of the attention implementation."""

_READY = (SPARROW, "sdpa", "eager")  # implementations that are there without installing or loading anything


def sparrow_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    sparse_pass: SparsePass | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, with the signature that transformers calls (argument names are its own).

    Args:
        module: the attention layer; its ``layer_idx`` decides between dense and sparse.
        query: [B, H, T, D] after q-norm and RoPE.
        key: [B, K, T, D].
        value: [B, K, T, D].
        attention_mask: None.
        scaling: multiplies q . k.
        dropout: 0.
        sparse_pass: what to read.

    Returns:
        [B, T, H, D], and no attention weights.

    Raises:
        ValueError: no ``sparse_pass``, a mask, a cache or dropout.
        KeyError: a replay that lacks this layer.
    """
    if sparse_pass is None:
        raise ValueError("attention 'sparrow' needs the argument sparse_pass=SparsePass(...) in the model's call")
    if attention_mask is not None:
        raise ValueError("attention 'sparrow' takes no attention_mask: pad on the right and pass attention_mask=None")
    if key.shape[2] != query.shape[2]:
        raise ValueError(
            f"attention 'sparrow' takes whole sequences, not {query.shape[2]} queries on a cache of {key.shape[2]} keys"
        )
    if dropout:
        raise ValueError(f"attention_dropout={dropout}: attention 'sparrow' has none, set it to 0")
    layer = module.layer_idx
    assert isinstance(layer, int)
    if sparse_pass.is_dense(layer):
        return sdpa_attention_forward(module, query, key, value, None, scaling=scaling)
    chosen_BKTM = _page_sets(layer, query, key, sparse_pass)
    out_BHTD = block_sparse_attention(
        query,
        key,
        value,
        chosen_BKTM,
        sparse_pass.prompt_len_B,
        sparse_pass.length_B,
        page_size=sparse_pass.schedule.page_size,
        scale=scaling,
    )
    return out_BHTD.transpose(1, 2).contiguous(), None


@contextmanager
def attention_mode(model: nn.Module, name: str) -> Iterator[None]:
    """Forward (and backward, which may recompute it) with an attention implementation; restores the one before.

    Args:
        model: the policy, with or without an adapter.
        name: ``sparrow``, ``sdpa`` or another that transformers knows.

    Raises:
        ValueError: transformers does not know the name.
    """
    inner = base_model(model)
    assert isinstance(inner, PreTrainedModel)
    before = inner.config._attn_implementation
    if name in _READY:
        inner.config._attn_implementation = name  # the layers read it there; the checked way walks all modules
    else:
        inner.set_attn_implementation(name)
    try:
        yield
    finally:
        inner.config._attn_implementation = before


def _page_sets(layer: int, query_BHTD: Tensor, key_BKTD: Tensor, sparse_pass: SparsePass) -> Tensor:
    if sparse_pass.page_sets is None:
        chosen_BKTM = choose_pages(query_BHTD, key_BKTD, sparse_pass)
    elif layer in sparse_pass.page_sets:
        chosen_BKTM = sparse_pass.page_sets[layer]
    else:
        raise KeyError(f"page_sets has no entry for sparse layer {layer}, only for {sorted(sparse_pass.page_sets)}")
    if sparse_pass.record is not None:
        sparse_pass.record[layer] = chosen_BKTM
    return chosen_BKTM


AttentionInterface.register(SPARROW, sparrow_attention)
AttentionMaskInterface.register(SPARROW, sdpa_mask)
