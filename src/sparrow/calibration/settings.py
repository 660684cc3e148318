"""The numbers of a calibration."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparrow.schedule import ESTIMATORS


@dataclass(frozen=True)
class PageSweep:
    """Constant budgets over page sizes, for the front of tail against cost.

    Attributes:
        page_sizes: tokens per page to try; empty: no sweep.
        tokens: tokens that a step reads, reserved pages included; a page size that cannot give one is left out.
        prompts: how many of the calibration prompts are read.

    Raises:
        ValueError: a number is out of range; the message names the key.
    """

    page_sizes: Sequence[int] = ()
    tokens: Sequence[int] = ()
    prompts: int = 2

    def __post_init__(self) -> None:
        for key in ("page_sizes", "tokens"):
            for value in getattr(self, key):
                if value < 1:
                    raise ValueError(f"calibration.sweep.{key} has {value}: each must be 1 or more")
        if self.page_sizes and not self.tokens:
            raise ValueError("calibration.sweep.tokens is empty: give at least one number of tokens with page_sizes")
        if self.prompts < 1:
            raise ValueError(f"calibration.sweep.prompts={self.prompts}: must be 1 or more")


@dataclass(frozen=True)
class CalibrationSettings:
    """How a schedule is found.

    Attributes:
        tau: the tail is to be held here, in every filled bin.
        estimator: what alpha and tau are measured by: ``exact``, ``bounds`` (the lower one) or ``top20``.
        grid: page budgets to choose from, reserved pages not counted; every page is always the last resort.
        bin_tokens: width of the schedule's bins.
        prompts: prompts whose sequences the budgets are tried on.
        held_out: further prompts, for the run under the schedule that was found.
        grid_prompts: how many of the calibration prompts are read under every constant budget; null: all.
        samples: sequences per prompt.
        max_new_tokens: longest response.
        temperature: of sampling, and of the distributions compared.
        suppress_eos: give tokens that end a response no chance, so that every sequence reaches its full length.
        other_taus: further thresholds, whose schedules are proposed from the constant budgets and then measured.
        quantile: level of the tail statistic.
        level: of the bootstrap intervals over prompts; the lower end must hold tau.
        resamples: of the bootstrap.
        filled: tokens from which a bin is judged.
        rounds: how often sequences are sampled anew under the schedule just found, and a schedule is chosen on them;
            ends early when it stays the same.
        repeat_ngram: a token is a repetition if the ngram that it ends has occurred before in its response.
        max_batch: sequences decoded at a time.
        sweep: page sizes to compare.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    tau: float
    estimator: str
    grid: Sequence[int]
    bin_tokens: int
    prompts: int
    held_out: int
    max_new_tokens: int
    grid_prompts: int | None = None
    samples: int = 1
    temperature: float = 1.0
    suppress_eos: bool = True
    other_taus: Sequence[float] = ()
    quantile: float = 0.05
    level: float = 0.90
    resamples: int = 1000
    filled: int = 1000
    rounds: int = 1
    repeat_ngram: int = 8
    max_batch: int = 16
    sweep: PageSweep = field(default_factory=PageSweep)

    def __post_init__(self) -> None:
        least = {"bin_tokens": 1, "prompts": 2, "held_out": 2, "max_new_tokens": 2, "samples": 1, "resamples": 1}
        least |= {"filled": 1, "rounds": 1, "repeat_ngram": 1, "max_batch": 1}
        for key, value in least.items():
            if getattr(self, key) < value:
                raise ValueError(f"calibration.{key}={getattr(self, key)}: must be {value} or more")
        for key, values in (("tau", [self.tau]), ("other_taus", self.other_taus)):
            for tau in values:
                if not 0 < tau <= 1:
                    raise ValueError(f"calibration.{key} has {tau}: must be above 0 and at most 1")
        for key in ("quantile", "level"):
            if not 0 < getattr(self, key) < 1:
                raise ValueError(f"calibration.{key}={getattr(self, key)}: must be above 0 and below 1")
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"calibration.estimator={self.estimator!r}: must be one of {', '.join(ESTIMATORS)}")
        if not self.grid or list(self.grid) != sorted(set(self.grid)) or self.grid[0] < 0:
            raise ValueError(
                f"calibration.grid={list(self.grid)}: must be page counts from 0 on, ascending, all different"
            )
        if not self.temperature > 0:
            raise ValueError(f"calibration.temperature={self.temperature}: must be above 0")
        if self.grid_prompts is not None and not 2 <= self.grid_prompts <= self.prompts:
            raise ValueError(f"calibration.grid_prompts={self.grid_prompts}: must be from 2 to prompts={self.prompts}")
