r"""The answer must be the gold number, compared exactly as a fraction.

Understood are integers, decimals, scientific notation, `a \times 10^{n}`, `a/b`, `\frac{a}{b}` and thousands commas,
with a dollar sign in front and a percent sign or full stop behind left out.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.exact import gold_texts
from sparrow.rewards.extract import ASKED_FORMS, GOLD_FORMS, FinderName, find_answer
from sparrow.rewards.outcome import Outcome, judged

_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?")
_RATIO = re.compile(r"([-+]?\d+)\s*/\s*(\d+)")
_LATEX_RATIO = re.compile(r"([-+]?)\\[dt]?frac\s*\{\s*([-+]?\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_POWER = re.compile(
    r"(?:([-+]?(?:\d+\.?\d*|\.\d+))\s*(?:\\times|\\cdot|\*)\s*)?10\s*\^\s*(?:(\d)|\{\s*([-+]?\d{1,3})\s*\})"
)
_DOLLAR = re.compile(r"^([-+]?)\s*\\?\$\s*([-+]?)\s*(?=[\d.])")
_MAX_DIGITS = 1000


def parse_number(text: str) -> Fraction | None:
    """The number a text is, or None if it is not one number.

    Args:
        text: e.g. "1,234.50", "-3/4", "$18", "2e-3"; at most 1000 characters.
    """
    text = _DOLLAR.sub(r"\1\2", text.strip().strip("$").strip().replace("\N{MINUS SIGN}", "-"))
    text = text.rstrip(".").removesuffix("%").removesuffix("\\").strip()
    if len(text) > _MAX_DIGITS:
        return None
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if _PLAIN.fullmatch(text):
        return Fraction(text)
    if match := _POWER.fullmatch(text):
        factor, digit, exponent = match.groups()
        return Fraction(factor or 1) * Fraction(10) ** int(digit or exponent)
    for pattern in (_RATIO, _LATEX_RATIO):
        if match := pattern.fullmatch(text):
            *sign, numerator, denominator = match.groups()
            if int(denominator) == 0:
                return None
            return Fraction(int(numerator), int(denominator)) * (-1 if sign == ["-"] else 1)
    return None


@dataclass(frozen=True)
class Numeric(Reward):
    """1 if the found number equals the gold number.

    Attributes:
        finder: how the answer is found, a name of `sparrow.rewards.extract.FINDERS`.
        tolerance: largest absolute difference accepted; 0 compares exactly.
    """

    finder: FinderName = "tag"
    tolerance: float = 0.0

    @property
    def asks_for(self) -> tuple[str, ...]:
        """What the finder looks for."""
        return ASKED_FORMS[self.finder]

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """Parses the gold number first, so a malformed row is an error and not a wrong answer."""
        golds = [_gold_number(gold, row) for gold in gold_texts(row)]
        answer = find_answer(completion, self.finder)
        number = None if answer is None else parse_number(answer)
        if number is None:
            return Outcome(0.0, "unparsable")
        return judged(any(abs(number - gold) <= self.tolerance for gold in golds))

    def gold_completion(self, row: RewardRow) -> str | None:
        """The gold number in the form the finder looks for."""
        return GOLD_FORMS[self.finder].format(gold_texts(row)[0])

    def answer(self, completion: str, row: RewardRow) -> str | None:
        """The found number as a fraction."""
        answer = find_answer(completion, self.finder)
        number = None if answer is None else parse_number(answer)
        return None if number is None else str(number)


def _gold_number(text: str, row: RewardRow) -> Fraction:
    number = parse_number(text)
    if number is None:
        raise ValueError(f"{row}: ground_truth {text!r} is not a number; allowed: e.g. 42, -0.5, 3/4, 1,234")
    return number
