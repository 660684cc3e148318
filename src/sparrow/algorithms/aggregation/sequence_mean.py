"""Aggregations in which every answer has one vote, whatever its length, or a vote that grows with its length."""

from __future__ import annotations

from torch import Tensor

from sparrow.algorithms.aggregation.counts import Counts
from sparrow.algorithms.masked import inside, row_sum
from sparrow.ranges import Positive


def sequence_mean_token_mean(loss_BT: Tensor, keep_BT: Tensor, counted_BT: Tensor, counts: Counts) -> Tensor:
    """mean over sequences of the mean over their tokens (GRPO, GSPO; verl `seq-mean-token-mean`).

    Args:
        loss_BT: loss of each token.
        keep_BT: bool, tokens that train.
        counted_BT: bool, tokens that count as the length of their sequence.
        counts: of the global batch.

    Returns:
        This part's share, 0-dim.
    """
    length_B1 = counted_BT.sum(-1, keepdim=True).clamp(min=1)
    return (row_sum(loss_BT, keep_BT) / length_B1).sum() / max(counts.sequences, 1.0)


def sequence_mean_token_sum(loss_BT: Tensor, keep_BT: Tensor, counted_BT: Tensor, counts: Counts) -> Tensor:
    """mean over sequences of the sum over their tokens (verl `seq-mean-token-sum`); arguments as above."""
    return inside(loss_BT, keep_BT).sum() / max(counts.sequences, 1.0)


def token_sum_constant(
    loss_BT: Tensor, keep_BT: Tensor, counted_BT: Tensor, counts: Counts, *, length: Positive
) -> Tensor:
    """sum over all tokens / (sequences x length): no answer's length divides (Dr. GRPO; verl
    `seq-mean-token-sum-norm`).

    Args:
        loss_BT: loss of each token.
        keep_BT: bool, tokens that train.
        counted_BT: bool; not read (`counts` has the sequences).
        counts: of the global batch.
        length: the constant, usually the longest response allowed.

    Raises:
        ValueError: length is not positive.
    """
    if not length > 0:
        raise ValueError(f"length is {length}; it must be above 0")
    return sequence_mean_token_sum(loss_BT, keep_BT, counted_BT, counts) / length
