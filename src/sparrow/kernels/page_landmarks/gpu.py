"""Triton path of `page_landmarks`: one program copies the row of a (token, KV head); no value is read by the host.

A page is summarised by the program that holds its last slot. Other slots of the page may be written in the same call by
programs that have not run yet. A short call (decoding) therefore looks the page's tokens up among the inputs and reads
fresh rows from there, which keeps it at one launch; a long call (a prompt) summarises in a second launch instead. Both
give the same bits.

The mean, the minimum and maximum, and the zeros of the random score are made here, in fp32 from the rows as cached. Any
other page score is made by its own torch formula, which reads the number of completed pages on the host.
"""

import triton.language as tl
from torch import Tensor

from sparrow.kernels.page_landmarks import reference
from sparrow.kernels.page_score import MeanScore, MinMaxScore, PageScore, RandomScore
from sparrow.kernels.triton_tools import (
    LARGEST_HEAD,
    kernel,
    power_of_two,
    rows_in_place,
    serve_contiguous,
    serve_device,
    serve_dtype,
    serve_size,
)

OPERATOR = "page_landmarks"
NONE, MEAN, MINMAX, ZEROS = 0, 1, 2, 3
SUMMARIES: dict[type[PageScore], int] = {MeanScore: MEAN, MinMaxScore: MINMAX, RandomScore: ZEROS}
"""Page scores whose landmarks the kernel makes; exact classes, since a subclass may define others."""

FUSED_TOKENS = 256
"""Calls with at most so many tokens take one launch. Each completed page scans them all, so longer calls would lose."""
SCAN_TOKENS = 64
LARGEST_PAGE = 256


@kernel
def _summarise(
    x: tl.tensor,
    slot: tl.tensor,
    column: tl.tensor,
    out: tl.tensor,
    P: tl.constexpr,
    D: tl.constexpr,
    SUMMARY: tl.constexpr,
) -> None:
    """Stores the landmarks of one page and KV head; x is [slots, columns] in fp32, padded."""
    inside = column < D
    used = (slot < P)[:, None]
    if SUMMARY == 1:
        mean = tl.sum(tl.where(used, x, 0.0), axis=0) / P
        tl.store(out + column, mean.to(out.dtype.element_ty), mask=inside)
    if SUMMARY == 2:
        # tl.min and tl.max pass over NaN; torch does not, and a broken key should show.
        broken = tl.max(tl.where(used & (x != x), 1, 0), axis=0) > 0
        low = tl.where(broken, float("nan"), tl.min(tl.where(used, x, float("inf")), axis=0))
        high = tl.where(broken, float("nan"), tl.max(tl.where(used, x, float("-inf")), axis=0))
        tl.store(out + column, low.to(out.dtype.element_ty), mask=inside)
        tl.store(out + D + column, high.to(out.dtype.element_ty), mask=inside)
    if SUMMARY == 3:
        tl.store(out + column, tl.zeros_like(column).to(out.dtype.element_ty), mask=inside)


@kernel
def _fresh_tokens(
    page: tl.tensor,
    slot: tl.tensor,
    page_T: tl.tensor,
    offset_T: tl.tensor,
    tokens: tl.tensor,
    SCAN: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> tl.tensor:
    """The token of this call that fills each slot of the page; -1 where an earlier call did."""
    source = tl.full((BLOCK_P,), -1, tl.int32)
    for start in range(0, tokens, SCAN):
        token = start + tl.arange(0, SCAN)
        pages = tl.load(page_T + token, mask=token < tokens, other=-1)
        offsets = tl.load(offset_T + token, mask=token < tokens, other=-1)
        found = (pages == page)[None, :] & (offsets[None, :] == slot[:, None])
        source = tl.maximum(source, tl.max(tl.where(found, token[None, :], -1), axis=1))
    return source


@kernel(runtime=("tokens",))
def _write(
    key: tl.tensor,
    value: tl.tensor,
    key_pages: tl.tensor,
    value_pages: tl.tensor,
    landmarks: tl.tensor,
    page_T: tl.tensor,
    offset_T: tl.tensor,
    tokens: tl.tensor,
    key_stride_t: tl.tensor,
    key_stride_k: tl.tensor,
    value_stride_t: tl.tensor,
    value_stride_k: tl.tensor,
    K: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SCAN: tl.constexpr,
    SUMMARY: tl.constexpr,
) -> None:
    """Copies the row of one token and KV head; with a SUMMARY the last slot of a page makes its landmarks."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    page, offset = tl.load(page_T + token), tl.load(offset_T + token)
    if page < 0:
        return
    column = tl.arange(0, BLOCK_D)
    inside = column < D
    run = (page * K + head) * P * D
    key_row = tl.load(key + token * key_stride_t + head * key_stride_k + column, mask=inside)
    value_row = tl.load(value + token * value_stride_t + head * value_stride_k + column, mask=inside)
    tl.store(key_pages + run + offset * D + column, key_row.to(key_pages.dtype.element_ty), mask=inside)
    tl.store(value_pages + run + offset * D + column, value_row.to(value_pages.dtype.element_ty), mask=inside)
    if SUMMARY != 0 and offset == P - 1:
        slot = tl.arange(0, BLOCK_P)
        source = _fresh_tokens(page, slot, page_T, offset_T, tokens, SCAN, BLOCK_P)
        lane = inside[None, :] & (slot < P)[:, None]
        fresh = (source >= 0)[:, None]
        fresh_row = key + source.to(tl.int64)[:, None] * key_stride_t + head * key_stride_k + column[None, :]
        # Fresh rows are rounded to the cache dtype first: a landmark summarises the keys as cached.
        new = tl.load(fresh_row, mask=lane & fresh, other=0.0).to(key_pages.dtype.element_ty).to(tl.float32)
        cached_row = key_pages + run + slot[:, None] * D + column[None, :]
        old = tl.load(cached_row, mask=lane & (source < 0)[:, None], other=0.0).to(tl.float32)
        x = tl.where(fresh, new, old)
        _summarise(x, slot, column, landmarks + (page * K + head) * W * D, P, D, SUMMARY)


@kernel
def _summarise_full(
    key_pages: tl.tensor,
    landmarks: tl.tensor,
    page_T: tl.tensor,
    offset_T: tl.tensor,
    K: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SUMMARY: tl.constexpr,
) -> None:
    """Makes the landmarks of the pages whose last slot is among the tokens, once every row is written."""
    token, head = tl.program_id(0), tl.program_id(1)
    page, offset = tl.load(page_T + token), tl.load(offset_T + token)
    if (page < 0) | (offset != P - 1):
        return
    slot, column = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_D)
    lane = (column < D)[None, :] & (slot < P)[:, None]
    row = key_pages + (page * K + head) * P * D + slot[:, None] * D + column[None, :]
    x = tl.load(row, mask=lane, other=0.0).to(tl.float32)
    _summarise(x, slot, column, landmarks + (page * K + head) * W * D, P, D, SUMMARY)


def warps(block_p: int, block_d: int) -> int:
    """Warps that hold a page's fp32 rows in at most 64 registers a lane, 1 to 8."""
    return min(8, power_of_two(block_p * block_d // 2048, least=1))


def page_landmarks(
    key_TKD: Tensor,
    value_TKD: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    landmarks: Tensor | None,
    page_T: Tensor,
    offset_T: Tensor,
    score: PageScore,
) -> None:
    """Launches one or two kernels, and the score's torch formula if its landmarks are not made here."""
    tokens, kv_heads, head_size = key_TKD.shape
    page_size = key_pages.shape[2]
    _check(key_TKD, value_TKD, key_pages, value_pages, landmarks)
    if tokens == 0:
        return
    key, value = rows_in_place(key_TKD), rows_in_place(value_TKD)
    page_T, offset_T = page_T.contiguous(), offset_T.contiguous()
    summary = NONE if landmarks is None else SUMMARIES.get(type(score), NONE)
    block_p, block_d = power_of_two(page_size, least=1), power_of_two(head_size, least=1)
    sizes = {"K": kv_heads, "P": page_size, "D": head_size, "W": score.width, "BLOCK_P": block_p, "BLOCK_D": block_d}
    fused = tokens <= FUSED_TOKENS
    _write[(tokens, kv_heads)](
        key,
        value,
        key_pages,
        value_pages,
        landmarks,
        page_T,
        offset_T,
        tokens,
        *key.stride()[:2],
        *value.stride()[:2],
        **sizes,
        SCAN=SCAN_TOKENS,
        SUMMARY=summary if fused else NONE,
        num_warps=warps(block_p, block_d) if fused and summary else 1,
    )
    if landmarks is None or (fused and summary):
        return
    if summary:
        _summarise_full[(tokens, kv_heads)](
            key_pages, landmarks, page_T, offset_T, **sizes, SUMMARY=summary, num_warps=warps(block_p, block_d)
        )
        return
    full = (page_T >= 0) & (offset_T == page_size - 1)
    reference.summarise(key_pages, landmarks, page_T[full], score)


def _check(
    key_TKD: Tensor, value_TKD: Tensor, key_pages: Tensor, value_pages: Tensor, landmarks: Tensor | None
) -> None:
    serve_device(OPERATOR, key_TKD)
    for name, tensor in (("key_TKD", key_TKD), ("value_TKD", value_TKD), ("key_pages", key_pages)):
        serve_dtype(OPERATOR, name, tensor)
    for name, pool in (("key_pages", key_pages), ("value_pages", value_pages), ("landmarks", landmarks)):
        if pool is not None:
            serve_contiguous(OPERATOR, name, pool)
    serve_size(OPERATOR, "head size", key_TKD.shape[2], LARGEST_HEAD)
    serve_size(OPERATOR, "page size", key_pages.shape[2], LARGEST_PAGE)
