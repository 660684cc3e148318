r"""Mathematical answers, judged by math-verify, with a second checker whose disagreement is reported.

The gold answer is parsed first: a row whose gold cannot be parsed is an error, not a wrong answer. The answer of a
completion is its last `\boxed{...}`, or, without one, what follows its last `####`, or its last "answer is" or
"answer:"; only that text is judged, so an earlier lucky expression does not count. math-verify's own time-outs use
signals, which fail off the main thread; they are off, and the reward runs in a worker with a hard time-out.
"""

import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.canonical import rewrite, same_answer
from sparrow.rewards.differences import differ
from sparrow.rewards.exact import gold_texts
from sparrow.rewards.extract import ASKED_FORMS, after_hash, answer_line, last_boxed, without_thinking
from sparrow.rewards.notation import normalized
from sparrow.rewards.numeric import parse_number
from sparrow.rewards.outcome import Outcome, judged

_MAX_CHARACTERS = 2000
_PERCENT = re.compile(r"\s*\\?%$")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_LATEX_LINE = re.compile(r"^\**\s*\$([^$]+)\$|^\\\((.+?)\\\)|^\\\[(.+?)\\\]", re.DOTALL)


@dataclass(frozen=True)
class Math(Reward):
    """1 if the answer is mathematically the gold answer, or one of them if the ground truth is a list.

    Attributes:
        digits: decimal places to which a decimal answer must agree with an exact one; numbers must in any case agree to
            three significant digits.
        isolated: run it in a worker process; leave it on for text that a policy wrote.
    """

    digits: int = 6
    isolated: bool = True

    @property
    def asks_for(self) -> tuple[str, ...]:
        """Whatever the answer is looked for in."""
        return ASKED_FORMS["boxed"] + ASKED_FORMS["hash"] + ASKED_FORMS["line"]

    def prepare(self, row: RewardRow) -> None:
        """Imports sympy and the parsers, and builds their tables."""
        _parsed("1")

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """Parses the gold answers, finds and parses the answer, compares."""
        golds = [clean(text) for text in gold_texts(row)]
        parsed_golds = [_parsed_gold(text, row) for text in golds]
        answer = find_math_answer(completion)
        if answer is None or len(answer) > _MAX_CHARACTERS or not _parsed(answer):
            return Outcome(0.0, "unparsable")
        right = any(
            _matches(gold, answer, parsed, self.digits) for gold, parsed in zip(golds, parsed_golds, strict=True)
        )
        return judged(right, _disagreement(golds, answer, right))

    def gold_completion(self, row: RewardRow) -> str | None:
        """The first gold answer, boxed."""
        return f"\\boxed{{{clean(gold_texts(row)[0])}}}"

    def answer(self, completion: str, row: RewardRow) -> str | None:
        """The found answer, rewritten; numbers as fractions."""
        found = find_math_answer(completion)
        text = "" if found is None else rewrite(found)
        number = parse_number(text)
        return (text or None) if number is None else str(number)


def find_math_answer(completion: str) -> str | None:
    """The answer's text in a completion: the last box, else what follows the last `####`, else the last answer line."""
    text = without_thinking(completion)
    boxed = last_boxed(text)
    if boxed is not None:
        return clean(boxed) or None
    marked = after_hash(text)
    if marked is not None:
        return clean(marked) or None
    line = answer_line(text)
    if line is None:
        return None
    latex = _LATEX_LINE.match(line)
    if latex:
        line = next(group for group in latex.groups() if group is not None)
    return clean(line.rstrip(".")) or None


def clean(text: str) -> str:
    """The answer without a box or dollar signs around it, in the parsers' notation."""
    text = text.strip()
    if text.startswith(("\\boxed", "\\fbox")):
        text = last_boxed(text) or text
    if text.startswith("$") and text.endswith("$"):
        text = text.strip("$")
    text = text.strip().rstrip(".,")
    return normalized(text) if len(text) <= _MAX_CHARACTERS else text


def _matches(gold: str, answer: str, parsed_gold: list[Any], digits: int) -> bool:
    """A percent sign counts as a unit or as a hundredth, as the other side reads it: 50% is 50 and 0.5."""
    if differ(gold, answer) or _contradicts_itself(answer, digits):
        return False
    answers, golds = [_without_percent(answer)], [parsed_gold]
    if _PERCENT.search(answer) and not _PERCENT.search(gold):
        answers.append(f"\\frac{{{answers[0]}}}{{100}}")
    elif _PERCENT.search(gold) and not _PERCENT.search(answer):
        golds.append(_parsed(f"\\frac{{{_without_percent(gold)}}}{{100}}"))
    return any(_verified(left, _parsed(right), digits) for left in golds for right in answers)


def _contradicts_itself(answer: str, digits: int) -> bool:
    """True for chains such as 2 = 3 or x = 2 = 3, of which math-verify takes the last side."""
    if answer.count("=") < 1 or any(mark in answer for mark in ",<>") or "\\ne" in answer:
        return False
    constants = [side for side in answer.split("=") if not re.search("[a-zA-Z]", _COMMAND.sub("", side))]
    sides = [side for text in constants if (side := _parsed(text))]
    return any(not _verified(side, sides[-1], digits) for side in sides[:-1])


def _disagreement(golds: list[str], answer: str, right: bool) -> str:
    opinions = [same_answer(gold, answer) for gold in golds]
    second = None if None in opinions and True not in opinions else True in opinions
    if second is None or second == right:
        return ""
    return f"checkers disagree: math-verify {right}, rewriting {second} on gold {golds[0]!r}, answer {answer!r}"


def _without_percent(text: str) -> str:
    return _PERCENT.sub("", text)


def _parsed_gold(text: str, row: RewardRow) -> list[Any]:
    parsed = _parsed(_without_percent(text))
    if not parsed:
        raise ValueError(f"{row}: ground_truth {text!r} cannot be parsed; allowed: LaTeX or a plain expression")
    return parsed


def _parsed(text: str) -> list[Any]:
    library = _library()
    boxed = [library.LatexExtractionConfig(boxed_match_priority=0)]
    return list(library.parse(f"\\boxed{{{text}}}", extraction_config=boxed, parsing_timeout=None))


def _verified(gold: list[Any], answer: list[Any], digits: int) -> bool:
    return bool(_library().verify(gold, answer, float_rounding=digits, strict=True, timeout_seconds=None))


@lru_cache(maxsize=1)
def _library() -> Any:
    import math_verify

    # It warns that its time-outs are off; the worker process has a harder one.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify
