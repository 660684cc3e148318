"""Triton path of `token_statistics`: the vendor's matrix product for the LM head, one Triton pass over each tile.

Why not one fused kernel: the products are nearly all of the arithmetic, three of them with the backward pass, and the
vendor's library runs them closer to the peak of a Hopper GPU than a Triton loop does. What fusing saves is the
traffic of the logits, and that mostly stays on the chip: a tile of 2048 tokens x 4096 entries is 32 MiB in fp32,
inside the 50 MB second-level cache of an H200, and each byte of head and hidden state loaded for it serves over a
thousand operations. The backward pass needs the tile in memory anyhow, for two more products.

With another policy's hidden states, min(p, q) needs both log-sum-exps before it can start. There a tile holds whole
rows of both policies (2**26 logits each), which are read again instead of being multiplied again. None of this was
measured against a fused kernel yet.

The backward pass goes over the vocabulary outside and over tokens inside, so that the gradient of the head needs one
block in fp32, not a copy of the head. In bf16 the gradient of the logits is rounded to bf16 for its two products, as
autograd would do; sums are fp32. Other dtypes are multiplied in fp32, and inputs of two dtypes too.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparrow.kernels.token_statistics.gpu_tiles import LARGEST_TOPK, Statistics, add_overlap, grad_tile
from sparrow.kernels.token_statistics.types import TOP20, Request, TokenStatistics, bounds, overlap_top20
from sparrow.kernels.triton_tools import serve_device, serve_dtype, serve_size

OPERATOR = "token_statistics"
CHUNK_TOKENS = 2**11
CHUNK_VOCAB = 2**12
ROW_LOGITS = 2**26
"""Logits of a tile of whole rows: 256 MiB in fp32."""


def token_statistics(
    hidden_XE: Tensor, head_VE: Tensor, request: Request, *, chunk_tokens: int | None, chunk_vocab: int | None
) -> TokenStatistics:
    """Scans the tiles without gradient, then attaches the recomputing backward to log-probs and entropy."""
    _check(hidden_XE, head_VE, request)
    vocabulary = head_VE.shape[0]
    tokens, columns = chunk_tokens or CHUNK_TOKENS, chunk_vocab or CHUNK_VOCAB
    rows, width = tokens, columns
    if request.other_hidden_XE is not None and chunk_vocab is None:
        # Whole rows, a multiple of 128 so that the product's tiles are full.
        rows, width = chunk_tokens or max(128, ROW_LOGITS // vocabulary // 128 * 128), vocabulary
    with torch.no_grad(), torch.cuda.device_of(hidden_XE):
        parts = [
            _scan_rows(hidden_XE[part], head_VE, request.rows(part), width)
            for part in _slices(hidden_XE.shape[0], rows)
        ]
        found = TokenStatistics.concatenate(parts)
    logprobs_X, entropy_X = _Recompute.apply(  # type: ignore[no-untyped-call]
        hidden_XE,
        head_VE,
        request.token_X.long().contiguous(),
        found.logprobs_X,
        found.entropy_X,
        found.logsumexp_X,
        (request.temperature, tokens, columns),
    )
    return TokenStatistics(**{**vars(found), "logprobs_X": logprobs_X, "entropy_X": entropy_X})


def _check(hidden_XE: Tensor, head_VE: Tensor, request: Request) -> None:
    serve_device(OPERATOR, hidden_XE)
    named = {"hidden_XE": hidden_XE, "head_VE": head_VE, "other_hidden_XE": request.other_hidden_XE}
    for name, tensor in named.items():
        if tensor is not None:
            serve_dtype(OPERATOR, name, tensor)
    serve_size(OPERATOR, "vocabulary size", head_VE.shape[0], 2**31 - 1)
    if request.topk:
        serve_size(OPERATOR, "topk", request.topk, LARGEST_TOPK)


def _slices(length: int, chunk: int) -> Iterator[slice]:
    # An empty input still yields one (empty) slice, so that every statistic exists.
    return (slice(start, min(start + chunk, length)) for start in range(0, max(length, 1), chunk))


def _half(a: Tensor, b: Tensor) -> bool:
    """Whether the tensor cores take both as they are and sum in fp32."""
    return a.is_cuda and a.dtype == b.dtype and a.dtype in (torch.bfloat16, torch.float16)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with fp32 sums, in fp32."""
    return torch.mm(a, b, out_dtype=torch.float32) if _half(a, b) else a.float() @ b.float()


class _Side:
    """One policy's tiles and reductions, for one chunk of tokens."""

    def __init__(self, hidden_XE: Tensor, head_VE: Tensor, statistics: Statistics) -> None:
        self.hidden_XE, self.head_VE, self.statistics = hidden_XE, head_VE, statistics
        self.latest: tuple[slice, Tensor] | None = None

    def tile(self, columns: slice) -> Tensor:
        """The logits of a tile, times the temperature: those made last if they are that, otherwise made anew."""
        if self.latest is None or self.latest[0] != columns:
            self.latest = None  # freed before the next one is made
            self.latest = columns, _product(self.hidden_XE, self.head_VE[columns].T)
        return self.latest[1]

    def scan(self, tiles: list[slice]) -> Statistics:
        """Takes in every tile."""
        for columns in tiles:
            self.statistics.update(self.tile(columns), columns.start)
        return self.statistics


def _scan_rows(hidden_XE: Tensor, head_VE: Tensor, request: Request, chunk_vocab: int) -> TokenStatistics:
    """All statistics of one chunk of tokens."""
    vocabulary, temperature = head_VE.shape[0], request.temperature
    tiles = list(_slices(vocabulary, chunk_vocab))
    agreement = request.other_hidden_XE is not None
    token_X1 = request.token_X.unsqueeze(1)
    ids_XC = token_X1 if request.candidate_ids_XC is None else torch.cat((token_X1, request.candidate_ids_XC), dim=1)
    ids_XC = ids_XC.long().contiguous()
    topk = min(max(request.topk, TOP20 if agreement else 0), vocabulary)
    own = _Side(hidden_XE, head_VE, Statistics(ids_XC, topk, temperature))
    found = own.scan(tiles)

    logsumexp_X = found.logsumexp()
    picked_XC = found.picked_XC - logsumexp_X.unsqueeze(1)
    fields = {"logprobs_X": picked_XC[:, 0], "entropy_X": found.entropy(), "logsumexp_X": logsumexp_X}
    if request.topk:
        ids, logits = found.ranked(min(request.topk, vocabulary))
        fields |= {"topk_ids": ids, "topk_logprobs": logits - logsumexp_X.unsqueeze(1)}
    if request.candidate_logprobs_XC is not None:
        absent_XC = ids_XC[:, 1:] < 0
        both = (picked_XC[:, 1:], request.candidate_logprobs_XC.float())
        fields["alpha_low_X"], fields["alpha_high_X"] = bounds(*(x.masked_fill(absent_XC, -torch.inf) for x in both))
    if request.other_hidden_XE is not None:
        other = _Side(request.other_hidden_XE, head_VE, Statistics(ids_XC[:, :0], min(TOP20, vocabulary), temperature))
        fields["alpha_X"], fields["alpha_top20_X"] = _agreement(own, other, tiles, temperature)
    return TokenStatistics(**fields)


def _agreement(own: _Side, other: _Side, tiles: list[slice], temperature: float) -> tuple[Tensor, Tensor]:
    """Exact acceptance rate and the top-20 estimate, after `own` was scanned."""
    other.scan(tiles)
    own_X, other_X = own.statistics.logsumexp(), other.statistics.logsumexp()
    alpha_X = torch.zeros_like(own_X)
    for columns in tiles:
        add_overlap(own.tile(columns), other.tile(columns), own_X, other_X, alpha_X, temperature)
    ranked: list[Tensor] = []
    for side, logsumexp_X in zip((own, other), (own_X, other_X)):
        ids, logits = side.statistics.ranked(min(TOP20, side.head_VE.shape[0]))
        ranked += [ids, logits - logsumexp_X.unsqueeze(1)]
    return alpha_X, overlap_top20(*ranked)


class _Recompute(torch.autograd.Function):
    """Identity on (log-prob, entropy) whose backward rebuilds the logits tile by tile (formulas: `chunked`)."""

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
        return logprobs_X.clone(), entropy_X.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_X: Tensor, grad_entropy_X: Tensor) -> tuple[Tensor | None, ...]:
        hidden_XE, head_VE, token_X, entropy_X, logsumexp_X = ctx.saved_tensors
        temperature, chunk_tokens, chunk_vocab = ctx.settings
        grads = (grad_logprobs_X.contiguous(), grad_entropy_X.contiguous())
        per_token = (token_X, logsumexp_X, entropy_X, *grads)
        # bf16 spans the exponents of fp32; fp16 would flush the gradient of an average over many tokens to zero.
        half = _half(hidden_XE, head_VE) and hidden_XE.dtype == torch.bfloat16
        dtype = torch.bfloat16 if half else torch.float32
        grad_hidden_XE = torch.zeros_like(hidden_XE, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        grad_head_VE = torch.empty_like(head_VE) if ctx.needs_input_grad[1] else None
        with torch.cuda.device_of(hidden_XE):
            for columns in _slices(head_VE.shape[0], chunk_vocab):
                head = head_VE[columns]
                # An infinite weight is the mark of an impossible token; its zero gradient must stay zero.
                finite = head.masked_fill(head.isinf(), 0)
                block = torch.zeros_like(head, dtype=torch.float32)
                for rows in _slices(hidden_XE.shape[0], chunk_tokens):
                    logits_XV = _product(hidden_XE[rows], head.T)
                    token, logsumexp, entropy, grad_logprobs, grad_entropy = (x[rows] for x in per_token)
                    grad_XV = grad_tile(
                        logits_XV,
                        columns.start,
                        token,
                        logsumexp,
                        entropy,
                        grad_logprobs,
                        grad_entropy,
                        temperature,
                        dtype,
                    )
                    if grad_hidden_XE is not None:
                        grad_hidden_XE[rows].add_(_product(grad_XV, finite))
                    if grad_head_VE is not None:
                        block.add_(_product(grad_XV.T, hidden_XE[rows]))
                if grad_head_VE is not None:
                    grad_head_VE[columns] = block
        grad_hidden = None if grad_hidden_XE is None else grad_hidden_XE.to(hidden_XE.dtype)
        return grad_hidden, grad_head_VE, None, None, None, None, None
