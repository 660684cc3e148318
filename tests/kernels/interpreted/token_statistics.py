import math

import pytest
import torch
from torch import Tensor

from sparrow.kernels.token_statistics import gpu, gpu_tiles
from sparrow.kernels.token_statistics.types import Request, TokenStatistics

CHUNKS = [(None, None), (3, None), (None, 16), (2, 7)]
IDS = [f"tokens={tokens}-vocab={vocab}" for tokens, vocab in CHUNKS]


def statistics(hidden: Tensor, head: Tensor, token: Tensor, **options) -> TokenStatistics:
    chunks = {"chunk_tokens": options.pop("chunk_tokens", None), "chunk_vocab": options.pop("chunk_vocab", None)}
    return gpu.token_statistics(hidden, head, Request(token, **options), **chunks)


def log_softmax(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(hidden.double() @ head.double().T / temperature, dim=-1)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want.to(got.dtype), rtol=1e-5, atol=1e-5)


def relative_error(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def test_by_hand() -> None:
    # Logits 0, log 2, log 5: probabilities 1/8, 2/8, 5/8; at temperature 0.5: 1, 4, 25 of 30. q: 10, 5, 2 of 17.
    hidden, head = torch.ones(1, 1), torch.tensor([[0.0], [math.log(2)], [math.log(5)]])
    found = statistics(
        hidden,
        head,
        torch.tensor([1]),
        topk=2,
        other_hidden_XE=-hidden,
        candidate_ids_XC=torch.tensor([[2, 0, -1]]),
        candidate_logprobs_XC=torch.tensor([[math.log(2 / 17), math.log(10 / 17), 0.0]]),
    )
    assert found.logprobs_X.item() == pytest.approx(math.log(2 / 8))
    assert found.logsumexp_X.item() == pytest.approx(math.log(8))
    entropy = -(math.log(1 / 8) + 2 * math.log(2 / 8) + 5 * math.log(5 / 8)) / 8
    assert found.entropy_X.item() == pytest.approx(entropy)
    assert found.topk_ids.tolist() == [[2, 1]]
    assert found.topk_logprobs[0].tolist() == pytest.approx([math.log(5 / 8), math.log(2 / 8)])
    exact = 1 / 8 + 2 / 8 + 2 / 17
    assert found.alpha_X.item() == pytest.approx(exact)
    assert found.alpha_top20_X.item() == pytest.approx(exact)
    assert found.alpha_low_X.item() == pytest.approx(2 / 17 + 1 / 8)
    assert found.alpha_high_X.item() == pytest.approx(2 / 17 + 1 / 8 + min(2 / 8, 5 / 17))
    cold = statistics(hidden, head, torch.tensor([1]), temperature=0.5)
    assert cold.logprobs_X.item() == pytest.approx(math.log(4 / 30))


@pytest.mark.parametrize(("chunk_tokens", "chunk_vocab"), CHUNKS, ids=IDS)
@pytest.mark.parametrize(("tokens", "vocabulary"), [(1, 7), (4, 41)])
def test_every_statistic(
    chunk_tokens: int | None, chunk_vocab: int | None, tokens: int, vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_tiles, "COLUMNS", 16)
    monkeypatch.setattr(gpu_tiles, "RANKED_COLUMNS", 32)
    hidden, head = torch.randn(tokens, 16), torch.randn(vocabulary, 16)
    other = hidden + 0.3 * torch.randn(tokens, 16)
    ids = torch.stack([torch.randperm(vocabulary)[:5] for _ in range(tokens)])
    own, sparse = log_softmax(hidden, head, 0.8), log_softmax(other, head, 0.8)
    recorded = sparse.gather(1, ids).float()
    ids[0, 3:] = -1
    token = torch.randint(0, vocabulary, (tokens,))
    found = statistics(
        hidden,
        head,
        token.int(),
        temperature=0.8,
        topk=30,
        other_hidden_XE=other,
        candidate_ids_XC=ids.int(),
        candidate_logprobs_XC=recorded,
        chunk_tokens=chunk_tokens,
        chunk_vocab=chunk_vocab,
    )
    p, q = own.exp(), sparse.exp()
    close(found.logprobs_X, own.gather(1, token[:, None])[:, 0])
    close(found.entropy_X, -(p * own).sum(-1))
    close(found.logsumexp_X, (hidden @ head.T / 0.8).logsumexp(-1))
    best = own.topk(min(30, vocabulary))
    assert torch.equal(found.topk_ids, best.indices)
    close(found.topk_logprobs, best.values)
    close(found.alpha_X, 1 - (p - q).abs().sum(-1) / 2)
    both = torch.zeros_like(p, dtype=torch.int64)
    for side in (p, q):
        both.scatter_add_(1, side.topk(min(20, vocabulary)).indices, torch.ones_like(both))
    close(found.alpha_top20_X, torch.where(both == 2, torch.minimum(p, q), 0).sum(-1))
    listed = torch.zeros_like(p).scatter_(1, ids.clamp(min=0), (ids >= 0).double())
    listed[0, ids[0, :3]] = 1
    low = (torch.minimum(p, q) * listed).sum(-1)
    close(found.alpha_low_X, low)
    close(found.alpha_high_X, low + torch.minimum((p * (1 - listed)).sum(-1), (q * (1 - listed)).sum(-1)))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("chunk_tokens", "chunk_vocab"), CHUNKS, ids=IDS)
def test_gradients(
    chunk_tokens: int | None, chunk_vocab: int | None, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_tiles, "COLUMNS", 32)
    hidden, head = torch.randn(5, 24, requires_grad=True), torch.randn(53, 24, requires_grad=True)
    token = torch.randint(0, 53, (5,))
    found = statistics(hidden, head, token, temperature=temperature, chunk_tokens=chunk_tokens, chunk_vocab=chunk_vocab)
    logprobs = log_softmax(hidden, head, temperature)
    want = logprobs.gather(1, token[:, None])[:, 0]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    a, b = torch.randn(2, 5) / 10
    for loss, plain in [
        ((found.logprobs_X * a).sum(), (want * a).sum()),
        ((found.entropy_X * b).sum(), (entropy * b).sum()),
        ((found.logprobs_X * a + found.entropy_X.square() * b).sum(), (want * a + entropy.square() * b).sum()),
    ]:
        got = torch.autograd.grad(loss, (hidden, head), retain_graph=True)
        for x, y in zip(got, torch.autograd.grad(plain, (hidden, head), retain_graph=True)):
            assert relative_error(x, y) < 1e-5


def test_a_vocabulary_of_several_blocks_at_the_real_tile_sizes() -> None:
    hidden, head = torch.randn(3, 8), torch.randn(9001, 8)
    other = hidden + 0.2 * torch.randn(3, 8)
    token = torch.tensor([0, 4096, 9000])
    own, sparse = log_softmax(hidden, head, 1.0), log_softmax(other, head, 1.0)
    found = statistics(hidden, head, token, topk=100)
    close(found.logprobs_X, own.gather(1, token[:, None])[:, 0])
    close(found.entropy_X, -(own.exp() * own).sum(-1))
    close(found.topk_logprobs, own.topk(100).values)
    assert torch.equal(found.topk_ids, (hidden @ head.T).topk(100).indices)
    whole = statistics(hidden, head, token, other_hidden_XE=other)
    close(whole.alpha_X, torch.minimum(own, sparse).exp().sum(-1))
    close(whole.logprobs_X, found.logprobs_X)


def test_equal_logits_are_ranked_by_id_and_odd_values_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tiles, "RANKED_COLUMNS", 16)
    hidden = torch.ones(1, 1)
    head = torch.tensor([-0.5, 3.0, -torch.inf, 3.0, 0.0, -1e30, 1e30, -0.5, 1e-40, -1e-40] * 5).view(50, 1)
    found = statistics(hidden, head, torch.tensor([0]), topk=50)
    order = sorted(range(50), key=lambda i: (-head[i, 0].item(), i))
    assert found.topk_ids[0].tolist() == order
    rising = statistics(hidden, torch.arange(700.0).view(700, 1) / 700, torch.tensor([0]), topk=5)
    assert rising.topk_ids[0].tolist() == [699, 698, 697, 696, 695]


@pytest.mark.parametrize("chunk_vocab", [None, 2, 1])
def test_an_impossible_token_is_no_nan(chunk_vocab: int | None) -> None:
    hidden, head = torch.rand(3, 4) + 0.1, torch.randn(6, 4)
    finite = head[2:].clone()
    head[0, 1] = -torch.inf
    head[1] = -torch.inf
    hidden, head, plain = hidden.requires_grad_(), head.requires_grad_(), finite.requires_grad_()
    token = torch.tensor([2, 5, 3])
    found = statistics(hidden, head, token, chunk_vocab=chunk_vocab, topk=6, other_hidden_XE=hidden.detach())
    want = statistics(hidden, plain, token - 2)
    for name in ("logprobs_X", "entropy_X", "logsumexp_X"):
        close(getattr(found, name), getattr(want, name))
    assert (found.topk_logprobs[:, 4:] == -torch.inf).all()
    close(found.alpha_X, torch.ones(3))
    loss, other = found.logprobs_X.sum() + found.entropy_X.sum(), want.logprobs_X.sum() + want.entropy_X.sum()
    got, expected = torch.autograd.grad(loss, (hidden, head)), torch.autograd.grad(other, (hidden, plain))
    close(got[0], expected[0])
    close(got[1][2:], expected[1])
    assert (got[1][:2] == 0).all()


def test_large_logits_do_not_overflow() -> None:
    found = statistics(torch.full((1, 1), 1e4), torch.tensor([[1.0], [1.0], [-1.0]]), torch.tensor([0]), chunk_vocab=1)
    assert found.logprobs_X.item() == pytest.approx(-math.log(2), rel=1e-3)
    assert found.entropy_X.item() == pytest.approx(math.log(2), rel=1e-3)


def test_an_id_outside_the_vocabulary_has_no_number() -> None:
    hidden, head = torch.randn(3, 4), torch.randn(5, 4)
    found = statistics(hidden, head, torch.tensor([5, 2, -1]))
    assert found.logprobs_X.isnan().tolist() == [True, False, True]
    assert found.entropy_X.isfinite().all()


def test_a_frozen_head_gets_no_gradient_and_the_reverse() -> None:
    token = torch.tensor([0, 4, 2])
    hidden, head = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    statistics(hidden, head, token).logprobs_X.sum().backward()
    assert hidden.grad.abs().sum() > 0
    assert head.grad is None
    hidden, head = hidden.detach(), head.requires_grad_()
    statistics(hidden, head, token).logprobs_X.sum().backward()
    assert head.grad.abs().sum() > 0


def test_no_tokens() -> None:
    hidden, head = torch.empty(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    found = statistics(hidden, head, torch.empty(0).long(), topk=3, other_hidden_XE=hidden.detach())
    assert found.topk_ids.shape == (0, 3)
    assert found.alpha_X.shape == (0,)
    found.logprobs_X.sum().backward()
    assert (head.grad == 0).all()


def test_memory_does_not_grow_with_tokens_times_vocabulary(largest_tensor) -> None:
    hidden, head = torch.randn(60, 4, requires_grad=True), torch.randn(900, 4, requires_grad=True)
    token = torch.randint(0, 900, (60,))
    with largest_tensor as largest:
        found = statistics(hidden, head, token, chunk_tokens=20, chunk_vocab=150)
        (found.logprobs_X.sum() + found.entropy_X.sum()).backward()
    # The gradient of the head is larger than a tile.
    assert largest.numel == 900 * 4


def test_errors_name_the_value_and_what_is_served() -> None:
    hidden, head, token = torch.zeros(2, 4), torch.zeros(1000, 4), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="token_statistics: topk is 513, the Triton kernel serves 1 to 512"):
        statistics(hidden, head, token, topk=513)
    with pytest.raises(
        TypeError, match=r"token_statistics: hidden_XE has dtype torch\.float64, the Triton kernel serves"
    ):
        statistics(hidden.double(), head, token)
