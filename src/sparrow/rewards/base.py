"""What a reward is, and what it sees of a row.

A reward judges one completion against one row. Write one as a function `(completion, row) -> float | Outcome`, or as a
subclass of `Reward` when it needs its own process, scores truncated traces, or can write down a right completion.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparrow.rewards.outcome import Outcome, judged


@dataclass(frozen=True)
class RewardRow:
    """The part of a row that rewards read; small, so that it travels to another process cheaply.

    Attributes:
        data_source: names the data set; rewards are routed by it.
        ground_truth: the gold answer.
        extra_info: anything else.
    """

    data_source: str
    ground_truth: Any
    extra_info: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Short, for errors."""
        place = {name: self.extra_info[name] for name in ("split", "index") if name in self.extra_info}
        return f"row {place or '(no index)'} of data_source {self.data_source!r}"


class Row(Protocol):
    """A row object, such as `sparrow.data.schema.PromptRow`."""

    @property
    def data_source(self) -> str:
        """Names the data set."""
        ...

    @property
    def reward_model(self) -> Mapping[str, Any]:
        """Holds "ground_truth"."""
        ...

    @property
    def extra_info(self) -> Mapping[str, Any]:
        """Anything else."""
        ...


AnyRow = RewardRow | Row | Mapping[str, Any]


def reward_row(row: AnyRow) -> RewardRow:
    """What rewards read, from a row object or a mapping in the common schema.

    Raises:
        ValueError: if a mapping lacks a field; names it.
    """
    if isinstance(row, RewardRow):
        return row
    if not isinstance(row, Mapping):
        return RewardRow(row.data_source, row.reward_model["ground_truth"], row.extra_info)
    try:
        return RewardRow(row["data_source"], row["reward_model"]["ground_truth"], row.get("extra_info") or {})
    except KeyError as error:
        raise ValueError(
            f"row {json.dumps(dict(row), default=str)[:120]}: {error.args[0]} is missing; "
            "needed: data_source, reward_model.ground_truth"
        ) from error


class Reward(ABC):
    """Judges completions. Instances must be cheap to pickle if `isolated`."""

    @property
    def isolated(self) -> bool:
        """True if it can hang or crash, and so runs in a worker process with a hard time-out."""
        return False

    @property
    def scores_truncated(self) -> bool:
        """True if it gives documented partial credit to completions cut by the length limit."""
        return False

    @property
    def asks_for(self) -> tuple[str, ...]:
        r"""Marks of the answer's form, such as `\boxed`: a prompt should hold one. Empty if any prompt will do."""
        return ()

    def prepare(self, row: RewardRow) -> None:  # noqa: B027 - a hook that most rewards leave empty
        """Imports and builds what judging a row needs; in a worker its time does not count against the time-out."""

    @abstractmethod
    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """The outcome of one completion (without its prompt)."""

    def gold_completion(self, row: RewardRow) -> str | None:
        """A completion that must score 1, or None where none can be written down."""
        return None

    def answer(self, completion: str, row: RewardRow) -> str | None:
        """The completion's answer to vote with, equal texts for equal answers; None if it has none."""
        return None


RewardFunction = Callable[[str, RewardRow], "float | Outcome"]


@dataclass(frozen=True)
class FunctionReward(Reward):
    """A user's function as a reward. A plain number above 0 counts as correct.

    Attributes:
        function: `(completion, row) -> float | Outcome`.
        isolated: run it in a worker process; it must then be importable there.
    """

    function: RewardFunction
    isolated: bool = False

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """The function's own outcome, or one made of its number."""
        result = self.function(completion, row)
        if isinstance(result, Outcome):
            return result
        return Outcome(float(result), judged(result > 0).label)


def as_reward(reward: "Reward | RewardFunction") -> Reward:
    """A `Reward` as it is; a function wrapped as one.

    Raises:
        TypeError: if it is neither.
    """
    if isinstance(reward, Reward):
        return reward
    if not callable(reward) or isinstance(reward, type):
        raise TypeError(f"reward {reward!r} is not allowed; allowed: a Reward, or a function (completion, row)")
    return FunctionReward(reward)
