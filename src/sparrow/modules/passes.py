"""The dense pass and the sparse pass over a model, each holding forward and backward.

Backward must run inside the context too: gradient checkpointing recomputes the forward there, and would otherwise
recompute it with the other attention or the other adapter state without a word.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from sparrow.distributed.sharding import BODY, whole
from sparrow.models.adapter import adapter, base_model, trainable
from sparrow.models.attention import SparsePass, attention_mode


@contextmanager
def dense_pass(model: nn.Module) -> Iterator[None]:
    """Ordinary causal attention, adapter off."""
    with attention_mode(model, "sdpa"), adapter(model, on=False):
        yield


@contextmanager
def sparse_pass(model: nn.Module, *, with_adapter: bool, train: Sequence[Parameter] = ()) -> Iterator[None]:
    """Block-sparse attention as in the rollout; only ``train`` takes gradients.

    Args:
        model: the policy.
        with_adapter: whether the actor samples with the adapter.
        train: parameters that receive gradients; every other one is frozen for the pass.
    """
    with attention_mode(model, "sparrow"), adapter(model, on=with_adapter), trainable(model, train):
        yield


def hidden_states(model: nn.Module, tokens_BT: Tensor, sparse: SparsePass | None = None) -> Tensor:
    """Final hidden states [B, T, E], after the last norm and before the head, of right-padded sequences.

    No mask is passed: under causal attention padding on the right is never seen by a real token.
    """
    kwargs: dict[str, Any] = {} if sparse is None else {"sparse_pass": sparse}
    inner = base_model(model)
    if hasattr(inner, BODY):  # sharded: its own method gathers what is read, the head's weight included
        gathered_BTE: Tensor = getattr(inner, BODY)(input_ids=tokens_BT, use_cache=False, **kwargs)
        return gathered_BTE
    hidden_BTE: Tensor = decoder_body(model)(input_ids=tokens_BT, use_cache=False, **kwargs).last_hidden_state
    return hidden_BTE


def idle_pass(model: nn.Module, device: torch.device, sparse: SparsePass | None = None) -> Tensor:
    """A pass over two tokens that counts for nothing, for a rank that has run out of micro-batches.

    Under sharding every pass gathers and reduces over all ranks, so all must make equally many.

    Args:
        model: the policy.
        device: of the tokens.
        sparse: what the sparse attention of the active pass needs, for a sequence of two tokens.

    Returns:
        0, whose gradient is 0 for every parameter that a micro-batch gives one.
    """
    tokens_BT = torch.zeros(1, 2, dtype=torch.long, device=device)
    hidden_BTE = hidden_states(model, tokens_BT, sparse)
    return (hidden_BTE * 0).sum() + (head_weight(model) * 0).sum()


def decoder_body(model: nn.Module) -> nn.Module:
    """The transformer without its head, also through an adapter's wrapper."""
    inner: Any = base_model(model)
    body: nn.Module = inner.get_decoder()
    return body


def head_weight(model: nn.Module) -> Tensor:
    """The LM head [V, E], tied or not; of a sharded model it is there from a forward to its backward."""
    inner: Any = base_model(model)
    weight: Tensor = inner.get_output_embeddings().weight
    return weight


def whole_head(model: nn.Module) -> Tensor:
    """A copy of the LM head [V, E] without gradient, sharded or not; all ranks must ask for it."""
    return whole(head_weight(model).detach()).clone()


def predicting(hidden_BTE: Tensor, mask_BT: Tensor) -> Tensor:
    """Hidden states [X, E] that predict the masked tokens: the state one position before each."""
    shifted_BT = torch.zeros_like(mask_BT)
    shifted_BT[:, :-1] = mask_BT[:, 1:]
    return hidden_BTE[shifted_BT]
