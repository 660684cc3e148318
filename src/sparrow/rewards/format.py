"""Rewards for the form of a completion alone. Only the completion is matched, so the prompt cannot satisfy it."""

import re
from dataclasses import dataclass

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.outcome import Outcome, judged

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True)
class ThinkAnswerFormat(Reward):
    """1 if the completion is `<think>...</think>` and then `<answer>...</answer>`, each tag once, nothing else.

    Attributes:
        thinking_open: the prompt already ends in `<think>`, so the completion starts inside it.
    """

    thinking_open: bool = False

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """Counts the tags and matches their order; both parts need some text."""
        text = ("<think>" + completion if self.thinking_open else completion).strip()
        once = all(text.count(tag) == 1 for tag in _TAGS)
        ordered = re.fullmatch(r"<think>(.+)</think>\s*<answer>(.+)</answer>", text, re.DOTALL)
        return judged(once and ordered is not None and all(part.strip() for part in ordered.groups()))

    def gold_completion(self, row: RewardRow) -> str | None:
        """Any text in the right form."""
        return ("" if self.thinking_open else "<think>") + "thought</think><answer>answer</answer>"


@dataclass(frozen=True)
class PatternFormat(Reward):
    """1 if the whole completion matches a regular expression (`re.DOTALL`).

    Attributes:
        pattern: the expression. It runs on text that the policy wrote, so keep it free of nested repeats.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"format pattern {self.pattern!r} is not a regular expression: {error}") from error

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """Matches without outer white space."""
        return judged(re.fullmatch(self.pattern, completion.strip(), re.DOTALL) is not None)
