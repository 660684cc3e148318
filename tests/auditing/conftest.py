"""Measurements made by hand."""

import pytest
import torch

from sparrow.auditing.measurement import READINGS, Measured
from sparrow.modules import Experience


def measured_by_hand(alpha_BT, dense_BT, sparse_BT, prompt_len, lengths, group) -> Measured:
    """Per-token values given, everything else plain: entropy 0.5, likeliest tokens 1, 2, 3 on both sides."""
    batch, width = alpha_BT.shape
    experience = Experience(
        tokens_BT=torch.arange(batch * width).reshape(batch, width) % 7,
        prompt_len_B=torch.tensor(prompt_len),
        length_B=torch.tensor(lengths),
        sparse_logprobs_BT=sparse_BT,
        rewards_B=torch.zeros(batch),
        advantages_B=torch.zeros(batch),
        group_B=torch.tensor(group),
    )
    top = torch.tensor([0.5, 0.25, 0.125]).log().expand(batch, width, 3)
    ids = torch.tensor([1, 2, 3]).expand(batch, width, 3)
    alphas = dict.fromkeys(READINGS, alpha_BT)
    return Measured(experience, alphas, dense_BT, torch.full((batch, width), 0.5), ids, top, ids, top)


@pytest.fixture
def by_hand():
    return measured_by_hand
