"""The forward kernel of `block_sparse_attention`, and the tiles that forward and backward share.

A program holds one tile of rows (R tokens times the G query heads of a KV head) and walks the list of pages that any
of its tokens reads, a block of keys at a time: 4 pages of 16. Each row keeps the keys of its own set by one bit per
page and token (`gpu_lists`) and the causal order. Softmax is online, in base 2.

Why tiles and not one program per token: with G = 2 a token fills 2 of the 16 rows of the smallest tensor-core product
and reads its pages for itself alone. Neighbouring tokens choose mostly the same pages, so a tile reads each page
once.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow.kernels.block_sparse_attention.gpu_lists import PageLists
from sparrow.kernels.triton_tools import INTERPRETED, kernel, power_of_two

LOG2_E = math.log2(math.e)
MOST_TOKENS = 32
"""Tokens of a tile: bits of the integer that says which of them read a page."""


@dataclass(frozen=True)
class Tiles:
    """Sizes of the blocks a program works on."""

    rows: int
    """Rows of a tile: tokens times G, filled up to a power of two."""
    keys: int
    """Keys of a block."""
    warps: int
    stages: int
    backward_keys: int
    """Keys of a block of the kernel for the gradient of keys and values."""
    backward_warps: int
    backward_stages: int

    def tokens(self, group: int) -> int:
        """R, the tokens of a tile."""
        return min(MOST_TOKENS, self.rows // group)


def choose_tiles(head_size: int, dtype: torch.dtype) -> Tiles:
    """The table, by the bytes of a row; every entry stays under 100 KB of shared memory."""
    row_bytes = power_of_two(head_size) * dtype.itemsize
    if row_bytes <= 128:
        return Tiles(64, 64, 4, 3, backward_keys=64, backward_warps=4, backward_stages=2)
    if row_bytes <= 256:
        return Tiles(64, 64, 4, 2, backward_keys=64, backward_warps=8, backward_stages=2)
    if row_bytes <= 512:
        return Tiles(32, 32, 4, 2, backward_keys=32, backward_warps=8, backward_stages=1)
    return Tiles(32, 16, 4, 1, backward_keys=16, backward_warps=4, backward_stages=1)


def operand_dtype(tensor: Tensor) -> Any:
    """What `tl.dot` multiplies: the dtype of the inputs. The interpreter cannot compute in bf16, so there fp32."""
    if INTERPRETED:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[tensor.dtype]


@kernel(runtime=("length", "num_pages", "kv_heads"))
def _attend(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    lengths: tl.tensor,
    pages: tl.tensor,
    counts: tl.tensor,
    readers: tl.tensor,
    out: tl.tensor,
    logsumexp: tl.tensor,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    out_strides: tl.tuple,
    scale: tl.tensor,
    length: tl.tensor,
    num_pages: tl.tensor,
    kv_heads: tl.tensor,
    G: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    DOT: tl.constexpr,
) -> None:
    """One tile of rows. `scale` and the stored log-sum-exp include log2(e); a row that reads nothing has +inf."""
    # The last tiles read most: they start first.
    tile, bk = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    b, k = (bk // kv_heads).to(tl.int64), bk % kv_heads
    end = tl.minimum(tl.load(lengths + b).to(tl.int32), length)
    row, column = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    slot, head = row // G, k * G + row % G
    token = tile * TOKENS + slot
    inside = column < D
    # The last rows hold no token if G does not divide the tile.
    exists = (slot < TOKENS) & (token < length)
    live = (slot < TOKENS) & (token < end)
    q_row = b * query_strides[0] + head.to(tl.int64) * query_strides[1] + token.to(tl.int64) * query_strides[2]
    q = tl.load(query + q_row[:, None] + column[None, :], mask=live[:, None] & inside[None, :], other=0.0).to(DOT)

    list_row = (bk.to(tl.int64) * tl.num_programs(0) + tile) * num_pages
    listed_keys = tl.load(counts + bk * tl.num_programs(0) + tile) * P
    key += b * key_strides[0] + k.to(tl.int64) * key_strides[1]
    value += b * value_strides[0] + k.to(tl.int64) * value_strides[1]
    maximum = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in tl.range(0, listed_keys, BLOCK_N, num_stages=STAGES):
        place = start + tl.arange(0, BLOCK_N)
        listed = place < listed_keys
        page = tl.load(pages + list_row + place // P, mask=listed, other=0).to(tl.int32)
        bits = tl.load(readers + list_row + page, mask=listed, other=0).to(tl.int32)
        position = page * P + place % P
        loaded = (listed & (position < end))[:, None] & inside[None, :]
        wide = position.to(tl.int64)[:, None]
        k_block = tl.load(key + wide * key_strides[2] + column[None, :], mask=loaded, other=0.0).to(DOT)
        v_block = tl.load(value + wide * value_strides[2] + column[None, :], mask=loaded, other=0.0).to(DOT)
        logits = tl.dot(q, tl.trans(k_block), input_precision="ieee") * scale
        reads = (((bits[None, :] >> slot[:, None]) & 1) != 0) & (position[None, :] <= token[:, None])
        logits = tl.where(reads, logits, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(logits, axis=1))
        # Nothing but -inf so far: subtract zero, so that weights are 0 and not NaN.
        base = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(logits - base[:, None])
        decay = tl.exp2(maximum - base)
        mixed = tl.dot(weights.to(DOT), v_block, mixed * decay[:, None], input_precision="ieee")
        total = total * decay + tl.sum(weights, axis=1)
        maximum = new_maximum

    empty = total == 0.0
    result = tl.where(empty[:, None], 0.0, mixed / tl.where(empty, 1.0, total)[:, None])
    row_out = b * out_strides[0] + head.to(tl.int64) * out_strides[1] + token.to(tl.int64) * out_strides[2]
    stored = exists[:, None] & inside[None, :]
    tl.store(out + row_out[:, None] + column[None, :], result.to(out.dtype.element_ty), mask=stored)
    lse = tl.where(empty, float("inf"), maximum + tl.log2(tl.where(empty, 1.0, total)))
    tl.store(logsumexp + (bk.to(tl.int64) * G + row % G) * length + token, lse, mask=exists)


def attend(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    length_B: Tensor,
    lists: PageLists,
    *,
    page_size: int,
    scale: float,
    tiles: Tiles,
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] laid out like the query, and base-2 log-sum-exps [B, H, T] in fp32."""
    batch, heads, length, head_size = query_BHTD.shape
    kv_heads = key_BKTD.shape[1]
    out_BHTD = torch.empty_like(query_BHTD)
    logsumexp_BHT = torch.empty(batch, heads, length, dtype=torch.float32, device=query_BHTD.device)
    tokens = tiles.tokens(heads // kv_heads)
    _attend[(triton.cdiv(length, tokens), batch * kv_heads)](
        query_BHTD,
        key_BKTD,
        value_BKTD,
        length_B,
        lists.pages,
        lists.counts,
        lists.readers,
        out_BHTD,
        logsumexp_BHT,
        query_BHTD.stride()[:3],
        key_BKTD.stride()[:3],
        value_BKTD.stride()[:3],
        out_BHTD.stride()[:3],
        scale * LOG2_E,
        length,
        lists.pages.shape[3],
        kv_heads,
        G=heads // kv_heads,
        P=page_size,
        D=head_size,
        TOKENS=tokens,
        BLOCK_M=tiles.rows,
        BLOCK_N=tiles.keys,
        BLOCK_D=power_of_two(head_size),
        STAGES=tiles.stages,
        DOT=operand_dtype(query_BHTD),
        num_warps=tiles.warps,
    )
    return out_BHTD, logsumexp_BHT
