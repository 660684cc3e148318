"""Short sums behind a fixed prefix of worked examples: a long prompt and a short answer for a small real model.

The examples bring the prompt to several hundred tokens, so that the cache of a 135M model holds enough pages for a
sparse rollout to matter, and they fix the form of the reply: `Answer: <answer>12</answer>`. Sums come from
reasoning-gym's chain_sum. The default space, two one-digit terms, holds 200 sums; a sum is an example, a training or a
held-out problem, never two of them.
"""

import hashlib
from dataclasses import dataclass

from sparrow.data.schema import PromptRow

DATA_SOURCE = "sparrow/chain_sum"
INSTRUCTION = "Work out the last problem. Reply with one line in the form of the examples."
_DRAWS = 100_000
_EXAMPLE_SHARE_OF_256, _HELD_OUT_SHARE_OF_256 = 64, 112


@dataclass(frozen=True)
class ChainSumSource:
    """Few-shot chain sums; the checker compares the number in the first answer tag.

    Attributes:
        count: training rows, distinct sums; the default space holds 122 for training.
        validation_count: held-out rows, distinct sums; the default space holds 35.
        examples: worked examples in every prompt, the same ones in the same order; the default space holds 43. With
            SmolLM2's tokenizer and chat template a prompt has about 55 + 20.6 x examples tokens: 28 give 631, 32 give
            713, 40 give 876.
        terms: numbers in a sum.
        digits: digits of a number.
        seed: of the order of sums.

    Raises:
        ValueError: a number is too small; the message names it.
    """

    count: int = 96
    validation_count: int = 32
    examples: int = 32
    terms: int = 2
    digits: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"count": 0, "validation_count": 0, "examples": 0, "terms": 2, "digits": 1, "seed": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name}={getattr(self, name)} is not allowed; it must be {value} or more")

    def train_rows(self) -> list[PromptRow]:
        """`count` rows."""
        return self._rows("train", self.count)

    def validation_rows(self) -> list[PromptRow]:
        """`validation_count` rows."""
        return self._rows("held_out", self.validation_count)

    def prefix(self) -> str:
        """The worked examples as they stand in every prompt, the instruction before them."""
        sums = self._sums("example", self.examples)
        examples = [f"Problem: {sum_} =\nAnswer: <answer>{value}</answer>" for sum_, value in sums]
        return "\n\n".join([INSTRUCTION, *examples])

    def _rows(self, split: str, count: int) -> list[PromptRow]:
        prefix = self.prefix()
        rows = []
        for index, (sum_, value) in enumerate(self._sums(split, count)):
            fields = {
                "data_source": DATA_SOURCE,
                "prompt": [{"role": "user", "content": f"{prefix}\n\nProblem: {sum_} ="}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": value},
                "extra_info": {"split": split, "index": index, "sum": sum_},
            }
            rows.append(PromptRow.from_dict(fields, f"chain_sum[{split}]:{index}"))
        return rows

    def _sums(self, side: str, count: int) -> list[tuple[str, str]]:
        """The first `count` distinct sums of a side, as (expression, value)."""
        import reasoning_gym

        items = reasoning_gym.create_dataset(
            "chain_sum",
            min_terms=self.terms,
            max_terms=self.terms,
            min_digits=self.digits,
            max_digits=self.digits,
            seed=self.seed,
            size=_DRAWS,
        )
        found: dict[str, str] = {}
        draws = 0
        while len(found) < count and draws < min(_DRAWS, 200 * count):
            item = items[draws]
            draws += 1
            if side_of(item["metadata"]["expression"]) == side:
                found[item["metadata"]["expression"]] = item["answer"]
        if len(found) < count:
            raise ValueError(
                f"chain_sum with terms={self.terms}, digits={self.digits}: only {len(found)} distinct {side} sums of "
                f"{count} in {draws} draws; allowed: fewer rows or examples, or more terms or digits"
            )
        return list(found.items())


def side_of(expression: str) -> str:
    """The one side a sum belongs to, by its own hash: "example", "held_out" or "train"."""
    place = hashlib.sha256(expression.encode()).digest()[0]
    if place < _EXAMPLE_SHARE_OF_256:
        return "example"
    return "held_out" if place < _HELD_OUT_SHARE_OF_256 else "train"
