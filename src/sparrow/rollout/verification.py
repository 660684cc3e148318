"""Speculative sampling: drafts of one distribution become exact samples of another (arXiv 2211.17192, section 2.3).

A token x drafted from q is accepted with probability min(1, p(x) / q(x)); at the first one that is not, a token is
drawn from max(p - q, 0), normalised, and the rest of the draft is dropped. After a draft that is accepted whole one
more token is drawn from p. The tokens that come out follow p exactly, whatever q is.
"""

import torch
from torch import Tensor


def accepted_length(dense_BX: Tensor, draft_BX: Tensor, uniform_BX: Tensor, count_B: Tensor) -> Tensor:
    """How many tokens of each draft are accepted.

    Args:
        dense_BX: [B, X] p of each drafted token.
        draft_BX: [B, X] q of each drafted token.
        uniform_BX: [B, X] float64 random numbers in [0, 1).
        count_B: [B] int64 tokens of each draft; entries beyond may hold anything.

    Returns:
        [B] int64.
    """
    index_X = torch.arange(dense_BX.shape[1], device=count_B.device)
    accepted_BX = (uniform_BX * draft_BX < dense_BX) & (index_X < count_B.unsqueeze(1))
    return accepted_BX.long().cumprod(dim=1).sum(dim=1)


def residual(dense_BV: Tensor, draft_BV: Tensor) -> Tensor:
    """[B, V] what a token in place of a rejected one is drawn from, max(p - q, 0), not normalised.

    Where nothing is left, p and q differ by rounding alone, and p itself takes the place.
    """
    left_BV = (dense_BV - draft_BV).clamp_(min=0)
    return torch.where(left_BV.any(dim=-1, keepdim=True), left_BV, dense_BV)
