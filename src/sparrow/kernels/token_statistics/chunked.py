"""`token_statistics` in plain torch with bounded memory: the path of the CPU.

The [X, V] logits are made a tile at a time: once to reduce them, and again in the backward pass, which rebuilds each
tile from hidden states and head instead of keeping it. Peak memory is a few tiles, plus the gradients themselves.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparrow.kernels.checks import accumulation_dtype
from sparrow.kernels.token_statistics.online import OnlineGather, OnlineSoftmax, OnlineTopK
from sparrow.kernels.token_statistics.types import TOP20, Request, TokenStatistics, bounds, overlap_top20


def token_statistics(
    hidden_XE: Tensor, head_VE: Tensor, request: Request, *, chunk_tokens: int, chunk_vocab: int
) -> TokenStatistics:
    """Scans the tiles without gradient, then attaches the recomputing backward to log-probs and entropy."""
    with torch.no_grad():
        parts = [
            _scan_rows(hidden_XE[rows], head_VE, request.rows(rows), chunk_vocab)
            for rows in _slices(hidden_XE.shape[0], chunk_tokens)
        ]
        found = TokenStatistics.concatenate(parts)
    logprobs_X, entropy_X = _Recompute.apply(  # type: ignore[no-untyped-call]
        hidden_XE,
        head_VE,
        request.token_X.long(),
        found.logprobs_X,
        found.entropy_X,
        found.logsumexp_X,
        (request.temperature, chunk_tokens, chunk_vocab),
    )
    return TokenStatistics(**{**vars(found), "logprobs_X": logprobs_X, "entropy_X": entropy_X})


def _slices(length: int, chunk: int) -> Iterator[slice]:
    # An empty input still yields one (empty) slice, so that every statistic exists.
    return (slice(start, min(start + chunk, length)) for start in range(0, max(length, 1), chunk))


def _tile(hidden_XE: Tensor, head_VE: Tensor, columns: slice, temperature: float) -> Tensor:
    """Logits / temperature of one tile."""
    dtype = accumulation_dtype(hidden_XE)
    logits_XV = hidden_XE.to(dtype) @ head_VE[columns].to(dtype).T
    return logits_XV if temperature == 1.0 else logits_XV.div_(temperature)


class _Side:
    """One policy's reductions over the vocabulary, for one chunk of tokens."""

    def __init__(self, hidden_XE: Tensor, head_VE: Tensor, temperature: float, topk: int) -> None:
        self.hidden_XE, self.head_VE, self.temperature = hidden_XE, head_VE, temperature
        self.softmax = OnlineSoftmax.empty(hidden_XE.shape[0], accumulation_dtype(hidden_XE), hidden_XE.device)
        self.best = OnlineTopK(topk)

        self.latest: tuple[slice, Tensor] | None = None

    def tile(self, columns: slice) -> Tensor:
        """The logits of a tile: the one made last if it is that, otherwise made anew."""
        if self.latest is None or self.latest[0] != columns:
            self.latest = None  # freed before the next one is made
            self.latest = columns, _tile(self.hidden_XE, self.head_VE, columns, self.temperature)
        return self.latest[1]

    def scan(self, columns: slice) -> Tensor:
        """Takes in one tile and returns it."""
        logits_XV = self.tile(columns)
        self.softmax.update(logits_XV)
        if self.best.k:
            self.best.update(logits_XV, columns.start)
        return logits_XV


def _scan_rows(hidden_XE: Tensor, head_VE: Tensor, request: Request, chunk_vocab: int) -> TokenStatistics:
    """All statistics of one chunk of tokens."""
    tiles = list(_slices(head_VE.shape[0], chunk_vocab))
    agreement = request.other_hidden_XE is not None
    own = _Side(hidden_XE, head_VE, request.temperature, max(request.topk, TOP20 if agreement else 0))
    token_X1 = request.token_X.unsqueeze(1)
    ids_XC = token_X1 if request.candidate_ids_XC is None else torch.cat((token_X1, request.candidate_ids_XC), dim=1)
    picked = OnlineGather.empty(ids_XC, accumulation_dtype(hidden_XE))
    for columns in tiles:
        picked.update(own.scan(columns), columns.start)

    logsumexp_X = own.softmax.logsumexp()
    picked_XC = picked.values_XC - logsumexp_X.unsqueeze(1)
    fields = {"logprobs_X": picked_XC[:, 0], "entropy_X": own.softmax.entropy(), "logsumexp_X": logsumexp_X}
    if request.topk:
        ids, logprobs = own.best.result(logsumexp_X)
        fields |= {"topk_ids": ids[:, : request.topk], "topk_logprobs": logprobs[:, : request.topk]}
    if request.candidate_logprobs_XC is not None:
        recorded_XC = request.candidate_logprobs_XC.to(picked_XC.dtype).masked_fill(ids_XC[:, 1:] < 0, -torch.inf)
        fields["alpha_low_X"], fields["alpha_high_X"] = bounds(picked_XC[:, 1:], recorded_XC)
    if request.other_hidden_XE is not None:
        other = _Side(request.other_hidden_XE, head_VE, request.temperature, TOP20)
        fields["alpha_X"], fields["alpha_top20_X"] = _agreement(own, other, tiles)
    return TokenStatistics(**fields)


def _agreement(own: _Side, other: _Side, tiles: list[slice]) -> tuple[Tensor, Tensor]:
    """Exact acceptance rate and the top-20 estimate, after `own` was scanned."""
    for columns in tiles:
        other.scan(columns)
    logsumexp_X, other_logsumexp_X = own.softmax.logsumexp(), other.softmax.logsumexp()
    alpha_X = torch.zeros_like(logsumexp_X)
    for columns in tiles:
        # min(p, q) needs both log-sum-exps, known only now: a single tile is still at hand, several are made once more.
        own_XV = own.tile(columns).sub_(logsumexp_X.unsqueeze(1))
        other_XV = other.tile(columns).sub_(other_logsumexp_X.unsqueeze(1))
        alpha_X += torch.minimum(own_XV, other_XV, out=own_XV).exp_().sum(dim=1)
    ids, logprobs = (x[:, :TOP20] for x in own.best.result(logsumexp_X))
    return alpha_X, overlap_top20(ids, logprobs, *other.best.result(other_logsumexp_X))


class _Recompute(torch.autograd.Function):
    """Identity on (log-prob, entropy) whose backward rebuilds the logits tile by tile.

    With p the probabilities, H the entropy and x the logits divided by the temperature:
    d logprob / dx_v = [v = token] - p_v   and   d H / dx_v = -p_v (log p_v + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_XE: Tensor,
        head_VE: Tensor,
        token_X: Tensor,
        logprobs_X: Tensor,
        entropy_X: Tensor,
        logsumexp_X: Tensor,
        settings: tuple[float, int, int],
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden_XE, head_VE, token_X, entropy_X, logsumexp_X)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return logprobs_X.clone(), entropy_X.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_X: Tensor | None, grad_entropy_X: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_XE, head_VE, token_X, entropy_X, logsumexp_X = ctx.saved_tensors
        temperature, chunk_tokens, chunk_vocab = ctx.settings
        dtype = accumulation_dtype(hidden_XE)
        grad_hidden_XE = torch.zeros_like(hidden_XE, dtype=dtype) if ctx.needs_input_grad[0] else None
        grad_head_VE = torch.zeros_like(head_VE, dtype=dtype) if ctx.needs_input_grad[1] else None
        for rows in _slices(hidden_XE.shape[0], chunk_tokens):
            for columns in _slices(head_VE.shape[0], chunk_vocab):
                grad_XV = _grad_tile(
                    _tile(hidden_XE[rows], head_VE, columns, temperature).sub_(logsumexp_X[rows].unsqueeze(1)),
                    token_X[rows] - columns.start,
                    entropy_X[rows],
                    None if grad_logprobs_X is None else grad_logprobs_X[rows],
                    None if grad_entropy_X is None else grad_entropy_X[rows],
                ).div_(temperature)
                if grad_hidden_XE is not None:
                    # An infinite weight is the mark of an impossible token; its zero gradient must stay zero.
                    head = head_VE[columns].to(dtype)
                    grad_hidden_XE[rows].addmm_(grad_XV, head.masked_fill(head.isinf(), 0))
                if grad_head_VE is not None:
                    grad_head_VE[columns].addmm_(grad_XV.T, hidden_XE[rows].to(dtype))
        grad_hidden = None if grad_hidden_XE is None else grad_hidden_XE.to(hidden_XE.dtype)
        grad_head = None if grad_head_VE is None else grad_head_VE.to(head_VE.dtype)
        return grad_hidden, grad_head, None, None, None, None, None


def _grad_tile(
    logprobs_XV: Tensor,
    local_token_X: Tensor,
    entropy_X: Tensor,
    grad_logprobs_X: Tensor | None,
    grad_entropy_X: Tensor | None,
) -> Tensor:
    """Gradient with respect to a tile of logits / temperature; `local_token_X` counts from the tile's first column."""
    p_XV = logprobs_XV.exp()
    grad_XV = torch.zeros_like(p_XV)
    if grad_entropy_X is not None:
        surprise_XV = (logprobs_XV + entropy_X.unsqueeze(1)).masked_fill_(p_XV == 0, 0)
        grad_XV.sub_(surprise_XV.mul_(p_XV).mul_(grad_entropy_X.unsqueeze(1)))
    if grad_logprobs_X is not None:
        grad_XV.sub_(p_XV.mul_(grad_logprobs_X.unsqueeze(1)))
        inside_X = (local_token_X >= 0) & (local_token_X < grad_XV.shape[1])
        column_X1 = local_token_X.clamp(0, grad_XV.shape[1] - 1).unsqueeze(1)
        grad_XV.scatter_add_(1, column_X1, torch.where(inside_X, grad_logprobs_X, 0).unsqueeze(1))
    return grad_XV
