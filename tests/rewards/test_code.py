"""Programs in a sandbox: verdicts, limits, isolation, and nothing left running."""

import json
import time

import psutil
import pytest

from sparrow.rewards import sandbox
from sparrow.rewards.base import RewardRow
from sparrow.rewards.code import Code, find_program, same_json, same_output
from sparrow.rewards.judge import judge
from sparrow.rewards.pool import RewardPool, Task
from sparrow.rewards.sandbox import Limits, choose_sandbox, run_program

ONE_SECOND = Limits(seconds=1.0, memory_mb=512, output_mb=1, processes=32)
REAL = [name for name in ("bubblewrap", "unshare") if sandbox._works(name)]


def row(inputs, outputs, function=""):
    truth = json.dumps({"inputs": inputs, "outputs": outputs, "function": function})
    return RewardRow("BAAI/TACO", truth, {"index": 0})


def fenced(program):
    return f"Here it is:\n```python\n{program}\n```\nDone."


def outcome(program, tests, name="limits"):
    return judge(Code(sandbox=name, limits=ONE_SECOND), fenced(program), tests, "stop")


ADD = row(["1 2\n", "5 6\n"], ["3\n", "11\n"])
PAIR = row([["1", '"x"'], ["2", '"y"']], ['[1, "x"]', '[2, "y"]'], "pair")


@pytest.mark.parametrize("name", ["limits", *REAL])
@pytest.mark.parametrize(
    ("program", "tests", "label", "detail"),
    [
        ("print(sum(map(int, input().split())))", ADD, "correct", ""),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", ADD, "correct", ""),
        ("print(3)", ADD, "wrong", "test 1 of 2 failed"),
        ("raise ValueError", ADD, "wrong", "test 0 of 2 failed"),
        ("syntax error", ADD, "wrong", "test 0 of 2 failed"),
        ("print(3)\nexit(1)", ADD, "wrong", "test 0 of 2 failed"),
        ("while True: pass", ADD, "timeout", "test 0 of 2 took over 1 s"),
        ("import time\ntime.sleep(60)", ADD, "timeout", "test 0 of 2 took over 1 s"),
        ("x = bytearray(1 << 30)", ADD, "wrong", "test 0 of 2 failed"),
        ("print('a' * 10**7)", ADD, "wrong", "test 0 of 2 failed"),
        ("def pair(a, b):\n    print('noise')\n    return [a, b]", PAIR, "correct", ""),
        ("class Solution:\n    def pair(self, a, b):\n        return a, b", PAIR, "correct", ""),
        ("def pair(a, b):\n    return [b, a]", PAIR, "wrong", "test 0 of 2 failed"),
        ("def other(a, b):\n    return [a, b]", PAIR, "wrong", "test 0 of 2 failed"),
    ],
)
def test_verdicts(name, program, tests, label, detail):
    result = outcome(program, tests, name)
    assert (result.label, result.detail) == (label, detail)


def test_only_the_first_tests_may_be_run():
    assert judge(Code(sandbox="limits", max_tests=1), fenced("print(3)"), ADD, "stop").label == "correct"


def test_the_last_block_after_thinking_is_the_program():
    text = "<think>\n```python\nprint(1)\n```\n</think>\n```py\nprint(2)\n```\nand\n```\nprint(3)\n```"
    assert find_program(text) == "print(3)\n"
    assert find_program("<think>\n```python\nprint(1)\n```\n</think>") is None
    assert judge(Code(sandbox="limits"), "no program", ADD, "stop").label == "unparsable"


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [("3\n", "3", True), ("1.50 x", "1.5  x\n", True), ("3 4", "3", False), ("", "", True), ("1e2", "100", True),
     ("nan", "0", False), ("a", "b", False), ("0.1", "0.1000000001", False)],
)  # fmt: skip
def test_outputs_agree_word_by_word(output, expected, same):
    assert same_output(output, expected) is same


def test_json_results():
    assert same_json("[1, 2.0]", "[1,2]")
    assert not same_json("", "1")
    assert not same_json("[1]", "1")


@pytest.mark.parametrize("truth", [{"inputs": [], "outputs": [], "function": ""}, {"inputs": ["1"]}, "[]"])
def test_a_row_without_tests_is_an_error(truth):
    result = judge(Code(sandbox="limits"), fenced("1"), RewardRow("x", truth, {"index": 4}), "stop")
    assert result.label == "error"
    assert "row {'index': 4} of data_source 'x': ground_truth" in result.detail


def test_auto_never_falls_back_to_limits(monkeypatch):
    monkeypatch.setattr(sandbox, "_works", lambda name: False)
    with pytest.raises(RuntimeError, match="no real isolation on this machine: bubblewrap and unshare do not work"):
        choose_sandbox("auto")
    with pytest.raises(RuntimeError, match="accept weaker limits by sandbox='limits'"):
        choose_sandbox("bubblewrap")
    assert choose_sandbox("limits") == "limits"
    with pytest.raises(ValueError, match="sandbox 'docker' is unknown; allowed: auto, bubblewrap, unshare, limits"):
        choose_sandbox("docker")


def test_auto_takes_the_strongest(monkeypatch):
    monkeypatch.setattr(sandbox, "_works", lambda name: name == "unshare")
    assert choose_sandbox("auto") == "unshare"
    monkeypatch.setattr(sandbox, "_works", lambda name: True)
    assert choose_sandbox("auto") == "bubblewrap"


@pytest.mark.parametrize("name", REAL)
def test_a_real_sandbox_has_no_network_and_writes_nothing_outside(name, tmp_path):
    programs = {
        "import socket\nsocket.create_connection(('127.0.0.1', 1), 1)": False,
        f"open({str(tmp_path / 'evil')!r}, 'w').write('x')": False,
        "open('/tmp/own', 'w').write('x')\nprint(open('/tmp/own').read())": True,
        "import os\nassert len([p for p in os.listdir('/proc') if p.isdigit()]) < 5": True,
        "import os\nassert 'HOME' not in os.environ": True,
    }
    for program, finishes in programs.items():
        run = run_program(program, "", function="", sandbox=name, limits=ONE_SECOND)
        assert run.finished is finishes, program
    assert not (tmp_path / "evil").exists()


STRAY = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
print(3)
"""


@pytest.mark.parametrize("name", ["limits", *REAL])
@pytest.mark.parametrize("end", ["", "\ntime.sleep(600)"])
def test_processes_that_leave_their_group_are_ended_too(name, end):
    def programs():
        return {p.pid for p in psutil.process_iter(["cmdline"]) if "sandbox_driver" in str(p.info["cmdline"])}

    before, children = programs(), len(psutil.Process().children(recursive=True))
    reward = Code(sandbox=name, limits=ONE_SECOND)
    with RewardPool(workers=1, timeout_s=20.0) as pool:
        (result,) = pool.run([Task(reward, fenced(STRAY + end), row([""], ["3"]), "stop")])
        assert result.label == ("timeout" if end else "correct")
        assert programs() == before
    assert len(psutil.Process().children(recursive=True)) == children


@pytest.mark.parametrize("name", ["limits", *REAL])
def test_the_pools_time_out_ends_a_running_program(name):
    def programs():
        return {p.pid for p in psutil.process_iter(["cmdline"]) if "sandbox_driver" in str(p.info["cmdline"])}

    before = programs()
    reward = Code(sandbox=name, limits=Limits(seconds=600.0))
    with RewardPool(workers=1, timeout_s=2.0) as pool:
        (result,) = pool.run([Task(reward, fenced(STRAY + "\ntime.sleep(600)"), row([""], ["3"]), "stop")])
    assert result.label == "timeout"
    deadline = time.monotonic() + 10.0
    while programs() != before and time.monotonic() < deadline:
        time.sleep(0.05)  # the kernel ends the sandbox's process tree a moment after its first process
    assert programs() == before
