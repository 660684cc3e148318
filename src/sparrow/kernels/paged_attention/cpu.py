"""CPU path of `paged_attention`: numba, reading fp32 pages in place. Other dtypes take the plain torch path.

Decoding is bound by memory, so each key and value is loaded once per KV head and serves all its G query heads. A row
is taken in blocks of a fixed number of pages with a running maximum (online softmax, arXiv 1805.02867): logits of the
block, weights, weighted values, all in first-level cache. One thread owns a (sequence, KV head) and walks its list in
order, so the bits of a row depend on nothing else.

Loops index whole arrays: a slice in an inner loop would count references, and that costs more than the arithmetic.
For the usual head sizes the code is compiled with the size as a constant, which makes it about twice as fast: the
loops over it become straight vector code without a remainder.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparrow.kernels import jit
from sparrow.kernels.jit import compiled, float_from_bits, inlined, prefetch
from sparrow.kernels.paged_attention import reference

BLOCK_TOKENS = 32
CONSTANT_HEAD_SIZES = (32, 64, 128)
LINE_FLOATS = 16

# exp2 on [-0.5, 0.5] by its Taylor series; the first term left out is below 6e-9, a tenth of an fp32 ulp.
C1, C2, C3, C4, C5, C6, C7 = (np.float32(math.log(2) ** k / math.factorial(k)) for k in range(1, 8))
ZERO, ONE, HALF, LOWEST = np.float32(0), np.float32(1), np.float32(0.5), np.float32(-126)


@compiled
def exp2(x: Any) -> Any:
    """2 ** x for x <= 0 in fp32, without a call, so that loops over it become vector code. NaN stays NaN."""
    whole = np.floor((x if x > LOWEST else LOWEST) + HALF)
    f = x - whole
    series = ONE + f * (C1 + f * (C2 + f * (C3 + f * (C4 + f * (C5 + f * (C6 + f * C7))))))
    power = float_from_bits(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    return ZERO if x < LOWEST else series * power


@compiled
def _prefetch_rows(pages: Any, page: Any, head: Any, row: Any) -> None:
    """Four token rows of a page."""
    for j in range(row, min(row + 4, pages.shape[2])):
        for d in range(0, pages.shape[3], LINE_FLOATS):
            prefetch(pages, (page, head, j, d))


@inlined
def _page_logits(
    head_size: Any,
    query_GD: Any,
    key_pages: Any,
    value_pages: Any,
    page: Any,
    head: Any,
    live: Any,
    logits_GT: Any,
    start: Any,
) -> None:
    """Logits of the slots of one page; -inf where no token lives. Four keys at a time share each load of the query."""
    page_size = key_pages.shape[2]
    final = live - 1
    for j in range(0, page_size, 4):
        # Slots past the last token may hold anything: they read the last token's row instead.
        j0, j1, j2, j3 = min(j, final), min(j + 1, final), min(j + 2, final), min(j + 3, final)
        _prefetch_rows(value_pages, page, head, j)
        for g in range(query_GD.shape[0]):
            x0 = x1 = x2 = x3 = ZERO
            for d in range(head_size):
                q = query_GD[g, d]
                x0 += q * key_pages[page, head, j0, d]
                x1 += q * key_pages[page, head, j1, d]
                x2 += q * key_pages[page, head, j2, d]
                x3 += q * key_pages[page, head, j3, d]
            logits_GT[g, start + j] = x0 if j <= final else -np.inf
            logits_GT[g, start + j + 1] = x1 if j + 1 <= final else -np.inf
            logits_GT[g, start + j + 2] = x2 if j + 2 <= final else -np.inf
            logits_GT[g, start + j + 3] = x3 if j + 3 <= final else -np.inf


@inlined
def _block_weights(head_size: Any, logits_GT: Any, slots: Any, maximum_G: Any, total_G: Any, out_GD: Any) -> None:
    """Turns the logits of a block into weights in place, and rescales what was summed under the old maximum."""
    for g in range(logits_GT.shape[0]):
        maximum = maximum_G[g]
        for j in range(slots):
            maximum = max(maximum, logits_GT[g, j])
        # Nothing but -inf so far: subtract zero, so that the weights are 0 and not NaN.
        base = maximum if maximum > -np.inf else ZERO
        total = ZERO
        for j in range(slots):
            weight = exp2(logits_GT[g, j] - base)
            logits_GT[g, j] = weight
            total += weight
        decay = exp2(maximum_G[g] - base)
        for d in range(head_size):
            out_GD[g, d] *= decay
        total_G[g] = total_G[g] * decay + total
        maximum_G[g] = maximum


@inlined
def _add_page_values(
    head_size: Any,
    weights_GT: Any,
    start: Any,
    key_pages: Any,
    value_pages: Any,
    page: Any,
    next_page: Any,
    head: Any,
    live: Any,
    out_GD: Any,
) -> None:
    """out += weights @ values of one page, four tokens at a time: one pass over `out` for four."""
    page_size = value_pages.shape[2]
    final = live - 1
    for j in range(0, page_size, 4):
        # As for the keys; the weights of slots without a token are zero.
        j0, j1, j2, j3 = min(j, final), min(j + 1, final), min(j + 2, final), min(j + 3, final)
        _prefetch_rows(key_pages, next_page, head, j)
        for g in range(out_GD.shape[0]):
            w0, w1 = weights_GT[g, start + j], weights_GT[g, start + j + 1]
            w2, w3 = weights_GT[g, start + j + 2], weights_GT[g, start + j + 3]
            for d in range(head_size):
                out_GD[g, d] += (w0 * value_pages[page, head, j0, d] + w1 * value_pages[page, head, j1, d]) + (
                    w2 * value_pages[page, head, j2, d] + w3 * value_pages[page, head, j3, d]
                )


@inlined
def attend_row(
    head_size: Any,
    b: Any,
    k: Any,
    count: Any,
    query_BHD: Any,
    key_pages: Any,
    value_pages: Any,
    page_table_BN: Any,
    pages_BKS: Any,
    cached: Any,
    scale: Any,
    logits_GT: Any,
    maximum_G: Any,
    total_G: Any,
    query_GD: Any,
    out_GD: Any,
    out_BHD: Any,
) -> None:
    """Attention of the G query heads of (sequence b, KV head k) to `count` listed pages; see `row_buffers`."""
    page_size, group = key_pages.shape[2], query_GD.shape[0]
    stride = (page_size + 3) // 4 * 4
    block_pages = logits_GT.shape[1] // stride
    for g in range(group):
        maximum_G[g], total_G[g] = -np.inf, ZERO
        for d in range(head_size):
            query_GD[g, d] = query_BHD[b, k * group + g, d] * scale
            out_GD[g, d] = ZERO

    for block in range(0, count, block_pages):
        block_stop = min(block + block_pages, count)
        for s in range(block, block_stop):
            logical = pages_BKS[b, k, s]
            page, live = page_table_BN[b, logical], min(page_size, cached - logical * page_size)
            _page_logits(head_size, query_GD, key_pages, value_pages, page, k, live, logits_GT, (s - block) * stride)
        _block_weights(head_size, logits_GT, (block_stop - block) * stride, maximum_G, total_G, out_GD)
        for s in range(block, block_stop):
            logical, ahead = pages_BKS[b, k, s], pages_BKS[b, k, min(s + block_pages, count - 1)]
            page, live = page_table_BN[b, logical], min(page_size, cached - logical * page_size)
            first, next_page = (s - block) * stride, page_table_BN[b, ahead]
            _add_page_values(head_size, logits_GT, first, key_pages, value_pages, page, next_page, k, live, out_GD)

    for g in range(group):
        # Zero only if there was nothing to read (or every logit was -inf): the row stays zero.
        inverse = ONE / total_G[g] if total_G[g] != ZERO else ZERO
        for d in range(head_size):
            out_BHD[b, k * group + g, d] = out_GD[g, d] * inverse


@compiled
def row_buffers(group: Any, page_size: Any, head_size: Any) -> Any:
    """What `attend_row` works in: logits of a block, running maximum and sum, scaled query, weighted values."""
    stride = (page_size + 3) // 4 * 4
    block_pages = max(1, BLOCK_TOKENS // stride)
    return (
        np.empty((group, block_pages * stride), np.float32),
        np.empty(group, np.float32),
        np.empty(group, np.float32),
        np.empty((group, head_size), np.float32),
        np.empty((group, head_size), np.float32),
    )


@cache
def _attend_with(constant_size: int) -> Callable[..., None]:
    """The compiled rows for one head size, or with 0 for any."""

    @compiled
    def _attend(
        start: Any,
        stop: Any,
        query_BHD: Any,
        key_pages: Any,
        value_pages: Any,
        page_table_BN: Any,
        pages_BKS: Any,
        count_BK: Any,
        cached_B: Any,
        scale: Any,
        out_BHD: Any,
    ) -> None:
        """Attention of some rows; a row is the G query heads of a (sequence, KV head). `scale` includes log2(e)."""
        _, kv_heads, page_size, _ = key_pages.shape
        head_size = constant_size if constant_size > 0 else query_BHD.shape[2]
        group = query_BHD.shape[1] // kv_heads
        logits_GT, maximum_G, total_G, query_GD, out_GD = row_buffers(group, page_size, head_size)
        for row in range(start, stop):
            b, k = row // kv_heads, row % kv_heads
            cached = cached_B[b]
            count = count_BK[b, k] if cached > 0 else 0
            attend_row(
                head_size, b, k, count, query_BHD, key_pages, value_pages, page_table_BN, pages_BKS, cached, scale,
                logits_GT, maximum_G, total_G, query_GD, out_GD, out_BHD,
            )  # fmt: skip

    return _attend


def paged_attention(
    query_BHD: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table_BN: Tensor,
    pages_BKS: Tensor | None,
    count_BK: Tensor | None,
    cached_B: Tensor,
    scale: float,
) -> Tensor:
    """Runs the compiled rows over (sequence, KV head) on the threads that torch uses."""
    if key_pages.dtype != torch.float32 or query_BHD.dtype != torch.float32:
        return reference.paged_attention(
            query_BHD, key_pages, value_pages, page_table_BN, pages_BKS, count_BK, cached_B, scale
        )
    kv_heads, page_size, head_size = key_pages.shape[1:]
    if pages_BKS is None or count_BK is None:
        pages_BKS, count_BK = reference.every_page(cached_B, kv_heads, page_table_BN.shape[1], page_size)
    out_BHD = torch.empty(query_BHD.shape)
    jit.run(
        _attend_with(head_size if head_size in CONSTANT_HEAD_SIZES else 0),
        count_BK.numel(),
        jit.array(query_BHD),
        jit.array(key_pages),
        jit.array(value_pages),
        jit.array(page_table_BN),
        jit.array(pages_BKS),
        jit.array(count_BK),
        jit.array(cached_B, torch.int32),
        np.float32(scale * math.log2(math.e)),
        out_BHD.numpy(),
    )
    return out_BHD
