"""Worker processes for rewards that can hang, crash or eat memory.

Each worker is a fresh interpreter (`python -m sparrow.rewards.worker`), never a fork of a process that holds torch or
numba threads, and leads its own process group. It gets one task at a time, so the time-out counts from the task's
start and not from its queueing, and at most `workers` tasks are in flight. A worker that is late, or whose pipe
closes, is killed with its whole group and replaced. A worker whose parent is gone ends itself.

Interpreters start beside the work and not before it: once a worker had to be replaced, one spare is kept starting or
ready, so that a replacement seldom costs its start.
"""

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import TracebackType
from typing import Self

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.outcome import Outcome
from sparrow.rewards.process import WorkerProcess


@dataclass(frozen=True)
class Task:
    """One completion for one reward."""

    reward: Reward
    completion: str
    row: RewardRow
    finish_reason: str


class RewardPool:
    """Runs rewards in worker processes with a hard time-out. Not for use from several threads at once.

    Args:
        workers: worker processes; started when first needed.
        timeout_s: seconds one task may take.
        start_timeout_s: seconds a worker may take to start, and a reward to prepare itself; generous, because both run
            no text of the policy's, and a machine short of processor time must not turn into wrong outcomes.
        memory_mb: private memory one worker may have; beyond it an allocation fails.
        tasks_per_worker: a worker is replaced after so many tasks, which bounds what caches and leaks can hold.

    Raises:
        ValueError: if a number is not positive.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 10.0,
        *,
        start_timeout_s: float = 300.0,
        memory_mb: int = 4096,
        tasks_per_worker: int = 5000,
    ) -> None:
        for name, value in (
            ("workers", workers), ("timeout_s", timeout_s), ("start_timeout_s", start_timeout_s),
            ("memory_mb", memory_mb), ("tasks_per_worker", tasks_per_worker),
        ):  # fmt: skip
            if value <= 0:
                raise ValueError(f"reward pool: {name}={value} is not allowed; it must be above 0")
        self.workers = workers
        self.timeout_s = timeout_s
        self.start_timeout_s = start_timeout_s
        self.memory_mb = memory_mb
        self.tasks_per_worker = tasks_per_worker
        self.restarts = 0
        self._alive: list[WorkerProcess] = []
        self._spares = 0

    def run(self, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcomes in the order of the tasks.

        Raises:
            TypeError: if a reward or row cannot be pickled.
            RuntimeError: if workers do not start.
        """
        outcomes: dict[int, Outcome] = {}
        running: dict[WorkerProcess, int] = {}
        place = 0
        try:
            while len(outcomes) < len(tasks):
                while place < len(tasks) and len(running) < self.workers:
                    worker = self._idle_worker(running)
                    if not worker.send(_pickled(tasks[place])):
                        self._replace(worker)  # it died while idle; the task has not started
                        continue
                    running[worker] = place
                    place += 1
                self._start_spares(len(running), len(tasks) - place)
                self._collect(running, outcomes)
        except BaseException:
            # Half-done work must not answer a later call: after an interrupt every worker goes.
            self.close()
            raise
        return [outcomes[index] for index in range(len(tasks))]

    def close(self) -> None:
        """Ends all workers and waits until they are gone."""
        for worker in self._alive:
            worker.kill()
        self._alive.clear()

    def __enter__(self) -> Self:
        """Usable in a `with`, which closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends all workers."""
        self.close()

    def _idle_worker(self, running: dict[WorkerProcess, int]) -> WorkerProcess:
        """One that is ready if there is any, else one that is starting, else a new one."""
        idle = [worker for worker in self._alive if worker not in running]
        return max(idle, key=lambda worker: worker.started) if idle else self._start()

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(self.memory_mb, self.start_timeout_s, self.timeout_s)
        self._alive.append(worker)
        return worker

    def _start_spares(self, running: int, waiting: int) -> None:
        """Never more processes than tasks that are left."""
        while len(self._alive) < running + min(self._spares, waiting):
            self._start()

    def _collect(self, running: dict[WorkerProcess, int], outcomes: dict[int, Outcome]) -> None:
        """Waits until a worker answers, dies or is late, and settles every such worker."""
        next_deadline = min(worker.deadline for worker in self._alive)
        wait([worker.connection for worker in self._alive], max(0.0, next_deadline - time.monotonic()))
        for worker in list(self._alive):
            outcome = worker.receive()
            if outcome is None:
                continue
            if worker not in running:  # a spare that died; it has no task, so its outcome is nobody's
                self._replace(worker)
                continue
            outcomes[running.pop(worker)] = outcome
            if not worker.alive or worker.tasks_done >= self.tasks_per_worker:
                self._replace(worker)

    def _replace(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._alive.remove(worker)
        self.restarts += 1
        self._spares = 1


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps((task.reward, task.completion, task.row, task.finish_reason))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"reward {task.reward!r} runs in another process, but it or its row cannot be pickled ({error}); "
            "allowed: functions and classes of an importable module, rows of plain values"
        ) from error
