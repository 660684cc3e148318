"""Every prompt has one vote: mean over prompts of the mean over all tokens of its group (SkyRL `prompt_mean`)."""

from __future__ import annotations

from torch import Tensor

from sparrow.algorithms.aggregation.counts import Counts
from sparrow.algorithms.masked import row_sum


def per_prompt(loss_BT: Tensor, keep_BT: Tensor, counted_BT: Tensor, counts: Counts) -> Tensor:
    """sum over rows of (sum of the loss / tokens of the row's prompt) / prompts.

    Args:
        loss_BT: loss of each token.
        keep_BT: bool, tokens that train.
        counted_BT: bool; not read (`counts` has the tokens of each prompt).
        counts: of the global batch, made with `group_B`; rows of a micro-batch by `counts.rows`.

    Returns:
        This part's share, 0-dim.

    Raises:
        ValueError: the counts were made without group ids, or for another number of rows.
    """
    if counts.prompt_tokens_B is None:
        raise ValueError("per_prompt needs counts made with group_B: Counts.prompt_tokens_B is None")
    if counts.prompt_tokens_B.shape != keep_BT.shape[:1]:
        raise ValueError(
            f"Counts.prompt_tokens_B has {len(counts.prompt_tokens_B)} rows, the loss {len(keep_BT)}; use counts.rows"
        )
    tokens_B1 = counts.prompt_tokens_B.clamp(min=1).unsqueeze(-1)
    return (row_sum(loss_BT, keep_BT) / tokens_B1).sum() / max(counts.prompts, 1.0)
