"""One number from one micro-batch: correction, loss, penalties and aggregation put together.

loss = aggregate(weight * loss_BT + sum of coefficient * penalty_BT). The weight is detached and stands outside the
clip. The loss sees the mask that the correction left, so a dropped token is in no sequence ratio. Penalties are not
weighted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from sparrow.algorithms.aggregation.counts import Counts
from sparrow.algorithms.masked import inside
from sparrow.algorithms.types import Correction, Mean, Metrics, PolicyInputs, TokenLoss

Denominator = Literal["all", "kept"]
Loss = Callable[[PolicyInputs], TokenLoss]
CorrectionRule = Callable[[PolicyInputs, Tensor | None], Correction]
Aggregate = Callable[[Tensor, Tensor, Tensor, Counts], Tensor]


@dataclass(frozen=True)
class Penalty:
    """A term added to the loss of each token: a divergence, or the entropy with a negative coefficient.

    Attributes:
        name: logged as `actor/<name>` (mean value over the mask).
        coefficient: factor of the term.
        value_BT: the term, with gradient.
    """

    name: str
    coefficient: float
    value_BT: Tensor


@dataclass(frozen=True)
class Objective:
    """A micro-batch's share of the loss.

    Attributes:
        loss: 0-dim, with gradient; shares of all micro-batches and ranks add up.
        metrics: `actor/*` and `rollout_corr/*`.
        correction: what the correction decided.
    """

    loss: Tensor
    metrics: Metrics
    correction: Correction


def counted(mask_BT: Tensor, keep_BT: Tensor, denominator: Denominator) -> Tensor:
    """The tokens that count in the denominator: "all" of the original mask, or those "kept" by the correction.

    With "all" a masked token still divides, so masking shrinks the gradient and never moves other tokens; with "kept"
    the tokens that remain are scaled up.

    Raises:
        ValueError: an unknown denominator.
    """
    if denominator not in ("all", "kept"):
        raise ValueError(f"denominator is {denominator!r}; allowed: 'all', 'kept'")
    return mask_BT if denominator == "all" else mask_BT & keep_BT


def corrected_inputs(inputs: PolicyInputs, correction: Correction) -> PolicyInputs:
    """What the loss sees: the mask that is left, and under bypass the sparse log-probs in the place of old."""
    old_BT = inputs.old_logprobs_BT if correction.old_logprobs_BT is None else correction.old_logprobs_BT
    return replace(inputs, mask_BT=inputs.mask_BT & correction.keep_BT, old_logprobs_BT=old_BT)


def policy_objective(
    inputs: PolicyInputs,
    *,
    loss: Loss,
    correction: CorrectionRule,
    aggregate: Aggregate,
    counts: Counts,
    denominator: Denominator = "all",
    penalties: Sequence[Penalty] = (),
    totals: Tensor | None = None,
) -> Objective:
    """The loss of some rows as their share of the global batch.

    Args:
        inputs: the rows.
        loss: e.g. `losses.ppo_clip`, or a partial of it.
        correction: e.g. `corrections.TokenTIS()`.
        aggregate: e.g. `aggregation.token_mean`, or a partial of it.
        counts: `aggregation.count` of the global batch's counted tokens (see `counted`).
        denominator: which tokens of a row count.
        penalties: terms added per token.
        totals: sum of `correction.statistics` over the global batch, for rules that need it.
    """
    decided = correction(inputs, totals)
    seen = corrected_inputs(inputs, decided)
    token = loss(seen)
    loss_BT = token.loss_BT * decided.weight_BT
    metrics = decided.metrics | token.metrics | {"actor/pg_loss": Mean.of(loss_BT, seen.mask_BT)}
    for penalty in penalties:
        loss_BT = loss_BT + penalty.coefficient * inside(penalty.value_BT, seen.mask_BT)
        metrics |= {f"actor/{penalty.name}": Mean.of(penalty.value_BT, seen.mask_BT)}
    counted_BT = counted(inputs.mask_BT, seen.mask_BT, denominator)
    return Objective(aggregate(loss_BT, seen.mask_BT, counted_BT, counts), metrics, decided)
