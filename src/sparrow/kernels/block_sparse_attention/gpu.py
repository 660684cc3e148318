"""Triton path of `block_sparse_attention`: dense-tile attention that visits only the pages a tile of rows reads.

Cost follows the union of the page sets of a tile of tokens, not T squared and not T times the budget. Between forward
and backward live the inputs, the output and one log-sum-exp per row; the lists of pages are made again from the bit
sets.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparrow.kernels.block_sparse_attention.gpu_backward import grad_query
from sparrow.kernels.block_sparse_attention.gpu_backward_keys import grad_key_value
from sparrow.kernels.block_sparse_attention.gpu_forward import Tiles, attend, choose_tiles
from sparrow.kernels.block_sparse_attention.gpu_lists import PageLists, list_pages
from sparrow.kernels.triton_tools import (
    LARGEST_GROUP,
    LARGEST_HEAD,
    rows_in_place,
    serve_device,
    serve_dtype,
    serve_size,
)

OPERATOR = "block_sparse_attention"
LARGEST_PAGE = 128
MOST_ROWS = 2**16 - 1
"""B times K: the second axis of a CUDA grid."""


def block_sparse_attention(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    chosen_BKTM: Tensor,
    prompt_len_B: Tensor,
    length_B: Tensor,
    *,
    page_size: int,
    scale: float,
) -> Tensor:
    """Checks what the kernels serve, and applies them with their gradient."""
    _check(query_BHTD, key_BKTD, value_BKTD, page_size)
    if query_BHTD.numel() == 0:
        return query_BHTD.clone()
    tensors = (rows_in_place(x) for x in (query_BHTD, key_BKTD, value_BKTD))
    fixed = (x.contiguous() for x in (chosen_BKTM, prompt_len_B, length_B))
    out_BHTD: Tensor = _Attend.apply(*tensors, *fixed, page_size, scale)  # type: ignore[no-untyped-call]
    return out_BHTD


class _Attend(torch.autograd.Function):
    """Attention whose backward recomputes the weights from the saved log-sum-exps."""

    @staticmethod
    def forward(
        ctx: Any,
        query_BHTD: Tensor,
        key_BKTD: Tensor,
        value_BKTD: Tensor,
        chosen_BKTM: Tensor,
        prompt_len_B: Tensor,
        length_B: Tensor,
        page_size: int,
        scale: float,
    ) -> Tensor:
        with torch.cuda.device_of(query_BHTD):
            lists, tiles = _plan(query_BHTD, chosen_BKTM, prompt_len_B, length_B, page_size)
            out_BHTD, logsumexp_BHT = attend(
                query_BHTD, key_BKTD, value_BKTD, length_B, lists, page_size=page_size, scale=scale, tiles=tiles
            )
        fixed = (chosen_BKTM, prompt_len_B, length_B)
        ctx.save_for_backward(query_BHTD, key_BKTD, value_BKTD, *fixed, out_BHTD, logsumexp_BHT)
        ctx.page_size, ctx.scale = page_size, scale
        return out_BHTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHTD: Tensor) -> tuple[Tensor | None, ...]:
        query_BHTD, key_BKTD, value_BKTD, chosen_BKTM, prompt_len_B, length_B, out_BHTD, logsumexp_BHT = (
            ctx.saved_tensors
        )
        grad_BHTD = rows_in_place(grad_BHTD)
        grads: list[Tensor | None] = [None, None, None]
        with torch.cuda.device_of(query_BHTD):
            lists, tiles = _plan(query_BHTD, chosen_BKTM, prompt_len_B, length_B, ctx.page_size)
            settings = {"page_size": ctx.page_size, "scale": ctx.scale, "tiles": tiles}
            inputs = (query_BHTD, key_BKTD, value_BKTD)
            grads[0], delta_BHT = grad_query(*inputs, out_BHTD, grad_BHTD, length_B, lists, logsumexp_BHT, **settings)
            if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
                grads[1:] = grad_key_value(*inputs, grad_BHTD, length_B, lists, logsumexp_BHT, delta_BHT, **settings)
        return (*grads, None, None, None, None, None)


def _plan(
    query_BHTD: Tensor, chosen_BKTM: Tensor, prompt_len_B: Tensor, length_B: Tensor, page_size: int
) -> tuple[PageLists, Tiles]:
    tiles = choose_tiles(query_BHTD.shape[3], query_BHTD.dtype)
    tokens = tiles.tokens(query_BHTD.shape[1] // chosen_BKTM.shape[1])
    return list_pages(chosen_BKTM, prompt_len_B, length_B, page_size=page_size, tile_tokens=tokens), tiles


def _check(query_BHTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, page_size: int) -> None:
    serve_device(OPERATOR, query_BHTD)
    serve_dtype(OPERATOR, "query_BHTD", query_BHTD)
    for name, tensor in (("key_BKTD", key_BKTD), ("value_BKTD", value_BKTD)):
        if tensor.dtype != query_BHTD.dtype:
            raise TypeError(
                f"{OPERATOR}: {name} has dtype {tensor.dtype}, the Triton kernel serves that of the query, "
                f"{query_BHTD.dtype}"
            )
    batch, heads, _, head_size = query_BHTD.shape
    kv_heads = key_BKTD.shape[1]
    serve_size(OPERATOR, "head size", head_size, LARGEST_HEAD)
    serve_size(OPERATOR, "page size", page_size, LARGEST_PAGE)
    serve_size(OPERATOR, "query heads per KV head", heads // kv_heads, LARGEST_GROUP)
    if batch * kv_heads > MOST_ROWS:
        serve_size(OPERATOR, "batch size times KV heads", batch * kv_heads, MOST_ROWS)
