import math

import pytest
import torch
from torch import Tensor

from sparrow.kernels import token_statistics
from sparrow.kernels.token_statistics import reference
from sparrow.kernels.token_statistics.types import Request

CHUNKS = [(None, 2**16), (3, 2**16), (None, 16), (4, 7), (1, 1)]
IDS = [f"tokens={tokens}-vocab={vocab}" for tokens, vocab in CHUNKS]


def log_softmax(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(hidden.float() @ head.float().T / temperature, dim=-1)


def test_by_hand() -> None:
    # Hidden state 1 and head rows 0, log 2, log 5: probabilities 1/8, 2/8, 5/8; at temperature 0.5: 1, 4, 25 of 30.
    hidden, head = torch.ones(1, 1), torch.tensor([[0.0], [math.log(2)], [math.log(5)]])
    found = token_statistics(hidden, head, torch.tensor([1]), topk=2)
    assert found.logprobs_X.item() == pytest.approx(math.log(2 / 8))
    assert found.logsumexp_X.item() == pytest.approx(math.log(8))
    entropy = -(math.log(1 / 8) + 2 * math.log(2 / 8) + 5 * math.log(5 / 8)) / 8
    assert found.entropy_X.item() == pytest.approx(entropy)
    assert found.topk_ids.tolist() == [[2, 1]]
    assert found.topk_logprobs[0].tolist() == pytest.approx([math.log(5 / 8), math.log(2 / 8)])
    assert found.alpha_X is None
    cold = token_statistics(hidden, head, torch.tensor([1]), temperature=0.5)
    assert cold.logprobs_X.item() == pytest.approx(math.log(4 / 30))


def test_agreement_by_hand() -> None:
    # p = 1/8, 2/8, 5/8 and, with the sign of the hidden state turned, q = 10/17, 5/17, 2/17.
    hidden, head = torch.ones(1, 1), torch.tensor([[0.0], [math.log(2)], [math.log(5)]])
    candidates = torch.tensor([[2, 0, -1]])
    recorded = torch.tensor([[math.log(2 / 17), math.log(10 / 17), 0.0]])
    found = token_statistics(
        hidden,
        head,
        torch.tensor([0]),
        other_hidden_XE=-hidden,
        candidate_ids_XC=candidates,
        candidate_logprobs_XC=recorded,
    )
    exact = 1 / 8 + 2 / 8 + 2 / 17
    assert found.alpha_X.item() == pytest.approx(exact)
    assert found.alpha_top20_X.item() == pytest.approx(exact)
    low = 2 / 17 + 1 / 8
    assert found.alpha_low_X.item() == pytest.approx(low)
    assert found.alpha_high_X.item() == pytest.approx(low + min(2 / 8, 5 / 17))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("chunk_tokens", "chunk_vocab"), CHUNKS, ids=IDS)
def test_values_and_gradients_match_log_softmax(chunk_tokens: int | None, chunk_vocab: int, temperature: float) -> None:
    hidden, head = torch.randn(11, 24, requires_grad=True), torch.randn(53, 24, requires_grad=True)
    token = torch.randint(0, 53, (11,))
    found = token_statistics(
        hidden, head, token, temperature=temperature, chunk_tokens=chunk_tokens, chunk_vocab=chunk_vocab
    )
    logprobs = log_softmax(hidden, head, temperature)
    want = logprobs.gather(1, token[:, None])[:, 0]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    torch.testing.assert_close(found.logprobs_X, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.entropy_X, entropy, rtol=1e-5, atol=1e-5)
    weight_a, weight_b = torch.randn(2, 11) / 10
    for loss, plain in [
        ((found.logprobs_X * weight_a).sum(), (want * weight_a).sum()),
        ((found.entropy_X * weight_b).sum(), (entropy * weight_b).sum()),
        (
            (found.logprobs_X * weight_a + found.entropy_X.square() * weight_b).sum(),
            (want * weight_a + entropy.square() * weight_b).sum(),
        ),
    ]:
        got = torch.autograd.grad(loss, (hidden, head), retain_graph=True)
        for a, b in zip(got, torch.autograd.grad(plain, (hidden, head), retain_graph=True)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("chunk_tokens", "chunk_vocab"), CHUNKS, ids=IDS)
@pytest.mark.parametrize(("tokens", "vocabulary"), [(1, 7), (9, 53), (5, 20)])
def test_matches_the_reference(chunk_tokens: int | None, chunk_vocab: int, tokens: int, vocabulary: int) -> None:
    hidden, head = torch.randn(tokens, 16), torch.randn(vocabulary, 16)
    other = hidden + 0.3 * torch.randn(tokens, 16)
    ids = torch.stack([torch.randperm(vocabulary)[:5] for _ in range(tokens)])
    recorded = log_softmax(other, head, 0.8).gather(1, ids)
    ids[0, 3:] = -1
    request = Request(torch.randint(0, vocabulary, (tokens,)), 0.8, 30, other, ids, recorded)
    found = token_statistics(
        hidden,
        head,
        request.token_X,
        temperature=0.8,
        topk=30,
        other_hidden_XE=other,
        candidate_ids_XC=ids,
        candidate_logprobs_XC=recorded,
        chunk_tokens=chunk_tokens,
        chunk_vocab=chunk_vocab,
    )
    want = reference.token_statistics(hidden, head, request)
    for name, expected in vars(want).items():
        torch.testing.assert_close(getattr(found, name), expected, rtol=1e-5, atol=1e-5, msg=name)
    assert found.topk_ids.shape == (tokens, min(30, vocabulary))
    assert (found.alpha_low_X <= found.alpha_X + 1e-6).all()
    assert (found.alpha_X <= found.alpha_high_X + 1e-6).all()
    assert (found.alpha_top20_X <= found.alpha_X + 1e-6).all()
    p, q = log_softmax(hidden, head, 0.8).exp(), log_softmax(other, head, 0.8).exp()
    torch.testing.assert_close(found.alpha_X, 1 - (p - q).abs().sum(-1) / 2, rtol=1e-5, atol=1e-5)


def test_identical_policies_agree_fully() -> None:
    hidden, head = torch.randn(4, 8), torch.randn(90, 8)
    found = token_statistics(hidden, head, torch.zeros(4, dtype=torch.int64), other_hidden_XE=hidden)
    torch.testing.assert_close(found.alpha_X, torch.ones(4))
    top20 = log_softmax(hidden, head, 1.0).topk(20).values.exp().sum(-1)
    torch.testing.assert_close(found.alpha_top20_X, top20)


@pytest.mark.parametrize("chunk_vocab", [2**16, 2, 1])
def test_an_impossible_token_is_no_nan(chunk_vocab: int) -> None:
    hidden, head = torch.rand(3, 4) + 0.1, torch.randn(6, 4)
    finite = head[2:].clone()
    head[0, 1] = -torch.inf
    head[1] = -torch.inf
    hidden, head, plain = hidden.requires_grad_(), head.requires_grad_(), finite.requires_grad_()
    token = torch.tensor([2, 5, 3])
    found = token_statistics(hidden, head, token, chunk_vocab=chunk_vocab, topk=6, other_hidden_XE=hidden.detach())
    want = token_statistics(hidden, plain, token - 2)
    for name in ("logprobs_X", "entropy_X", "logsumexp_X"):
        torch.testing.assert_close(getattr(found, name), getattr(want, name))
    assert (found.topk_logprobs[:, 4:] == -torch.inf).all()
    torch.testing.assert_close(found.alpha_X, torch.ones(3))
    loss, other = found.logprobs_X.sum() + found.entropy_X.sum(), want.logprobs_X.sum() + want.entropy_X.sum()
    got, expected = torch.autograd.grad(loss, (hidden, head)), torch.autograd.grad(other, (hidden, plain))
    torch.testing.assert_close(got[0], expected[0])
    torch.testing.assert_close(got[1][2:], expected[1])
    assert (got[1][:2] == 0).all()


def test_large_logits_do_not_overflow() -> None:
    hidden, head = torch.full((1, 1), 1e4), torch.tensor([[1.0], [1.0], [-1.0]])
    found = token_statistics(hidden, head, torch.tensor([0]), chunk_vocab=1)
    assert found.logprobs_X.item() == pytest.approx(-math.log(2), rel=1e-3)
    assert found.entropy_X.item() == pytest.approx(math.log(2), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_fp32(dtype: torch.dtype) -> None:
    hidden, head = torch.randn(6, 32).to(dtype).requires_grad_(), torch.randn(40, 32).to(dtype).requires_grad_()
    token = torch.randint(0, 40, (6,))
    found = token_statistics(hidden, head, token, temperature=0.6)
    assert found.logprobs_X.dtype == torch.float32
    wide = [x.detach().float().requires_grad_() for x in (hidden, head)]
    want = log_softmax(*wide, 0.6).gather(1, token[:, None])[:, 0]
    torch.testing.assert_close(found.logprobs_X, want, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad(found.logprobs_X.sum(), (hidden, head))
    for a, b in zip(got, torch.autograd.grad(want.sum(), wide)):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b.to(dtype), rtol=2**-7, atol=1e-5)


def test_gradients_match_finite_differences() -> None:
    hidden, head = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)

    def both(hidden: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        found = token_statistics(hidden, head, torch.tensor([0, 4, 2]), temperature=0.6, chunk_tokens=2, chunk_vocab=2)
        return found.logprobs_X, found.entropy_X

    assert torch.autograd.gradcheck(both, (hidden.requires_grad_(), head.requires_grad_()))


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, head = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    token_statistics(hidden, head, torch.tensor([0, 4, 2])).logprobs_X.sum().backward()
    assert hidden.grad.abs().sum() > 0
    assert head.grad is None


def test_memory_does_not_grow_with_tokens_times_vocabulary(largest_tensor) -> None:
    hidden, head = torch.randn(700, 4, requires_grad=True), torch.randn(900, 4, requires_grad=True)
    token = torch.randint(0, 900, (700,))
    with largest_tensor as largest:
        found = token_statistics(
            hidden, head, token, topk=5, other_hidden_XE=hidden.detach(), chunk_tokens=50, chunk_vocab=100
        )
        (found.logprobs_X.sum() + found.entropy_X.sum()).backward()
    # The largest are the 20 best of both sides, compared id by id: 50 * 20 * 20.
    assert largest.numel <= 50 * 20 * 20


def test_errors() -> None:
    hidden, head, token = torch.zeros(2, 4), torch.zeros(5, 4), torch.tensor([0, 5])
    with pytest.raises(ValueError, match="token_X holds ids from 0 to 5, allowed: below the vocabulary size 5"):
        token_statistics(hidden, head, token)
    with pytest.raises(ValueError, match="temperature is 0"):
        token_statistics(hidden, head, token - 1, temperature=0.0)
    with pytest.raises(ValueError, match="belong together"):
        token_statistics(hidden, head, token.clamp(max=4), candidate_ids_XC=token[:, None])
    with pytest.raises(ValueError, match=r"head_VE has shape \(5, 4\), expected \(any, 3\)"):
        token_statistics(hidden[:, :3], head, token)
