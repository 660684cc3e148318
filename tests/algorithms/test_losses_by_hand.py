"""One token at a time, worked by hand: clipped high, low, dual clip, masked, fully masked."""

import math

import pytest
import torch

from sparrow.algorithms import PolicyInputs, losses


def one_token(ratio, advantage, old=0.5, **optional):
    """A single token with p_old = old and p = ratio * old."""
    old_logprob = torch.tensor([[math.log(old)]], dtype=torch.float64)
    dense = (old_logprob + math.log(ratio)).requires_grad_()
    advantages = torch.tensor([[float(advantage)]], dtype=torch.float64)
    mask = torch.tensor([[True]])
    return dense, PolicyInputs(dense, old_logprob, old_logprob, advantages, mask, **optional)


def value_and_gradient(loss, dense, inputs, **settings):
    result = loss(inputs, **settings)
    (gradient,) = torch.autograd.grad(result.loss_BT.sum(), dense)
    return result.loss_BT.item(), gradient.item(), {name: mean.value for name, mean in result.metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped", "bounded"),
    [
        (1.0, 2.0, -2.0, -2.0, 0, 0),
        (1.2, 2.0, -2.4, -2.4, 0, 0),  # inside 1 + 0.28
        (1.5, 2.0, -2.56, 0.0, 1, 0),  # clipped high: -2 * 1.28
        (0.5, 2.0, -1.0, -1.0, 0, 0),  # low ratio, positive advantage: the gradient pulls it back up
        (0.5, -2.0, 1.6, 0.0, 1, 0),  # clipped low: 2 * 0.8
        (1.5, -2.0, 3.0, 3.0, 0, 0),  # high ratio, negative advantage: not clipped
        (4.0, -2.0, 6.0, 0.0, 0, 1),  # dual clip: 2 * 3
        (1.5, 0.0, 0.0, 0.0, 0, 0),
    ],
)
def test_ppo_clip(ratio, advantage, loss, gradient, clipped, bounded):
    value, slope, metrics = value_and_gradient(losses.ppo_clip, *one_token(ratio, advantage))
    assert value == pytest.approx(loss, abs=1e-12)
    assert slope == pytest.approx(gradient, abs=1e-12)
    assert metrics["actor/pg_clipfrac"] == clipped
    assert metrics["actor/pg_clipfrac_lower"] == bounded
    assert metrics["actor/ppo_kl"] == pytest.approx(-math.log(ratio))


def test_ppo_clip_without_dual_clip():
    value, slope, metrics = value_and_gradient(losses.ppo_clip, *one_token(4.0, -2.0), dual_clip=None)
    assert (value, slope) == (pytest.approx(8.0), pytest.approx(8.0))
    assert "actor/pg_clipfrac_lower" not in metrics
    with pytest.raises(ValueError, match=r"dual_clip is 1\.0"):
        losses.ppo_clip(one_token(1.0, 1.0)[1], dual_clip=1.0)


def test_on_policy_all_ratios_are_one():
    value, slope, metrics = value_and_gradient(losses.ppo_clip, *one_token(1.0, -3.0))
    assert (value, slope) == (3.0, 3.0)
    assert metrics == {"actor/pg_clipfrac": 0.0, "actor/ppo_kl": 0.0, "actor/pg_clipfrac_lower": 0.0}


def test_log_ratio_is_limited():
    value, slope, _ = value_and_gradient(losses.ppo_clip, *one_token(math.exp(30), -1.0), dual_clip=None)
    assert value == pytest.approx(math.exp(20))
    assert slope == 0.0


@pytest.mark.parametrize(
    ("ratio", "weight", "clipped"), [(0.3, 0.3, 0), (2.0, 2.0, 0), (7.0, 5.0, 1)], ids=["low", "inside", "high"]
)
def test_cispo_keeps_the_gradient_of_clipped_tokens(ratio, weight, clipped):
    value, slope, metrics = value_and_gradient(losses.cispo, *one_token(ratio, 2.0, old=0.1))
    assert slope == pytest.approx(-2 * weight)
    assert value == pytest.approx(-2 * weight * math.log(0.1 * ratio))
    assert metrics["actor/pg_clipfrac"] == clipped


def test_cispo_with_offsets_as_in_verl():
    _, slope, _ = value_and_gradient(losses.cispo, *one_token(0.3, 1.0), clip_low=0.2, clip_high=0.28)
    assert slope == pytest.approx(-0.8)


@pytest.mark.parametrize(
    ("old", "ratio", "advantage", "dropped"),
    [
        (0.5, 1.5, 1.0, 1),  # 0.50 -> 0.75, up 0.25 > 0.2
        (0.5, 1.3, 1.0, 0),  # up 0.15
        (0.001, 100.0, 1.0, 0),  # a ratio of 100, but up 0.099 only
        (0.5, 1.5, -1.0, 0),  # moves against the push: never dropped
        (0.5, 0.5, -1.0, 1),  # down 0.25
        (0.5, 0.5, 1.0, 0),
    ],
)
def test_dppo_tv_looks_at_probabilities(old, ratio, advantage, dropped):
    _, slope, metrics = value_and_gradient(losses.dppo_tv, *one_token(ratio, advantage, old=old))
    assert slope == pytest.approx(0.0 if dropped else -advantage * min(ratio, 20.0))
    assert metrics["actor/pg_clipfrac"] == dropped
    assert metrics["actor/pg_clipfrac_lower"] == float(ratio > 20)


def test_dppo_kl_by_hand():
    # 0.99 -> 0.75: KL = .99 log(.99/.75) + .01 log(.01/.25) = .2427
    down = 0.75 / 0.99
    divergence = 0.99 * math.log(0.99 / 0.75) + 0.01 * math.log(0.01 / 0.25)
    for delta, dropped in ((divergence * 0.99, 1.0), (divergence * 1.01, 0.0)):
        _, _, metrics = value_and_gradient(losses.dppo_kl, *one_token(down, -1.0, old=0.99), delta_low=delta)
        assert metrics["actor/pg_clipfrac"] == dropped
    _, slope, _ = value_and_gradient(losses.dppo_kl, *one_token(down, 1.0, old=0.99))
    assert slope == pytest.approx(-down)


def test_dppo_kl_survives_probability_one():
    value, slope, _ = value_and_gradient(losses.dppo_kl, *one_token(0.5, -1.0, old=1.0))
    assert (value, slope) == (0.0, 0.0)


def test_sapo_at_ratio_one_has_the_plain_gradient():
    for advantage, tau in ((2.0, 1.0), (-2.0, 1.05)):
        value, slope, metrics = value_and_gradient(losses.sapo, *one_token(1.0, advantage))
        assert slope == pytest.approx(-advantage)
        assert value == pytest.approx(-advantage * 2 / tau)
        assert metrics["actor/pg_clipfrac"] == 0.0
    _, slope, metrics = value_and_gradient(losses.sapo, *one_token(6.0, 1.0))
    gate = 1 / (1 + math.exp(-5.0))
    assert slope == pytest.approx(-4 * gate * (1 - gate) * 6.0)
    assert metrics["actor/pg_clipfrac"] == 1.0
    with pytest.raises(ValueError, match="tau_positive=0"):
        losses.sapo(one_token(1.0, 1.0)[1], tau_positive=0)


def test_kl_cov_adds_the_penalty_to_chosen_tokens_only():
    chosen = torch.tensor([[True]])
    value, slope, _ = value_and_gradient(losses.KLCov(coefficient=0.5), *one_token(2.0, 1.0, chosen_BT=chosen))
    assert value == pytest.approx(-2 + 0.5 * math.log(2))
    assert slope == pytest.approx(-2 + 0.5)
    value, _, _ = value_and_gradient(losses.KLCov(), *one_token(2.0, 1.0, chosen_BT=~chosen))
    assert value == pytest.approx(-2.0)


def test_clip_cov_takes_chosen_tokens_out():
    chosen = torch.tensor([[True]])
    value, slope, metrics = value_and_gradient(losses.ClipCov(), *one_token(1.1, 1.0, chosen_BT=chosen))
    assert (value, slope, metrics["actor/pg_clipfrac"]) == (0.0, 0.0, 1.0)
    value, _, metrics = value_and_gradient(losses.ClipCov(), *one_token(2.0, 1.0, chosen_BT=chosen))
    assert value == pytest.approx(-1.2)  # already clipped: counted there
    with pytest.raises(ValueError, match=r"ClipCov needs PolicyInputs\.chosen_BT"):
        losses.ClipCov()(one_token(1.0, 1.0)[1])


def covariance_inputs():
    old = torch.tensor([[-1.0, -3.0, -2.0, math.nan]], dtype=torch.float64)
    advantages = torch.tensor([[2.0, -4.0, 2.0, math.nan]], dtype=torch.float64)
    noise = torch.tensor([[0.1, 0.2, 0.9, 0.95]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False]])
    return PolicyInputs(old, old, old, advantages, mask, noise_BT=noise)


def test_covariance_by_hand():
    # log p - mean = 1, -1, 0; A - mean = 2, -4, 2
    assert losses.covariance.covariance(covariance_inputs()).tolist() == [[2.0, 4.0, 0.0, 0.0]]


def test_choices_by_hand():
    inputs = covariance_inputs()
    assert losses.KLCov(fraction=1e-9).choose(inputs).tolist() == [[False, True, False, False]]
    assert losses.KLCov(fraction=0.7).choose(inputs).tolist() == [[True, True, False, False]]
    assert losses.ClipCov(fraction=0.34).choose(inputs).tolist() == [[False, True, False, False]]  # more noise wins
    assert losses.ClipCov(fraction=1.0, high=3.0).choose(inputs).tolist() == [[True, False, False, False]]
    assert losses.ClipCov(low=10.0, high=11.0).choose(inputs).sum() == 0
