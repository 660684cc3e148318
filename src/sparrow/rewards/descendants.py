"""The processes below a process, found in /proc and killed: for what leaves its process group."""

import contextlib
import os
import signal
from pathlib import Path


def kill_descendants(pid: int) -> None:
    """Kills every process below one, not itself. Does nothing where there is no /proc."""
    for below in descendants(pid):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(below, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Ids of the processes below a process, by /proc; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
