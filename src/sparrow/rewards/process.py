"""One worker process of the reward pool, seen from the parent."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection

from sparrow.rewards.descendants import kill_descendants
from sparrow.rewards.outcome import Outcome

# One thread each: numerical libraries would otherwise start a thread per core in every worker.
_QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_GRACE_S = 1.0


class WorkerProcess:
    """A worker that has been started; whether it is ready shows when it answers.

    Args:
        memory_mb: its memory limit.
        start_timeout_s: seconds to wait for it, and for a reward to prepare itself.
        timeout_s: seconds a task may take once the worker has begun it.

    """

    def __init__(self, memory_mb: int, start_timeout_s: float, timeout_s: float) -> None:
        self.start_timeout_s = start_timeout_s
        self.timeout_s = timeout_s
        self.tasks_done = 0
        self.started = self.busy = self.begun = False
        self.deadline = time.monotonic() + start_timeout_s
        self.alive = True
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sparrow.rewards.worker", str(theirs.fileno()), str(memory_mb), str(timeout_s)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        self.connection = Connection(ours.detach())

    def send(self, task: bytes) -> bool:
        """Hands over a task; False if the worker is gone."""
        try:
            self.connection.send_bytes(task)
        except OSError:
            self.alive = False
            return False
        self.busy, self.begun = True, False
        self.deadline = time.monotonic() + self.start_timeout_s
        return True

    def receive(self) -> Outcome | None:
        """The outcome, if there is one yet: "error" if the worker died, "timeout" if it is late; it is killed then.

        Raises:
            RuntimeError: if the worker does not start at all, or not in time.
        """
        try:
            while self.connection.poll(0):
                message = json.loads(self.connection.recv_bytes())
                if message == "ready":
                    self.started = True
                    self.deadline = time.monotonic() + self.start_timeout_s if self.busy else float("inf")
                elif message == "begun":
                    self.begun = True
                    self.deadline = time.monotonic() + self.timeout_s
                else:
                    self.busy, self.deadline = False, float("inf")
                    self.tasks_done += 1
                    return Outcome(*message)
        except (EOFError, OSError):
            self._check_started("ended at its start (its error is on stderr)")
            with contextlib.suppress(subprocess.TimeoutExpired):  # its pipe closes a moment before it has an exit code
                self._process.wait(_GRACE_S)
            self.kill()
            return Outcome(0.0, "error", f"the worker process died (exit code {self._process.returncode})")
        if time.monotonic() < self.deadline:
            return None
        self._check_started(f"was not ready after {self.start_timeout_s:g} s")
        self.kill()
        late = f"done after {self.timeout_s:g} s" if self.begun else f"prepared after {self.start_timeout_s:g} s"
        return Outcome(0.0, "timeout", f"not {late}")

    def kill(self) -> None:
        """Kills the worker with everything it started, and reaps it."""
        self.alive = False
        if not self.connection.closed:
            kill_descendants(self._process.pid)  # first, while they are still found: one may have left the group
            with contextlib.suppress(ProcessLookupError):  # raised if the whole group is gone already
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.connection.close()

    def _check_started(self, problem: str) -> None:
        if self.started:
            return
        self.kill()
        raise RuntimeError(f"a reward worker {problem}; `{sys.executable} -m sparrow.rewards.worker` must find sparrow")


def _environment() -> dict[str, str]:
    """The parent's import path too, so that rewards are found where they were defined."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, **_QUIET, "PYTHONPATH": path}
