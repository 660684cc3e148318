"""The first program inside a sandbox: sets the limits, then runs what it is given. Uses the standard library only.

Its own standard input is one JSON job; the program then sees the job's input as standard input. A descriptor given as
argument gets "begun", and after it the JSON result of a function, or the job's token once a check has run to its end:
a program that exits early does not pass.
"""

import io
import json
import os
import resource
import signal
import sys
from typing import Any


def main() -> None:
    """Runs the job on standard input."""
    status = int(sys.argv[1])
    job = json.loads(sys.stdin.buffer.read())
    _become(job["user"])
    _limit(job)
    os.write(status, b"begun\n")
    imported = bool(job["function"] or job["check"])
    if imported:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the program prints is not its answer
    else:
        os.close(status)
    _as_standard_input("" if imported else job["input"])
    space: dict[str, Any] = {"__name__": "program" if imported else "__main__"}
    exec(compile(job["prelude"], "prelude.py", "exec"), space)
    exec(compile(job["program"], "program.py", "exec"), space)
    if job["function"]:
        owner = space["Solution"]() if "Solution" in space else None
        function = getattr(owner, job["function"]) if owner is not None else space[job["function"]]
        os.write(status, json.dumps(function(*json.loads(job["input"]))).encode())
    elif job["check"]:
        exec(compile(job["check"], "check.py", "exec"), space)
        os.write(status, job["token"].encode())


def _become(user: int) -> None:
    """Gives up root for a user who owns nothing; with it go all rights."""
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def _limit(job: dict[str, Any]) -> None:
    # A second more than the wall clock allows: a busy program must end by the timer, whose signal says why it ended.
    seconds = int(job["seconds"] + 0.999) + 1
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, job["memory"]),
        (resource.RLIMIT_FSIZE, job["output"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, job["processes"]),
    ):
        if kind != resource.RLIMIT_NPROC or value:
            resource.setrlimit(kind, (value, value))
    signal.setitimer(signal.ITIMER_REAL, job["seconds"])  # its default action ends the process


def _as_standard_input(text: str) -> None:
    descriptor = os.memfd_create("input")
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.dup2(descriptor, 0)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")


if __name__ == "__main__":
    main()
