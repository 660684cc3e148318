"""Appends keys and values to the paged cache, and summarises each page that becomes full."""

import torch
from torch import Tensor

from sparrow.kernels.checks import check_dtype, check_shape
from sparrow.kernels.page_landmarks import cpu
from sparrow.kernels.page_score import PageScore


def _check(
    key_TKD: Tensor,
    value_TKD: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    landmarks: Tensor | None,
    page_T: Tensor,
    offset_T: Tensor,
    score: PageScore,
) -> None:
    tokens, kv_heads, head_size = key_TKD.shape
    check_shape("value_TKD", value_TKD, key_TKD.shape)
    check_shape("key_pages", key_pages, (None, kv_heads, None, head_size))
    check_shape("value_pages", value_pages, key_pages.shape)
    check_dtype("value_pages", value_pages, key_pages.dtype)
    for name, index in (("page_T", page_T), ("offset_T", offset_T)):
        check_shape(name, index, (tokens,))
        check_dtype(name, index, torch.int64)
    if landmarks is not None:
        check_shape("landmarks", landmarks, (key_pages.shape[0], kv_heads, score.width, head_size))
        check_dtype("landmarks", landmarks, key_pages.dtype)


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
    """Writes token rows into the cache in place, and the landmarks of the pages they complete.

    A page is complete when its last slot (offset P - 1) is written; its landmark is then made from all its P keys, as
    cached, in fp32, and rounded to the cache dtype. The earlier slots may have been written by earlier calls.

    Args:
        key_TKD: [T, K, D] keys of T tokens (of any sequences) after k-norm and RoPE.
        value_TKD: [T, K, D].
        key_pages: [pool, K, P, D], written.
        value_pages: [pool, K, P, D], written.
        landmarks: [pool, K, W, D], written; None for a layer that is always dense.
        page_T: [T] int64 physical page of each token; -1 skips the token (a padded slot).
        offset_T: [T] int64 slot inside the page, in [0, P). No two tokens share page and slot.
        score: what to keep of a page.

    Raises:
        TypeError: a dtype that is not allowed, or on CUDA one that the kernel does not serve.
        ValueError: shapes that do not fit each other, or on CUDA a size that the kernel does not serve.
    """
    _check(key_TKD, value_TKD, key_pages, value_pages, landmarks, page_T, offset_T, score)
    if key_TKD.device.type == "cpu":
        cpu.page_landmarks(key_TKD, value_TKD, key_pages, value_pages, landmarks, page_T, offset_T, score)
        return
    from sparrow.kernels.page_landmarks import gpu  # needs Triton, which a machine without a GPU may lack

    gpu.page_landmarks(key_TKD, value_TKD, key_pages, value_pages, landmarks, page_T, offset_T, score)
