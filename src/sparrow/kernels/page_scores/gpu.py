"""Triton path of `page_scores` for scores that are linear in their landmarks.

One program scores 64 pages of a (sequence, KV head); pages past the live ones cost it a store of -inf. The mean over
the query heads, and the split by sign that the minimum and maximum score needs, happen in the program. Another linear
score gives its weights by its own torch formula and takes the same kernel; a score that is not linear (random, custom)
runs by its own torch definition over gathered landmarks.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow.kernels.page_score import LinearScore, MeanScore, MinMaxScore, PageScore
from sparrow.kernels.page_scores import reference
from sparrow.kernels.triton_tools import (
    LARGEST_GROUP,
    LARGEST_HEAD,
    kernel,
    power_of_two,
    rows_in_place,
    serve_contiguous,
    serve_device,
    serve_dtype,
    serve_size,
)

OPERATOR = "page_scores"
BLOCK_PAGES = 64
WEIGHTS, MEAN, MINMAX = 0, 1, 2
QUERY_KINDS: dict[type[PageScore], int] = {MeanScore: MEAN, MinMaxScore: MINMAX}
"""Page scores whose weights the kernel makes from the query; exact classes, since a subclass may define others."""


@kernel
def _group_mean(
    query: tl.tensor,
    b: tl.tensor,
    head: tl.tensor,
    stride_b: tl.tensor,
    stride_h: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    G: tl.constexpr,
) -> tl.tensor:
    """Mean of the query heads of a KV head, in fp32, [columns]."""
    total = tl.zeros_like(column).to(tl.float32)
    for g in tl.static_range(G):
        row = query + b * stride_b + (head * G + g) * stride_h
        total += tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
    return total / G


@kernel(runtime=("num_pages",))
def _score(
    query: tl.tensor,
    landmarks: tl.tensor,
    page_table: tl.tensor,
    cached: tl.tensor,
    scores: tl.tensor,
    num_pages: tl.tensor,
    stride_b: tl.tensor,
    stride_h: tl.tensor,
    K: tl.constexpr,
    G: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    """Scores BLOCK_N pages of one sequence and KV head."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    b, head = (row // K).to(tl.int64), row % K
    n = chunk * BLOCK_N + tl.arange(0, BLOCK_N)
    out = scores + row.to(tl.int64) * num_pages + n
    full = tl.minimum(tl.load(cached + b) // P, num_pages)
    if chunk * BLOCK_N >= full:
        tl.store(out, tl.full((BLOCK_N,), float("-inf"), tl.float32), mask=n < num_pages)
        return
    column = tl.arange(0, BLOCK_D)
    inside = column < D
    live = n < full
    page = tl.load(page_table + b * num_pages + n, mask=live, other=0).to(tl.int64)
    rows = landmarks + (page * K + head)[:, None] * (W * D) + column[None, :]
    total = tl.zeros((BLOCK_N,), tl.float32)
    if KIND == 0:
        mean = tl.zeros((BLOCK_D,), tl.float32)
    else:
        mean = _group_mean(query, b, head, stride_b, stride_h, column, inside, G)
    for w in tl.static_range(W):
        if KIND == 0:
            weight = tl.load(query + row.to(tl.int64) * (W * D) + w * D + column, mask=inside, other=0.0)
        elif KIND == 1:
            weight = mean
        elif w == 0:
            weight = tl.minimum(mean, 0.0)
        else:
            weight = tl.maximum(mean, 0.0)
        landmark = tl.load(rows + w * D, mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
        total += tl.sum(landmark * weight[None, :], axis=1)
    tl.store(out, tl.where(live, total, float("-inf")), mask=n < num_pages)


def warps(block_d: int) -> int:
    """4 warps up to a head size of 128, 8 above: a tile of landmarks stays within 64 registers a lane."""
    return 4 if block_d <= 128 else 8


def page_scores(
    query_BHD: Tensor,
    landmarks: Tensor,
    page_table_BN: Tensor,
    cached_B: Tensor,
    score: PageScore,
    *,
    page_size: int,
) -> Tensor:
    """Launches one kernel over (sequence, KV head, 64 pages)."""
    if not isinstance(score, LinearScore):
        return reference.page_scores(query_BHD, landmarks, page_table_BN, cached_B, score, page_size=page_size)
    batch, heads, head_size = query_BHD.shape
    kv_heads, num_pages = landmarks.shape[1], page_table_BN.shape[1]
    serve_device(OPERATOR, query_BHD)
    serve_dtype(OPERATOR, "query_BHD", query_BHD)
    serve_dtype(OPERATOR, "landmarks", landmarks)
    serve_contiguous(OPERATOR, "landmarks", landmarks)
    serve_size(OPERATOR, "head size", head_size, LARGEST_HEAD)
    serve_size(OPERATOR, "query heads per KV head", heads // kv_heads, LARGEST_GROUP)
    scores_BKN = torch.empty(batch, kv_heads, num_pages, device=query_BHD.device)
    if scores_BKN.numel() == 0:
        return scores_BKN
    kind = QUERY_KINDS.get(type(score), WEIGHTS)
    query, stride_b, stride_h = rows_in_place(query_BHD), 0, 0
    if kind == WEIGHTS:
        query_BKD = torch.unflatten(query_BHD.float(), 1, (kv_heads, -1)).mean(dim=2)
        query = score.weights(query_BKD).contiguous()
    else:
        stride_b, stride_h, _ = query.stride()
    block_d = power_of_two(head_size, least=1)
    _score[(batch * kv_heads, triton.cdiv(num_pages, BLOCK_PAGES))](
        query,
        landmarks,
        page_table_BN.contiguous(),
        cached_B,
        scores_BKN,
        num_pages,
        stride_b,
        stride_h,
        K=kv_heads,
        G=heads // kv_heads,
        P=page_size,
        D=head_size,
        W=score.width,
        BLOCK_N=BLOCK_PAGES,
        BLOCK_D=block_d,
        KIND=kind,
        num_warps=warps(block_d),
    )
    return scores_BKN
