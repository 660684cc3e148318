"""CPU path of `select_pages`: bisection for the score of the last page that fits, then one pass that emits the list.

Scores are mapped to integers of the same order, so that the search is exact and ends. No sort, no allocation beyond one
row of keys; lists come out ascending by themselves.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparrow.kernels import jit
from sparrow.kernels.jit import bits_from_float, compiled
from sparrow.kernels.select_pages import reference

LOWEST_KEY = np.int32(-0x7F800001)  # the key of -inf
MAGNITUDE = np.int32(0x7FFFFFFF)

MOST_PAGES = 2**30
"""A budget above this is all pages; it leaves room for the reserved ones in an int32."""


@compiled
def _key(score: Any) -> Any:
    """An int32 that orders like the score: both zeros are equal, NaN counts as -inf."""
    if score != score:
        return LOWEST_KEY
    bits = bits_from_float(score) if score != 0 else np.int32(0)
    return np.int32(bits ^ ((bits >> np.int32(31)) & MAGNITUDE))


@compiled
def _count_from(keys: Any, threshold: Any) -> Any:
    """How many keys are at least the threshold."""
    count = 0
    for i in range(keys.shape[0]):
        count += keys[i] >= threshold
    return count


@compiled
def _cut(keys: Any, wanted: Any) -> Any:
    """The key below which nothing is taken: the largest t with at least `wanted` keys >= t.

    Returns:
        t, and how many keys equal to t are to be taken.
    """
    low, high = np.int64(LOWEST_KEY), np.int64(MAGNITUDE)
    # Invariant: at least `wanted` keys are >= low, fewer are >= high.
    while high - low > 1:
        middle = (low + high) // 2
        count = _count_from(keys, np.int32(middle))
        if count == wanted:
            return np.int32(middle), wanted
        if count > wanted:
            low = middle
        else:
            high = middle
    return np.int32(low), wanted - _count_from(keys, np.int32(high))


@compiled
def select_row(scores_BKN: Any, b: Any, k: Any, live: Any, budget: Any, first: Any, last: Any, pages_BKS: Any) -> Any:
    """Fills one list; returns its length."""
    if live <= budget + first + last:
        for n in range(live):
            pages_BKS[b, k, n] = n
        return live
    keys = np.empty(live - last - first, np.int32)
    for i in range(keys.shape[0]):
        keys[i] = _key(scores_BKN[b, k, first + i])
    threshold, ties = _cut(keys, budget)
    count = 0
    for n in range(first):
        pages_BKS[b, k, count] = n
        count += 1
    for i in range(keys.shape[0]):
        if keys[i] > threshold or (keys[i] == threshold and ties > 0):
            ties -= keys[i] == threshold
            pages_BKS[b, k, count] = first + i
            count += 1
    for n in range(live - last, live):
        pages_BKS[b, k, count] = n
        count += 1
    return count


@compiled
def _select(
    start: Any,
    stop: Any,
    scores_BKN: Any,
    cached_B: Any,
    budget_B: Any,
    page_size: Any,
    first: Any,
    last: Any,
    pages_BKS: Any,
    count_BK: Any,
) -> None:
    """Fills the lists of some of the rows; a row is a (sequence, KV head). The length of an impossible list is -1."""
    _, kv_heads, num_pages = scores_BKN.shape
    for row in range(start, stop):
        b, k = row // kv_heads, row % kv_heads
        budget = np.int64(budget_B[b])
        live = (np.int64(cached_B[b]) + page_size - 1) // page_size
        count = -1
        if live <= num_pages and budget >= 0 and min(live, budget + first + last) <= pages_BKS.shape[2]:
            count = select_row(scores_BKN, b, k, live, budget, first, last, pages_BKS)
            for s in range(count, pages_BKS.shape[2]):
                pages_BKS[b, k, s] = -1
        count_BK[b, k] = count


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
    """Runs the compiled rows over (sequence, KV head) on the threads that torch uses."""
    batch, kv_heads, num_pages = scores_BKN.shape
    pages_BKS = torch.empty(batch, kv_heads, max_pages, dtype=torch.int32)
    count_BK = torch.empty(batch, kv_heads, dtype=torch.int32)
    count = count_BK.numpy()
    jit.run(
        _select,
        batch * kv_heads,
        jit.array(scores_BKN),
        jit.array(cached_B, torch.int32),
        jit.array(budget_B.clamp(max=MOST_PAGES), torch.int32),
        page_size,
        first,
        last,
        pages_BKS.numpy(),
        count,
    )
    if count.size and count.min() < 0:
        reference.check_rows(
            cached_B, budget_B, num_pages, page_size=page_size, first=first, last=last, max_pages=max_pages
        )
    return pages_BKS, count_BK
