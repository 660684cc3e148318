"""The answer must be the letter of the right choice."""

import re
from dataclasses import dataclass

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.extract import ASKED_FORMS, answer_line, last_boxed, last_tag, without_thinking
from sparrow.rewards.outcome import Outcome, judged

_LETTER = re.compile(
    r"[\s(\[{*$]*+(?:\\(?:text|math)(?:bf|rm)?\s*\{\s*)?\(?"
    r"(?!(?:a|I)\s+[a-z])([A-Za-z])(?![A-Za-z'\N{RIGHT SINGLE QUOTATION MARK}])"
)
"""A letter that is no word: "a triangle", "I think" and "I'd say" name no choice."""


@dataclass(frozen=True)
class MultipleChoice(Reward):
    """1 for the gold letter, looked for in the last answer tag, else the last box, else the last answer line.

    Attributes:
        choices: the letters that can be answered; any other is unparsable.
    """

    choices: str = "ABCD"

    @property
    def asks_for(self) -> tuple[str, ...]:
        """Whatever the letter is looked for in."""
        return ASKED_FORMS["tag"] + ASKED_FORMS["boxed"] + ASKED_FORMS["line"]

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """Reads one letter, as in "C", "(C)", "C. Paris" or "\\text{C}"."""
        gold, letter = self._gold(row), self.answer(completion, row)
        return Outcome(0.0, "unparsable") if letter is None else judged(letter == gold)

    def answer(self, completion: str, row: RewardRow) -> str | None:
        """The letter, if it is one of the choices."""
        text = without_thinking(completion)
        found = [answer for finder in (last_tag, last_boxed, answer_line) if (answer := finder(text)) is not None]
        match = _LETTER.match(found[0]) if found else None
        letter = match.group(1).upper() if match else ""
        return letter if letter and letter in self.choices else None

    def gold_completion(self, row: RewardRow) -> str | None:
        """The gold letter in an answer tag."""
        return f"<answer>{self._gold(row)}</answer>"

    def _gold(self, row: RewardRow) -> str:
        gold = row.ground_truth
        if isinstance(gold, int) and not isinstance(gold, bool) and 0 <= gold < len(self.choices):
            return self.choices[gold]
        if isinstance(gold, str) and gold.strip("() ").upper() in list(self.choices):
            return gold.strip("() ").upper()
        raise ValueError(f"{row}: ground_truth {gold!r} is not allowed; allowed: one of {self.choices}, or its place")
