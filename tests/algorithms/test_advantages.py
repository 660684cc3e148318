"""Advantages by hand: R = (1, 0, 0, 1) and the like, odd groups, exact zeros."""

import math
from functools import partial
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow.algorithms import GroupedRewards, advantages
from sparrow.algorithms.advantages.groups import least_samples

ESTIMATORS = {
    "grpo": advantages.grpo,
    "dr_grpo": advantages.dr_grpo,
    "rloo": advantages.rloo,
    "reinforce_plus_plus": advantages.reinforce_plus_plus,
    "reinforce_plus_plus_baseline": advantages.reinforce_plus_plus_baseline,
    "best_minus_second": advantages.best_minus_second,
}


def rewards(values, groups, lengths=None, baseline=None):
    return GroupedRewards(
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(groups),
        None if lengths is None else torch.tensor(lengths),
        None if baseline is None else torch.tensor(baseline, dtype=torch.float64),
    )


def test_grpo_by_hand():
    # group 4: mean 1/2, sample variance 4 * 1/4 / 3 = 1/3; group 1: mean 1, sample std sqrt(2)
    result = advantages.grpo(rewards([1, 0, 0, 1, 0, 2], [4, 4, 4, 4, 1, 1]))
    a, b = 0.5 / (math.sqrt(1 / 3) + 1e-6), 1 / (math.sqrt(2) + 1e-6)
    torch.testing.assert_close(result, torch.tensor([a, -a, -a, a, -b, b], dtype=torch.float64), rtol=0, atol=1e-12)


def test_grpo_without_std_is_dr_grpo():
    given_rewards = rewards([1, 0, 0, 1, 1], [0, 0, 0, 1, 1])
    expected = torch.tensor([2 / 3, -1 / 3, -1 / 3, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(advantages.grpo(given_rewards, normalize_std=False), expected)
    torch.testing.assert_close(advantages.dr_grpo(given_rewards), expected)


def test_rloo_by_hand():
    # first sample: 3 - (0 + 1 + 2) / 3; second: 0 - (3 + 1 + 2) / 3
    result = advantages.rloo(rewards([3, 0, 1, 2], [0, 0, 0, 0]))
    torch.testing.assert_close(result, torch.tensor([2, -2, -2 / 3, 2 / 3], dtype=torch.float64))


def test_reinforce_plus_plus_weighs_by_tokens():
    # rewards per token: 1, 1, 1, 0: mean 3/4, variance (3/16 + 9/16) / 3 = 1/4
    result = advantages.reinforce_plus_plus(rewards([1, 0], [0, 1], [3, 1]), epsilon=0.0)
    torch.testing.assert_close(result, torch.tensor([0.5, -1.5], dtype=torch.float64))


def test_reinforce_plus_plus_baseline_takes_the_group_mean_first():
    # centred: 1/2, -1/2 (one token each), 0 (two tokens): mean 0, variance (1/4 + 1/4) / 3 = 1/6
    result = advantages.reinforce_plus_plus_baseline(rewards([1, 0, 5], [0, 0, 1], [1, 1, 2]), epsilon=0.0)
    scale = math.sqrt(1 / 6)
    torch.testing.assert_close(result, torch.tensor([0.5 / scale, -0.5 / scale, 0], dtype=torch.float64))


def test_reinforce_plus_plus_needs_lengths():
    with pytest.raises(ValueError, match="length_B is None"):
        advantages.reinforce_plus_plus(rewards([1, 0], [0, 0]))


def test_remax_subtracts_the_greedy_reward():
    result = advantages.remax(rewards([1, 0, 1], [0, 0, 1], baseline=[1, 1, 0]))
    assert result.tolist() == [0.0, -1.0, 1.0]
    with pytest.raises(ValueError, match="baseline_B, the reward of the greedy answer; it is None"):
        advantages.remax(rewards([1], [0]))
    with pytest.raises(ValueError, match=r"baseline_B of sample 1 is nan"):
        advantages.remax(rewards([1, 1], [0, 0], baseline=[0, math.nan]))


def test_pass_at_k_is_the_mean_over_all_subgroups():
    values, k = [1, 0, 0, 1, 0], 2
    subgroups = list(combinations(range(5), k))
    best = [max(values[i] for i in group) for group in subgroups]
    mean = sum(best) / len(best)
    std = math.sqrt(mean * (1 - mean))
    expected = []
    for i in range(5):
        shared = [(b - mean) / std for b, group in zip(best, subgroups, strict=True) if i in group]
        expected.append(sum(shared) / len(shared))
    result = advantages.pass_at_k(rewards(values, [0] * 5), k=k, epsilon=0.0)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("values", "k", "message"),
    [([1, 0.5], 1, "reward of sample 1 is 0.5"), ([1, 0], 3, r"k is 3; allowed: 1 \.\. 2"), ([1, 0], 0, "k is 0")],
    ids=["not-binary", "k-too-large", "k-zero"],
)
def test_pass_at_k_refuses(values, k, message):
    with pytest.raises(ValueError, match=message):
        advantages.pass_at_k(rewards(values, [0] * len(values)), k=k)


@pytest.mark.parametrize("name", [*ESTIMATORS, "pass_at_k", "remax"])
def test_the_least_group_is_the_first_that_gives_an_advantage(name):
    estimator = ESTIMATORS.get(name) or getattr(advantages, name)
    if name == "pass_at_k":
        estimator = partial(estimator, k=3)
    least = least_samples(estimator)
    assert least == {"pass_at_k": 4, "remax": 1, "reinforce_plus_plus": 1}.get(name, 2)

    def advantages_of(size):
        right = [[float(index < count) for index in range(size)] for count in range(size + 1)]
        baseline = [0.5] * size
        return [estimator(rewards(row, [0] * size, [3] * size, baseline)).abs().max().item() for row in right]

    assert all(value == 0 for size in range(3 if name == "pass_at_k" else 1, least) for value in advantages_of(size))
    assert max(advantages_of(max(least, 2))) > 0.1


def test_best_minus_second_by_hand():
    result = advantages.best_minus_second(rewards([3, 1, 0, 2, 2, 7], [0, 0, 0, 1, 1, 2]), normalize_std=False)
    assert result.tolist() == [2.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_overlong_penalty_by_hand():
    result = advantages.overlong_penalty(torch.tensor([5, 80, 90, 100, 120]), max_length=100, buffer=20, scale=0.5)
    torch.testing.assert_close(result, torch.tensor([0.0, 0.0, -0.25, -0.5, -0.5]))
    with pytest.raises(ValueError, match="buffer is 101"):
        advantages.overlong_penalty(torch.tensor([5]), max_length=100, buffer=101)


def test_mixed_groups_keeps_only_groups_with_a_difference():
    result = advantages.mixed_groups(rewards([1, 1, 0, 1, 0.1, 0.1, 0.1], [9, 9, 2, 2, 3, 3, 3]))
    assert result.tolist() == [False, False, True, True, False, False, False]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_sample_and_equal_rewards_give_exactly_zero(name):
    # 0.1 has no exact mean in binary: the zero must not be rounding over epsilon
    result = ESTIMATORS[name](rewards([0.1, 0.1, 0.1], [5, 5, 5], [4, 2, 9]))
    assert result.tolist() == [0.0, 0.0, 0.0]
    single = ESTIMATORS[name](rewards([0.7], [3], [4]))
    assert single.tolist() == [0.0]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_a_uniform_group_next_to_a_mixed_one_is_zero(name):
    result = ESTIMATORS[name](rewards([0.1, 1, 0.1, 0, 0.1], [5, 6, 5, 6, 5]))
    assert result[[0, 2, 4]].tolist() == [0.0, 0.0, 0.0]
    assert result[1] > 0 > result[3]


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_order_of_samples_does_not_matter(name, data):
    size = data.draw(st.integers(1, 12))
    values = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=size, max_size=size))
    groups = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    order = torch.tensor(data.draw(st.permutations(range(size))))
    plain = rewards(values, groups, list(range(1, size + 1)))
    shuffled = GroupedRewards(plain.rewards_B[order], plain.group_B[order] * 7 - 3, plain.length_B[order])
    torch.testing.assert_close(ESTIMATORS[name](shuffled), ESTIMATORS[name](plain)[order], rtol=0, atol=1e-10)


def test_dtype_follows_the_rewards():
    assert advantages.grpo(GroupedRewards(torch.tensor([0.0, 1.0]), torch.tensor([0, 0]))).dtype == torch.float32
    assert advantages.grpo(GroupedRewards(torch.tensor([0, 1]), torch.tensor([0, 0]))).dtype == torch.float32
