"""Rows of reasoning-gym tasks, judged by each task's own scorer.

The row carries what the scorer needs in `extra_info`: `dataset` (the task's name), `config` and `entry` (both as
`sparrow.rewards.tagged_json`). The answer is looked for in the last `<answer>` tag.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.extract import ASKED_FORMS, FinderName, find_answer
from sparrow.rewards.outcome import Outcome, judged
from sparrow.rewards.tagged_json import loads

PREFIX = "reasoning_gym/"


@dataclass(frozen=True)
class ReasoningGym(Reward):
    """The task's own score in [0, 1]; "correct" at 1. Several tasks give small scores to near misses.

    Attributes:
        isolated: run it in a worker process: some scorers hand the answer to sympy, which can hang.
        finder: how the answer is found, a name of `sparrow.rewards.extract.FINDERS`.
    """

    isolated: bool = True
    finder: FinderName = "tag"

    @property
    def asks_for(self) -> tuple[str, ...]:
        """What the finder looks for."""
        return ASKED_FORMS[self.finder]

    def prepare(self, row: RewardRow) -> None:
        """Builds the task."""
        scorer(row)

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """Scores the tagged answer against the row's entry."""
        answer = find_answer(completion, self.finder)
        if answer is None:
            return Outcome(0.0, "unparsable")
        score = float(scorer(row).score_answer(answer, loads(row.extra_info["entry"])))
        return Outcome(score, judged(score >= 1.0).label)

    def gold_completion(self, row: RewardRow) -> str | None:
        """The entry's answer in a tag; None for tasks that keep none, such as those with many solutions."""
        answer = loads(row.extra_info["entry"])["answer"]
        return None if answer is None else f"<answer>{answer}</answer>"

    def answer(self, completion: str, row: RewardRow) -> str | None:
        """The tagged text."""
        return find_answer(completion, self.finder)


def scorer(row: RewardRow) -> Any:
    """The task's data set object, whose `score_answer` judges.

    Raises:
        ValueError: if the row lacks what a reasoning-gym row carries.
    """
    missing = [name for name in ("dataset", "config", "entry") if name not in row.extra_info]
    if missing:
        raise ValueError(f"{row}: extra_info lacks {', '.join(missing)}; needed: dataset, config, entry")
    return _task(row.extra_info["dataset"], row.extra_info["config"])


@lru_cache(maxsize=128)
def _task(name: str, config: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, **loads(config))
