"""Divergences from hidden states, against the formulas over whole logits, by hand, and in any chunk."""

import math

import pytest
import torch

from sparrow.algorithms import divergences
from sparrow.algorithms.distillation import OverVocabulary, SampledToken, TokenPair, WorstShare, over_chunks

X, E, V = 7, 5, 11


def pair(**changes):
    generator = torch.Generator().manual_seed(0)
    policy, target = (torch.randn(X, E, generator=generator, dtype=torch.float64) for _ in range(2))
    heads = [torch.randn(V, E, generator=generator, dtype=torch.float64) for _ in range(2)]
    logprobs = [torch.rand(X, generator=generator, dtype=torch.float64).log() for _ in range(2)]
    held = {
        "policy_logprobs_X": logprobs[0].requires_grad_(True),
        "target_logprobs_X": logprobs[1],
        "policy_hidden_XE": policy.requires_grad_(True),
        "target_hidden_XE": target,
        "head_VE": heads[0],
        "target_head_VE": heads[1],
        "temperature": 1.3,
    }
    return TokenPair(**(held | changes))


def logits(sides):
    return sides.policy_hidden_XE @ sides.head_VE.T, sides.target_hidden_XE @ sides.target_head_VE.T


def value_and_gradient(value_X, sides):
    weight_X = torch.arange(1.0, X + 1, dtype=torch.float64)
    return value_X, torch.autograd.grad((value_X * weight_X).sum(), sides.policy_hidden_XE)[0]


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "total_variation"])
def test_over_the_vocabulary_is_the_formula(kind):
    sides = pair()
    value_X, gradient_XE = value_and_gradient(OverVocabulary(kind)(sides), sides)
    expected_X, expected_XE = value_and_gradient(getattr(divergences, kind)(*logits(sides), 1.3), sides)
    torch.testing.assert_close(value_X, expected_X)
    torch.testing.assert_close(gradient_XE, expected_XE)


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "total_variation"])
def test_the_top_k_is_a_lower_bound_and_exact_with_every_token(kind):
    sides = pair()
    exact_X = OverVocabulary(kind)(sides)
    cut_X = OverVocabulary(kind, top_k=3)(sides)
    assert bool((cut_X <= exact_X + 1e-12).all())
    assert bool((cut_X < exact_X - 1e-4).any())
    torch.testing.assert_close(OverVocabulary(kind, top_k=100)(sides), exact_X, atol=1e-6, rtol=0)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_change_nothing(chunk):
    sides = pair()
    value_X, gradient_XE = value_and_gradient(over_chunks(sides, divergences.forward_kl, chunk), sides)
    expected_X, expected_XE = value_and_gradient(divergences.forward_kl(*logits(sides)), sides)
    torch.testing.assert_close(value_X, expected_X)
    torch.testing.assert_close(gradient_XE, expected_XE)


def test_no_tokens_and_no_gradient():
    sides = pair()
    assert over_chunks(
        pair(policy_hidden_XE=sides.policy_hidden_XE[:0], target_hidden_XE=sides.target_hidden_XE[:0]),
        divergences.forward_kl,
    ).shape == (0,)
    with torch.no_grad():
        assert not OverVocabulary()(sides).requires_grad


def test_heads_and_target_take_no_gradient():
    target, head, other = (x.requires_grad_(True) for x in (pair().target_hidden_XE, pair().head_VE, pair().head_VE))
    sides = pair(target_hidden_XE=target, head_VE=head, target_head_VE=other)
    OverVocabulary()(sides).sum().backward()
    assert sides.policy_hidden_XE.grad is not None
    assert target.grad is None
    assert head.grad is None
    assert other.grad is None


@pytest.mark.parametrize("estimate", ["k2", "k3", "k3_straight_through"])
def test_the_sampled_token_by_hand(estimate):
    # p = 1/2, q = 1/4: d = log 2.
    sides = pair(
        policy_logprobs_X=torch.full((1,), math.log(0.5), requires_grad=True),
        target_logprobs_X=torch.full((1,), math.log(0.25)),
    )
    expected = {"k2": math.log(2) ** 2 / 2, "k3": 0.5 - 1 + math.log(2), "k3_straight_through": math.log(2) - 0.5}
    value_X = SampledToken(estimate)(sides)
    assert value_X.item() == pytest.approx(expected[estimate])
    (slope_X,) = torch.autograd.grad(value_X.sum(), sides.policy_logprobs_X)
    assert slope_X.item() == pytest.approx(0.5 if estimate == "k3" else math.log(2))


def test_the_worst_share_is_the_mean_of_the_worst_tokens():
    # With the threshold between the 2nd and 3rd largest of 7 tokens and a share of 2/7, the mean over all tokens is the
    # mean of the two largest, whatever the threshold's exact place; and only those two get a gradient.
    sides = pair()
    distance_X = divergences.total_variation(*logits(sides), 1.3)
    ordered = distance_X.detach().sort(descending=True).values
    for place in (0.2, 0.9):
        threshold = float(ordered[2] + place * (ordered[1] - ordered[2]))
        value_X = WorstShare(2 / 7)(pair(threshold=threshold))
        assert value_X.mean().item() == pytest.approx(ordered[:2].mean().item())
    tail = pair(threshold=threshold)
    WorstShare(2 / 7)(tail).sum().backward()
    assert (tail.policy_hidden_XE.grad.abs().sum(-1) > 0).tolist() == (distance_X > threshold).tolist()


def test_the_worst_share_of_everything_is_the_total_variation():
    sides = pair(threshold=0.0)
    torch.testing.assert_close(WorstShare(1.0)(sides), OverVocabulary("total_variation")(sides))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SampledToken("k4"), "divergence.estimate='k4': must be one of k2, k3, k3_straight_through"),
        (lambda: OverVocabulary("kl"), "divergence.kind='kl': must be one of forward_kl, reverse_kl, total_variation"),
        (lambda: OverVocabulary(top_k=0), "divergence.top_k=0: must be 1 or more, or null"),
        (lambda: WorstShare(0.0), "divergence.share=0.0: must be above 0 and at most 1"),
        (lambda: WorstShare()(pair()), "WorstShare needs TokenPair.threshold, which is None"),
        (lambda: OverVocabulary()(pair(target_hidden_XE=None)), r"target_hidden_XE is None; .* asks for \(7, 5\)"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
