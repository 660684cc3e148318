"""Gradient of keys and values of `block_sparse_attention`: one program per block of keys, over the tiles that read
it.

With p the weights and ds the gradient of the logits (see `gpu_backward`): dv = p^T do and dk = scale ds^T q. The G
heads of a KV head are rows of the same tile, so their gradients add up in registers: no atomics, the same bits every
time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow.kernels.block_sparse_attention.gpu_forward import LOG2_E, Tiles, operand_dtype
from sparrow.kernels.block_sparse_attention.gpu_lists import PageLists, list_tiles
from sparrow.kernels.triton_tools import kernel, power_of_two


@kernel(runtime=("length", "num_tiles", "num_pages", "kv_heads"))
def _grad_key_value(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    grad: tl.tensor,
    lengths: tl.tensor,
    tiles: tl.tensor,
    counts: tl.tensor,
    readers: tl.tensor,
    logsumexp: tl.tensor,
    delta: tl.tensor,
    grad_key: tl.tensor,
    grad_value: tl.tensor,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    grad_strides: tl.tuple,
    dk_strides: tl.tuple,
    dv_strides: tl.tuple,
    scale: tl.tensor,
    length: tl.tensor,
    num_tiles: tl.tensor,
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
    LOG2_E: tl.constexpr,
) -> None:
    """dk and dv of one block of keys, from the tiles that read it. Products are transposed: keys are the rows."""
    # The first blocks are read most, and start first.
    block, bk = tl.program_id(0), tl.program_id(1)
    b, k = (bk // kv_heads).to(tl.int64), bk % kv_heads
    end = tl.minimum(tl.load(lengths + b).to(tl.int32), length)
    column, row = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_M)
    inside = column < D
    position = block * BLOCK_N + tl.arange(0, BLOCK_N)
    wide = position.to(tl.int64)
    kv_head = k.to(tl.int64)
    loaded = (position < end)[:, None] & inside[None, :]
    k_row = b * key_strides[0] + kv_head * key_strides[1] + wide * key_strides[2]
    k_block = tl.load(key + k_row[:, None] + column[None, :], mask=loaded, other=0.0).to(DOT)
    v_row = b * value_strides[0] + kv_head * value_strides[1] + wide * value_strides[2]
    v_block = tl.load(value + v_row[:, None] + column[None, :], mask=loaded, other=0.0).to(DOT)

    slot, head = row // G, (k * G + row % G).to(tl.int64)
    q_heads, do_heads = b * query_strides[0] + head * query_strides[1], b * grad_strides[0] + head * grad_strides[1]
    saved_heads = (bk.to(tl.int64) * G + row % G) * length
    list_row = (bk.to(tl.int64) * tl.num_programs(0) + block) * num_tiles
    page_column = bk.to(tl.int64) * num_tiles * num_pages + position // P
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for i in tl.range(0, tl.load(counts + bk * tl.num_programs(0) + block), num_stages=STAGES):
        tile = tl.load(tiles + list_row + i).to(tl.int32)
        token = tile * TOKENS + slot
        live = (slot < TOKENS) & (token < end)
        wide_token = token.to(tl.int64)
        read = live[:, None] & inside[None, :]
        q = tl.load(
            query + (q_heads + wide_token * query_strides[2])[:, None] + column[None, :], mask=read, other=0.0
        ).to(DOT)
        do = tl.load(
            grad + (do_heads + wide_token * grad_strides[2])[:, None] + column[None, :], mask=read, other=0.0
        ).to(DOT)
        lse = tl.load(logsumexp + saved_heads + token, mask=live, other=float("inf"))
        row_delta = tl.load(delta + saved_heads + token, mask=live, other=0.0)
        bits = tl.load(readers + page_column + tile.to(tl.int64) * num_pages, mask=position < end, other=0).to(tl.int32)
        # Pages after the tile's last token were never written to `readers`; the causal order rules them out.
        reads = ((bits[:, None] >> slot[None, :]) & 1) != 0
        reads = reads & (position[:, None] <= token[None, :]) & live[None, :]
        logits = tl.dot(k_block, tl.trans(q), input_precision="ieee") * (scale * LOG2_E)
        weights = tl.exp2(tl.where(reads, logits - lse[None, :], float("-inf")))
        dv = tl.dot(weights.to(DOT), do, dv, input_precision="ieee")
        pull = tl.dot(v_block, tl.trans(do), input_precision="ieee") - row_delta[None, :]
        dk = tl.dot((weights * pull).to(DOT), q, dk, input_precision="ieee")

    stored = (position < length)[:, None] & inside[None, :]
    dk_row = b * dk_strides[0] + kv_head * dk_strides[1] + wide * dk_strides[2]
    dv_row = b * dv_strides[0] + kv_head * dv_strides[1] + wide * dv_strides[2]
    tl.store(grad_key + dk_row[:, None] + column[None, :], (dk * scale).to(grad_key.dtype.element_ty), mask=stored)
    tl.store(grad_value + dv_row[:, None] + column[None, :], dv.to(grad_value.dtype.element_ty), mask=stored)


def grad_key_value(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    grad_BHTD: Tensor,
    length_B: Tensor,
    lists: PageLists,
    logsumexp_BHT: Tensor,
    delta_BHT: Tensor,
    *,
    page_size: int,
    scale: float,
    tiles: Tiles,
) -> tuple[Tensor, Tensor]:
    """Gradients of keys and values, zero in the padding."""
    batch, kv_heads, length, head_size = key_BKTD.shape
    group = query_BHTD.shape[1] // kv_heads
    tokens = tiles.tokens(group)
    tile_lists, counts = list_tiles(
        lists, length_B, length, page_size=page_size, tile_tokens=tokens, block_keys=tiles.backward_keys
    )
    grad_key_BKTD, grad_value_BKTD = torch.empty_like(key_BKTD), torch.empty_like(value_BKTD)
    _grad_key_value[(triton.cdiv(length, tiles.backward_keys), batch * kv_heads)](
        query_BHTD,
        key_BKTD,
        value_BKTD,
        grad_BHTD,
        length_B,
        tile_lists,
        counts,
        lists.readers,
        logsumexp_BHT,
        delta_BHT,
        grad_key_BKTD,
        grad_value_BKTD,
        query_BHTD.stride()[:3],
        key_BKTD.stride()[:3],
        value_BKTD.stride()[:3],
        grad_BHTD.stride()[:3],
        grad_key_BKTD.stride()[:3],
        grad_value_BKTD.stride()[:3],
        scale,
        length,
        *lists.readers.shape[2:],
        kv_heads,
        G=group,
        P=page_size,
        D=head_size,
        TOKENS=tokens,
        BLOCK_M=tiles.rows,
        BLOCK_N=tiles.backward_keys,
        BLOCK_D=power_of_two(head_size),
        STAGES=tiles.backward_stages,
        DOT=operand_dtype(query_BHTD),
        LOG2_E=LOG2_E,
        num_warps=tiles.backward_warps,
    )
    return grad_key_BKTD, grad_value_BKTD
