"""pass@k, avg@n and maj@k against enumeration, intervals against their definition."""

import random
from fractions import Fraction
from itertools import combinations
from math import comb

import numpy
import pytest
import torch

from sparrow.evaluation import avg_at_n, bootstrap, maj_at_k, pass_at_k

SMALL = [(n, c, k) for n in range(1, 9) for c in range(n + 1) for k in range(1, n + 1)]


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample_on_all_small_cases():
    for n, c, k in SMALL:
        right = [place < c for place in range(n)]
        hits = sum(any(right[i] for i in subset) for subset in combinations(range(n), k))
        assert pass_at_k(n, c, k) == float(Fraction(hits, comb(n, k))), (n, c, k)
        closed = 1 - Fraction(comb(n - c, k), comb(n, k))
        assert pass_at_k(n, c, k) == float(closed), (n, c, k)


@pytest.mark.parametrize(("n", "c", "k", "value"), [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (16, 8, 8, 1 - 1 / 12870)])
def test_pass_at_k_by_hand(n, c, k, value):
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-15)


def test_pass_at_k_of_large_numbers_neither_overflows_nor_rounds_to_one():
    assert pass_at_k(100_000, 1, 1) == 1e-5
    assert pass_at_k(2000, 1, 1999) == 1999 / 2000


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5)])
def test_pass_at_k_refuses_impossible_numbers(n, c, k):
    with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k} is not allowed"):
        pass_at_k(n, c, k)


def test_avg():
    assert avg_at_n([True, False, False, True]) == 0.5


@pytest.mark.parametrize(
    ("answers", "k", "value"),
    [
        (["7", "7", "8"], 3, 1.0),
        (["7", "8", "8"], 3, 0.0),
        (["7", "8"], 2, 0.5),  # a tie
        (["7", None], 2, 1.0),  # no vote
        ([None, None], 2, 0.0),
        (["7", "8", "8"], 1, 1 / 3),
        (["7", "8", "9"], 3, 1 / 3),
        (["7", "7", "8", "8", "9"], 3, 13 / 30),  # 10 votes: 3 won by two 7s, 3 by two 8s, 4 tied in three
    ],
)
def test_maj_by_hand(answers, k, value):
    correct = [answer == "7" for answer in answers]
    assert maj_at_k(answers, correct, k) == pytest.approx(value, abs=1e-12)


def test_maj_at_one_is_avg_and_random_subsets_come_near_the_exact_value():
    source = random.Random(5)
    answers = [source.choice(["7", "8", "9"]) for _ in range(16)]
    correct = [answer == "7" for answer in answers]
    assert maj_at_k(answers, correct, 1) == pytest.approx(avg_at_n(correct))
    exact = [maj_at_k([answers[i] for i in s], [correct[i] for i in s], 8) for s in combinations(range(16), 8)]
    assert maj_at_k(answers, correct, 8) == pytest.approx(sum(exact) / len(exact), abs=0.03)


def test_maj_refuses_a_vote_larger_than_the_samples():
    with pytest.raises(ValueError, match="k=3 is not allowed with 2 samples; allowed: 1 to 2"):
        maj_at_k(["1", "2"], [True, False], 3)


def test_bootstrap_is_the_quantiles_of_resampled_means():
    values = [0.0, 1.0, 1.0, 0.25, 0.5]
    draws = numpy.random.default_rng(3)
    means = sorted(numpy.mean([values[i] for i in draws.integers(0, 5, 5)]) for _ in range(200))
    found = bootstrap(values, resamples=200, level=0.9, seed=3)
    assert found.value == 0.55
    assert found.low == pytest.approx(numpy.quantile(means, 0.05))
    assert found.high == pytest.approx(numpy.quantile(means, 0.95))


def test_bootstrap_of_equal_values_has_no_width_and_of_none_is_an_error():
    found = bootstrap([0.5] * 7)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="bootstrap of 0 problems"):
        bootstrap([])


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    source = numpy.random.default_rng(11)
    hits = 0
    for trial in range(200):
        found = bootstrap((source.random(60) < 0.4).astype(float).tolist(), resamples=300, level=0.9, seed=trial)
        hits += found.low <= 0.4 <= found.high
    assert 0.84 <= hits / 200 <= 0.95


def test_no_global_random_state_is_touched():
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    before = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    bootstrap([0.0, 1.0], resamples=10)
    maj_at_k([str(i % 3) for i in range(20)], [i % 3 == 0 for i in range(20)], 10)
    assert before == (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_no_samples_and_samples_without_answers():
    with pytest.raises(ValueError, match="avg@n of 0 samples is not allowed"):
        avg_at_n([])
    with pytest.raises(ValueError, match="maj@k: 2 answers with 3 samples are not allowed; allowed: one for each"):
        maj_at_k(["1", "2"], [True, False, True], 2)
