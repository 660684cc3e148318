"""Divergences by hand, against torch.distributions and autograd, and as what their gradients are the gradients of."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from sparrow.algorithms import divergences
from sparrow.metrics.functional import acceptance_bounds, acceptance_rate

SAMPLED = {name: getattr(divergences, name) for name in ("k1", "k2", "k3", "k3_straight_through")}
EXACT = {name: getattr(divergences, name) for name in ("forward_kl", "reverse_kl", "total_variation")}
TOP_K = {name: getattr(divergences, f"{name}_top_k") for name in EXACT}


def random_logits(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [2 * torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2)]


def test_sampled_estimators_by_hand():
    # policy .5, target .25: d = log 2
    policy, target = torch.tensor([[math.log(0.5)]]), torch.tensor([[math.log(0.25)]])
    mask = torch.tensor([[True]])
    d = math.log(2)
    assert divergences.k1(policy, target, mask).item() == pytest.approx(d)
    assert divergences.k2(policy, target, mask).item() == pytest.approx(d * d / 2)
    assert divergences.k3(policy, target, mask).item() == pytest.approx(0.5 - 1 + d)
    assert divergences.k3_straight_through(policy, target, mask).item() == pytest.approx(0.5 - 1 + d)


@pytest.mark.parametrize("name", SAMPLED)
def test_padding_reaches_neither_value_nor_gradient(name):
    policy = torch.tensor([[-1.0, math.nan, -math.inf]], requires_grad=True)
    target = torch.tensor([[-2.0, math.nan, math.nan]])
    values = SAMPLED[name](policy, target, torch.tensor([[True, False, False]]))
    values.sum().backward()
    assert values[0, 1:].tolist() == [0.0, 0.0]
    assert policy.grad[0, 1:].tolist() == [0.0, 0.0]
    assert policy.grad[0, 0] != 0


def expected_under_policy(name):
    """Mean value and mean gradient of an estimator over tokens drawn from the policy, by enumeration of 6 tokens."""
    policy_logits, target_logits = random_logits(6, seed=1)
    policy_logits.requires_grad_()
    logprobs, target = policy_logits.log_softmax(-1), target_logits.log_softmax(-1)
    values = SAMPLED[name](logprobs[None], target[None], torch.ones(1, 6, dtype=torch.bool))[0]
    chance = logprobs.exp().detach()
    (gradient,) = torch.autograd.grad((chance * values).sum(), policy_logits)
    return (chance * values.detach()).sum(), gradient, policy_logits, target_logits


@pytest.mark.parametrize(
    ("name", "value_of", "gradient_of"),
    [
        ("k1", "reverse_kl", None),
        ("k2", None, "reverse_kl"),
        ("k3", "reverse_kl", "forward_kl"),
        ("k3_straight_through", "reverse_kl", "reverse_kl"),
    ],
)
def test_what_a_value_estimates_and_what_its_gradient_is_the_gradient_of(name, value_of, gradient_of):
    value, gradient, policy, target = expected_under_policy(name)
    if value_of is not None:
        torch.testing.assert_close(value, EXACT[value_of](policy, target).detach())
    exact = torch.zeros_like(gradient)
    if gradient_of is not None:
        (exact,) = torch.autograd.grad(EXACT[gradient_of](policy, target), policy)
    torch.testing.assert_close(gradient, exact)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_exact_values_against_torch_distributions(temperature):
    policy, target = random_logits(3, 4, 9)
    p, q = Categorical(logits=policy / temperature), Categorical(logits=target / temperature)
    torch.testing.assert_close(divergences.forward_kl(policy, target, temperature), kl_divergence(q, p))
    torch.testing.assert_close(divergences.reverse_kl(policy, target, temperature), kl_divergence(p, q))
    overlap = acceptance_rate(target, policy, temperature)
    torch.testing.assert_close(divergences.total_variation(policy, target, temperature), 1 - overlap)


def test_exact_gradients_against_their_formulas():
    policy_logits, target_logits = random_logits(5, 7, seed=2)
    policy_logits.requires_grad_()
    p, q = policy_logits.softmax(-1).detach(), target_logits.softmax(-1)
    (forward,) = torch.autograd.grad(divergences.forward_kl(policy_logits, target_logits).sum(), policy_logits)
    torch.testing.assert_close(forward, p - q)
    (reverse,) = torch.autograd.grad(divergences.reverse_kl(policy_logits, target_logits).sum(), policy_logits)
    gap = (p / q).log()
    torch.testing.assert_close(reverse, p * (gap - (p * gap).sum(-1, keepdim=True)))
    (variation,) = torch.autograd.grad(divergences.total_variation(policy_logits, target_logits).sum(), policy_logits)
    sign = (p - q).sign() / 2
    torch.testing.assert_close(variation, p * (sign - (p * sign).sum(-1, keepdim=True)))


@pytest.mark.parametrize("name", EXACT)
def test_equal_distributions_and_impossible_tokens(name):
    logits = torch.tensor([1.0, -math.inf, 0.5], requires_grad=True)
    value = EXACT[name](logits, logits.detach())
    assert value.item() == 0
    (gradient,) = torch.autograd.grad(value, logits)
    assert torch.isfinite(gradient).all()
    assert EXACT[name](torch.tensor([0.0, -math.inf]), torch.tensor([-math.inf, 0.0])).item() > 0.99


def test_target_gets_no_gradient():
    policy, target = (logits.requires_grad_() for logits in random_logits(4))
    for divergence in EXACT.values():
        divergence(policy, target).backward()
    assert target.grad is None


def test_top_k_by_hand():
    # candidates .5 and .2 of the target against .4 and .4; rest .3 against .2
    target, policy = torch.tensor([0.5, 0.2]).double().log(), torch.tensor([0.4, 0.4]).double().log()
    forward = 0.5 * math.log(0.5 / 0.4) + 0.2 * math.log(0.2 / 0.4) + 0.3 * math.log(0.3 / 0.2)
    reverse = 0.4 * math.log(0.4 / 0.5) + 0.4 * math.log(0.4 / 0.2) + 0.2 * math.log(0.2 / 0.3)
    assert divergences.forward_kl_top_k(policy, target).item() == pytest.approx(forward)
    assert divergences.reverse_kl_top_k(policy, target).item() == pytest.approx(reverse)
    assert divergences.total_variation_top_k(policy, target).item() == pytest.approx((0.1 + 0.2 + 0.1) / 2)


@pytest.mark.parametrize("name", TOP_K)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(2, 12), data=st.data())
def test_top_k_is_a_lower_bound_and_never_negative(name, seed, size, data):
    policy, target = random_logits(size, seed=seed)
    number = data.draw(st.integers(1, size))
    ids = target.topk(number).indices
    bound = TOP_K[name](policy.log_softmax(-1)[ids], target.log_softmax(-1)[ids])
    exact = EXACT[name](policy, target)
    assert -1e-12 <= bound.item() <= exact.item() + 1e-6
    if number == size:
        assert bound.item() == pytest.approx(exact.item(), abs=1e-6)


@pytest.mark.parametrize("name", TOP_K)
def test_top_k_gradient_is_that_of_the_coarse_distribution(name):
    policy, target = random_logits(8, seed=4)
    policy.requires_grad_()
    ids = target.topk(3).indices
    (gradient,) = torch.autograd.grad(TOP_K[name](policy.log_softmax(-1)[ids], target.log_softmax(-1)[ids]), policy)

    def coarse(logits):
        p = logits.softmax(-1)
        return torch.cat([p[ids], (1 - p[ids].sum(-1)).unsqueeze(-1)]).log()

    (expected,) = torch.autograd.grad(EXACT[name](coarse(policy), coarse(target)), policy)
    torch.testing.assert_close(gradient, expected)


def test_one_minus_coarse_variation_is_the_upper_bound_of_acceptance():
    policy, target = random_logits(6, 30, seed=6)
    ids = policy.topk(4).indices
    p, q = policy.log_softmax(-1).gather(-1, ids), target.log_softmax(-1).gather(-1, ids)
    _, upper = acceptance_bounds(q, p)
    torch.testing.assert_close(1 - divergences.total_variation_top_k(p, q), upper)


def test_empty_slots_of_the_candidate_list_count_as_nothing():
    full, padded = torch.tensor([0.5, 0.2]).double().log(), torch.tensor([0.5, 0.2, 0.0]).double().log()
    for divergence in TOP_K.values():
        policy = (padded - 0.1).requires_grad_()
        value = divergence(policy, padded)
        torch.testing.assert_close(value.detach(), divergence(full - 0.1, full))
        value.backward()
        assert torch.isfinite(policy.grad).all()


@pytest.mark.parametrize("name", EXACT)
def test_errors_name_the_value(name):
    with pytest.raises(ValueError, match=r"policy_logits \(3,\), target_logits \(4,\) differ"):
        EXACT[name](torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="temperature is 0"):
        EXACT[name](torch.zeros(3), torch.zeros(3), 0)
