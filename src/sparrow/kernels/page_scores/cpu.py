"""CPU path of `page_scores`: numba, reading fp32 landmarks in place, for scores that are linear in them.

Other scores and dtypes take the plain torch path. The landmarks of all KV heads of a page lie next to each other, so
one pass over the pages serves every head; four pages at a time share each load of the query.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparrow.kernels import jit
from sparrow.kernels.jit import compiled, inlined, prefetch
from sparrow.kernels.page_score import LinearScore, PageScore
from sparrow.kernels.page_scores import reference

CHUNK_PAGES = 64
AHEAD_PAGES = 16
LINE_FLOATS = 16
CONSTANT_LENGTHS = (32, 64, 128)
"""Numbers per landmark for which the code is compiled with the count as a constant, as in `paged_attention`."""

ZERO = np.float32(0)


@compiled
def _group_mean(query_BHD: Any, mean_BKD: Any) -> None:
    """Mean over the query heads of each KV head; one torch call would cost more than the work."""
    batch, kv_heads, head_size = mean_BKD.shape
    group = query_BHD.shape[1] // kv_heads
    for b in range(batch):
        for k in range(kv_heads):
            for d in range(head_size):
                total = ZERO
                for g in range(group):
                    total += query_BHD[b, k * group + g, d]
                mean_BKD[b, k, d] = total / np.float32(group)


@inlined
def score_pages(
    length: Any,
    weights_BKX: Any,
    landmarks_KX: Any,
    page_table_BN: Any,
    b: Any,
    k: Any,
    n: Any,
    final: Any,
    scores: Any,
) -> None:
    """Scores pages n .. n+3 of (sequence b, KV head k), all of them full; X runs over the W * D numbers of a page."""
    # Past `final` the last page is scored again, and the result is written to its own place again.
    n1, n2, n3 = min(n + 1, final), min(n + 2, final), min(n + 3, final)
    p0, p1 = page_table_BN[b, n], page_table_BN[b, n1]
    p2, p3 = page_table_BN[b, n2], page_table_BN[b, n3]
    s0 = s1 = s2 = s3 = ZERO
    for x in range(length):
        weight = weights_BKX[b, k, x]
        s0 += weight * landmarks_KX[p0, k, x]
        s1 += weight * landmarks_KX[p1, k, x]
        s2 += weight * landmarks_KX[p2, k, x]
        s3 += weight * landmarks_KX[p3, k, x]
    scores[b, k, n] = s0
    scores[b, k, n1] = s1
    scores[b, k, n2] = s2
    scores[b, k, n3] = s3


@inlined
def fetch_pages(length: Any, landmarks_KX: Any, page_table_BN: Any, b: Any, k: Any, n: Any, stop: Any) -> None:
    """Asks for the landmarks of the four pages that come `AHEAD_PAGES` later."""
    for ahead in range(n + AHEAD_PAGES, min(n + AHEAD_PAGES + 4, stop)):
        for x in range(0, length, LINE_FLOATS):
            prefetch(landmarks_KX, (page_table_BN[b, ahead], k, x))


@inlined
def _score_chunk(
    length: Any, weights_BKX: Any, landmarks_KX: Any, page_table_BN: Any, b: Any, start: Any, stop: Any, scores_BKN: Any
) -> None:
    """Scores pages start .. stop-1, all of them full, of sequence b."""
    for n in range(start, stop, 4):
        for k in range(landmarks_KX.shape[1]):
            fetch_pages(length, landmarks_KX, page_table_BN, b, k, n, stop)
        for k in range(landmarks_KX.shape[1]):
            score_pages(length, weights_BKX, landmarks_KX, page_table_BN, b, k, n, stop - 1, scores_BKN)


@cache
def _score_with(constant_length: int) -> Callable[..., None]:
    """The compiled chunks for one landmark length, or with 0 for any."""

    @compiled
    def _score(
        start_item: Any,
        stop_item: Any,
        weights_BKX: Any,
        landmarks_KX: Any,
        page_table_BN: Any,
        cached_B: Any,
        page_size: Any,
        scores_BKN: Any,
    ) -> None:
        """Scores some of the items; an item is 64 pages of a sequence."""
        _, kv_heads, pages = scores_BKN.shape
        length = constant_length if constant_length > 0 else landmarks_KX.shape[2]
        chunks = (pages + CHUNK_PAGES - 1) // CHUNK_PAGES
        for item in range(start_item, stop_item):
            b, start = item // chunks, item % chunks * CHUNK_PAGES
            stop = min(start + CHUNK_PAGES, pages)
            full = max(start, min(stop, cached_B[b] // page_size))
            _score_chunk(length, weights_BKX, landmarks_KX, page_table_BN, b, start, full, scores_BKN)
            for k in range(kv_heads):
                for n in range(full, stop):
                    scores_BKN[b, k, n] = -np.inf

    return _score


def row_weights(query_BHD: Tensor, kv_heads: int, score: LinearScore) -> Any:
    """What multiplies the landmarks of a page, [B, K, W * D]."""
    batch, _, head_size = query_BHD.shape
    query_BKD = np.empty((batch, kv_heads, head_size), np.float32)
    _group_mean(jit.array(query_BHD, torch.float32), query_BKD)
    return jit.array(score.weights(torch.from_numpy(query_BKD)).flatten(2))


def page_scores(
    query_BHD: Tensor,
    landmarks: Tensor,
    page_table_BN: Tensor,
    cached_B: Tensor,
    score: PageScore,
    *,
    page_size: int,
) -> Tensor:
    """Runs the compiled chunks over (sequence, 64 pages) on the threads that torch uses."""
    if not isinstance(score, LinearScore) or landmarks.dtype != torch.float32:
        return reference.page_scores(query_BHD, landmarks, page_table_BN, cached_B, score, page_size=page_size)
    batch, kv_heads, pages = len(query_BHD), landmarks.shape[1], page_table_BN.shape[1]
    scores_BKN = torch.empty(batch, kv_heads, pages)
    length = landmarks.shape[2] * landmarks.shape[3]
    jit.run(
        _score_with(length if length in CONSTANT_LENGTHS else 0),
        batch * -(-pages // CHUNK_PAGES),
        row_weights(query_BHD, kv_heads, score),
        jit.array(landmarks.flatten(2)),
        jit.array(page_table_BN),
        jit.array(cached_B, torch.int32),
        page_size,
        scores_BKN.numpy(),
    )
    return scores_BKN
