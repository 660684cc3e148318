"""The verdict at its thresholds, and where tau comes from."""

import pytest

from sparrow.auditing.verdict import Threshold, judge, threshold_for
from sparrow.evaluation.intervals import Estimate
from sparrow.schedule import BudgetSchedule

STUDY = Threshold(0.86, "top20", "the study")


@pytest.mark.parametrize(
    ("low", "value", "high", "word"),
    [
        (0.86, 0.88, 0.90, "healthy"),
        (0.859, 0.88, 0.90, "at risk"),
        (0.79, 0.83, 0.87, "at risk"),
        (0.70, 0.75, 0.801, "at risk"),
        (0.70, 0.75, 0.80, "will collapse"),
        (0.10, 0.20, 0.30, "will collapse"),
    ],
)
def test_thresholds(low, value, high, word):
    verdict = judge(STUDY, ("512 to 1024 cached tokens", Estimate(value, low, high)), 0.95, 0.06)
    assert verdict.word == word
    for part in ("top20", "0.86", f"{value:.3f}", "512 to 1024", "the study"):
        assert part in verdict.text


def test_what_cannot_be_judged_says_why():
    assert judge(STUDY, None, 0.95, 0.06).word == "cannot be judged"
    blind = judge(STUDY, ("here", Estimate(0.4, 0.3, 0.5)), 0.48, 0.06)
    assert blind.word == "cannot be judged"
    assert "even dense against dense reads p5 0.480" in blind.text


def test_another_estimator_is_told_from_the_studys():
    healthy = judge(Threshold(0.86, "exact", "the schedule"), ("here", Estimate(0.9, 0.88, 0.92)), 1.0, 0.06)
    assert healthy.word == "healthy"
    assert "The study's own threshold is stated in top20" in healthy.text


def test_tau_of_settings_then_schedule_then_study():
    plain, own = BudgetSchedule.constant(8), BudgetSchedule.constant(8, tau=0.95, estimator="exact")
    assert threshold_for(own, 0.9, "bounds") == Threshold(0.9, "bounds", "the settings")
    assert threshold_for(own, None, None) == Threshold(0.95, "exact", "the schedule")
    assert threshold_for(plain, None, None) == STUDY
