"""Chooses the pages that a decode step reads."""

import torch
from torch import Tensor

from sparrow.kernels.checks import check_dtype, check_shape
from sparrow.kernels.select_pages import cpu


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
    """Lists the pages to read: the first and last ones always, and the best-scored of those between.

    With N = ceil(cached / P) pages and total = budget + first + last: if N <= total every page is listed. Otherwise
    pages 0 .. first-1, pages N-last .. N-1, and the `budget` best of the rest. Equal scores go to the lower page, as in
    a stable descending sort; NaN counts as -inf.

    Args:
        scores_BKN: [B, K, N] fp32.
        cached_B: [B] int32 or int64 cached tokens; 0 gives an empty list.
        budget_B: [B] int32 or int64 pages besides the reserved ones; not negative.
        page_size: P.
        first: reserved pages at the start.
        last: reserved pages at the end.
        max_pages: S, the capacity of a list.

    Returns:
        pages [B, K, S] int32, logical page ids, ascending, padded with -1; count [B, K] int32. On CUDA, where raising
        would wait for the device, a row that raises on CPU has count -1, and `paged_attention` gives NaN for it.

    Raises:
        TypeError: a dtype that is not allowed.
        ValueError: shapes that do not fit each other, a negative count, (on CPU) a row whose budget is negative or
            whose list exceeds `max_pages`, or (on CUDA) more scores per row than the kernel serves.
    """
    check_dtype("scores_BKN", scores_BKN, torch.float32)
    batch = scores_BKN.shape[0]
    for name, tensor in (("cached_B", cached_B), ("budget_B", budget_B)):
        check_shape(name, tensor, (batch,))
        check_dtype(name, tensor, torch.int32, torch.int64)
    for name, value in (("first", first), ("last", last), ("max_pages", max_pages)):
        if value < 0:
            raise ValueError(f"{name} is {value}, must not be negative")
    if scores_BKN.device.type == "cpu":
        return cpu.select_pages(
            scores_BKN, cached_B, budget_B, page_size=page_size, first=first, last=last, max_pages=max_pages
        )
    from sparrow.kernels.select_pages import gpu  # needs Triton, which a machine without a GPU may lack

    return gpu.select_pages(
        scores_BKN, cached_B, budget_B, page_size=page_size, first=first, last=last, max_pages=max_pages
    )
