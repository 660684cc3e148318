"""Triton path of `paged_attention`: the page list is cut into splits of a fixed number of tokens, then combined.

A program attends from the G query heads of a KV head (the rows of one tile) to one split of its list, 64 tokens at a
time: 4 pages of 16 per step, and the pages of the steps ahead are on their way. Splits start at fixed places of the
list, so a row has the same bits in any batch, with any capacity of the list, dense or listed. Programs past the end of
a list leave at once; the second kernel reads only the splits that exist, so nothing needs to be cleared in advance.

Masked lanes are never loaded: NaN in unused slots stays where it is. A row without tokens gives zeros; one whose count
is negative or exceeds the list (what `select_pages` refuses) gives NaN, so that the fault shows.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

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

OPERATOR = "paged_attention"
SPLIT_TOKENS = 256
"""Tokens of a split: 16 pages of 16. Part of the result's bits, so it depends on nothing but the page size."""
LARGEST_PAGE = 256
COMBINE_SPLITS = 16


@dataclass(frozen=True)
class Tile:
    """How a program walks its split."""

    tokens: int
    warps: int
    stages: int


def tile(element_bytes: int, block_d: int) -> Tile:
    """The tile for a cache of 2- or 4-byte elements and a head size rounded up to a power of two.

    Two tiles of keys and values per stage stay under 100 KB of shared memory.
    """
    if element_bytes == 4:
        return Tile(tokens=32, warps=4, stages=2 if block_d <= 128 else 1)
    if block_d <= 64:
        return Tile(tokens=64, warps=4, stages=4)
    return Tile(tokens=64, warps=4, stages=3) if block_d <= 128 else Tile(tokens=32, warps=4, stages=3)


@kernel
def _count(
    counts: tl.tensor,
    cached: tl.tensor,
    row: tl.tensor,
    b: tl.tensor,
    capacity: tl.tensor,
    P: tl.constexpr,
    LISTED: tl.constexpr,
) -> tl.tensor:
    """Listed pages of a row: 0 without tokens, -1 for a list that cannot be."""
    tokens = tl.load(cached + b).to(tl.int64)
    listed = tl.load(counts + row).to(tl.int64) if LISTED else (tokens + P - 1) // P
    count = tl.where((listed < 0) | (listed > capacity), -1, listed)
    return tl.where(tokens > 0, count, 0).to(tl.int32)


@kernel(runtime=("num_pages", "capacity"))
def _attend(
    query: tl.tensor,
    key_pages: tl.tensor,
    value_pages: tl.tensor,
    page_table: tl.tensor,
    pages: tl.tensor,
    counts: tl.tensor,
    cached: tl.tensor,
    out: tl.tensor,
    part_out: tl.tensor,
    part_max: tl.tensor,
    part_sum: tl.tensor,
    scale: tl.tensor,
    num_pages: tl.tensor,
    capacity: tl.tensor,
    stride_b: tl.tensor,
    stride_h: tl.tensor,
    K: tl.constexpr,
    G: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    LISTED: tl.constexpr,
    DIRECT: tl.constexpr,
) -> None:
    """One split of one row; a row is a (sequence, KV head). `scale` includes log2(e): weights are powers of two.

    With DIRECT there is one split, and its result is final. Otherwise it leaves the unnormalised output, the maximum
    and the sum of weights in fp32.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, head = row // K, row % K
    count = _count(counts, cached, row, b, capacity, P, LISTED)
    # SPLIT counts pages; slots of the list are numbered through, P to a page.
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, count)
    if DIRECT == 0 and begin >= count:
        return
    g, column, lane = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_T)
    inside = column < D
    rows = (g < G)[:, None] & inside[None, :]
    q = tl.load(query + b * stride_b + (head * G + g)[:, None] * stride_h + column[None, :], mask=rows, other=0.0)
    tokens = tl.load(cached + b).to(tl.int32)

    maximum = tl.full((BLOCK_G,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), tl.float32)
    mixed = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    for start in tl.range(begin * P, end * P, BLOCK_T, num_stages=STAGES):
        place = start + lane
        entry, slot = place // P, place % P
        listed = entry < end
        logical = tl.load(pages + row * capacity + entry, mask=listed, other=0) if LISTED else entry
        physical = tl.load(page_table + b * num_pages + logical, mask=listed, other=0).to(tl.int64)
        live = listed & (logical * P + slot < tokens)
        token_row = ((physical * K + head) * P + slot) * D
        key = tl.load(key_pages + token_row[None, :] + column[:, None], mask=live[None, :] & inside[:, None], other=0.0)
        logits = tl.dot(q, key, input_precision="ieee") * scale
        logits = tl.where(live[None, :], logits, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(logits, axis=1))
        # Nothing but -inf so far: subtract zero, so that weights are 0 and not NaN.
        base = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(logits - base[:, None])
        decay = tl.exp2(maximum - base)
        value = tl.load(
            value_pages + token_row[:, None] + column[None, :], mask=live[:, None] & inside[None, :], other=0.0
        )
        mixed = tl.dot(weights.to(value.dtype), value, mixed * decay[:, None], input_precision="ieee")
        total = total * decay + tl.sum(weights, axis=1)
        maximum = new_maximum

    if DIRECT:
        result = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        result = tl.where(count < 0, float("nan"), result)
        place_out = (row * G + g)[:, None] * D + column[None, :]
        tl.store(out + place_out, result.to(out.dtype.element_ty), mask=rows)
    else:
        part = (row * tl.num_programs(1) + split) * G + g
        tl.store(part_out + part[:, None] * D + column[None, :], mixed, mask=rows)
        tl.store(part_max + part, maximum, mask=g < G)
        tl.store(part_sum + part, total, mask=g < G)


@kernel(runtime=("capacity", "splits"))
def _combine(
    part_out: tl.tensor,
    part_max: tl.tensor,
    part_sum: tl.tensor,
    counts: tl.tensor,
    cached: tl.tensor,
    out: tl.tensor,
    capacity: tl.tensor,
    splits: tl.tensor,
    K: tl.constexpr,
    G: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LISTED: tl.constexpr,
) -> None:
    """Weighs the splits of one query head by their maxima, BLOCK_X at a time in the order of the list."""
    head_row = tl.program_id(0).to(tl.int64)
    row, g = head_row // G, head_row % G
    count = _count(counts, cached, row, row // K, capacity, P, LISTED)
    live = (count + SPLIT - 1) // SPLIT
    column, lane = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_X)
    inside = column < D
    first = row * splits * G + g

    maxima = tl.full((BLOCK_X,), float("-inf"), tl.float32)
    for start in range(0, live, BLOCK_X):
        x = start + lane
        maxima = tl.maximum(maxima, tl.load(part_max + first + x * G, mask=x < live, other=float("-inf")))
    maximum = tl.max(maxima, axis=0)
    base = tl.where(maximum == float("-inf"), 0.0, maximum)
    total = tl.zeros((BLOCK_X,), tl.float32)
    mixed = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, live, BLOCK_X):
        x = start + lane
        used = x < live
        weight = tl.exp2(tl.load(part_max + first + x * G, mask=used, other=float("-inf")) - base)
        total += weight * tl.load(part_sum + first + x * G, mask=used, other=0.0)
        part = part_out + (first + x * G)[:, None] * D + column[None, :]
        mixed += tl.sum(weight[:, None] * tl.load(part, mask=used[:, None] & inside[None, :], other=0.0), axis=0)
    whole = tl.sum(total, axis=0)
    result = mixed / tl.where(whole == 0.0, 1.0, whole)
    result = tl.where(count < 0, float("nan"), result)
    tl.store(out + head_row * D + column, result.to(out.dtype.element_ty), mask=inside)


def split_pages(page_size: int) -> int:
    """Pages of a split."""
    return max(1, SPLIT_TOKENS // page_size)


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
    """Launches one kernel over (sequence, KV head, split); a second one combines the splits of longer lists."""
    batch, heads, head_size = query_BHD.shape
    kv_heads, page_size = key_pages.shape[1:3]
    group = heads // kv_heads
    _check(query_BHD, key_pages, value_pages, group)
    out_BHD = torch.empty(batch, heads, head_size, dtype=query_BHD.dtype, device=query_BHD.device)
    if out_BHD.numel() == 0:
        return out_BHD
    query = rows_in_place(query_BHD)
    page_table_BN, cached_B = page_table_BN.contiguous(), cached_B.contiguous()
    listed = pages_BKS is not None and count_BK is not None
    pages = pages_BKS.contiguous() if pages_BKS is not None else None
    counts = count_BK.contiguous() if count_BK is not None else None
    num_pages = page_table_BN.shape[1]
    capacity = num_pages if pages is None else pages.shape[2]
    split = split_pages(page_size)
    splits = max(1, triton.cdiv(capacity, split))
    direct = splits == 1
    block_d = power_of_two(head_size)
    part_out = part_max = part_sum = None
    if not direct:
        parts = torch.empty(batch * kv_heads * splits * group, head_size + 2, device=query_BHD.device)
        part_out, part_max, part_sum = _parts(parts, head_size)
    sizes = {"K": kv_heads, "G": group, "P": page_size, "D": head_size, "SPLIT": split, "LISTED": listed}
    shape = tile(key_pages.element_size(), block_d)
    _attend[(batch * kv_heads, splits)](
        query,
        key_pages,
        value_pages,
        page_table_BN,
        pages,
        counts,
        cached_B,
        out_BHD,
        part_out,
        part_max,
        part_sum,
        scale * math.log2(math.e),
        num_pages,
        capacity,
        *query.stride()[:2],
        **sizes,
        BLOCK_G=power_of_two(group),
        BLOCK_T=shape.tokens,
        BLOCK_D=block_d,
        STAGES=shape.stages,
        DIRECT=direct,
        num_warps=shape.warps,
    )
    if not direct:
        _combine[(batch * heads,)](
            part_out,
            part_max,
            part_sum,
            counts,
            cached_B,
            out_BHD,
            capacity,
            splits,
            **sizes,
            BLOCK_X=COMBINE_SPLITS,
            BLOCK_D=block_d,
            num_warps=4,
        )
    return out_BHD


def _parts(parts: Tensor, head_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Output, maximum and sum of every split and query head, from one allocation."""
    flat, count = parts.view(-1), parts.shape[0]
    return flat[: count * head_size], flat[count * head_size : count * (head_size + 1)], flat[-count:]


def _check(query_BHD: Tensor, key_pages: Tensor, value_pages: Tensor, group: int) -> None:
    serve_device(OPERATOR, query_BHD)
    serve_dtype(OPERATOR, "query_BHD", query_BHD)
    if key_pages.dtype != query_BHD.dtype:
        raise TypeError(
            f"{OPERATOR}: key_pages has dtype {key_pages.dtype}, the Triton kernel serves that of the query, "
            f"{query_BHD.dtype}"
        )
    for name, pool in (("key_pages", key_pages), ("value_pages", value_pages)):
        serve_contiguous(OPERATOR, name, pool)
    serve_size(OPERATOR, "head size", query_BHD.shape[2], LARGEST_HEAD)
    serve_size(OPERATOR, "page size", key_pages.shape[2], LARGEST_PAGE)
    serve_size(OPERATOR, "query heads per KV head", group, LARGEST_GROUP)
