"""Each loss against its published equation, written here token by token with Python numbers and torch scalars."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from sparrow.algorithms import losses
from sparrow.algorithms.aggregation import count, sequence_mean_token_mean

Row = tuple[Tensor, Tensor, Tensor, Tensor]  # dense, old, advantage, chosen of one sequence, without padding


def ppo(dense, old, advantage, chosen):
    result = []
    for l, o, a in zip(dense, old, advantage):
        r = (l - o).exp()
        gain = torch.min(r * a, torch.clip(r, 0.8, 1.28) * a)
        result.append(-(torch.max(gain, 3.0 * a) if a < 0 else gain))
    return result


def gspo(dense, old, advantage, chosen):
    s = (dense.exp().prod() / old.exp().prod()) ** (1 / len(dense))
    return [-torch.min(s * a, torch.clip(s, 1 - 3e-1, 1 + 4e-1) * a) for a in advantage]


def gspo_token(dense, old, advantage, chosen):
    s = ((dense.exp().prod() / old.exp().prod()) ** (1 / len(dense))).detach()
    ratios = [s * l.exp() / l.exp().detach() for l in dense]
    return [-torch.min(r * a, torch.clip(r, 1 - 3e-1, 1 + 4e-1) * a) for r, a in zip(ratios, advantage)]


def cispo(dense, old, advantage, chosen):
    ratios = (dense.exp() / old.exp()).detach()
    return [-min(max(float(r), 0.7), 1.4) * a * l for r, a, l in zip(ratios, advantage, dense)]


def reinforce(dense, old, advantage, chosen):
    return [-a * l for a, l in zip(advantage, dense)]


def dppo_tv(dense, old, advantage, chosen):
    result = []
    for l, o, a in zip(dense, old, advantage):
        p, q = l.detach().exp().item(), o.exp().item()
        blocked = (a > 0 and p > q and abs(p - q) > 0.1) or (a < 0 and p < q and abs(p - q) > 0.1)
        result.append(l * 0 if blocked else -min(p / q, 20.0) * a * l)
    return result


def dppo_kl(dense, old, advantage, chosen):
    result = []
    for l, o, a in zip(dense, old, advantage):
        p, q = l.exp().detach(), o.exp()
        binary = torch.distributions.kl_divergence(torch.distributions.Bernoulli(q), torch.distributions.Bernoulli(p))
        blocked = binary > 0.03 and ((a > 0 and p > q) or (a < 0 and p < q))
        result.append(l * 0 if blocked else -min(float(p / q), 20.0) * a * l)
    return result


def sapo(dense, old, advantage, chosen):
    result = []
    for l, o, a in zip(dense, old, advantage):
        tau = 1.0 if a > 0 else 1.05
        r = l.exp() / o.exp()
        result.append(-a * 4 / tau / (1 + torch.exp(-tau * (r - 1))))
    return result


def gmpo(dense, old, advantage, chosen):
    a = advantage[0]  # one advantage a sequence, as in the paper
    gains = [torch.min(r * a, torch.clip(r, 0.7, 1.4) * a) / a for r in dense.exp() / old.exp()]
    mean = torch.stack(gains).prod() ** (1 / len(gains))
    return [-a * mean for _ in gains]


def clip_cov(dense, old, advantage, chosen):
    result = []
    for l, o, a, c in zip(dense, old, advantage, chosen):
        r = (l - o).exp()
        clipped = (a > 0 and r > 1.2) or (a < 0 and r < 0.8)
        result.append(l * 0 if c and not clipped else -torch.min(r * a, torch.clip(r, 0.8, 1.2) * a))
    return result


def kl_cov(dense, old, advantage, chosen):
    return [-a * (l - o).exp() + (0.3 * abs(l - o) if c else 0) for l, o, a, c in zip(dense, old, advantage, chosen)]


LOSSES: dict[str, tuple[Callable, Callable]] = {
    "ppo_clip": (losses.ppo_clip, ppo),
    "gspo": (partial(losses.gspo, clip_low=3e-1, clip_high=4e-1), gspo),
    "gspo_token": (partial(losses.gspo_token, clip_low=3e-1, clip_high=4e-1), gspo_token),
    "cispo": (partial(losses.cispo, clip_low=0.3, clip_high=0.4), cispo),
    "reinforce": (losses.reinforce, reinforce),
    "dppo_tv": (partial(losses.dppo_tv, delta_low=0.1, delta_high=0.1), dppo_tv),
    "dppo_kl": (partial(losses.dppo_kl, delta_low=0.03, delta_high=0.03), dppo_kl),
    "sapo": (losses.sapo, sapo),
    "gmpo": (
        partial(losses.gmpo, clip_low=-torch.tensor(0.7).log().item(), clip_high=torch.tensor(1.4).log().item()),
        gmpo,
    ),
    "clip_cov": (losses.ClipCov(), clip_cov),
    "kl_cov": (losses.KLCov(coefficient=0.3), kl_cov),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("spread", [0.05, 0.8], ids=["near", "far"])
def test_value_and_gradient_follow_the_equation(name, spread, make_inputs):
    loss, equation = LOSSES[name]
    inputs = make_inputs(spread=spread, seed=3)
    dense = inputs.dense_logprobs_BT.requires_grad_()
    expected = []
    for row, mask in enumerate(inputs.mask_BT):
        picked = [t[row][mask] for t in (dense, inputs.old_logprobs_BT, inputs.advantages_BT, inputs.chosen_BT)]
        expected.append(torch.stack(equation(*picked)))
    result = loss(inputs).loss_BT
    torch.testing.assert_close(result[inputs.mask_BT], torch.cat(expected), rtol=1e-6, atol=1e-6)
    mean = torch.stack([tokens.mean() for tokens in expected]).mean()
    ours = sequence_mean_token_mean(result, inputs.mask_BT, inputs.mask_BT, count(inputs.mask_BT))
    (want,) = torch.autograd.grad(mean, dense)
    (got,) = torch.autograd.grad(ours, dense)
    torch.testing.assert_close(got, torch.where(inputs.mask_BT, want, 0.0), rtol=1e-6, atol=1e-6)
    assert (got[~inputs.mask_BT] == 0).all()


@pytest.mark.parametrize("name", ["gspo", "gspo_token"])
def test_gspo_and_gspo_token_share_value_and_gradient(name, make_inputs):
    inputs = make_inputs(spread=0.2, seed=5)
    dense = inputs.dense_logprobs_BT.requires_grad_()
    outcomes = []
    for loss in (losses.gspo, losses.gspo_token):
        total = loss(inputs, clip_low=0.3, clip_high=0.3).loss_BT.sum()
        outcomes.append((total.detach(), torch.autograd.grad(total, dense)[0]))
    torch.testing.assert_close(outcomes[0], outcomes[1])
