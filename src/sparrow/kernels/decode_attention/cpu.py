"""CPU path of `decode_attention`: each thread scores, chooses and attends for its own (sequence, KV head) rows.

The pieces are those of the three operators, so the bits are theirs; only the walk is new, and the threads start once.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from sparrow.kernels import jit
from sparrow.kernels.jit import compiled
from sparrow.kernels.page_score import LinearScore, PageScore
from sparrow.kernels.page_scores.cpu import CONSTANT_LENGTHS, fetch_pages, row_weights, score_pages
from sparrow.kernels.paged_attention.cpu import CONSTANT_HEAD_SIZES, attend_row, row_buffers
from sparrow.kernels.select_pages import reference
from sparrow.kernels.select_pages.cpu import MOST_PAGES, select_row

CPU = torch.device("cpu")
COUNTS = (torch.int32, torch.int64)


def serves(
    score: PageScore,
    query_BHD: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    landmarks: Tensor,
    page_table_BN: Tensor,
    cached_B: Tensor,
    budget_B: Tensor,
) -> TypeGuard[LinearScore]:
    """Whether the compiled rows compute this call: fp32 on the CPU, a linear score, and shapes that fit."""
    if query_BHD.dim() != 3 or key_pages.dim() != 4 or page_table_BN.dim() != 2:
        return False
    batch, heads, head_size = query_BHD.shape
    pool, kv_heads, page_size, _ = key_pages.shape
    # Written out: every layer of every step comes through here, and a loop takes as long as a row.
    return (
        isinstance(score, LinearScore)
        and query_BHD.device == key_pages.device == value_pages.device == landmarks.device == CPU
        and query_BHD.dtype is key_pages.dtype is value_pages.dtype is landmarks.dtype is torch.float32
        and kv_heads > 0
        and heads % kv_heads == 0
        and key_pages.shape == value_pages.shape == (pool, kv_heads, page_size, head_size)
        and landmarks.shape == (pool, kv_heads, score.width, head_size)
        and page_table_BN.dtype is torch.int32
        and page_table_BN.shape[0] == batch
        and cached_B.shape == budget_B.shape == (batch,)
        and cached_B.dtype in COUNTS
        and budget_B.dtype in COUNTS
    )


@cache
def _step_with(constant_size: int, constant_length: int) -> Callable[..., None]:
    """The compiled rows for one head size and one landmark length, or with 0 for any."""

    @compiled
    def _step(
        start: Any,
        stop: Any,
        query_BHD: Any,
        weights_BKX: Any,
        key_pages: Any,
        value_pages: Any,
        landmarks_KX: Any,
        page_table_BN: Any,
        cached_B: Any,
        budget_B: Any,
        first: Any,
        last: Any,
        scale: Any,
        scores_BKN: Any,
        pages_BKS: Any,
        count_BK: Any,
        out_BHD: Any,
    ) -> None:
        """Some rows; the length of an impossible list is -1, and its row is left alone. `scale` includes log2(e)."""
        _, kv_heads, page_size, _ = key_pages.shape
        head_size = constant_size if constant_size > 0 else query_BHD.shape[2]
        length = constant_length if constant_length > 0 else landmarks_KX.shape[2]
        group, num_pages = query_BHD.shape[1] // kv_heads, page_table_BN.shape[1]
        logits_GT, maximum_G, total_G, query_GD, out_GD = row_buffers(group, page_size, head_size)
        for row in range(start, stop):
            b, k = row // kv_heads, row % kv_heads
            cached, budget = np.int64(cached_B[b]), np.int64(budget_B[b])
            live = (cached + page_size - 1) // page_size
            count_BK[b, k] = -1
            if live > num_pages or budget < 0 or min(live, budget + first + last) > pages_BKS.shape[2]:
                continue
            full = cached // page_size
            if live > budget + first + last:  # otherwise every page is listed, whatever its score
                for n in range(0, full, 4):
                    fetch_pages(length, landmarks_KX, page_table_BN, b, k, n, full)
                    score_pages(length, weights_BKX, landmarks_KX, page_table_BN, b, k, n, full - 1, scores_BKN)
                for n in range(full, live):
                    scores_BKN[b, k, n] = -np.inf
            count = select_row(scores_BKN, b, k, live, budget, first, last, pages_BKS)
            for s in range(count, pages_BKS.shape[2]):
                pages_BKS[b, k, s] = -1
            count_BK[b, k] = count
            attend_row(
                head_size, b, k, count, query_BHD, key_pages, value_pages, page_table_BN, pages_BKS, cached, scale,
                logits_GT, maximum_G, total_G, query_GD, out_GD, out_BHD,
            )  # fmt: skip

    return _step


def decode_attention(
    query_BHD: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    landmarks: Tensor,
    page_table_BN: Tensor,
    cached_B: Tensor,
    budget_B: Tensor,
    score: LinearScore,
    *,
    page_size: int,
    first: int,
    last: int,
    max_pages: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs the compiled rows over (sequence, KV head) on the threads that torch uses."""
    batch, _, head_size = query_BHD.shape
    kv_heads, num_pages = key_pages.shape[1], page_table_BN.shape[1]
    pages_BKS = np.empty((batch, kv_heads, max_pages), np.int32)
    count_BK = np.empty((batch, kv_heads), np.int32)
    out_BHD = torch.empty(query_BHD.shape)
    if budget_B.dtype is torch.int64:
        budget_B = budget_B.clamp(max=MOST_PAGES)
    length = landmarks.shape[2] * landmarks.shape[3]
    constants = (
        head_size if head_size in CONSTANT_HEAD_SIZES else 0,
        length if length in CONSTANT_LENGTHS else 0,
    )
    jit.run(
        _step_with(*constants),
        batch * kv_heads,
        jit.array(query_BHD),
        row_weights(query_BHD, kv_heads, score),
        jit.array(key_pages),
        jit.array(value_pages),
        jit.array(landmarks.flatten(2)),
        jit.array(page_table_BN),
        jit.array(cached_B, torch.int32),
        jit.array(budget_B, torch.int32),
        first,
        last,
        np.float32(scale * math.log2(math.e)),
        np.empty((batch, kv_heads, num_pages), np.float32),
        pages_BKS,
        count_BK,
        out_BHD.numpy(),
    )
    if count_BK.size and count_BK.min() < 0:
        reference.check_rows(
            cached_B, budget_B, num_pages, page_size=page_size, first=first, last=last, max_pages=max_pages
        )
    return out_BHD, torch.from_numpy(pages_BKS), torch.from_numpy(count_BK)
