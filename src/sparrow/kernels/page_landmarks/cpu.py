"""CPU path of `page_landmarks`: numba copies the fp32 rows; the page score's own torch formula makes the landmarks.

A page is completed once in P steps, so its formula is not hot, and every page score is served alike. Other dtypes take
the plain torch path.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparrow.kernels import jit
from sparrow.kernels.jit import compiled
from sparrow.kernels.page_landmarks import reference
from sparrow.kernels.page_score import PageScore


@compiled
def _write(
    key_TKD: Any, value_TKD: Any, key_pages: Any, value_pages: Any, page_T: Any, offset_T: Any, full_T: Any
) -> Any:
    """Copies the rows; puts the pages whose last slot was written into `full_T` and returns their number."""
    _, kv_heads, page_size, head_size = key_pages.shape
    count = 0
    for t in range(page_T.shape[0]):
        page, offset = page_T[t], offset_T[t]
        if page < 0:
            continue
        for k in range(kv_heads):
            for d in range(head_size):
                key_pages[page, k, offset, d] = key_TKD[t, k, d]
                value_pages[page, k, offset, d] = value_TKD[t, k, d]
        if offset == page_size - 1:
            full_T[count] = page
            count += 1
    return count


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
    """Writes the rows, then summarises the completed pages."""
    if not key_TKD.dtype == value_TKD.dtype == key_pages.dtype == torch.float32:
        reference.page_landmarks(key_TKD, value_TKD, key_pages, value_pages, landmarks, page_T, offset_T, score)
        return
    full_T = np.empty(page_T.shape[0], np.int64)
    count = _write(
        jit.array(key_TKD),
        jit.array(value_TKD),
        jit.array(key_pages),
        jit.array(value_pages),
        jit.array(page_T),
        jit.array(offset_T),
        full_T,
    )
    if landmarks is not None and count:
        reference.summarise(key_pages, landmarks, torch.from_numpy(full_T[:count]), score)
