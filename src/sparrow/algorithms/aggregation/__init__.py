"""From the loss of each token to one number, with denominators of the global batch passed in."""

from sparrow.algorithms.aggregation.counts import Counts, count
from sparrow.algorithms.aggregation.per_prompt import per_prompt
from sparrow.algorithms.aggregation.sequence_mean import (
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    token_sum_constant,
)
from sparrow.algorithms.aggregation.token_mean import token_mean

__all__ = [
    "Counts",
    "count",
    "per_prompt",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "token_mean",
    "token_sum_constant",
]
