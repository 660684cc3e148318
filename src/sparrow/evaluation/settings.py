"""The numbers of an evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparrow.rollout.sampler import SamplingParams

Arm = Literal["dense", "sparse"]
ARMS = ("dense", "sparse")


@dataclass(frozen=True)
class EvaluationSettings:
    """How a policy is evaluated.

    Attributes:
        samples: completions per problem, n.
        ks: sizes k of pass@k and maj@k, each at most n.
        arms: ``dense``, ``sparse``, or both on the same problems, with the same random numbers.
        temperature: of sampling; 0 is greedy, with one sample.
        top_p: as in the engine; evaluation may truncate.
        top_k: as in the engine; 0 is off.
        min_p: as in the engine.
        max_new_tokens: longest completion.
        stop: texts that end a completion; they stay in what the verifier reads, with the token that completes one.
        max_batch: sequences decoded at a time.
        problems_at_once: problems given to the engine at a time; only memory depends on it.
        max_problems: take only the first ones; null takes all.
        seed: of sampling and of the bootstrap.
        resamples: of the bootstrap.
        level: of its intervals.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    samples: int = 16
    ks: Sequence[int] = (1, 4, 16)
    arms: Sequence[Arm] = ("dense", "sparse")
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 1024
    stop: Sequence[str] = ()
    max_batch: int = 64
    problems_at_once: int = 64
    max_problems: int | None = None
    seed: int = 0
    resamples: int = 1000
    level: float = 0.95

    def __post_init__(self) -> None:
        for key in ("samples", "max_new_tokens", "max_batch", "problems_at_once", "resamples"):
            if getattr(self, key) < 1:
                raise ValueError(f"evaluation.{key}={getattr(self, key)}: must be 1 or more")
        if self.max_problems is not None and self.max_problems < 1:
            raise ValueError(f"evaluation.max_problems={self.max_problems}: must be 1 or more, or null")
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"evaluation.stop={self.stop!r}: must be a list of texts of at least 1 character")
        for k in self.ks:
            if not 1 <= k <= self.samples:
                raise ValueError(f"evaluation.ks has {k}: each must be from 1 to samples={self.samples}")
        if not self.arms or set(self.arms) - set(ARMS):
            raise ValueError(f"evaluation.arms={list(self.arms)}: must be one or more of {', '.join(ARMS)}")
        if self.temperature < 0 or (self.temperature == 0 and self.samples > 1):
            raise ValueError(
                f"evaluation.temperature={self.temperature} with samples={self.samples}: must be above 0, or 0 "
                "(greedy) with samples=1"
            )
        try:
            SamplingParams(self.temperature, self.top_k, self.top_p, self.min_p)
        except ValueError as error:
            raise ValueError(f"evaluation.{error}") from error
        if not 0 < self.level < 1:
            raise ValueError(f"evaluation.level={self.level}: must be between 0 and 1")
