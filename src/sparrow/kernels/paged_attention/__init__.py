"""Decode attention over the listed pages of a paged KV cache; dense attention is the list of all pages."""

import torch
from torch import Tensor

from sparrow.kernels.checks import check_dtype, check_shape, group_size
from sparrow.kernels.paged_attention import cpu


def _check(
    query_BHD: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table_BN: Tensor,
    pages_BKS: Tensor | None,
    count_BK: Tensor | None,
    cached_B: Tensor,
) -> None:
    batch, heads, head_size = query_BHD.shape
    check_shape("key_pages", key_pages, (None, None, None, head_size))
    check_shape("value_pages", value_pages, key_pages.shape)
    check_dtype("value_pages", value_pages, key_pages.dtype)
    kv_heads = key_pages.shape[1]
    group_size(heads, kv_heads)
    check_shape("page_table_BN", page_table_BN, (batch, None))
    check_dtype("page_table_BN", page_table_BN, torch.int32)
    check_shape("cached_B", cached_B, (batch,))
    check_dtype("cached_B", cached_B, torch.int32, torch.int64)
    if (pages_BKS is None) != (count_BK is None):
        raise ValueError("pages_BKS and count_BK belong together: give both, or neither for dense attention")
    if pages_BKS is not None and count_BK is not None:
        check_shape("pages_BKS", pages_BKS, (batch, kv_heads, None))
        check_dtype("pages_BKS", pages_BKS, torch.int32)
        check_shape("count_BK", count_BK, (batch, kv_heads))
        check_dtype("count_BK", count_BK, torch.int32)


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
    """Attends from one query per sequence to the tokens of the listed pages, with one softmax over all of them.

    The G query heads of a KV head read the same pages. Only slots that hold a token count: logical page n, slot j holds
    one if n * P + j < cached. Whatever lies in other slots and other pages, NaN included, has no influence.

    Args:
        query_BHD: [B, H, D] after q-norm and RoPE.
        key_pages: [pool, K, P, D].
        value_pages: [pool, K, P, D].
        page_table_BN: [B, N] int32 physical page of each logical page; entries past ceil(cached / P) are arbitrary.
        pages_BKS: [B, K, S] int32 logical pages, as `select_pages` returns them. None: every page (dense); the same
            code runs on the list of all pages, so the result has the same bits.
        count_BK: [B, K] int32 entries of each list; None with `pages_BKS` None. On CUDA -1, the mark of a row that
            `select_pages` refused, gives NaN.
        cached_B: [B] int32 or int64 cached tokens, the one being decoded included. 0 (a padded slot) gives zeros.
        scale: multiplies q . k, usually D ** -0.5.

    Returns:
        [B, H, D], in the dtype of the query.

    Raises:
        TypeError: a dtype that is not allowed, or on CUDA one that the kernel does not serve.
        ValueError: shapes that do not fit each other, H not a multiple of K, or on CUDA a size that the kernel does not
            serve.
    """
    _check(query_BHD, key_pages, value_pages, page_table_BN, pages_BKS, count_BK, cached_B)
    if query_BHD.device.type == "cpu":
        return cpu.paged_attention(
            query_BHD, key_pages, value_pages, page_table_BN, pages_BKS, count_BK, cached_B, scale
        )
    from sparrow.kernels.paged_attention import gpu  # needs Triton, which a machine without a GPU may lack

    return gpu.paged_attention(query_BHD, key_pages, value_pages, page_table_BN, pages_BKS, count_BK, cached_B, scale)
