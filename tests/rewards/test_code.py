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
from sparrow.rewards.sandbox import Limits, choose_sandbox

SHORT = Limits(seconds=3.0, memory_mb=512, output_mb=1, processes=32)
REAL = [] if sandbox._problem() else ["bubblewrap"]


def row(inputs, outputs, function=""):
    truth = json.dumps({"inputs": inputs, "outputs": outputs, "function": function})
    return RewardRow("BAAI/TACO", truth, {"index": 0})


def fenced(program):
    return f"Here it is:\n```python\n{program}\n```\nDone."


def outcome(program, tests, name="limits"):
    return judge(Code(sandbox=name, limits=SHORT), fenced(program), tests, "stop")


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
        ("while True: pass", ADD, "timeout", "test 0 of 2 took over 3 s"),
        ("import time\ntime.sleep(60)", ADD, "timeout", "test 0 of 2 took over 3 s"),
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


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```text\nexample\n```\nNow the code:\n```python\nprint(1)\n```", "print(1)\n"),
        ("```cpp\nint x;\n```\nand\n```Python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)\n"),
        ("Code: ```python3\nprint(1)\n```", "print(1)\n"),
        ("Use ```x``` here.\n```\nprint(1)\n```", "print(1)\n"),
        ("```python\nprint('```')\n```", "print('```')\n"),
        ("```python\nprint(1)```\nend", "print(1)\n"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)\n"),
        ("```python title=a\nprint(1)\n\nprint(2)\n```", "print(1)\n\nprint(2)\n"),
        ("```cpp\nint x;\n```", None),
        ("```python\nprint(1)", None),
        ("```python\n" * 30_000, None),
        ("```python\nprint('\u2028')\n```", "print('\u2028')\n"),
    ],
    ids=range(12),
)
def test_blocks_of_other_languages_do_not_shift_the_program(text, program):
    assert find_program(text) == program


def test_the_last_block_after_thinking_is_the_program():
    text = "<think>\n```python\nprint(1)\n```\n</think>\n```py\nprint(2)\n```\nand\n```\nprint(3)\n```"
    assert find_program(text) == "print(2)\n"
    assert find_program("<think>\n```python\nprint(1)\n```\n</think>") is None
    assert judge(Code(sandbox="limits"), "no program", ADD, "stop").label == "unparsable"


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [("3\n", "3", True), ("1.50 x", "1.5  x\n", True), ("3 4", "3", False), ("", "", True), ("1e2", "100", True),
     ("nan", "0", False), ("a", "b", False), ("0.1", "0.1000000001", False), ("0010", "10", False), ("+5", "5", True),
     ("-0", "0", True), ("-0.0", "0", True), ("1_0", "10", False), ("inf", "Infinity", False), ("\u0663", "3", False),
     ("10", "0010.0", True), ("-05", "-5", False)],
)  # fmt: skip
def test_outputs_agree_word_by_word(output, expected, same):
    assert same_output(output, expected) is same


def test_json_results():
    assert same_json("[1, 2.0]", "[1,2]")
    assert not same_json("", "1")
    assert not same_json("[1]", "1")
    assert not same_json("[" * 5000, "1")
    assert same_json("7" * 5000 + "\n", "7" * 5000)
    assert not same_json("7" * 5000, "8" * 5000)


@pytest.mark.parametrize(
    "truth",
    [{"inputs": [], "outputs": [], "function": ""}, {"inputs": ["1"]}, "[]", "{", {"functional": ""}, {"tests": ["1"]},
     {"functional": ["assert False"]}, {"functional": "  "}, {"functional": 5}, {"inputs": "12", "outputs": "34"},
     {"inputs": [5], "outputs": ["5"]}, {"inputs": ["5"], "outputs": [5]}, "1" * 5000, "[" * 5000, True, None,
     {"inputs": ["5"], "outputs": ["5"], "function": 5}, {"inputs": ["5"], "outputs": ["5"], "function": "f"},
     {"inputs": [[5]], "outputs": ["5"], "function": "f"}, {"inputs": ["5"], "outputs": ["5"], "functional": "pass"}],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_row_without_tests_is_an_error(truth):
    result = judge(Code(sandbox="limits"), fenced("1"), RewardRow("x", truth, {"index": 4}), "stop")
    assert result.label == "error"
    assert "row {'index': 4} of data_source 'x': ground_truth" in result.detail


def test_auto_never_falls_back_to_limits(monkeypatch):
    monkeypatch.setattr(sandbox, "_problem", lambda: "the program bwrap is not there")
    for name in ("auto", "bubblewrap"):
        with pytest.raises(RuntimeError, match="no real isolation on this machine: the program bwrap is not there"):
            choose_sandbox(name)
    with pytest.raises(RuntimeError, match="accept the weaker limits by sandbox='limits'"):
        choose_sandbox("auto")
    assert choose_sandbox("limits") == "limits"
    with pytest.raises(ValueError, match="sandbox 'docker' is unknown; allowed: auto, bubblewrap, limits"):
        choose_sandbox("docker")


def test_auto_takes_the_strong_one(monkeypatch):
    monkeypatch.setattr(sandbox, "_problem", lambda: "")
    assert choose_sandbox("auto") == choose_sandbox("bubblewrap") == "bubblewrap"


CHECKED = RewardRow("evalplus/humanevalplus", {"functional": "assert twice(2) == 4\nassert twice([1]) == [1, 1]"})


@pytest.mark.parametrize("name", ["limits", *REAL])
@pytest.mark.parametrize(
    ("program", "label"),
    [
        ("def twice(x): return x * 2", "correct"),
        ("def twice(x: List[int]): return x + x", "correct"),
        ("def twice(x): return 4", "wrong"),
        ("import os\nos._exit(0)", "wrong"),
        ("import sys\nsys.exit()", "wrong"),
        ("def twice(x):\n    while True: pass", "timeout"),
    ],
)
def test_a_check_must_run_to_its_end(name, program, label):
    assert outcome(program, CHECKED, name).label == label


def test_the_reference_solution_is_the_gold_completion():
    reward = Code(sandbox="limits")
    known = RewardRow("x", ADD.ground_truth, {"reference": "print(sum(map(int, input().split())))"})
    assert judge(reward, reward.gold_completion(known), known, "stop").label == "correct"
    assert reward.gold_completion(ADD) is None
    with pytest.raises(ValueError, match="row .* of data_source 'x': ground_truth"):
        reward.gold_completion(RewardRow("x", {"inputs": ["1"]}))


@pytest.mark.parametrize("count", [0, -1])
def test_no_tests_at_all_would_accept_everything(count):
    with pytest.raises(ValueError, match=f"max_tests={count} is not allowed; allowed: 1 or more, or None for all"):
        Code(max_tests=count)


@pytest.mark.parametrize("name", ["seconds", "memory_mb", "output_mb", "processes"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_limit_of_nothing_would_be_no_limit(name, value):
    with pytest.raises(ValueError, match=f"{name}={value} is not allowed; allowed: a finite number above 0"):
        Limits(**{name: value})


MODERN = """from __future__ import annotations
import pickle, sys
from dataclasses import dataclass
from typing import ClassVar, get_type_hints
@dataclass
class Point:
    x: int = 1
    kind: ClassVar[str] = "point"
assert pickle.loads(pickle.dumps(Point(2))) == Point(2)
assert get_type_hints(Point)["x"] is int
"""


@pytest.mark.parametrize("name", ["limits", *REAL])
@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("print(len(input()))", row(["a" * 3_000_000], ["3000000"])),  # more than output_mb
        ("import sys\nb = sys.stdin.buffer\nprint(b.peek(1)[:1] == b'1', b.readline(), b.read1(1))",
         row(["12\n34\n"], ["True b'12\\n' b'3'"])),
        ("print(2 ** 20000 % 10, len(str(2 ** 20000)))", row([""], ["6 6021"])),
        ("def f(n): return 10 ** n", row([["5000"]], ["1" + "0" * 5000], "f")),
        (MODERN + "print('fine')", row([""], ["fine"])),
        (MODERN + "def f(): return Point().x", row([[]], ["1"], "f")),
        (MODERN + "def f(): return Point().x", RewardRow("x", {"functional": "assert f() == 1"})),
    ],
    ids=["long_input", "buffered_input", "long_numbers", "long_result", "main_module", "module", "checked_module"],
)  # fmt: skip
def test_right_programs_run_as_they_would_outside(name, program, tests):
    assert outcome(program, tests, name).label == "correct"


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
    reward = Code(sandbox=name, limits=SHORT)
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
