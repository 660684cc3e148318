"""Runs a Python program that a policy wrote, cut off from the machine as far as the machine allows.

Three sandboxes, strongest first:
- "bubblewrap": no network, own process tree, file system read-only with an empty /tmp. Needs the `bwrap` program.
- "unshare": the same by Linux namespaces, through the `unshare` program of util-linux. Needs user namespaces.
- "limits": only limits on time, memory, files and output, an empty environment and its own folder. It can read files,
  reach the network and leave processes behind for a moment; to be chosen by name, for programs one trusts not to.

In all of them the program can read files that its user can read.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SandboxName = Literal["auto", "bubblewrap", "unshare", "limits"]
SANDBOXES = ("auto", "bubblewrap", "unshare", "limits")

_DRIVER = Path(__file__).with_name("sandbox_driver.py")
# The shell stays as the first process of the new tree: to that one the kernel does not deliver a time-out's signal.
_SETUP = 'mount -t tmpfs -o size=64m tmpfs /tmp && mount -o remount,bind,ro / && cd /tmp && "$@"'
_PREFIXES = {
    "bubblewrap": [
        "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/tmp",
        "--unshare-all", "--die-with-parent", "--new-session", "--",
    ],
    "unshare": [
        "unshare", "--user", "--map-root-user", "--net", "--pid", "--ipc", "--uts", "--mount", "--mount-proc",
        "--fork", "--kill-child", "--", "/bin/sh", "-c", _SETUP, "sh",
    ],
    "limits": [],
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What one run may use.

    Attributes:
        seconds: wall-clock and processor time.
        memory_mb: address space.
        output_mb: size of any file it writes, its output included.
        processes: processes and threads; kept by the two real sandboxes, but not for root, whom Linux does not limit.
    """

    seconds: float = 4.0
    memory_mb: int = 1024
    output_mb: int = 8
    processes: int = 32


@dataclass(frozen=True)
class Run:
    """What one run did.

    Attributes:
        finished: it ended by itself, with exit code 0.
        timed_out: it was killed for time.
        output: standard output, or the JSON of the function's result.
    """

    finished: bool
    timed_out: bool
    output: str


def choose_sandbox(name: SandboxName) -> str:
    """The sandbox to use; "auto" takes the strongest that works here, never "limits".

    Raises:
        ValueError: if the name is unknown.
        RuntimeError: if it does not work on this machine; says what to do.
    """
    if name not in SANDBOXES:
        raise ValueError(f"sandbox {name!r} is unknown; allowed: {', '.join(SANDBOXES)}")
    if name == "limits":
        return name
    wanted = ("bubblewrap", "unshare") if name == "auto" else (name,)
    for candidate in wanted:
        if _works(candidate):
            return candidate
    raise RuntimeError(
        f"no real isolation on this machine: {' and '.join(wanted)} do not work. Install bubblewrap, allow user "
        "namespaces, or accept weaker limits by sandbox='limits'"
    )


def run_program(program: str, test_input: str, *, function: str, sandbox: str, limits: Limits) -> Run:
    """Runs a program once.

    Args:
        program: Python source.
        test_input: its standard input; for a function, a JSON list of its arguments.
        function: name of the function to call, of the module or of a class `Solution`; "" runs the program.
        sandbox: a name that `choose_sandbox` gave.
        limits: of the run.

    Raises:
        RuntimeError: if the sandbox itself does not start.
    """
    job = {
        "program": program, "input": test_input, "function": function, "seconds": limits.seconds,
        "memory": limits.memory_mb << 20, "output": limits.output_mb << 20,
        "processes": limits.processes if sandbox != "limits" else 0,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as status,
    ):
        command = [*_PREFIXES[sandbox], sys.executable, "-I", "-B", str(_DRIVER), str(status.fileno())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=(status.fileno(),),
        )
        timed_out = _feed(process, json.dumps(job).encode(), limits.seconds)
        said = os.pread(status.fileno(), limits.output_mb << 20, 0)
        if not said.startswith(b"begun\n"):
            raise RuntimeError(f"sandbox {sandbox} did not start (exit code {process.returncode})")
        result = said.removeprefix(b"begun\n") if function else os.pread(output.fileno(), limits.output_mb << 20, 0)
    return Run(process.returncode == 0 and not timed_out, timed_out, result.decode(errors="replace"))


def _feed(process: "subprocess.Popen[bytes]", job: bytes, seconds: float) -> bool:
    """Hands over the job and waits; True if the process had to be killed for time."""
    try:
        # The driver keeps the program's own clock; this one also covers the start of the sandbox.
        process.communicate(job, timeout=seconds + 5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    return process.returncode in (-9, -14, -24, 124, 128 + 9, 128 + 14, 128 + 24)


@functools.cache
def _works(name: str) -> bool:
    prefix = _PREFIXES[name]
    if shutil.which(prefix[0]) is None:
        return False
    probe = subprocess.run([*prefix, sys.executable, "-I", "-c", ""], capture_output=True, timeout=30, check=False)
    return probe.returncode == 0
