"""Programs judged by running them on the tests of a row, in a sandbox (`sparrow.rewards.sandbox`)."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.extract import without_thinking
from sparrow.rewards.outcome import Outcome, judged
from sparrow.rewards.sandbox import Job, Limits, SandboxName, choose_sandbox, run_program

_FENCE = re.compile(r"^[^`\n]*?```[ \t]*([\w+#.-]*)[^`\n]*$")
_PYTHON = ("python", "python3", "py", "py3")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
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
    {"functional"}: source that runs after the program and raises if it is wrong. It runs in the program's own
    interpreter, so a program that sets out to can pass it, e.g. by results that equal everything; expected outputs
    never enter the sandbox. The tests of one completion share the time-out of the worker pool, so give the scorer a
    longer one than for other rewards.

    Attributes:
        sandbox: "auto", "bubblewrap", or the weaker "limits", which must be asked for by name.
        limits: of the run on one test.
        max_tests: run only the first ones; None runs all.
    """

    sandbox: SandboxName = "auto"
    limits: Limits = field(default_factory=Limits)
    max_tests: int | None = None

    def __post_init__(self) -> None:
        if self.max_tests is not None and self.max_tests < 1:
            raise ValueError(f"max_tests={self.max_tests} is not allowed; allowed: 1 or more, or None for all")

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
        """The row's reference solution in a code block, where it has one.

        Raises:
            ValueError: if the row's tests are malformed, with a reference or without; names the row.
        """
        read_tests(row)
        reference = row.extra_info.get("reference")
        return f"```python\n{reference}\n```" if reference else None


def find_program(completion: str) -> str | None:
    """The last ```python block after thinking, or without one the last block of no language; None if there is none."""
    last: dict[bool, str] = {}
    for language, text in _blocks(without_thinking(completion)):
        if language in ("", *_PYTHON):
            last[language != ""] = text
    return last.get(True, last.get(False))


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of every fenced block that is closed: opened and closed by marks at the ends of lines.

    Blocks of every language are read, since the end of one would otherwise pass for the start of the next.
    """
    language, lines = None, list[str]()
    for line in text.replace("\r\n", "\n").split("\n"):  # other line ends may be part of a program's texts
        bare = line.rstrip()
        if language is None:
            if opening := _FENCE.match(bare):
                language, lines = opening.group(1).lower(), []
        elif bare.endswith("```"):
            last = bare.removesuffix("```")
            yield language, "".join(f"{part}\n" for part in [*lines, *([last] if last.strip() else [])])
            language = None
        else:
            lines.append(line)


def same_output(output: str, expected: str) -> bool:
    """True if the outputs agree word by word; decimal numbers agree by value, so 1.50 is 1.5, but 007 is not 7."""
    left, right = output.split(), expected.split()
    return len(left) == len(right) and all(map(_same_word, left, right))


def same_json(output: str, expected: str) -> bool:
    """True if both texts are the same JSON value, or the same text."""
    if output.strip() == expected.strip():
        return True
    try:
        return bool(json.loads(output) == json.loads(expected))
    except (ValueError, RecursionError):
        return False  # no JSON, numbers of too many digits, lists in lists without end: what the program wrote


def _same_word(left: str, right: str) -> bool:
    if left == right:
        return True
    if not (_NUMBER.fullmatch(left) and _NUMBER.fullmatch(right)):
        return False
    # Whole numbers agree by their digits: 0010 and 10 are different texts, and often meant as such.
    by_value = any(mark in word for word in (left, right) for mark in ".eE")
    return Decimal(left) == Decimal(right) if by_value else _signed(left) == _signed(right)


def _signed(word: str) -> str:
    bare = word.removeprefix("+")
    return bare.removeprefix("-") if not bare.strip("-0") else bare


def read_tests(row: RewardRow) -> Tests:
    """The tests of a row.

    Raises:
        ValueError: if its ground truth holds none, or they are malformed; names the row.
    """
    truth = row.ground_truth
    try:
        truth = json.loads(truth) if isinstance(truth, str) else truth
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{row}: ground_truth is not JSON ({error})") from error
    tests = _tests(truth) if isinstance(truth, Mapping) and set(truth) <= _KEYS else None
    if tests is None:
        raise ValueError(
            f"{row}: ground_truth {str(truth)[:80]!r}; allowed: inputs, outputs and function, 1 or more tests, all "
            "texts (inputs of a function: lists of JSON texts); or functional, source that is not empty"
        )
    return tests


def _tests(truth: Mapping[str, Any]) -> Tests | None:
    """None for what is not of one of the two kinds: malformed tests must not pass for wrong programs, or for right."""
    inputs, outputs = truth.get("inputs") or [], truth.get("outputs") or []
    function, check = truth.get("function") or "", truth.get("functional") or ""
    if not isinstance(function, str) or not isinstance(check, str):
        return None
    if check.strip():
        return None if inputs or outputs or function else Tests((), (), "", check)
    lists = [item for item in inputs if isinstance(item, list)] if function and isinstance(inputs, list) else [inputs]
    if len(lists) != (len(inputs) if function else 1) or not all(map(_are_texts, [*lists, outputs])):
        return None
    return Tests(tuple(inputs), tuple(outputs), function, "") if inputs and len(inputs) == len(outputs) else None


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
