"""The first program inside a sandbox: sets the limits, then runs what it is given. Uses the standard library only.

Its own standard input is one JSON job; the program then sees the job's input as standard input. A descriptor given as
argument gets "begun", and after it the JSON result of a function, or the job's token once a check has run to its end:
a program that exits early does not pass. A check shares its interpreter with the program, so this stops programs that
are wrong, not programs that look for the token.
"""

import json
import os
import resource
import signal
import sys
import types
from typing import Any


def main() -> None:
    """Runs the job on standard input."""
    status = int(sys.argv[1])
    job = json.loads(sys.stdin.buffer.read())
    imported = bool(job["function"] or job["check"])
    _as_standard_input("" if imported else job["input"])  # before the limit on file sizes, which is for the program
    _become(job["user"])
    _limit(job)
    os.write(status, b"begun\n")
    if imported:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the program prints is not its answer
    else:
        os.close(status)
    sys.set_int_max_str_digits(0)  # programming sites set no limit; the time-out bounds it
    # A module that can be found by its name: dataclasses, pickle and type hints look there.
    module = types.ModuleType("program" if imported else "__main__")
    sys.modules[module.__name__] = module
    space = module.__dict__
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
    with open(descriptor, "wb") as file:
        file.write(text.encode())
        file.flush()
        file.seek(0)
        os.dup2(descriptor, 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - the program's, to its end


if __name__ == "__main__":
    main()
