"""Runs a Python program that a policy wrote, cut off from the machine as far as the machine allows.

Two sandboxes:
- "bubblewrap", the strong one: the program sees its interpreter, the system's libraries and an empty /tmp, all but /tmp
  read-only. It has no network, its own process tree, no rights, and a limit on processes. Needs the `bwrap` program.
- "limits", the weak one: only limits on time, memory, files and output, an empty environment and its own folder. It
  can read and write what its user can, reach the network and leave processes behind for a moment. It must be chosen by
  name.

Memory is limited per process: a program with many processes can use that much in each, until its time is over.
"""

import functools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

SandboxName = Literal["auto", "bubblewrap", "limits"]
SANDBOXES = ("auto", "bubblewrap", "limits")

_DRIVER = Path(__file__).with_name("sandbox_driver.py")
_INSIDE = "/sandbox_driver.py"
_TMP_BYTES = 64 << 20
_LIBRARIES = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FIRST_USER, _USERS = 60_100, 5_000
_SLACK_S = 5.0
_STATUS_BYTES = 4096


@dataclass(frozen=True)
class Limits:
    """What one run may use.

    Attributes:
        seconds: wall-clock and processor time.
        memory_mb: address space of each process.
        output_mb: size of any file it writes, its output included.
        processes: processes and threads; kept by the strong sandbox only.
    """

    seconds: float = 4.0
    memory_mb: int = 1024
    output_mb: int = 8
    processes: int = 32

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"sandbox limits: {name}={value} is not allowed; allowed: a finite number above 0")


@dataclass(frozen=True)
class Job:
    """A program and one thing to do with it.

    Attributes:
        program: Python source.
        test_input: its standard input; for a function, a JSON list of its arguments.
        function: name of the function to call, of the module or of a class `Solution`; "" runs the program.
        check: source run after the program in the same module; must not raise. "" for none.
        prelude: source run before the program, such as imports that its data set takes for granted.
    """

    program: str
    test_input: str = ""
    function: str = ""
    check: str = ""
    prelude: str = ""

    def __post_init__(self) -> None:
        if self.function and self.check:
            raise ValueError(f"function={self.function!r} together with a check is not allowed; allowed: one of them")


@dataclass(frozen=True)
class Run:
    """What one run did.

    Attributes:
        finished: it ended by itself, with exit code 0, and its check, if any, ran to its end.
        timed_out: it was killed for time.
        output: standard output, or the JSON of the function's result.
    """

    finished: bool
    timed_out: bool
    output: str


def choose_sandbox(name: SandboxName) -> str:
    """The sandbox to use; "auto" takes the strong one, never "limits".

    Raises:
        ValueError: if the name is unknown.
        RuntimeError: if it does not work on this machine; says why and what to do.
    """
    if name not in SANDBOXES:
        raise ValueError(f"sandbox {name!r} is unknown; allowed: {', '.join(SANDBOXES)}")
    if name == "limits":
        return name
    problem = _problem()
    if problem:
        raise RuntimeError(
            f"no real isolation on this machine: {problem}. Install bubblewrap (Debian: apt-get install bubblewrap) "
            "and allow user namespaces, or accept the weaker limits by sandbox='limits'"
        )
    return "bubblewrap"


def run_program(job: Job, *, sandbox: str, limits: Limits) -> Run:
    """Runs a program once.

    Args:
        job: what to run.
        sandbox: a name that `choose_sandbox` gave.
        limits: of the run.

    Raises:
        RuntimeError: if the sandbox itself does not start.
    """
    token = secrets.token_hex(16)
    strong = sandbox != "limits"
    size = limits.output_mb << 20
    message = {
        "program": job.program, "input": job.test_input, "function": job.function, "check": job.check,
        "prelude": job.prelude, "token": token, "seconds": limits.seconds, "memory": limits.memory_mb << 20,
        "output": size, "processes": limits.processes if strong else 0, "user": _user() if strong else 0,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as status,
    ):
        process = subprocess.Popen(
            [*(_prefix() if strong else ()), *_interpreter(_INSIDE if strong else str(_DRIVER)), str(status.fileno())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=(status.fileno(),),
        )
        timed_out = _feed(process, json.dumps(message).encode(), limits.seconds)
        said = os.pread(status.fileno(), size + _STATUS_BYTES, 0)
        if not said.startswith(b"begun\n"):
            raise RuntimeError(f"sandbox {sandbox} did not start (exit code {process.returncode})")
        said = said.removeprefix(b"begun\n")
        result = said if job.function or job.check else os.pread(output.fileno(), size, 0)
    passed = not job.check or said == token.encode()
    return Run(process.returncode == 0 and passed and not timed_out, timed_out, result.decode(errors="replace"))


def _feed(process: "subprocess.Popen[bytes]", job: bytes, seconds: float) -> bool:
    """Hands over the job and waits; True if the process had to be killed for time."""
    try:
        # The driver keeps the program's own clock; this one also covers the start of the sandbox.
        process.communicate(job, timeout=seconds + _SLACK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    return process.returncode in (-14, -24, 128 + 14, 128 + 24)


def _interpreter(driver: str) -> list[str]:
    return [sys.executable, "-I", "-B", driver]


def _user() -> int:
    """For root, a user of its own for the run, whom Linux limits and who owns nothing; 0 if not root."""
    return _FIRST_USER + os.getpid() % _USERS if os.geteuid() == 0 else 0


@functools.cache
def _prefix() -> tuple[str, ...]:
    """The command that opens the strong sandbox; root keeps only the right to become another user, and does."""
    rights = ["--unshare-user", "--disable-userns"]
    if os.geteuid() == 0:
        rights = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return (
        "bwrap", "--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", *rights,
        "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev",
        "--perms", "1777", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp",
        *_visible(), "--ro-bind", str(_DRIVER), _INSIDE,
        "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--",
    )  # fmt: skip


def _visible() -> list[str]:
    """What the program can read: the system's libraries, and the interpreter with its packages."""
    options = ["--ro-bind", "/usr", "/usr"]
    for path in _LIBRARIES:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    for path in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/nix/store"):
        options += ["--ro-bind-try", path, path]
    binary = os.path.realpath(sys.executable)
    folders = {sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix), os.path.dirname(os.path.dirname(binary))}
    for path in sorted(folders):
        if path != "/" and not path.startswith("/usr/"):
            options += [*_parents(path), "--ro-bind", path, path]
    return options


def _parents(path: str) -> list[str]:
    """Makes the folders above a path, open to every user: of themselves they would be open to their owner alone."""
    above = [str(folder) for folder in reversed(Path(path).parents) if str(folder) not in ("/", "/tmp")]
    return [option for folder in above for option in ("--perms", "0755", "--dir", folder)]


@functools.cache
def _problem() -> str:
    """Why the strong sandbox does not work here; "" if it does."""
    if shutil.which("bwrap") is None:
        return "the program bwrap is not there"
    try:
        run = run_program(Job("import decimal\nprint('works')"), sandbox="bubblewrap", limits=Limits(seconds=20.0))
    except RuntimeError:
        probe = subprocess.run([*_prefix(), sys.executable, "-c", ""], capture_output=True, timeout=30, check=False)
        return f"bwrap says {probe.stderr.decode(errors='replace').strip()[:200]!r}"
    return "" if run.output == "works\n" else "a program in it does not run"
