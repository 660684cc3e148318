"""Acceptance by hand (also at T = 0.6), its bounds around the exact value, and the study's top-k estimator."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow.metrics.functional import acceptance_bounds, acceptance_rate, acceptance_top_k, disagreements


def test_by_hand():
    dense, sparse = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[0.2, 0.3, 0.5]]).log()
    torch.testing.assert_close(acceptance_rate(dense, sparse), torch.tensor([0.7]))
    assert acceptance_rate(dense, dense).item() == 1.0


def test_by_hand_at_temperature_06():
    # probabilities to the power 1 / .6, renormalised
    p = [x ** (1 / 0.6) for x in (0.5, 0.3, 0.2)]
    q = [x ** (1 / 0.6) for x in (0.2, 0.3, 0.5)]
    expected = sum(min(a / sum(p), b / sum(q)) for a, b in zip(p, q, strict=True))
    dense, sparse = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    assert acceptance_rate(dense, sparse, temperature=0.6).item() == pytest.approx(expected, abs=1e-6)
    assert expected < 0.65


def test_disjoint_support_and_minus_infinity():
    assert acceptance_rate(torch.tensor([0.0, -math.inf]), torch.tensor([-math.inf, 0.0])).item() == 0.0
    assert acceptance_rate(torch.tensor([0.0, -math.inf]), torch.tensor([0.0, -math.inf])).item() == 1.0


def test_half_precision_logits_are_computed_in_fp32():
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.testing.assert_close(acceptance_rate(logits, logits), torch.ones(4), rtol=0, atol=1e-6)


def test_errors_name_the_value():
    with pytest.raises(ValueError, match=r"dense_logits \(3,\) and sparse_logits \(1, 3\) differ"):
        acceptance_rate(torch.zeros(3), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="temperature is 0"):
        acceptance_rate(torch.zeros(3), torch.zeros(3), temperature=0)
    with pytest.raises(ValueError, match=r"dense_logprobs_at_ids \(3,\)"):
        acceptance_bounds(torch.zeros(3), torch.zeros(2))


def test_bounds_by_hand():
    # min: .4 + .3; rest: min(1 - .8, 1 - .9)
    lower, upper = acceptance_bounds(torch.tensor([0.5, 0.3]).log(), torch.tensor([0.4, 0.5]).log())
    assert (lower.item(), upper.item()) == (pytest.approx(0.7), pytest.approx(0.8))
    lower, upper = acceptance_bounds(torch.tensor([0.5, 0.0]).log(), torch.tensor([0.4, 0.0]).log())
    assert (lower.item(), upper.item()) == (pytest.approx(0.4), pytest.approx(0.9))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), vocabulary=st.integers(2, 40), data=st.data())
def test_bounds_enclose_the_exact_value(seed, vocabulary, data):
    generator = torch.Generator().manual_seed(seed)
    dense, sparse = (3 * torch.randn(5, vocabulary, generator=generator, dtype=torch.float64) for _ in range(2))
    number = data.draw(st.integers(1, vocabulary))
    ids = sparse.topk(number).indices
    lower, upper = acceptance_bounds(dense.log_softmax(-1).gather(-1, ids), sparse.log_softmax(-1).gather(-1, ids))
    exact = acceptance_rate(dense, sparse)
    assert (lower <= exact + 1e-12).all()
    assert (exact <= upper + 1e-12).all()
    if number == vocabulary:
        torch.testing.assert_close(lower, upper)


def test_top_k_by_hand():
    # common ids 2 (.3, .6) and 5 (.1, .05); the last slots are empty
    dense_ids, dense = torch.tensor([7, 2, 5, -1]), torch.tensor([0.5, 0.3, 0.1, 0.9]).log()
    sparse_ids, sparse = torch.tensor([2, 5, -1]), torch.tensor([0.6, 0.05, 0.9]).log()
    assert acceptance_top_k(dense_ids, dense, sparse_ids, sparse).item() == pytest.approx(0.35)


def test_top_k_of_everything_is_exact_and_of_some_a_lower_bound():
    generator = torch.Generator().manual_seed(3)
    dense, sparse = (torch.randn(6, 30, generator=generator, dtype=torch.float64) for _ in range(2))
    exact = acceptance_rate(dense, sparse)
    for number in (30, 20, 3):
        p, q = dense.log_softmax(-1).topk(number), sparse.log_softmax(-1).topk(number)
        estimate = acceptance_top_k(p.indices, p.values, q.indices, q.values)
        assert (estimate <= exact + 1e-12).all()
        if number == 30:
            torch.testing.assert_close(estimate, exact)


def test_disagreements_leave_padding_out():
    alpha = torch.tensor([[0.5, 1.0, math.nan], [math.nan] * 3])
    mask = torch.tensor([[True, True, False], [False] * 3])
    assert disagreements(alpha, mask).tolist() == [0.5, 0.0]
