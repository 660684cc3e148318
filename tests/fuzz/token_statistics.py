"""Random `token_statistics`: every statistic and gradient of each path against the reference in fp64."""

import random
from dataclasses import dataclass, replace
from unittest import mock

import torch
from torch import Tensor

from sparrow.kernels.token_statistics import chunked, gpu, gpu_tiles, reference
from sparrow.kernels.token_statistics.types import Request, TokenStatistics

DIFFERENTIABLE = ("logprobs_X", "entropy_X")


@dataclass(frozen=True)
class Case:
    """One configuration; a chunk of 0 stands for everything at once."""

    seed: int
    tokens: int
    width: int
    vocabulary: int
    temperature: float
    spread: float
    topk: int
    agreement: bool
    candidates: int
    impossible: int
    narrow_ids: bool
    chunk_tokens: int
    chunk_vocab: int
    block: int


def draw(random: random.Random) -> Case:
    """Vocabularies that do and do not fill their tiles, statistics asked for in any combination."""
    vocabulary = random.choice([1, 2, 16, 17, 64, random.randint(1, 100)])
    return Case(
        seed=random.getrandbits(31),
        tokens=random.choice([0, 1, 2, 3, 5]),
        width=random.choice([1, 3, 8, 32]),
        vocabulary=vocabulary,
        temperature=random.choice([1.0, 0.6, 1.7]),
        spread=random.choice([0.3, 1.0, 3.0]),
        topk=random.choice([0, 1, 5, 20, 40]),
        agreement=random.random() < 0.5,
        candidates=random.choice([0, 1, 3, 20]),
        impossible=random.choice([0, 0, 1, vocabulary // 3]) if vocabulary > 2 else 0,
        narrow_ids=random.random() < 0.5,
        chunk_tokens=random.choice([0, 1, 2]),
        chunk_vocab=random.choice([0, 1 + vocabulary // 2, 16 + vocabulary // 4, 64]),
        block=random.choice([16, 32, 64, 4096]),
    )


def _request(case: Case, hidden: Tensor, other: Tensor, head: Tensor) -> Request:
    dtype = torch.int32 if case.narrow_ids else torch.int64
    token = torch.randint(case.impossible, case.vocabulary, (case.tokens,), dtype=dtype)
    request = Request(token, case.temperature, case.topk)
    if case.agreement:
        request = replace(request, other_hidden_XE=other)
    count = min(case.candidates, case.vocabulary)
    if count and case.tokens:
        ids = torch.stack([torch.randperm(case.vocabulary)[:count] for _ in range(case.tokens)])
        recorded = torch.log_softmax(other @ head.T / case.temperature, dim=-1).gather(1, ids)
        ids = torch.where(torch.rand(ids.shape) < 0.2, -1, ids)
        request = replace(request, candidate_ids_XC=ids.to(dtype), candidate_logprobs_XC=recorded)
    return request


def check(case: Case) -> dict[str, float]:
    """The worst absolute error over statistics and gradients; ids by the logits they stand for."""
    torch.manual_seed(case.seed)
    hidden, other = (torch.rand(case.tokens, case.width) * case.spread for _ in range(2))
    head = torch.randn(case.vocabulary, case.width) * 2
    head[: case.impossible] = -torch.inf
    hidden, other = hidden + 0.01, other + 0.01  # never 0 * -inf
    request = _request(case, hidden, other, head)
    weights = torch.randn(2, case.tokens)

    def run(compute, dtype: torch.dtype) -> tuple[TokenStatistics, tuple[Tensor, ...]]:
        leaves = [x.to(dtype).detach().requires_grad_() for x in (hidden, head)]
        found = compute(*leaves)
        loss = sum((getattr(found, name) * w.to(dtype)).sum() for name, w in zip(DIFFERENTIABLE, weights))
        return found, torch.autograd.grad(loss, leaves)

    chunks = {"chunk_tokens": case.chunk_tokens or 10**6, "chunk_vocab": case.chunk_vocab or 10**6}
    wide = replace(request, other_hidden_XE=None if request.other_hidden_XE is None else other.double())
    want = run(lambda hidden, head: reference.token_statistics(hidden, head, wide), torch.float64)
    if case.impossible:
        # Autograd of the reference multiplies zero by infinity there: differentiate it without those entries.
        rest = Request(request.token_X - case.impossible, case.temperature)
        finite = run(
            lambda hidden, head: reference.token_statistics(hidden, head[case.impossible :], rest), torch.float64
        )
        want = want[0], finite[1]
    paths = {"cpu": run(lambda hidden, head: chunked.token_statistics(hidden, head, request, **chunks), torch.float32)}
    given = {name: value if value < 10**6 else None for name, value in chunks.items()}
    with (
        mock.patch.object(gpu_tiles, "COLUMNS", case.block),
        mock.patch.object(gpu_tiles, "RANKED_COLUMNS", case.block),
    ):
        paths["triton"] = run(lambda hidden, head: gpu.token_statistics(hidden, head, request, **given), torch.float32)
    return {path: _compare(case, path, got, want) for path, got in paths.items()}


def _compare(
    case: Case,
    path: str,
    got: tuple[TokenStatistics, tuple[Tensor, ...]],
    want: tuple[TokenStatistics, tuple[Tensor, ...]],
) -> float:
    worst = 0.0
    statistics = {name: (x, getattr(want[0], name)) for name, x in vars(got[0]).items()}
    (ids, own_ids), found = statistics.pop("topk_ids"), statistics["topk_logprobs"][0]
    assert (ids is None) == (own_ids is None), f"{path}: topk_ids"
    if ids is not None and found is not None:
        assert ids.shape == own_ids.shape, f"{path}: topk_ids has shape {tuple(ids.shape)}"
        assert all(len(set(row)) == len(row) for row in ids.tolist()), f"{path}: an id is ranked twice"
        assert (found.diff(dim=1) <= 0).logical_or(found[:, 1:] == -torch.inf).all(), f"{path}: not best first"
    gradients = {f"gradient {i}": pair for i, pair in enumerate(zip(got[1], want[1]))}
    for name, (x, y) in {**statistics, **gradients}.items():
        assert (x is None) == (y is None), f"{path}: {name} is {x}, wanted {y}"
        if x is None or x.numel() == 0:
            continue
        x, y = x.detach().double(), y.detach()
        equal = (x == y) | (x.isinf() & (x == y))
        error = torch.where(equal, 0, (x - y).abs() / y.abs().clamp(min=1)).max().item()
        assert error < 3e-5 * max(1, case.spread), f"{path}: {name} is off by {error:.2e}"
        worst = max(worst, error)
    return worst
