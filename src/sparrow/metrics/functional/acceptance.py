"""How far the sparse actor agrees with the dense policy at one position: alpha = sum_v min(p_dense, p_sparse).

This is the acceptance rate of speculative sampling (Leviathan et al. 2023, arXiv 2211.17192) and equals one minus the
total variation. Three estimators of it exist here, and a threshold belongs to the one it was found with: exact (both
distributions), bounds (some candidates of the sparse side), top-k (some ids of either side, a lower bound only).
"""

from __future__ import annotations

import torch
from torch import Tensor


def acceptance_rate(dense_logits: Tensor, sparse_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Exact alpha of two distributions on the same prefix.

    Args:
        dense_logits: [..., V]; any float dtype, computed in fp32 (float64 stays).
        sparse_logits: [..., V], the same shape.
        temperature: the sampling temperature, applied to both.

    Returns:
        alpha in [0, 1], [...].

    Raises:
        ValueError: shapes differ, or the temperature is not positive.

    >>> dense = torch.tensor([0.5, 0.3, 0.2]).log()
    >>> sparse = torch.tensor([0.2, 0.3, 0.5]).log()
    >>> round(acceptance_rate(dense, sparse).item(), 4)
    0.7
    """
    if dense_logits.shape != sparse_logits.shape:
        raise ValueError(
            f"dense_logits {tuple(dense_logits.shape)} and sparse_logits {tuple(sparse_logits.shape)} differ"
        )
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")
    dtype = torch.promote_types(torch.promote_types(dense_logits.dtype, sparse_logits.dtype), torch.float32)
    dense = torch.softmax(dense_logits.to(dtype) / temperature, -1)
    sparse = torch.softmax(sparse_logits.to(dtype) / temperature, -1)
    return torch.minimum(dense, sparse).sum(-1).clamp(max=1.0)


def acceptance_bounds(dense_logprobs_at_ids: Tensor, sparse_logprobs_at_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bound of alpha from both sides' log-probs at the same candidates.

    lower = sum_C min(p, q); upper = lower + min(1 - sum_C p, 1 - sum_C q): what lies outside the candidates can agree
    completely or not at all. A slot that holds no candidate has log-prob -inf on both sides.

    Args:
        dense_logprobs_at_ids: [..., C], of the full softmax at the sampling temperature.
        sparse_logprobs_at_ids: [..., C], likewise.

    Returns:
        (lower, upper), both [...].

    Examples:
        >>> dense = torch.tensor([0.5, 0.3]).log()
        >>> sparse = torch.tensor([0.4, 0.5]).log()
        >>> [round(bound.item(), 4) for bound in acceptance_bounds(dense, sparse)]
        [0.7, 0.8]
    """
    if dense_logprobs_at_ids.shape != sparse_logprobs_at_ids.shape:
        raise ValueError(
            f"dense_logprobs_at_ids {tuple(dense_logprobs_at_ids.shape)} and "
            f"sparse_logprobs_at_ids {tuple(sparse_logprobs_at_ids.shape)} differ"
        )
    dense, sparse = dense_logprobs_at_ids.exp(), sparse_logprobs_at_ids.exp()
    lower = torch.minimum(dense, sparse).sum(-1)
    rest = torch.minimum(1 - dense.sum(-1), 1 - sparse.sum(-1)).clamp(min=0.0)
    return lower.clamp(max=1.0), (lower + rest).clamp(max=1.0)


def acceptance_top_k(dense_ids: Tensor, dense_logprobs: Tensor, sparse_ids: Tensor, sparse_logprobs: Tensor) -> Tensor:
    """Lower bound of alpha from the likeliest ids of each side: sum over the common ids of min(p, q).

    With 20 ids of each side this is the estimator of the Sparrow study (arXiv 2606.08446). Dense against dense reads
    below 1 (it reads the mass of the top ids), so it says something only where the distributions are narrow. Unused
    slots hold a negative id or a log-prob of -inf.

    Args:
        dense_ids: [..., C1] distinct vocabulary ids.
        dense_logprobs: [..., C1] log-probs of the full softmax at the sampling temperature.
        sparse_ids: [..., C2].
        sparse_logprobs: [..., C2].

    Returns:
        The bound, [...].

    >>> dense = torch.tensor([0.5, 0.3]).log()
    >>> sparse = torch.tensor([0.6, 0.2]).log()
    >>> round(acceptance_top_k(torch.tensor([7, 2]), dense, torch.tensor([2, 9]), sparse).item(), 4)
    0.3
    """
    common = (dense_ids.unsqueeze(-1) == sparse_ids.unsqueeze(-2)) & (dense_ids >= 0).unsqueeze(-1)
    smaller = torch.minimum(dense_logprobs.unsqueeze(-1), sparse_logprobs.unsqueeze(-2)).exp()
    return torch.where(common, smaller, 0.0).sum((-2, -1)).clamp(max=1.0)


def disagreements(alpha_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Expected number of tokens per trace that the dense policy would not have accepted: sum_t (1 - alpha_t), [B].

    >>> alpha = torch.tensor([[1.0, 0.75, 0.5, float("nan")]])
    >>> disagreements(alpha, torch.tensor([[True, True, True, False]]))
    tensor([0.7500])
    """
    return torch.where(mask_BT, 1 - alpha_BT, 0.0).sum(-1)
