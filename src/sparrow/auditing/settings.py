"""The numbers of an audit."""

from dataclasses import dataclass

from sparrow.schedule import ESTIMATORS


@dataclass(frozen=True)
class AuditSettings:
    """How actor and policy are compared.

    Attributes:
        prompts: prompts of a batch.
        batches: batches, each of other prompts.
        samples: sequences per prompt.
        max_new_tokens: longest response.
        temperature: of sampling, and of the distributions compared.
        max_batch: sequences decoded at a time.
        micro_batch_tokens: padded tokens of one forward pass; only memory depends on it.
        top_k_recorded: candidates that the actor records, for the bounds and for the tokens shown.
        tau: threshold of the verdict; null takes the schedule's, and without one the study's.
        estimator: what ``tau`` is stated in, ``exact``, ``bounds`` or ``top20``; null as for tau.
        collapse_below: so far below tau lies what collapsed in the study.
        level: of the bootstrap intervals over prompts.
        resamples: of the bootstrap.
        filled: tokens from which a bin is judged.
        block_tokens: tokens of a block, the unit of the correlations with length.
        lowest: tokens of least alpha to show.
        context_tokens: tokens shown before each of them.
        judge: whether the reward judges the responses.
        gradient_tokens: tokens of the sequences that the gradients of corrections are compared on; 0: none.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    prompts: int = 16
    batches: int = 2
    samples: int = 4
    max_new_tokens: int = 1024
    temperature: float = 1.0
    max_batch: int = 64
    micro_batch_tokens: int = 16384
    top_k_recorded: int = 20
    tau: float | None = None
    estimator: str | None = None
    collapse_below: float = 0.06
    level: float = 0.90
    resamples: int = 1000
    filled: int = 1000
    block_tokens: int = 64
    lowest: int = 20
    context_tokens: int = 12
    judge: bool = True
    gradient_tokens: int = 4096

    def __post_init__(self) -> None:
        least = dict.fromkeys(("prompts", "batches", "samples", "max_batch", "micro_batch_tokens"), 1)
        least |= {"max_new_tokens": 2, "top_k_recorded": 3, "resamples": 1, "filled": 1, "block_tokens": 2}
        least |= {"lowest": 1, "context_tokens": 0, "gradient_tokens": 0}
        for key, value in least.items():
            if getattr(self, key) < value:
                raise ValueError(f"audit.{key}={getattr(self, key)}: must be {value} or more")
        if not self.temperature > 0:
            raise ValueError(f"audit.temperature={self.temperature}: must be above 0")
        if not 0 < self.level < 1:
            raise ValueError(f"audit.level={self.level}: must be above 0 and below 1")
        if (self.tau is None) != (self.estimator is None):
            raise ValueError("audit.tau and audit.estimator belong together: give both or neither")
        if self.tau is not None and not 0 < self.tau <= 1:
            raise ValueError(f"audit.tau={self.tau}: must be above 0 and at most 1")
        if self.estimator is not None and self.estimator not in ESTIMATORS:
            raise ValueError(f"audit.estimator={self.estimator!r}: must be one of {', '.join(ESTIMATORS)}")
        if not 0 <= self.collapse_below < 1:
            raise ValueError(f"audit.collapse_below={self.collapse_below}: must be from 0 to 1")
