"""The running-sum task as a source: the packaged tiny policy's prompts."""

from dataclasses import dataclass

from sparrow.data.schema import PromptRow
from sparrow.data.sources.running_sum import HELD_OUT_SEED, MIN_NUMBERS, NUMBERS, TRAIN_SEED, running_sum_rows


@dataclass(frozen=True)
class RunningSum:
    """Running-sum rows, training and held out from disjoint prompts.

    Attributes:
        count: training rows.
        validation_count: held-out rows.
        numbers: numbers to add in each row; the right trace has 6 x numbers + 4 tokens.
        seed: stream of the training rows, below `HELD_OUT_SEED`; the held-out rows do not depend on it.
    """

    count: int = 4096
    validation_count: int = 1000
    numbers: int = NUMBERS
    seed: int = TRAIN_SEED

    def __post_init__(self) -> None:
        if not 0 <= self.seed < HELD_OUT_SEED:
            raise ValueError(f"seed={self.seed} is not for training; allowed: 0 to {HELD_OUT_SEED - 1}")
        for name, least in (("count", 0), ("validation_count", 0), ("numbers", MIN_NUMBERS)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} is not allowed; it must be {least} or more")

    def train_rows(self) -> list[PromptRow]:
        """`count` rows of stream `seed`."""
        return self._rows(self.count, self.seed)

    def validation_rows(self) -> list[PromptRow]:
        """`validation_count` rows of the first held-out stream."""
        return self._rows(self.validation_count, HELD_OUT_SEED)

    def _rows(self, count: int, seed: int) -> list[PromptRow]:
        rows = running_sum_rows(0, count, numbers=self.numbers, seed=seed)
        return [PromptRow.from_dict(row, f"running_sum[seed {seed}]:{index}") for index, row in enumerate(rows)]
