"""The tail of a step, binned as the schedule bins it, by hand."""

import math

import pytest
import torch

from sparrow.callbacks import Tail
from sparrow.modules import Experience, Scores
from sparrow.schedule import BudgetSchedule

SCHEDULE = BudgetSchedule(
    pages=[1, 2, 3], page_size=4, bin_tokens=8, dense_layers=[0], tau=0.9, estimator="exact", provenance="test"
)


def experience(length: int, prompt_len: int = 2) -> Experience:
    return Experience(
        tokens_BT=torch.zeros(1, length, dtype=torch.long),
        prompt_len_B=torch.tensor([prompt_len]),
        length_B=torch.tensor([length]),
        sparse_logprobs_BT=torch.full((1, length), math.log(0.5)),
        rewards_B=torch.zeros(1),
        advantages_B=torch.zeros(1),
        group_B=torch.zeros(1, dtype=torch.long),
    )


def measured(tail: Tail, alpha_BT: torch.Tensor, sample: Experience) -> dict[str, float]:
    return tail._measure("alpha", alpha_BT, sample)


def test_bins_agree_with_the_schedule() -> None:
    # Tokens 3 .. 12 are counted: token 2 is the first response token, dense by definition. Position t rounds up to
    # whole pages of 4: 3, 4 -> 4 and 5 .. 8 -> 8 and 9 .. 12 -> 12, so bins of 8 hold {3, 4} and {5 .. 12}.
    sample = experience(13)
    alpha_BT = torch.linspace(0.0, 0.6, 13)[None]
    metrics = measured(Tail(SCHEDULE, filled=1), alpha_BT, sample)
    assert metrics["tail/alpha_p05/bin_0_8"] == pytest.approx(0.15 + 0.05 * 0.05, abs=2e-3)
    assert metrics["tail/alpha_p05/bin_8_16"] == pytest.approx(0.25 + 0.05 * 7 * 0.05, abs=2e-3)
    assert "tail/alpha_p05/bin_16_24" not in metrics
    assert [SCHEDULE.bin_of(t) for t in range(3, 13)] == [0, 0] + [1] * 8


def test_margin_and_disagreements() -> None:
    sample = experience(6)
    alpha_BT = torch.tensor([[0.0, 0.0, 0.0, 0.8, 1.0, 1.0]])
    metrics = measured(Tail(SCHEDULE, filled=1), alpha_BT, sample)
    assert metrics["tail/disagreements"] == pytest.approx(0.2)
    assert metrics["tail/alpha/min"] == pytest.approx(0.8)
    assert metrics["tail/fraction_below"] == pytest.approx(1 / 3)
    assert metrics["tail/margin"] == pytest.approx(metrics["tail/alpha/p05"] - 0.9)


def test_only_filled_bins_are_judged_and_steps_are_pooled() -> None:
    sample, alpha_BT = experience(13), torch.full((1, 13), 0.75)
    tail = Tail(SCHEDULE, filled=4)
    measured(tail, alpha_BT, sample)
    assert [row[:2] for row in tail.filled_bins()] == [(8, 16)]
    measured(tail, alpha_BT, sample)
    assert [(low, high, count) for low, high, _, count in tail.filled_bins()] == [(0, 8, 4), (8, 16, 16)]


def test_state_survives_a_checkpoint() -> None:
    sample, alpha_BT = experience(13), torch.full((1, 13), 0.75)
    tail, copy = Tail(SCHEDULE, filled=1), Tail(SCHEDULE, filled=1)
    measured(tail, alpha_BT, sample)
    copy.load_state_dict(tail.state_dict())
    assert copy.filled_bins() == tail.filled_bins()


def test_gap_of_sampled_tokens() -> None:
    sample = experience(4)
    logprobs_BT = torch.tensor([[0.0, 0.0, math.log(0.75), math.log(0.5)]])
    metrics = Tail(SCHEDULE)._gap(Scores(logprobs_BT, torch.zeros(1, 4)), sample)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(0.25)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(0.125)
    assert metrics["rollout_corr/weight_error_max"] == pytest.approx(0.5)
