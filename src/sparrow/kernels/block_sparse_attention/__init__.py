"""Causal attention of whole sequences whose response tokens read chosen pages: the training-side twin of decoding."""

import torch
from torch import Tensor

from sparrow.kernels.block_sparse_attention import cpu
from sparrow.kernels.checks import check_dtype, check_shape, group_size
from sparrow.kernels.page_bits import num_words


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
    """Attends causally: prompt rows to everything before them, response rows to the tokens of their chosen pages.

    Row t reads key s if s <= t < length and (t < prompt_len or page s // P is in the row's set). Gradients reach query,
    key and value through the pairs that were read; none flows through the choice.

    Args:
        query_BHTD: [B, H, T, D]; sequences are left-aligned (prompt, response, padding).
        key_BKTD: [B, K, T, D].
        value_BKTD: [B, K, T, D].
        chosen_BKTM: [B, K, T, M] int32 page sets (`page_bits`) with M = ceil(ceil(T / P) / 32); read only at rows
            prompt_len <= t < length, where each must hold the row's own page.
        prompt_len_B: [B] tokens of the prompt.
        length_B: [B] tokens of prompt and response; rows from there on give zeros, whatever they hold.
        page_size: P.
        scale: multiplies q . k, usually D ** -0.5.

    Returns:
        [B, H, T, D], in the dtype of the query.

    Raises:
        TypeError: page sets that are not int32, or on CUDA a dtype that the kernels do not serve.
        ValueError: shapes that do not fit each other, H not a multiple of K, or on CUDA a size that the kernels do not
            serve.
    """
    batch, heads, length, head_size = query_BHTD.shape
    kv_heads = key_BKTD.shape[1]
    group_size(heads, kv_heads)
    check_shape("key_BKTD", key_BKTD, (batch, kv_heads, length, head_size))
    check_shape("value_BKTD", value_BKTD, key_BKTD.shape)
    words = num_words(-(-length // page_size))
    check_shape("chosen_BKTM", chosen_BKTM, (batch, kv_heads, length, words))
    check_dtype("chosen_BKTM", chosen_BKTM, torch.int32)
    check_shape("prompt_len_B", prompt_len_B, (batch,))
    check_shape("length_B", length_B, (batch,))
    arguments = (query_BHTD, key_BKTD, value_BKTD, chosen_BKTM, prompt_len_B, length_B)
    if query_BHTD.device.type == "cpu":
        return cpu.block_sparse_attention(*arguments, page_size=page_size, scale=scale)
    from sparrow.kernels.block_sparse_attention import gpu  # needs Triton, which a machine without a GPU may lack

    return gpu.block_sparse_attention(*arguments, page_size=page_size, scale=scale)
