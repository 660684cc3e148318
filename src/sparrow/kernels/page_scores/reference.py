"""Reference of `page_scores`: plain torch, any device and dtype. The operator's docstring holds the definition."""

import torch
from torch import Tensor

from sparrow.kernels.page_score import PageScore


def page_scores(
    query_BHD: Tensor,
    landmarks: Tensor,
    page_table_BN: Tensor,
    cached_B: Tensor,
    score: PageScore,
    *,
    page_size: int,
) -> Tensor:
    """Gathers the landmarks of every full page, scores them, and masks the rest."""
    kv_heads = landmarks.shape[1]
    query_BKD = torch.unflatten(query_BHD.float(), 1, (kv_heads, -1)).mean(dim=2)
    page_N = torch.arange(page_table_BN.shape[1], device=page_table_BN.device)
    full_BN = page_N < (cached_B // page_size).unsqueeze(1)
    # Entries of the table past the end may point anywhere.
    physical_BN = torch.where(full_BN, page_table_BN, 0)
    landmarks_BKNWD = landmarks[physical_BN].movedim(2, 1).float()
    scores_BKN = score.scores(query_BKD, landmarks_BKNWD)
    return scores_BKN.masked_fill(~full_BN.unsqueeze(1), -torch.inf)
