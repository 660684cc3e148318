"""What the small studies compute from what they measure, by hand."""

import math

import pytest
import torch

from experiments.budget_by_size.study import tokens_read
from experiments.common import both_logprobs, held_out_problems
from experiments.length_growth.study import blocks, kl_by_length
from experiments.optimal_speedup.study import speedup
from experiments.overhead.study import breakdown
from experiments.oversampling.study import best, summarise
from experiments.page_size.study import gain
from experiments.page_size_latency.study import times
from experiments.sampled_alpha import sampled_alpha
from experiments.skew.study import describe
from experiments.staleness.study import by_age
from sparrow.modules import Experience
from sparrow.schedule import BudgetSchedule


def test_description_of_alphas() -> None:
    found = describe(torch.tensor([1.0] * 15 + [0.5] * 5))
    assert (found["tokens"], found["mean"], found["share_below_0.999"]) == (20, 0.875, 0.25)
    assert (found["p01"], found["p05"], found["beta"]) == (0.5, 0.5, None)  # five tokens are too few for a fit
    assert (found["histogram"][20], found["histogram"][39], sum(found["histogram"])) == (5, 15, 20)


def test_blocks_of_a_sequence() -> None:
    zeros_B = torch.zeros(1)
    experience = Experience(
        torch.zeros(1, 40), torch.tensor([3]), torch.tensor([38]), torch.zeros(1, 40), zeros_B, zeros_B, zeros_B
    )
    alpha_BT = torch.arange(40.0)[None] / 100
    position, mean, tail = blocks(alpha_BT, experience)  # 34 decoded tokens from index 4 on: two blocks and a rest
    assert position.tolist() == [11.5, 27.5]
    assert mean.tolist() == pytest.approx([0.115, 0.275])
    assert tail.tolist() == pytest.approx([0.0475, 0.2075])


def test_kl_of_two_coins() -> None:
    dense_XV = torch.tensor([[0.5, 0.5]]).log().expand(600, 2)
    sparse_XV = torch.tensor([[0.75, 0.25]]).log().expand(600, 2)
    position_X = torch.cat([torch.full((350,), 10), torch.full((250,), 40)])
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert kl_by_length(dense_XV, sparse_XV, position_X) == [pytest.approx((16.0, kl, 0.75), abs=1e-6)]


def test_the_best_of_what_was_drawn() -> None:
    rewards = [0, 1, 0, 0, 1, 1, 0, 1]
    assert best(rewards, 1, group=2) == [[1, 0], [0, 0], [1, 1], [1, 0]]
    assert best(rewards, 2, group=2) == [[1, 0], [1, 1]]
    assert best(rewards, 4, group=2) == [[1, 1]]
    found = summarise([[1.0] * 4 + [0.0] * 28, [0.0] * 32])
    assert found["1"] == {"reward": 4 / 64, "mixed_groups": 1 / 8, "groups": 8}
    assert found["4"] == {"reward": 4 / 16, "mixed_groups": 1 / 2, "groups": 2}


def test_means_by_age() -> None:
    rows = [{"age": 0.0, "kl": 1.0}, {"age": 1.0, "kl": 3.0}, {"age": 0.0, "kl": 2.0}]
    assert by_age(rows, "kl") == {0: 1.5, 1: 3.0}


def test_parts_of_a_step() -> None:
    keys = ("timing_s/gen", "timing_s/reward", "timing_s/dense_pass", "timing_s/sparse_pass", "timing_s/step")
    rows = [dict(zip(keys, ("2", "0", "4", "3", "10"))), dict(zip(keys, ("4", "0", "4", "5", "15")))]
    assert breakdown(rows) == {
        "rollout": 3, "rewards": 0, "dense pass": 4, "sparse pass": 4, "rest": 1.5, "sparse over dense pass": 1.0
    }  # fmt: skip


def test_bytes_and_tokens() -> None:
    assert gain(page_size=4, tokens=64, length=256) == pytest.approx(512 / (64 + 128))
    schedule = BudgetSchedule([5, 9], page_size=4, bin_tokens=64)
    assert [tokens_read(schedule, length) for length in (20, 60, 64, 1000)] == [20, 32, 48, 48]
    assert speedup("1.7b", BudgetSchedule.dense(), "bytes") == 1.0


def test_times_of_a_table() -> None:
    table = [{"operator": "sparse_step/64", "seconds": 0.002}, {"operator": "paged_attention/dense", "seconds": 0.01}]
    assert times(table, 16) == {"sparse": 2.0, "dense": 10.0}


def test_both_distributions_give_the_measured_alpha() -> None:
    problems = held_out_problems(1)
    schedule = BudgetSchedule.constant(2, page_size=4)
    experience, alpha_BT, _ = sampled_alpha(
        problems.model, schedule, problems.prompts, problems.eos_token_ids, samples=1, max_new_tokens=40, seed=0
    )
    dense_XV, sparse_XV = both_logprobs(problems.model, experience)
    alpha_X = torch.minimum(dense_XV.exp(), sparse_XV.exp()).sum(-1)
    torch.testing.assert_close(alpha_X, alpha_BT[experience.decoded_BT], atol=1e-5, rtol=0)
