"""The program of a worker process of the reward pool: reads tasks from a pipe, answers with outcomes.

Answers are JSON and not pickles: what a worker says, after running on text that the policy wrote, is data only.
"""

import contextlib
import ctypes
import json
import os
import pickle
import resource
import signal
import sys
import threading
from multiprocessing.connection import Connection, wait

from sparrow.rewards.descendants import kill_descendants
from sparrow.rewards.judge import described, judge
from sparrow.rewards.outcome import Outcome

_MARGIN_S = 5


def main() -> None:
    """Serves tasks until the parent closes the pipe."""
    own = os.getpid()
    connection = Connection(int(sys.argv[1]))
    _limit_memory(int(sys.argv[2]))
    timeout_s = float(sys.argv[3])
    _adopt_orphans()
    _say(connection, "ready")
    while True:
        try:
            task = connection.recv_bytes()
        except (EOFError, OSError):
            return
        with _EndWithParent(connection):
            outcome = _run(task, connection, timeout_s)
            if os.getpid() != own:
                os._exit(0)  # a process that the task forked came back too; its answer would be the next task's
        _end_strays()
        _say(connection, [outcome.score, outcome.label, outcome.detail])


def _run(task: bytes, connection: "Connection", timeout_s: float) -> Outcome:
    try:
        reward, completion, row, finish_reason = pickle.loads(task)
        reward.prepare(row)
    except Exception as error:
        # Foreign code again (see `judge`): a reward or task that cannot be loaded is this sample's error.
        hint = "rewards of a pool must be in an importable module, not in __main__"
        return Outcome(0.0, "error", f"{described(error)}; {hint}"[:500])
    _limit_cpu(timeout_s)
    _say(connection, "begun")
    return judge(reward, completion, row, finish_reason)


def _say(connection: "Connection", message: object) -> None:
    connection.send_bytes(json.dumps(message).encode())


class _EndWithParent:
    """While a task runs, ends this process group if the parent goes away. The parent sends nothing meanwhile."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.write(self._woken, b"x")  # closing it would not do: a process that the task forked holds it open too
        self._thread.join()
        os.close(self._woken)
        os.close(self._wake)

    def _watch(self) -> None:
        if self._connection in wait([self._connection, self._wake]):
            os.killpg(0, signal.SIGKILL)


def _adopt_orphans() -> None:
    """Makes processes that a task starts and abandons children of this one, so that they can be found."""
    if sys.platform == "linux":
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _end_strays() -> None:
    """Kills and reaps what a finished task left running."""
    with contextlib.suppress(ChildProcessError):  # raised at once if there are no children, as nearly always
        while True:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            kill_descendants(os.getpid())
            os.waitpid(-1, 0)


def _limit_memory(megabytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu(timeout_s: float) -> None:
    """A second clock, kept by the kernel: it ends a task that never lets Python run, even without a parent."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(usage.ru_utime + usage.ru_stime + timeout_s) + _MARGIN_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    main()
