"""What a step computes from rewards and log-probs, as replaceable parts; the folders are the flow.

`advantages` (rewards of a group -> advantage of a sample) -> `corrections` (actor against policy -> weight and mask of
a token) -> `losses` (-> loss of a token) and `divergences` (-> penalty of a token) -> `aggregation` (-> one number).
`objective` composes them. Every formula, with its source and default, stands on one page: docs/algorithms.md.
"""

from sparrow.algorithms.types import (
    Correction,
    GroupedRewards,
    Mean,
    Metrics,
    PolicyInputs,
    TokenLoss,
    add_metrics,
)

__all__ = [
    "Correction",
    "GroupedRewards",
    "Mean",
    "Metrics",
    "PolicyInputs",
    "TokenLoss",
    "add_metrics",
]
