"""Samples on which the verifier failed: in the group's baseline, or left out of it, by name."""

import pytest
import torch

from sparrow.algorithms import GroupedRewards
from sparrow.callbacks.baseline import group_advantages
from sparrow.rewards import Outcome


def mean_baseline(grouped):
    """Reward less the group's mean."""
    means = [grouped.rewards_B[grouped.group_B == group].mean() for group in grouped.group_B]
    return grouped.rewards_B - torch.stack(means)


REWARDS = GroupedRewards(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 0, 1, 1, 1]))
LABELS = ("correct", "wrong", "timeout", "correct", "error", "correct")


def outcomes(labels):
    return [Outcome(float(label == "correct"), label) for label in labels]


def test_in_the_baseline_they_count_with_their_score():
    found = group_advantages(mean_baseline, REWARDS, outcomes(LABELS), "baseline")
    assert found.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 1 / 3, -2 / 3, 1 / 3])


def test_left_out_they_move_nothing():
    found = group_advantages(mean_baseline, REWARDS, outcomes(LABELS), "left_out")
    assert found.tolist() == [0.5, -0.5, 0.0, 0.0, 0.0, 0.0]


def test_truncated_and_unparsable_were_judged():
    labels = ("correct", "truncated", "unparsable", "correct", "wrong", "wrong")
    both = [group_advantages(mean_baseline, REWARDS, outcomes(labels), name) for name in ("baseline", "left_out")]
    assert torch.equal(*both)


def test_a_step_without_any_judged_sample_has_no_advantage():
    assert group_advantages(mean_baseline, REWARDS, outcomes(["timeout"] * 6), "left_out").tolist() == [0.0] * 6


def test_the_choice_has_two_names():
    with pytest.raises(ValueError, match="unjudged='drop': must be one of baseline, left_out"):
        group_advantages(mean_baseline, REWARDS, outcomes(LABELS), "drop")
