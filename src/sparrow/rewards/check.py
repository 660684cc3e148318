"""A dry run before training: every row routes, prompt and checker agree, and every gold answer scores 1.

A data set that routes to no checker, or whose gold answers its checker rejects, is then found in seconds and not
after hours of rollouts that all score 0.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparrow.rewards.base import AnyRow, Reward, RewardRow, reward_row
from sparrow.rewards.combine import Combined
from sparrow.rewards.judge import described
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
        agreeing: rows whose prompt asks for a form that their checker looks for; the others' checkers ask for none.
    """

    rows: dict[str, int]
    checked: dict[str, int]
    no_gold: dict[str, int]
    agreeing: dict[str, int] = field(default_factory=dict)


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
        ValueError: if a prompt does not ask for the form that its checker looks for, a gold answer does not score 1, or
            a row lacks what its checker reads; names the rows, their gold answers and their outcomes. Also if
            `limit_per_source` is below 1.
    """
    if limit_per_source is not None and limit_per_source < 1:
        raise ValueError(f"limit_per_source={limit_per_source} is not allowed; allowed: 1 or more, or None for all")
    own = Scorer() if scorer is None else scorer
    seen, checked, no_gold = Counter[str](), Counter[str](), Counter[str]()
    samples: list[tuple[RewardRow, Reward, Sample]] = []
    agreeing, unasked = Counter[str](), list[str]()
    for given in rows:
        row, reward = reward_row(given), own.reward_of(given)
        seen[row.data_source] += 1
        asked = _asked(given, reward)
        if asked:
            agreeing[row.data_source] += 1
        elif asked is False:
            unasked.append(f"{row}: {type(reward).__name__} looks for one of {', '.join(reward.asks_for)}")
        if limit_per_source is not None and seen[row.data_source] > limit_per_source:
            continue
        gold = _gold_completion(reward, row)
        (no_gold if gold is None else checked)[row.data_source] += 1
        if gold is not None:
            samples.append((row, reward, Sample(gold, row)))
    if unasked:
        raise ValueError(
            f"{len(unasked)} of {seen.total()} prompts do not ask for the form of answer that their checker looks for: "
            + "; ".join(unasked[:_SHOWN])
        )
    try:
        outcomes = own.judge([sample for _, _, sample in samples])
        _check_scores([(row, reward) for row, reward, _ in samples], outcomes)
    finally:
        if scorer is None:
            own.close()
    return RouteCheck(dict(seen), dict(checked), dict(no_gold), dict(agreeing))


def _gold_completion(reward: Reward, row: RewardRow) -> str | None:
    try:
        return reward.gold_completion(row)
    except Exception as error:
        # The boundary to users' rewards, and to rows that lack what a reward reads: the error must name the row.
        text = described(error)
        named = text if str(row) in text else f"{row}: {type(reward).__name__} finds no gold answer ({text})"
        raise ValueError(named) from error


def _asked(row: AnyRow, reward: Reward) -> bool | None:
    """Whether the prompt holds a form that the reward looks for; None if it looks for none, or there is no prompt."""
    prompt: Any = row.get("prompt") if isinstance(row, Mapping) else getattr(row, "prompt", None)
    if not reward.asks_for or prompt is None:
        return None
    text = "\n".join(message["content"] for message in prompt).lower()
    return any(form.lower() in text for form in reward.asks_for)


def _check_scores(rows: list[tuple[RewardRow, Reward]], outcomes: list[Outcome]) -> None:
    judged = [(row, reward, outcome) for (row, reward), outcome in zip(rows, outcomes, strict=True)]
    bad = [(row, outcome) for row, reward, outcome in judged if not _is_full(reward, outcome)]
    if bad:
        shown = "; ".join(
            f"{row}, ground_truth {str(row.ground_truth)[:80]!r}: {outcome.label} {outcome.score:g} {outcome.detail}"
            for row, outcome in bad[:_SHOWN]
        )
        raise ValueError(f"{len(bad)} of {len(rows)} gold answers do not score 1 by their own reward: {shown}")


def _is_full(reward: Reward, outcome: Outcome) -> bool:
    """Of a weighted sum the main part alone is asked: its gold answer need not please the others."""
    return outcome.label == "correct" and (outcome.score >= 1.0 or isinstance(reward, Combined))
