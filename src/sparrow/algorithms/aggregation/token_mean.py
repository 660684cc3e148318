"""Mean over the tokens of the global batch (DAPO; verl `token-mean`): a long answer weighs more than a short one."""

from __future__ import annotations

from torch import Tensor

from sparrow.algorithms.aggregation.counts import Counts
from sparrow.algorithms.masked import inside


def token_mean(loss_BT: Tensor, keep_BT: Tensor, counted_BT: Tensor, counts: Counts) -> Tensor:
    """sum of the loss over kept tokens / tokens of the global batch.

    Args:
        loss_BT: loss of each token.
        keep_BT: bool, tokens that train.
        counted_BT: bool, tokens that count in the denominator (not read here: `counts` has them).
        counts: of the global batch.

    Returns:
        This part's share, 0-dim; shares of all micro-batches and ranks add up to the loss.
    """
    return inside(loss_BT, keep_BT).sum() / max(counts.tokens, 1.0)
