"""From the tail to words: by a threshold, the estimator it is stated in, and the estimator's floor."""

from dataclasses import dataclass
from typing import Literal

from sparrow.evaluation.intervals import Estimate
from sparrow.schedule import BudgetSchedule

Word = Literal["healthy", "at risk", "will collapse", "cannot be judged"]

STUDY_TAU, STUDY_ESTIMATOR = 0.86, "top20"
"""Where training stayed stable in the study (arXiv 2606.08446), in the units it measured by."""


@dataclass(frozen=True)
class Threshold:
    """What the tail is held against.

    Attributes:
        tau: the threshold.
        estimator: of alpha.
        source: where it comes from, in words.
    """

    tau: float
    estimator: str
    source: str


@dataclass(frozen=True)
class Verdict:
    """The outcome.

    Attributes:
        word: in short.
        text: in a sentence or two.
    """

    word: Word
    text: str


def threshold_for(schedule: BudgetSchedule, tau: float | None, estimator: str | None) -> Threshold:
    """The threshold that was asked for, else the schedule's own, else the study's."""
    if tau is not None and estimator is not None:
        return Threshold(tau, estimator, "the settings")
    if schedule.tau is not None and schedule.estimator is not None:
        return Threshold(schedule.tau, schedule.estimator, "the schedule")
    return Threshold(STUDY_TAU, STUDY_ESTIMATOR, "the study")


def judge(threshold: Threshold, worst: tuple[str, Estimate] | None, floor: float, collapse_below: float) -> Verdict:
    """Judge the least p5 over filled bins.

    Healthy: the lower end of its interval holds tau. Will collapse: even the upper end lies at tau - collapse_below or
    lower, where the study's runs collapsed. In between: at risk.

    Args:
        threshold: tau and its estimator.
        worst: the bin of least p5 by that estimator, in words, and its interval over prompts; None: no bin is filled.
        floor: least p5 of the estimator, dense against dense.
        collapse_below: distance below tau from which on runs collapse.
    """
    tau, name = threshold.tau, threshold.estimator
    if worst is None:
        return Verdict("cannot be judged", "No length bin is filled: take more prompts, samples or longer responses.")
    if floor < tau:
        return Verdict(
            "cannot be judged",
            f"By {name} even dense against dense reads p5 {floor:.3f}, below tau {tau:g}: on this model the estimator "
            "says nothing about it. Give a tau for exact alpha (audit.tau, audit.estimator=exact).",
        )
    place, estimate = worst
    reading = f"p5 of alpha ({name}) is {estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}] at {place}"
    against = f"tau {tau:g} ({name}, from {threshold.source})"
    if estimate.low >= tau:
        word: Word = "healthy"
        text = f"{reading}: the interval holds {against}."
    elif estimate.high <= tau - collapse_below:
        word = "will collapse"
        text = f"{reading}, at least {collapse_below:g} below {against}, where the study's runs collapsed."
    else:
        word = "at risk"
        text = f"{reading}, not clearly at or above {against} and not clearly {collapse_below:g} below it."
    if name != STUDY_ESTIMATOR:
        text += (
            f" The study's own threshold is stated in {STUDY_ESTIMATOR}; for {name} it holds as far as its source does."
        )
    return Verdict(word, text)
