"""Changes of a score by the length of the completion, in tokens. Labels stay as they are."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparrow.rewards.outcome import Outcome

Shaping = Callable[[Outcome, int], Outcome]


@dataclass(frozen=True)
class SoftOverlong:
    """A penalty that grows over the last tokens before the limit (DAPO, arXiv 2503.14476, equation 13).

    With limit L and buffer b: 0 up to L - b tokens, then (L - b - length) / b down to -1 at L, and -1 beyond.

    Attributes:
        max_tokens: L.
        buffer_tokens: b; None: a fifth of L, as in DAPO (4096 of 20480).
        factor: multiplies the penalty.
    """

    max_tokens: int
    buffer_tokens: int | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.buffer_tokens is None:
            object.__setattr__(self, "buffer_tokens", max(1, self.max_tokens // 5))
        assert self.buffer_tokens is not None
        if not 0 < self.buffer_tokens <= self.max_tokens:
            raise ValueError(
                f"buffer_tokens={self.buffer_tokens} is not allowed with max_tokens={self.max_tokens}; "
                "allowed: 1 to max_tokens"
            )

    def penalty(self, num_tokens: int) -> float:
        """The penalty before the factor, in [-1, 0]."""
        assert self.buffer_tokens is not None
        over = num_tokens - (self.max_tokens - self.buffer_tokens)
        return -min(max(over, 0) / self.buffer_tokens, 1.0)

    def __call__(self, outcome: Outcome, num_tokens: int) -> Outcome:
        """The outcome with the penalty added to its score."""
        return replace(outcome, score=outcome.score + self.factor * self.penalty(num_tokens))


@dataclass(frozen=True)
class CosineLength:
    """The score follows half a cosine from an empty completion to the limit (arXiv 2502.03373, section 3).

    With bounds (a, b), a at length 0 and b at the limit: b + (a - b) (1 + cos(pi length / max_tokens)) / 2. Right
    answers lose with length, wrong ones gain, by the defaults; a completion at the limit has the `exceeded` score.

    Attributes:
        max_tokens: the limit.
        correct: bounds of a correct completion.
        wrong: bounds of any other.
        exceeded: score at or beyond the limit.
    """

    max_tokens: int
    correct: tuple[float, float] = (2.0, 1.0)
    wrong: tuple[float, float] = (-10.0, 0.0)
    exceeded: float = -10.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens} is not allowed; it must be 1 or more")

    def __call__(self, outcome: Outcome, num_tokens: int) -> Outcome:
        """The outcome with its score replaced."""
        if num_tokens >= self.max_tokens:
            return replace(outcome, score=self.exceeded)
        empty, full = self.correct if outcome.label == "correct" else self.wrong
        share = (1.0 + math.cos(math.pi * num_tokens / self.max_tokens)) / 2.0
        return replace(outcome, score=full + (empty - full) * share)
