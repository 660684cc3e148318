"""Scores every full page of every sequence against the query that is being decoded."""

import torch
from torch import Tensor

from sparrow.kernels.checks import check_dtype, check_shape, group_size
from sparrow.kernels.page_score import PageScore
from sparrow.kernels.page_scores import cpu


def page_scores(
    query_BHD: Tensor,
    landmarks: Tensor,
    page_table_BN: Tensor,
    cached_B: Tensor,
    score: PageScore,
    *,
    page_size: int,
) -> Tensor:
    """Scores the pages of a decode step, once per KV head.

    The G query heads of a KV head are averaged in fp32 first, then scored against the landmarks: for the mean score
    `score = mean_g(q) . mean_p(k)`. No scale, no softmax.

    Args:
        query_BHD: [B, H, D] after q-norm and RoPE.
        landmarks: [pool, K, W, D].
        page_table_BN: [B, N] int32 physical page of each logical page; entries past ceil(cached / P) are arbitrary.
        cached_B: [B] int32 or int64 cached tokens, the one being decoded included; 0 for a padded slot.
        score: which page score made the landmarks.
        page_size: P.

    Returns:
        [B, K, N] fp32; -inf for pages that are not full (a partly filled page has no landmark) or past the end.

    Raises:
        TypeError: a dtype that is not allowed, or on CUDA one that the kernel does not serve.
        ValueError: shapes that do not fit each other, H not a multiple of K, or on CUDA a size that the kernel does not
            serve.
    """
    batch, heads, head_size = query_BHD.shape
    check_shape("landmarks", landmarks, (None, None, score.width, head_size))
    group_size(heads, landmarks.shape[1])
    check_shape("page_table_BN", page_table_BN, (batch, None))
    check_dtype("page_table_BN", page_table_BN, torch.int32)
    check_shape("cached_B", cached_B, (batch,))
    if query_BHD.device.type == "cpu":
        return cpu.page_scores(query_BHD, landmarks, page_table_BN, cached_B, score, page_size=page_size)
    from sparrow.kernels.page_scores import gpu  # needs Triton, which a machine without a GPU may lack

    return gpu.page_scores(query_BHD, landmarks, page_table_BN, cached_B, score, page_size=page_size)
