"""The answer must be the gold text, character for character."""

from dataclasses import dataclass

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.extract import ASKED_FORMS, GOLD_FORMS, FinderName, find_answer
from sparrow.rewards.outcome import Outcome, judged


@dataclass(frozen=True)
class Exact(Reward):
    """1 if the found answer equals the gold text, or one of them if the ground truth is a list.

    Attributes:
        finder: how the answer is found, a name of `sparrow.rewards.extract.FINDERS`.
        ignore_case: compare without case.
    """

    finder: FinderName = "tag"
    ignore_case: bool = False

    @property
    def asks_for(self) -> tuple[str, ...]:
        """What the finder looks for."""
        return ASKED_FORMS[self.finder]

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """Compares after stripping outer white space."""
        answer = find_answer(completion, self.finder)
        if answer is None:
            return Outcome(0.0, "unparsable")
        return judged(self._fold(answer) in [self._fold(gold) for gold in gold_texts(row)])

    def gold_completion(self, row: RewardRow) -> str | None:
        """The first gold text in the form the finder looks for."""
        return GOLD_FORMS[self.finder].format(gold_texts(row)[0])

    def answer(self, completion: str, row: RewardRow) -> str | None:
        """The found text."""
        answer = find_answer(completion, self.finder)
        return None if answer is None else self._fold(answer)

    def _fold(self, text: str) -> str:
        return text.strip().casefold() if self.ignore_case else text.strip()


def gold_texts(row: RewardRow) -> list[str]:
    """The accepted answers of a row as texts: its ground truth, or the items of it if it is a list.

    Raises:
        ValueError: if the ground truth is neither text with something in it, nor a number, nor a list of them.
    """
    golds = row.ground_truth if isinstance(row.ground_truth, list) else [row.ground_truth]
    if not golds or not all(_is_answer(gold) for gold in golds):
        raise ValueError(
            f"{row}: ground_truth {repr(row.ground_truth)[:200]} is not allowed; allowed: text that is not empty, "
            "a number, or a list of these"
        )
    return [str(gold) for gold in golds]


def _is_answer(gold: object) -> bool:
    """An empty gold text would be met by an empty answer; a truth value is no number."""
    return gold.strip() != "" if isinstance(gold, str) else isinstance(gold, int | float) and not isinstance(gold, bool)
