"""Reference of `select_pages`: two stable sorts, any device. The operator's docstring holds the definition."""

import torch
from torch import Tensor


def select_pages(
    scores_BKN: Tensor,
    cached_B: Tensor,
    budget_B: Tensor,
    *,
    page_size: int,
    first: int,
    last: int,
    max_pages: int,
) -> tuple[Tensor, Tensor]:
    """Ranks the candidates of each row by a stable descending sort and keeps the best."""
    batch, kv_heads, num_pages = scores_BKN.shape
    live_B, count_B = check_rows(
        cached_B, budget_B, num_pages, page_size=page_size, first=first, last=last, max_pages=max_pages
    )
    page_N = torch.arange(num_pages, device=scores_BKN.device)
    live_BN = page_N < live_B.unsqueeze(1)
    candidate_BN = live_BN & (page_N >= first) & (page_N < (live_B - last).unsqueeze(1))
    rank_BKN = _rank(scores_BKN, candidate_BN.unsqueeze(1).expand_as(scores_BKN))
    # The reserved pages that exist; with few pages the first and the last ones overlap.
    reserved_B = (live_BN & ~candidate_BN).sum(dim=1)
    free_B = (count_B - reserved_B).clamp(min=0)
    best_BKN = candidate_BN.unsqueeze(1) & (rank_BKN < free_B.view(-1, 1, 1))
    chosen_BKN = best_BKN | (live_BN & ~candidate_BN).unsqueeze(1)

    ascending_BKN = torch.where(chosen_BKN, page_N, num_pages).sort(dim=-1).values
    pages_BKS = scores_BKN.new_full((batch, kv_heads, max_pages), -1, dtype=torch.int32)
    kept = min(num_pages, max_pages)
    ascending_BKN = ascending_BKN[..., :kept]
    pages_BKS[..., :kept] = torch.where(ascending_BKN < num_pages, ascending_BKN, -1)
    return pages_BKS, chosen_BKN.sum(dim=-1, dtype=torch.int32)


def check_rows(
    cached_B: Tensor,
    budget_B: Tensor,
    num_pages: int,
    *,
    page_size: int,
    first: int,
    last: int,
    max_pages: int,
) -> tuple[Tensor, Tensor]:
    """Pages and listed pages of each row, both [B].

    Raises:
        ValueError: a negative budget, more pages than scores, or more listed pages than list entries; names the row.
    """
    budget_B = budget_B.long()
    live_B = (cached_B.long() + page_size - 1) // page_size
    count_B = torch.minimum(live_B, budget_B + first + last)
    if bool((budget_B < 0).any()):
        row = int(budget_B.argmin())
        raise ValueError(f"row {row} has a budget of {int(budget_B[row])} pages, must not be negative")
    if bool((live_B > num_pages).any()):
        row = int(live_B.argmax())
        raise ValueError(f"row {row} has {int(live_B[row])} pages, but scores_BKN has room for {num_pages}")
    if bool((count_B > max_pages).any()):
        row = int(count_B.argmax())
        raise ValueError(f"row {row} selects {int(count_B[row])} pages, but max_pages is {max_pages}")
    return live_B, count_B


def _rank(scores_BKN: Tensor, candidate_BKN: Tensor) -> Tensor:
    """Position of each page in the order: candidates first, then higher score, then lower page; NaN counts as -inf."""
    key_BKN = torch.where(scores_BKN.isnan(), -torch.inf, scores_BKN)
    by_score = key_BKN.argsort(dim=-1, descending=True, stable=True)
    by_candidacy = candidate_BKN.gather(-1, by_score).int().argsort(dim=-1, descending=True, stable=True)
    order = by_score.gather(-1, by_candidacy)
    place_N = torch.arange(scores_BKN.shape[-1], device=scores_BKN.device)
    return torch.empty_like(order).scatter_(-1, order, place_N.expand_as(order))
