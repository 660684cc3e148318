"""Alpha by every estimator, of several sparse distributions against one dense one: the dense logits are made once."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

TOP = 20
"""Ids kept per side: by the study's estimator, and as candidates of the bounds."""
CHUNK_LOGITS = 2**23
"""Logits of one side that exist at a time: 32 MiB in fp32."""

Alphas = dict[str, Tensor]
"""``exact``, ``bounds`` (the lower bound from the sparse side's top 20) and ``top20``, each [X]."""


@torch.no_grad()
def agreement(dense_XE: Tensor, sparse: Sequence[Tensor], head_VE: Tensor, temperature: float) -> list[Alphas]:
    """Alpha of the same tokens between the dense policy and several sparse ones.

    Args:
        dense_XE: final hidden states that predict the tokens.
        sparse: for each sparse policy its hidden states [X, E].
        head_VE: the LM head, shared.
        temperature: the sampling temperature, for all.

    Returns:
        One mapping per sparse policy, tensors on the CPU.
    """
    rows = max(1, CHUNK_LOGITS // head_VE.shape[0])
    found: list[list[Alphas]] = [[] for _ in sparse]
    for start in range(0, max(len(dense_XE), 1), rows):  # no tokens: still one (empty) part
        part = slice(start, start + rows)
        dense_XV = _probs(dense_XE[part], head_VE, temperature)
        dense_best = dense_XV.topk(min(TOP, dense_XV.shape[-1]), -1)
        for chunks, sparse_XE in zip(found, sparse, strict=True):
            chunks.append(_compare(dense_XV, dense_best.indices, _probs(sparse_XE[part], head_VE, temperature)))
    return [{name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]} for chunks in found]


def _probs(hidden_XE: Tensor, head_VE: Tensor, temperature: float) -> Tensor:
    logits_XV = F.linear(hidden_XE.to(head_VE), head_VE).float()
    return torch.softmax(logits_XV / temperature, -1)


def _compare(dense_XV: Tensor, dense_ids_XC: Tensor, sparse_XV: Tensor) -> Alphas:
    best_XC, ids_XC = sparse_XV.topk(dense_ids_XC.shape[-1], -1)
    at_sparse_ids_XC = torch.minimum(best_XC, dense_XV.gather(-1, ids_XC))
    common_XC = (ids_XC.unsqueeze(-1) == dense_ids_XC.unsqueeze(-2)).any(-1)
    alphas = {
        "exact": torch.minimum(dense_XV, sparse_XV).sum(-1),
        "bounds": at_sparse_ids_XC.sum(-1),
        "top20": torch.where(common_XC, at_sparse_ids_XC, 0.0).sum(-1),
    }
    return {name: alpha_X.clamp(max=1.0).cpu() for name, alpha_X in alphas.items()}
