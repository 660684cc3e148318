"""Programs judged by running them on the tests of a row, in a sandbox (`sparrow.rewards.sandbox`)."""

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.extract import without_thinking
from sparrow.rewards.outcome import Outcome, judged
from sparrow.rewards.sandbox import Limits, SandboxName, choose_sandbox, run_program

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Code(Reward):
    """1 if the program in the last code block passes every test.

    The row's ground truth is {"inputs", "outputs", "function"} or its JSON text: standard input and output as texts if
    `function` is empty, else lists of JSON arguments and JSON results. The tests of one completion share the time-out
    of the worker pool, so give the scorer a longer one than for other rewards.

    Attributes:
        sandbox: "auto", "bubblewrap", "unshare", or the weaker "limits", which must be asked for by name.
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

    def prepare(self, row: RewardRow) -> None:
        """Finds the sandbox."""
        choose_sandbox(self.sandbox)

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """Stops at the first test that fails."""
        tests = _tests(row)
        sandbox = choose_sandbox(self.sandbox)
        program = find_program(completion)
        if program is None:
            return Outcome(0.0, "unparsable")
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))[: self.max_tests]
        for place, (test_input, expected) in enumerate(pairs):
            text = f"[{', '.join(test_input)}]" if tests["function"] else test_input
            run = run_program(program, text, function=tests["function"], sandbox=sandbox, limits=self.limits)
            if run.timed_out:
                return Outcome(0.0, "timeout", f"test {place} of {len(pairs)} took over {self.limits.seconds:g} s")
            same = same_json if tests["function"] else same_output
            if not run.finished or not same(run.output, expected):
                return judged(False, f"test {place} of {len(pairs)} failed")
        return judged(True)


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


def _tests(row: RewardRow) -> dict[str, Any]:
    truth = json.loads(row.ground_truth) if isinstance(row.ground_truth, str) else row.ground_truth
    if not isinstance(truth, dict) or not {"inputs", "outputs", "function"} <= set(truth) or not truth["inputs"]:
        raise ValueError(
            f"{row}: ground_truth {str(truth)[:80]!r}; allowed: inputs, outputs and function, 1 or more tests"
        )
    return truth
