"""Reference of `page_landmarks`: plain torch, any device and dtype. The operator's docstring holds the definition."""

import torch
from torch import Tensor

from sparrow.kernels.checks import accumulation_dtype, check_shape
from sparrow.kernels.page_score import PageScore


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
    """Writes rows by one indexed store, then summarises the pages whose last slot was among them."""
    written = page_T >= 0
    page, offset = page_T[written], offset_T[written]
    key_pages[page, :, offset] = key_TKD[written].to(key_pages.dtype)
    value_pages[page, :, offset] = value_TKD[written].to(value_pages.dtype)
    if landmarks is None:
        return
    summarise(key_pages, landmarks, page[offset == key_pages.shape[2] - 1], score)


def summarise(key_pages: Tensor, landmarks: Tensor, full_X: Tensor, score: PageScore) -> None:
    """Makes the landmarks of full physical pages, from the keys as cached (rounded to the cache dtype)."""
    key_XKPD = key_pages[full_X].to(accumulation_dtype(key_pages))
    landmarks_XWD = score.landmarks(key_XKPD.flatten(0, 1))
    check_shape(f"landmarks of page score {score.name!r}", landmarks_XWD, (None, score.width, key_XKPD.shape[-1]))
    landmarks[full_X] = torch.unflatten(landmarks_XWD, 0, key_XKPD.shape[:2]).to(landmarks.dtype)
