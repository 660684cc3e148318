"""A dry run before training: every row routes, and every gold answer scores 1.

A data set that routes to no checker, or whose gold answers its checker rejects, is then found in seconds and not
after hours of rollouts that all score 0.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sparrow.rewards.base import AnyRow, RewardRow, reward_row
from sparrow.rewards.outcome import Outcome
from sparrow.rewards.score import Sample, Scorer

_SHOWN = 5


@dataclass(frozen=True)
class RouteCheck:
    """What the dry run did.

    Attributes:
        rows: rows per data source; all of them route.
        checked: rows whose gold completion was scored, and scored 1.
        no_gold: rows for which no right completion can be written down.
    """

    rows: dict[str, int]
    checked: dict[str, int]
    no_gold: dict[str, int]


def check_routes(
    rows: Iterable[AnyRow], scorer: Scorer | None = None, *, limit_per_source: int | None = None
) -> RouteCheck:
    """Routes every row and scores a completion made of its gold answer.

    Args:
        rows: the rows to train on.
        scorer: the scorer that training uses; None takes the registered routes.
        limit_per_source: score the gold answers of only the first so many rows of each data source; None scores all.
            Every row is routed in any case.

    Raises:
        KeyError: if a row does not route.
        ValueError: if a gold answer does not score 1; names the rows, their gold answers and their outcomes.
    """
    own = Scorer() if scorer is None else scorer
    seen, checked, no_gold = Counter[str](), Counter[str](), Counter[str]()
    samples: list[tuple[RewardRow, Sample]] = []
    for row in map(reward_row, rows):
        reward = own.reward_of(row)
        seen[row.data_source] += 1
        if limit_per_source is not None and seen[row.data_source] > limit_per_source:
            continue
        gold = reward.gold_completion(row)
        (no_gold if gold is None else checked)[row.data_source] += 1
        if gold is not None:
            samples.append((row, Sample(gold, row)))
    try:
        _check_scores([row for row, _ in samples], own.score([sample for _, sample in samples]))
    finally:
        if scorer is None:
            own.close()
    return RouteCheck(dict(seen), dict(checked), dict(no_gold))


def _check_scores(rows: list[RewardRow], outcomes: list[Outcome]) -> None:
    bad = [(row, outcome) for row, outcome in zip(rows, outcomes, strict=True) if not _is_full(outcome)]
    if bad:
        shown = "; ".join(
            f"{row}, ground_truth {str(row.ground_truth)[:80]!r}: {outcome.label} {outcome.score:g} {outcome.detail}"
            for row, outcome in bad[:_SHOWN]
        )
        raise ValueError(f"{len(bad)} of {len(rows)} gold answers do not score 1 by their own reward: {shown}")


def _is_full(outcome: Outcome) -> bool:
    return outcome.label == "correct" and outcome.score >= 1.0
