"""Advantages within groups when the verifier failed on some samples.

A time-out or an error of the verifier says nothing about the sample: its score 0 is a guess. Whether such samples stand
in the group's baseline is a choice with a name:
- "baseline": they count with their score, as any other sample.
- "left_out": their advantage is 0 and the group's baseline is made of the others.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from sparrow.algorithms import GroupedRewards
from sparrow.distributed import gather_objects, own_rank, world_size
from sparrow.rewards import Outcome

Unjudged = Literal["baseline", "left_out"]
UNJUDGED = ("baseline", "left_out")
FAILED = ("timeout", "error")
"""Outcomes of a verifier that failed; unparsable and truncated completions were judged."""


def advantages_of_all_ranks(
    estimator: Callable[[GroupedRewards], Tensor],
    grouped: GroupedRewards,
    outcomes: Sequence[Outcome],
    unjudged: Unjudged,
) -> Tensor:
    """Advantages of this rank's samples, computed on those of all ranks: some estimators look at the whole batch.

    Args:
        estimator: the advantage estimator.
        grouped: rewards of this rank; group ids are unique over all ranks.
        outcomes: of the same samples.
        unjudged: see the module.

    Returns:
        [B] advantages.
    """
    if world_size() == 1:
        return group_advantages(estimator, grouped, outcomes, unjudged)
    names = ("rewards_B", "group_B", "length_B", "baseline_B")
    everyone = gather_objects(([getattr(grouped, name) for name in names], list(outcomes)))
    columns = zip(*(values for values, _ in everyone), strict=True)
    whole = GroupedRewards(*(None if column[0] is None else torch.cat(column) for column in columns))  # type: ignore[arg-type]
    told = [outcome for _, part in everyone for outcome in part]
    first = sum(len(part) for _, part in everyone[: own_rank()])
    return group_advantages(estimator, whole, told, unjudged)[first : first + len(outcomes)]


def group_advantages(
    estimator: Callable[[GroupedRewards], Tensor],
    grouped: GroupedRewards,
    outcomes: Sequence[Outcome],
    unjudged: Unjudged,
) -> Tensor:
    """Advantages of a step's samples.

    Args:
        estimator: the advantage estimator.
        grouped: rewards and groups of all samples.
        outcomes: of the same samples.
        unjudged: see the module.

    Returns:
        [B] advantages.

    Raises:
        ValueError: `unjudged` is unknown.
    """
    if unjudged not in UNJUDGED:
        raise ValueError(f"unjudged={unjudged!r}: must be one of {', '.join(UNJUDGED)}")
    kept_B = torch.tensor([outcome.label not in FAILED for outcome in outcomes])
    if unjudged == "baseline" or bool(kept_B.all()):
        return estimator(grouped)
    advantages_B = torch.zeros_like(grouped.rewards_B)
    if bool(kept_B.any()):
        fields = (grouped.rewards_B, grouped.group_B, grouped.length_B, grouped.baseline_B)
        part = GroupedRewards(*(None if field is None else field[kept_B] for field in fields))  # type: ignore[arg-type]
        advantages_B[kept_B] = estimator(part)
    return advantages_B
