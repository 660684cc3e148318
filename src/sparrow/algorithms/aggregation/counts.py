"""Denominators of the whole batch, fixed before it is split.

A loss divided by what one micro-batch happens to hold depends on the cut. Here every aggregation divides by
counts of the global batch (all micro-batches, all ranks) that are passed in, so its results add up: the sum over any
split is the value of the whole. Under DDP, which averages gradients over ranks, multiply by the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Counts:
    """What an aggregation divides by.

    Attributes:
        tokens: counted tokens of the global batch.
        sequences: rows of the global batch with at least one counted token.
        prompts: prompts with at least one counted token; 0 when group ids were not given.
        prompt_tokens_B: counted tokens of each row's prompt over the global batch; None without group ids.
    """

    tokens: float
    sequences: float
    prompts: float = 0.0
    prompt_tokens_B: Tensor | None = None

    def rows(self, index: slice | Tensor) -> Counts:
        """The same counts for the rows of a micro-batch."""
        if self.prompt_tokens_B is None:
            return self
        return Counts(self.tokens, self.sequences, self.prompts, self.prompt_tokens_B[index])


def count(counted_BT: Tensor, group_B: Tensor | None = None) -> Counts:
    """Counts of a whole batch; call it before splitting.

    Args:
        counted_BT: bool; the original mask (denominator "all") or what a correction kept ("kept").
        group_B: prompt id of each row; needed by `per_prompt`.
    """
    length_B = counted_BT.sum(-1)
    tokens, sequences = float(length_B.sum()), float((length_B > 0).sum())
    if group_B is None:
        return Counts(tokens, sequences)
    index_B = torch.unique(group_B, return_inverse=True)[1]
    groups = int(index_B.max()) + 1 if len(index_B) else 0
    totals = torch.zeros(groups, dtype=torch.int64, device=counted_BT.device).index_add(0, index_B, length_B)
    return Counts(tokens, sequences, float((totals > 0).sum()), totals[index_B])
