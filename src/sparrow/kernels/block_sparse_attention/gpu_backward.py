"""Gradient of the query of `block_sparse_attention`; on the way, the number per row that the other kernel needs.

With p the weights, o the output, s the logits and do the gradient of the output: ds = p (do v^T - delta) where delta
= sum over D of o do, and dq = scale ds k. The weights are made again from the log-sum-exps; page sets are constant.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow.kernels.block_sparse_attention.gpu_forward import LOG2_E, Tiles, operand_dtype
from sparrow.kernels.block_sparse_attention.gpu_lists import PageLists
from sparrow.kernels.triton_tools import kernel, power_of_two


@kernel(runtime=("length", "num_pages", "kv_heads"))
def _grad_query(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    out: tl.tensor,
    grad: tl.tensor,
    lengths: tl.tensor,
    pages: tl.tensor,
    counts: tl.tensor,
    readers: tl.tensor,
    logsumexp: tl.tensor,
    delta: tl.tensor,
    grad_query: tl.tensor,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    out_strides: tl.tuple,
    grad_strides: tl.tuple,
    dq_strides: tl.tuple,
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
    LOG2_E: tl.constexpr,
) -> None:
    """dq and delta of one tile of rows: the walk of the forward kernel."""
    tile, bk = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    b, k = (bk // kv_heads).to(tl.int64), bk % kv_heads
    end = tl.minimum(tl.load(lengths + b).to(tl.int32), length)
    row, column = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    slot, head = row // G, (k * G + row % G).to(tl.int64)
    token = tile * TOKENS + slot
    inside = column < D
    live = (slot < TOKENS) & (token < end)
    wide_token = token.to(tl.int64)
    loaded = live[:, None] & inside[None, :]
    q_row = b * query_strides[0] + head * query_strides[1] + wide_token * query_strides[2]
    q = tl.load(query + q_row[:, None] + column[None, :], mask=loaded, other=0.0).to(DOT)
    do_row = b * grad_strides[0] + head * grad_strides[1] + wide_token * grad_strides[2]
    do = tl.load(grad + do_row[:, None] + column[None, :], mask=loaded, other=0.0).to(DOT)
    saved = (bk.to(tl.int64) * G + row % G) * length + token
    lse = tl.load(logsumexp + saved, mask=live, other=float("inf"))
    o_row = b * out_strides[0] + head * out_strides[1] + wide_token * out_strides[2]
    o = tl.load(out + o_row[:, None] + column[None, :], mask=loaded, other=0.0).to(tl.float32)
    row_delta = tl.sum(o * do.to(tl.float32), axis=1)
    tl.store(delta + saved, row_delta, mask=live)

    list_row = (bk.to(tl.int64) * tl.num_programs(0) + tile) * num_pages
    listed_keys = tl.load(counts + bk * tl.num_programs(0) + tile) * P
    key += b * key_strides[0] + k.to(tl.int64) * key_strides[1]
    value += b * value_strides[0] + k.to(tl.int64) * value_strides[1]
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in tl.range(0, listed_keys, BLOCK_N, num_stages=STAGES):
        place = start + tl.arange(0, BLOCK_N)
        listed = place < listed_keys
        page = tl.load(pages + list_row + place // P, mask=listed, other=0).to(tl.int32)
        bits = tl.load(readers + list_row + page, mask=listed, other=0).to(tl.int32)
        position = page * P + place % P
        gathered = (listed & (position < end))[:, None] & inside[None, :]
        wide = position.to(tl.int64)[:, None]
        k_block = tl.load(key + wide * key_strides[2] + column[None, :], mask=gathered, other=0.0).to(DOT)
        v_block = tl.load(value + wide * value_strides[2] + column[None, :], mask=gathered, other=0.0).to(DOT)
        logits = tl.dot(q, tl.trans(k_block), input_precision="ieee") * (scale * LOG2_E)
        reads = (((bits[None, :] >> slot[:, None]) & 1) != 0) & (position[None, :] <= token[:, None])
        weights = tl.exp2(tl.where(reads, logits - lse[:, None], float("-inf")))
        pull = tl.dot(do, tl.trans(v_block), input_precision="ieee") - row_delta[:, None]
        dq = tl.dot((weights * pull).to(DOT), k_block, dq, input_precision="ieee")

    dq_row = b * dq_strides[0] + head * dq_strides[1] + wide_token * dq_strides[2]
    stored = ((slot < TOKENS) & (token < length))[:, None] & inside[None, :]
    result = (dq * scale).to(grad_query.dtype.element_ty)
    tl.store(grad_query + dq_row[:, None] + column[None, :], result, mask=stored)


def grad_query(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    out_BHTD: Tensor,
    grad_BHTD: Tensor,
    length_B: Tensor,
    lists: PageLists,
    logsumexp_BHT: Tensor,
    *,
    page_size: int,
    scale: float,
    tiles: Tiles,
) -> tuple[Tensor, Tensor]:
    """Gradient of the query, zero in the padding, and delta, [B, H, T] in fp32 and not set in the padding."""
    batch, heads, length, head_size = query_BHTD.shape
    kv_heads = key_BKTD.shape[1]
    grad_query_BHTD, delta_BHT = torch.empty_like(query_BHTD), torch.empty_like(logsumexp_BHT)
    tokens = tiles.tokens(heads // kv_heads)
    _grad_query[(triton.cdiv(length, tokens), batch * kv_heads)](
        query_BHTD,
        key_BKTD,
        value_BKTD,
        out_BHTD,
        grad_BHTD,
        length_B,
        lists.pages,
        lists.counts,
        lists.readers,
        logsumexp_BHT,
        delta_BHT,
        grad_query_BHTD,
        query_BHTD.stride()[:3],
        key_BKTD.stride()[:3],
        value_BKTD.stride()[:3],
        out_BHTD.stride()[:3],
        grad_BHTD.stride()[:3],
        grad_query_BHTD.stride()[:3],
        scale,
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
        LOG2_E=LOG2_E,
        num_warps=tiles.warps,
    )
    return grad_query_BHTD, delta_BHT
