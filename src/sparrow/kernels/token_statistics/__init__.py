"""Log-probs, entropy, top-k and agreement of tokens, straight from hidden states and the LM head.

Everything an RL step wants to know about a token needs its whole row of logits, and those rows do not fit in memory
(64K tokens x 150K vocabulary). So one operator computes all of it together, in tiles.
"""

import torch
from torch import Tensor

from sparrow.kernels.checks import check_dtype, check_float, check_shape
from sparrow.kernels.token_statistics import chunked
from sparrow.kernels.token_statistics.types import Request, TokenStatistics

__all__ = ["TokenStatistics", "token_statistics"]

CHUNK_VOCAB = 2**16
"""Vocabulary entries of a tile on the CPU when `chunk_vocab` is not given."""
TILE_LOGITS = 2**23
"""Logits of a tile on the CPU when `chunk_tokens` is not given: 32 MiB in fp32."""


def _check(hidden_XE: Tensor, head_VE: Tensor, request: Request) -> None:
    tokens, width = hidden_XE.shape
    vocabulary = head_VE.shape[0]
    check_float("hidden_XE", hidden_XE)
    check_shape("head_VE", head_VE, (None, width))
    check_float("head_VE", head_VE)
    check_shape("token_X", request.token_X, (tokens,))
    check_dtype("token_X", request.token_X, torch.int32, torch.int64)
    if not request.temperature > 0:
        raise ValueError(f"temperature is {request.temperature}, must be positive (greedy: log-probs at 1)")
    if request.topk < 0:
        raise ValueError(f"topk is {request.topk}, must not be negative")
    if request.other_hidden_XE is not None:
        check_shape("other_hidden_XE", request.other_hidden_XE, (tokens, width))
    ids, logprobs = request.candidate_ids_XC, request.candidate_logprobs_XC
    if (ids is None) != (logprobs is None):
        raise ValueError("candidate_ids_XC and candidate_logprobs_XC belong together: give both or neither")
    if ids is not None and logprobs is not None:
        check_shape("candidate_ids_XC", ids, (tokens, None))
        check_dtype("candidate_ids_XC", ids, torch.int32, torch.int64)
        check_shape("candidate_logprobs_XC", logprobs, ids.shape)
    if hidden_XE.device.type == "cpu" and tokens:
        _check_ids("token_X", request.token_X, 0, vocabulary)
        if ids is not None and ids.numel():
            _check_ids("candidate_ids_XC", ids, None, vocabulary)


def _check_ids(name: str, ids: Tensor, lowest: int | None, vocabulary: int) -> None:
    # Only where looking is free. On a device a wrong id gives a NaN log-prob instead of a stall.
    low, high = (int(x) for x in ids.aminmax())
    if high >= vocabulary or (lowest is not None and low < lowest):
        raise ValueError(f"{name} holds ids from {low} to {high}, allowed: below the vocabulary size {vocabulary}")


def token_statistics(
    hidden_XE: Tensor,
    head_VE: Tensor,
    token_X: Tensor,
    *,
    temperature: float = 1.0,
    topk: int = 0,
    other_hidden_XE: Tensor | None = None,
    candidate_ids_XC: Tensor | None = None,
    candidate_logprobs_XC: Tensor | None = None,
    chunk_tokens: int | None = None,
    chunk_vocab: int | None = None,
) -> TokenStatistics:
    """Computes statistics of tokens under p = softmax(hidden @ head.T / temperature).

    Logits are fp32 whatever the dtype of the inputs. Gradients reach `hidden_XE` and `head_VE` through `logprobs_X`
    and `entropy_X`; everything else is constant. A vocabulary entry whose logit is -inf has p = 0 and adds nothing to
    entropy or gradient.

    Args:
        hidden_XE: [X, E] final hidden states, each of the position that predicts the token.
        head_VE: [V, E] LM head.
        token_X: [X] int32 or int64 ids in [0, V).
        temperature: divides the logits; positive.
        topk: how many of the most probable ids to return; 0 for none.
        other_hidden_XE: [X, E] hidden states of another policy for the same tokens, put through the same head (q);
            asks for `alpha_X` and `alpha_top20_X`. No gradient.
        candidate_ids_XC: [X, C] ids that the other policy recorded, -1 for none; asks for `alpha_low_X` and
            `alpha_high_X`.
        candidate_logprobs_XC: [X, C] the other policy's log-probs at those ids, at the same temperature.
        chunk_tokens: tokens of a tile. Default: so many that a tile holds 2**23 logits (on CUDA 2**26 for `alpha_X`).
        chunk_vocab: vocabulary entries of a tile. Peak memory is a few tiles, whatever X and V are. Default: 2**16; on
            CUDA 4096, or all of them for `alpha_X`.

    Returns:
        `TokenStatistics`; its fields are documented there.

    Raises:
        TypeError: a dtype that is not allowed, or on CUDA one that the kernels do not serve.
        ValueError: shapes that do not fit, a temperature that is not positive, an id outside the vocabulary (CPU only:
            on a GPU its log-prob is NaN), candidates without log-probs or the reverse, on CUDA a `topk` that the
            kernels do not serve.
    """
    request = Request(token_X, temperature, topk, other_hidden_XE, candidate_ids_XC, candidate_logprobs_XC)
    _check(hidden_XE, head_VE, request)
    if hidden_XE.device.type != "cpu":
        from sparrow.kernels.token_statistics import gpu  # needs Triton, which a machine without a GPU may lack

        return gpu.token_statistics(hidden_XE, head_VE, request, chunk_tokens=chunk_tokens, chunk_vocab=chunk_vocab)
    chunk_vocab = CHUNK_VOCAB if chunk_vocab is None else chunk_vocab
    if chunk_tokens is None:
        chunk_tokens = max(1, TILE_LOGITS // min(chunk_vocab, head_VE.shape[0]))
    return chunked.token_statistics(hidden_XE, head_VE, request, chunk_tokens=chunk_tokens, chunk_vocab=chunk_vocab)
