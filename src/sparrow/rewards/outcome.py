"""What a verifier says about one completion: a score and why."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

Label = Literal["correct", "wrong", "unparsable", "timeout", "error", "truncated"]
LABELS: tuple[Label, ...] = get_args(Label)


@dataclass(frozen=True)
class Outcome:
    """The judgement of one completion.

    Attributes:
        score: the reward.
        label: which of the six outcomes it was; each is counted apart.
        detail: a remark for logs, such as the error's text; not part of equality.
    """

    score: float
    label: Label
    detail: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise ValueError(f"outcome label {self.label!r} is unknown; allowed: {', '.join(LABELS)}")
        if not math.isfinite(self.score):
            raise ValueError(f"outcome score {self.score} is not allowed; it must be finite")
        # Plain values from here on: numbers of other libraries do not travel between processes as JSON.
        object.__setattr__(self, "score", float(self.score))
        object.__setattr__(self, "detail", str(self.detail))


def judged(right: bool, detail: str = "") -> Outcome:
    """1 and "correct", or 0 and "wrong"."""
    return Outcome(1.0, "correct", detail) if right else Outcome(0.0, "wrong", detail)
