"""One decode step of a sparse layer: scores of the pages, choice, attention to the chosen ones."""

from typing import Any

from torch import Tensor

from sparrow.kernels.decode_attention import cpu
from sparrow.kernels.page_score import PageScore
from sparrow.kernels.page_scores import page_scores
from sparrow.kernels.paged_attention import paged_attention
from sparrow.kernels.select_pages import select_pages


def decode_attention(
    query_BHD: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    landmarks: Tensor,
    page_table_BN: Tensor,
    cached_B: Tensor,
    budget_B: Tensor,
    score: PageScore,
    *,
    first: int,
    last: int,
    max_pages: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`page_scores`, `select_pages` and `paged_attention` in a row, with the same bits.

    On CPU one compiled call serves all three where the score is linear and everything fp32: work is handed to threads
    once, not three times.

    Args:
        query_BHD: [B, H, D] after q-norm and RoPE.
        key_pages: [pool, K, P, D].
        value_pages: [pool, K, P, D].
        landmarks: [pool, K, W, D].
        page_table_BN: [B, N] int32 physical page of each logical page; entries past ceil(cached / P) are arbitrary.
        cached_B: [B] int32 or int64 cached tokens, the one being decoded included; 0 for a padded slot.
        budget_B: [B] int32 or int64 pages besides the reserved ones; not negative.
        score: which page score made the landmarks.
        first: reserved pages at the start.
        last: reserved pages at the end.
        max_pages: S, the capacity of a list.
        scale: multiplies q . k, usually D ** -0.5.

    Returns:
        Attention [B, H, D]; the lists [B, K, S] and their lengths [B, K], as `select_pages` returns them.

    Raises:
        TypeError: as the three operators.
        ValueError: as the three operators.
    """
    choice: dict[str, Any] = {"page_size": key_pages.shape[2], "first": first, "last": last, "max_pages": max_pages}
    cache = (key_pages, value_pages, landmarks, page_table_BN, cached_B, budget_B)
    if min(first, last, max_pages) >= 0 and cpu.serves(score, query_BHD, *cache):
        return cpu.decode_attention(query_BHD, *cache, score, scale=scale, **choice)
    scores_BKN = page_scores(query_BHD, landmarks, page_table_BN, cached_B, score, page_size=key_pages.shape[2])
    pages_BKS, count_BK = select_pages(scores_BKN, cached_B, budget_B, **choice)
    mixed_BHD = paged_attention(query_BHD, key_pages, value_pages, page_table_BN, pages_BKS, count_BK, cached_B, scale)
    return mixed_BHD, pages_BKS, count_BK
