"""Attempts to get out of the strong sandbox: none may succeed. The weak one is shown to be weak."""

import getpass
import os
import socket
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from sparrow.rewards import sandbox
from sparrow.rewards.sandbox import Job, Limits, run_program

LIMITS = Limits(seconds=2.0, memory_mb=512, output_mb=1, processes=16)
HERE = str(Path(__file__).resolve())

needs_bubblewrap = pytest.mark.skipif(bool(sandbox._problem()), reason=f"no strong sandbox here: {sandbox._problem()}")

READ = "print(open({path!r}).read())"
LIST = "import os\nprint(os.listdir({path!r}))"
WRITE = "open({path!r}, 'w').write('x')"
CONNECT = "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2).sendall(b'out')"
OUTSIDE = "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)"
KILL = "import os, signal\nos.kill({pid}, signal.SIGKILL)"
KILL_ALL = "import os, signal\nos.kill(-1, signal.SIGKILL)\nos.kill(os.getppid(), signal.SIGKILL)"
BOMB = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
ENDLESS = "while True: print('a' * 10000)"
FILL = "import os\nfor i in range(10**6):\n    open(f'/tmp/{i}', 'wb').write(bytes(10**6))"
ROOT = "import os\nos.setuid(0)"
MOUNT = (
    "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "assert libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None) == 0"
)
REMOUNT = (
    "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nassert libc.mount(None, b'/', None, 4096 | 32, None) == 0"
)


def strong(program, limits=LIMITS):
    return run_program(Job(program), sandbox="bubblewrap", limits=limits)


def drivers():
    """Processes of sandboxes."""
    return {p.pid for p in psutil.process_iter(["cmdline"]) if "sandbox_driver" in str(p.info["cmdline"])}


@needs_bubblewrap
@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/shadow", HERE, "/sys/kernel/uevent_seqnum"])
def test_reading_outside_fails(path):
    assert os.path.exists(path)
    assert not strong(READ.format(path=path)).finished


@needs_bubblewrap
def test_the_environment_outside_stays_outside(monkeypatch):
    monkeypatch.setenv("SPARROW_SECRET", "treasure")
    for place in ("self", "1"):
        assert "treasure" not in strong(READ.format(path=f"/proc/{place}/environ")).output


@needs_bubblewrap
def test_reading_a_file_of_the_user_fails(tmp_path):
    (tmp_path / "secret").write_text("treasure")
    assert not strong(READ.format(path=str(tmp_path / "secret"))).finished
    assert not strong(LIST.format(path=str(tmp_path))).finished
    home = strong(LIST.format(path=str(Path.home())))
    assert not home.finished or ".ssh" not in home.output


@needs_bubblewrap
@pytest.mark.parametrize("folder", ["{tmp}", "/", "/usr", "/dev/shm", "/dev", "{source}", "{prefix}"])
def test_writing_outside_fails(folder, tmp_path):
    path = folder.format(tmp=tmp_path, source=Path(HERE).parent, prefix=sys.prefix) + "/sparrow_evil"
    assert not strong(WRITE.format(path=path)).finished
    assert not os.path.exists(path)


@needs_bubblewrap
def test_the_network_is_away_loopback_too():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        assert not strong(CONNECT.format(port=port)).finished
        assert not strong(OUTSIDE).finished
        with pytest.raises(TimeoutError):
            server.accept()


@needs_bubblewrap
def test_a_fork_bomb_is_bounded_and_reaped():
    before, most = drivers(), 0
    done = threading.Event()

    def watch():
        nonlocal most
        while not done.is_set():
            most = max(most, len(drivers() - before))
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    run = strong(BOMB)
    seconds = time.monotonic() - start
    done.set()
    watcher.join()
    assert run.timed_out or not run.finished
    assert seconds < LIMITS.seconds + 6.0
    assert 1 < most <= LIMITS.processes + 3
    _wait_until(lambda: drivers() == before)


@needs_bubblewrap
def test_killing_the_parent_fails():
    victim = psutil.Popen(["sleep", "30"])
    try:
        for pid in (os.getpid(), os.getppid(), victim.pid):
            assert not strong(KILL.format(pid=pid)).finished
        strong(KILL_ALL)
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


@needs_bubblewrap
def test_endless_output_and_a_full_disk_are_bounded():
    run = strong(ENDLESS)
    assert not run.finished
    assert len(run.output) <= LIMITS.output_mb << 20
    assert not strong(FILL).finished


@needs_bubblewrap
@pytest.mark.parametrize("program", [ROOT, MOUNT, REMOUNT], ids=["root", "mount", "remount"])
def test_rights_cannot_be_won_back(program):
    assert not strong(program).finished


@needs_bubblewrap
def test_what_a_program_needs_is_there():
    run = strong("import numpy, json, decimal\nopen('/tmp/own', 'w').write('x')\nprint(open('/tmp/own').read())")
    assert (run.finished, run.output) == (True, "x\n")
    run = strong("import os\nprint(len([p for p in os.listdir('/proc') if p.isdigit()]), 'HOME' in os.environ)")
    assert run.output == "2 False\n"


def test_the_weak_mode_is_weak_and_must_be_asked_for_by_name(tmp_path):
    (tmp_path / "secret").write_text("treasure")
    run = run_program(Job(READ.format(path=str(tmp_path / "secret"))), sandbox="limits", limits=LIMITS)
    assert run.output == "treasure\n", f"documented: it reads what {getpass.getuser()} reads"


def test_a_job_has_a_function_or_a_check():
    with pytest.raises(ValueError, match="function='f' together with a check is not allowed; allowed: one of them"):
        Job("", function="f", check="pass")


def _wait_until(holds):
    deadline = time.monotonic() + 10.0
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert holds()
