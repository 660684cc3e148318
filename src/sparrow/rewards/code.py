"""Programs judged by running them on the tests of a row, in a sandbox (`sparrow.rewards.sandbox`)."""

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.extract import without_thinking
from sparrow.rewards.outcome import Outcome, judged
from sparrow.rewards.sandbox import Job, Limits, SandboxName, choose_sandbox, run_program

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_KEYS = {"inputs", "outputs", "function", "functional"}
_PRELUDE = """
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
"""
"""What programming sites import by themselves; starter code of such problems takes it for granted."""


@dataclass(frozen=True)
class Tests:
    """The tests of a row.

    Attributes:
        inputs: standard inputs; for a function, lists of JSON arguments.
        outputs: expected standard outputs, or JSON results.
        function: the function to call; "" runs the whole program.
        check: source that raises unless the program is right, in the place of inputs and outputs.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[str, ...]
    function: str
    check: str

    def jobs(self, program: str) -> list[tuple[Job, str]]:
        """What to run, each with the expected output."""
        if self.check:
            return [(Job(program, check=self.check, prelude=_PRELUDE), "")]
        prelude = _PRELUDE if self.function else ""
        texts = [f"[{', '.join(item)}]" if self.function else item for item in self.inputs]
        jobs = [Job(program, text, self.function, prelude=prelude) for text in texts]
        return list(zip(jobs, self.outputs, strict=True))


@dataclass(frozen=True)
class Code(Reward):
    """1 if the program in the last code block passes every test.

    The row's ground truth is a mapping or its JSON text, of one of two kinds. {"inputs", "outputs", "function"}:
    standard input and output as texts if `function` is empty or missing, else lists of JSON arguments and JSON results.
    {"functional"}: source that runs after the program and raises if it is wrong. The tests of one completion share the
    time-out of the worker pool, so give the scorer a longer one than for other rewards.

    Attributes:
        sandbox: "auto", "bubblewrap", or the weaker "limits", which must be asked for by name.
        limits: of the run on one test.
        max_tests: run only the first ones; None runs all.
    """

    sandbox: SandboxName = "auto"
    limits: Limits = field(default_factory=Limits)
    max_tests: int | None = None

    @property
    def isolated(self) -> bool:
        """Always in a worker, which is killed with what it started."""
        return True

    @property
    def asks_for(self) -> tuple[str, ...]:
        """A code block."""
        return ("```", "code block")

    def prepare(self, row: RewardRow) -> None:
        """Finds the sandbox."""
        choose_sandbox(self.sandbox)

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """Stops at the first test that fails."""
        tests = read_tests(row)
        sandbox = choose_sandbox(self.sandbox)
        program = find_program(completion)
        if program is None:
            return Outcome(0.0, "unparsable")
        jobs = tests.jobs(program)[: self.max_tests]
        for place, (job, expected) in enumerate(jobs):
            run = run_program(job, sandbox=sandbox, limits=self.limits)
            if run.timed_out:
                return Outcome(0.0, "timeout", f"test {place} of {len(jobs)} took over {self.limits.seconds:g} s")
            same = same_json if tests.function else same_output
            if not run.finished or not (tests.check or same(run.output, expected)):
                return judged(False, f"test {place} of {len(jobs)} failed")
        return judged(True)

    def gold_completion(self, row: RewardRow) -> str | None:
        """The row's reference solution in a code block, where it has one."""
        reference = row.extra_info.get("reference")
        return f"```python\n{reference}\n```" if reference else None


def find_program(completion: str) -> str | None:
    """The last fenced code block after thinking; None if there is none."""
    blocks = _BLOCK.findall(without_thinking(completion))
    return blocks[-1] if blocks else None


def same_output(output: str, expected: str) -> bool:
    """True if the outputs agree word by word; numbers agree by value, so 1.50 is 1.5."""
    left, right = output.split(), expected.split()
    return len(left) == len(right) and all(map(_same_word, left, right))


def same_json(output: str, expected: str) -> bool:
    """True if both texts are the same JSON value."""
    try:
        return bool(json.loads(output) == json.loads(expected))
    except json.JSONDecodeError:
        return False


def _same_word(left: str, right: str) -> bool:
    if left == right:
        return True
    try:
        return Decimal(left) == Decimal(right)
    except InvalidOperation:
        return False


def read_tests(row: RewardRow) -> Tests:
    """The tests of a row.

    Raises:
        ValueError: if its ground truth holds none, or they are malformed; names the row.
    """
    truth = row.ground_truth
    try:
        truth = json.loads(truth) if isinstance(truth, str) else truth
        if isinstance(truth, dict) and set(truth) <= _KEYS:
            if truth.get("functional"):
                return Tests((), (), "", str(truth["functional"]))
            inputs, outputs = tuple(truth.get("inputs") or ()), tuple(truth.get("outputs") or ())
            if inputs and len(inputs) == len(outputs):
                return Tests(inputs, outputs, truth.get("function") or "", "")
    except json.JSONDecodeError as error:
        raise ValueError(f"{row}: ground_truth is not JSON ({error})") from error
    raise ValueError(
        f"{row}: ground_truth {str(truth)[:80]!r}; allowed: inputs, outputs and function, 1 or more tests; "
        "or functional"
    )
