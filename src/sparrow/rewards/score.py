"""Scoring completions: routing, inline or in worker processes, order kept, outcomes counted."""

import atexit
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sparrow.rewards.base import AnyRow, Reward, RewardFunction, as_reward, reward_row
from sparrow.rewards.judge import check_finish_reason, judge
from sparrow.rewards.outcome import Label, Outcome
from sparrow.rewards.pool import RewardPool, Task
from sparrow.rewards.registry import route
from sparrow.rewards.shaping import Shaping


@dataclass(frozen=True)
class Sample:
    """One completion to be scored.

    Attributes:
        completion: its text, without the prompt.
        row: the row it answers.
        finish_reason: "stop" or "length".
        num_tokens: its length, needed where the scorer shapes scores by length.
    """

    completion: str
    row: AnyRow
    finish_reason: str = "stop"
    num_tokens: int | None = None


class Scorer:
    """Scores lists of completions. Isolated rewards go to a process pool, started at their first use.

    Args:
        reward: one reward for every row; None routes by data source.
        routes: routes looked up before the registered ones.
        workers: worker processes.
        timeout_s: seconds one completion may take in a worker; from its start, not its queueing.
        shaping: changes of the score by length, applied in order; labels stay.

    Raises:
        ValueError: ``workers`` or ``timeout_s`` is out of range.
    """

    def __init__(
        self,
        *,
        reward: Reward | RewardFunction | None = None,
        routes: Mapping[str, Reward | RewardFunction] | None = None,
        workers: int = 2,
        timeout_s: float = 10.0,
        shaping: Sequence[Shaping] = (),
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers={workers} is not allowed; it must be 1 or more")
        if not 0 < timeout_s < math.inf:
            raise ValueError(f"timeout_s={timeout_s} is not allowed; it must be a finite number above 0")
        self.shaping = tuple(shaping)
        self.reward = None if reward is None else as_reward(reward)
        self.routes = {name: as_reward(value) for name, value in (routes or {}).items()}
        self.workers = workers
        self.timeout_s = timeout_s
        self.counts: Counter[Label] = Counter()
        self._pool: RewardPool | None = None

    def reward_of(self, row: AnyRow) -> Reward:
        """The reward that judges a row.

        Raises:
            KeyError: if its data source does not route.
        """
        return self.reward if self.reward is not None else route(row, self.routes)

    def score(self, samples: Sequence[Sample]) -> list[Outcome]:
        """The outcomes, shaped by length, in the order of the samples; added to `counts`."""
        return [self._shaped(*pair) for pair in zip(samples, self.judge(samples), strict=True)]

    def judge(self, samples: Sequence[Sample]) -> list[Outcome]:
        """The outcomes as the rewards give them, in the order of the samples; added to `counts`.

        Raises:
            KeyError: if a data source does not route.
            ValueError: if a finish reason is unknown.
        """
        for sample in samples:
            check_finish_reason(sample.finish_reason, reward_row(sample.row))
        tasks = [
            Task(self.reward_of(sample.row), sample.completion, reward_row(sample.row), sample.finish_reason)
            for sample in samples
        ]
        isolated = [place for place, task in enumerate(tasks) if task.reward.isolated]
        remote = dict(zip(isolated, self._remote([tasks[place] for place in isolated]), strict=True))
        outcomes = [
            remote[place] if place in remote else judge(task.reward, task.completion, task.row, task.finish_reason)
            for place, task in enumerate(tasks)
        ]
        self.counts.update(outcome.label for outcome in outcomes)
        return outcomes

    def close(self) -> None:
        """Ends the worker processes; scoring again starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> Self:
        """Usable in a `with`, which closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the worker processes."""
        self.close()

    def _shaped(self, sample: Sample, outcome: Outcome) -> Outcome:
        for shape in self.shaping:
            if sample.num_tokens is None:
                raise ValueError(
                    f"{reward_row(sample.row)}: num_tokens is None; allowed with shaping: the length in tokens"
                )
            outcome = shape(outcome, sample.num_tokens)
        return outcome

    def _remote(self, tasks: list[Task]) -> list[Outcome]:
        if not tasks:
            return []
        if self._pool is None:
            self._pool = RewardPool(workers=self.workers, timeout_s=self.timeout_s)
        return self._pool.run(tasks)


_IDLE_S = 5.0
_shared = Scorer(workers=1)
_shared_lock = threading.Lock()
_idle_timer: threading.Timer | None = None


def score(completion_text: str, row: AnyRow, finish_reason: str = "stop") -> Outcome:
    """The outcome of one completion, its reward routed by the row's data source.

    Isolated rewards run in one worker process that is kept for the next call, and ended after 5 idle seconds, by
    `shutdown`, or at exit. For many completions use a `Scorer`.

    Args:
        completion_text: the completion, without the prompt.
        row: a row object or a mapping in the common schema.
        finish_reason: "stop" or "length"; a completion cut by length is "truncated".

    Raises:
        KeyError: if the data source does not route.
        ValueError: if the row lacks a field, or the finish reason is unknown.
    """
    with _shared_lock:
        (outcome,) = _shared.score([Sample(completion_text, row, finish_reason)])
        _close_when_idle()
    return outcome


def shutdown() -> None:
    """Ends the worker process that `score` keeps."""
    with _shared_lock:
        _shared.close()


def _close_when_idle() -> None:
    global _idle_timer
    if _idle_timer is not None:
        _idle_timer.cancel()
        _idle_timer = None
    if _shared._pool is not None:
        _idle_timer = threading.Timer(_IDLE_S, shutdown)
        _idle_timer.daemon = True
        _idle_timer.start()


atexit.register(shutdown)
