"""Triton kernels of `token_statistics`: each passes once over a tile of logits, one program per token.

A tile is [X, columns] in fp32, the columns being the vocabulary entries from `first` on. Running values live in global
memory between tiles and belong to one program alone, so the result is the same every time. Triton may specialise a
kernel on `columns` being a multiple of 16: only then does a masked row load 16 bytes a lane.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow.kernels.triton_tools import kernel, power_of_two

COLUMNS = 4096
"""Logits of a token that a program holds at a time."""
RANKED_COLUMNS = 1024
"""The same where it ranks them."""
LARGEST_TOPK = 512

ABSENT = -(2**63)
"""Sorts behind every logit."""
LAST_ID = 2**31 - 1


@kernel(runtime=("first", "picks"))
def _reduce(
    logits: tl.tensor,
    maxima: tl.tensor,
    sums: tl.tensor,
    weighted_sums: tl.tensor,
    ids: tl.tensor,
    picked: tl.tensor,
    columns: tl.tensor,
    row_stride: tl.tensor,
    first: tl.tensor,
    picks: tl.tensor,
    coldness: tl.tensor,
    BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Feeds a tile to the running maximum and sums (`online.OnlineSoftmax`), and picks the logits at given ids."""
    x = tl.program_id(0).to(tl.int64)
    row = logits + x * row_stride
    maximum, total, weighted = tl.load(maxima + x), tl.load(sums + x), tl.load(weighted_sums + x)
    for start in range(0, columns, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        logit = tl.load(row + v, mask=v < columns, other=float("-inf")) * coldness
        new_maximum = tl.maximum(maximum, tl.max(logit, axis=0))
        step = maximum - new_maximum
        decay = tl.exp(step)
        shifted = logit - new_maximum
        weight = tl.exp(shifted)
        # 0 * -inf is NaN, but an impossible token adds nothing to the entropy.
        shifted = tl.where(weight == 0.0, 0.0, shifted)
        weighted = decay * (weighted + step * total) + tl.sum(weight * shifted, axis=0)
        total = decay * total + tl.sum(weight, axis=0)
        maximum = new_maximum
    tl.store(maxima + x, maximum)
    tl.store(sums + x, total)
    tl.store(weighted_sums + x, weighted)

    c = tl.arange(0, BLOCK_C)
    place = tl.load(ids + x * picks + c, mask=c < picks, other=-1) - first
    inside = (c < picks) & (place >= 0) & (place < columns)
    tl.store(picked + x * picks + c, tl.load(row + place, mask=inside, other=0.0) * coldness, mask=inside)


@kernel(runtime=("first",))
def _rank(
    logits: tl.tensor,
    best: tl.tensor,
    columns: tl.tensor,
    row_stride: tl.tensor,
    first: tl.tensor,
    coldness: tl.tensor,
    BLOCK_V: tl.constexpr,
    TOP: tl.constexpr,
    ABSENT: tl.constexpr,
    LAST_ID: tl.constexpr,
) -> None:
    """Merges a tile into the running best. An entry is one int64: the logit in an order-preserving code, then the id.

    Most blocks hold nothing that is better than the worst entry kept, and are dropped after one comparison.
    """
    x = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, TOP)
    kept = tl.load(best + x * TOP + k)
    for start in range(0, columns, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        logit = tl.load(logits + x * row_stride + v, mask=v < columns, other=0.0) * coldness
        bits = logit.to(tl.int32, bitcast=True)
        # Floats order like sign and magnitude, integers like two's complement.
        ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
        entry = ordered * 4294967296 + (LAST_ID - (first + v)).to(tl.int64)
        entry = tl.where(v < columns, entry, ABSENT)
        if tl.max(entry, axis=0) > tl.min(kept, axis=0):
            both = tl.reshape(tl.join(kept, tl.topk(entry, TOP)), (2 * TOP,))
            kept = tl.topk(both, TOP)
    tl.store(best + x * TOP + k, kept)


@kernel
def _overlap(
    logits: tl.tensor,
    other_logits: tl.tensor,
    logsumexp: tl.tensor,
    other_logsumexp: tl.tensor,
    alpha: tl.tensor,
    columns: tl.tensor,
    row_stride: tl.tensor,
    coldness: tl.tensor,
    BLOCK_V: tl.constexpr,
) -> None:
    """Adds the sum of min(p, q) over a tile."""
    x = tl.program_id(0).to(tl.int64)
    lse, other_lse = tl.load(logsumexp + x), tl.load(other_logsumexp + x)
    total = tl.zeros((BLOCK_V,), tl.float32)
    for start in range(0, columns, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        own = tl.load(logits + x * row_stride + v, mask=v < columns, other=float("-inf")) * coldness - lse
        other = tl.load(other_logits + x * row_stride + v, mask=v < columns, other=float("-inf")) * coldness - other_lse
        total += tl.exp(tl.minimum(own, other))
    tl.store(alpha + x, tl.load(alpha + x) + tl.sum(total, axis=0))


@kernel(runtime=("first",))
def _differentiate(
    logits: tl.tensor,
    grad: tl.tensor,
    tokens: tl.tensor,
    logsumexp: tl.tensor,
    entropy: tl.tensor,
    grad_logprobs: tl.tensor,
    grad_entropy: tl.tensor,
    columns: tl.tensor,
    row_stride: tl.tensor,
    first: tl.tensor,
    coldness: tl.tensor,
    BLOCK_V: tl.constexpr,
) -> None:
    """Gradient with respect to a tile of hidden @ head.T; `grad` may be `logits` itself."""
    x = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside = v < columns
    logprob = tl.load(logits + x * row_stride + v, mask=inside, other=float("-inf")) * coldness - tl.load(logsumexp + x)
    p = tl.exp(logprob)
    surprise = p * tl.where(p == 0.0, 0.0, logprob + tl.load(entropy + x))
    own = (first + v == tl.load(tokens + x)).to(tl.float32)
    change = tl.load(grad_logprobs + x) * (own - p) - tl.load(grad_entropy + x) * surprise
    tl.store(grad + x * row_stride + v, (change * coldness).to(grad.dtype.element_ty), mask=inside)


def _block(columns: int, most: int) -> int:
    return min(most, power_of_two(columns))


class Statistics:
    """Running reductions of one policy's logits over the vocabulary, for X tokens."""

    def __init__(self, ids_XC: Tensor, topk: int, temperature: float) -> None:
        tokens, device = ids_XC.shape[0], ids_XC.device
        self.coldness = 1.0 / temperature
        self.ids_XC = ids_XC
        # NaN stays where no tile holds the id.
        self.picked_XC = torch.full(ids_XC.shape, torch.nan, device=device)
        # A finite floor instead of -inf: a tile of nothing but -inf logits must not give inf - inf.
        self.max_X = torch.full((tokens,), torch.finfo(torch.float32).min / 4, device=device)
        self.sum_X, self.weighted_X = torch.zeros(2, tokens, device=device).unbind()
        shape = (tokens, power_of_two(topk))
        self.best: Tensor | None = torch.full(shape, ABSENT, dtype=torch.int64, device=device) if topk else None

    def update(self, logits_XV: Tensor, first: int) -> None:
        """Takes in a tile whose first column is id `first`."""
        tokens, columns = logits_XV.shape
        if not tokens:
            return
        picks = self.ids_XC.shape[1]
        _reduce[(tokens,)](
            logits_XV,
            self.max_X,
            self.sum_X,
            self.weighted_X,
            self.ids_XC,
            self.picked_XC,
            columns,
            logits_XV.stride(0),
            first,
            picks,
            self.coldness,
            BLOCK_V=_block(columns, COLUMNS),
            BLOCK_C=power_of_two(picks, least=1),
            num_warps=8,
        )
        if self.best is not None:
            top = self.best.shape[1]
            _rank[(tokens,)](
                logits_XV,
                self.best,
                columns,
                logits_XV.stride(0),
                first,
                self.coldness,
                BLOCK_V=max(_block(columns, RANKED_COLUMNS), top),
                TOP=top,
                ABSENT=ABSENT,
                LAST_ID=LAST_ID,
                num_warps=4,
            )

    def logsumexp(self) -> Tensor:
        """[X], after the last tile."""
        return self.max_X + self.sum_X.log()

    def entropy(self) -> Tensor:
        """[X] in nats, after the last tile."""
        return self.sum_X.log() - self.weighted_X / self.sum_X

    def ranked(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` best (ids, logits / temperature), best first; of equal logits the lower id."""
        assert self.best is not None
        entry = self.best[:, :count]
        ordered = (entry >> 32).to(torch.int32)
        bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
        return LAST_ID - (entry & LAST_ID), bits.view(torch.float32)


def add_overlap(
    logits_XV: Tensor,
    other_logits_XV: Tensor,
    logsumexp_X: Tensor,
    other_logsumexp_X: Tensor,
    alpha_X: Tensor,
    temperature: float,
) -> None:
    """Adds the sum of min(p, q) over a tile to `alpha_X`."""
    tokens, columns = logits_XV.shape
    if tokens:
        _overlap[(tokens,)](
            logits_XV,
            other_logits_XV,
            logsumexp_X,
            other_logsumexp_X,
            alpha_X,
            columns,
            logits_XV.stride(0),
            1.0 / temperature,
            BLOCK_V=_block(columns, COLUMNS),
            num_warps=8,
        )


def grad_tile(
    logits_XV: Tensor,
    first: int,
    token_X: Tensor,
    logsumexp_X: Tensor,
    entropy_X: Tensor,
    grad_logprobs_X: Tensor,
    grad_entropy_X: Tensor,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """Gradient of a tile of hidden @ head.T in `dtype`; in the tile's own memory if that is fp32."""
    tokens, columns = logits_XV.shape
    grad_XV = logits_XV if dtype == torch.float32 else torch.empty_like(logits_XV, dtype=dtype)
    if tokens:
        block = _block(columns, COLUMNS)
        _differentiate[(tokens, triton.cdiv(columns, block))](
            logits_XV,
            grad_XV,
            token_X,
            logsumexp_X,
            entropy_X,
            grad_logprobs_X,
            grad_entropy_X,
            columns,
            logits_XV.stride(0),
            first,
            1.0 / temperature,
            BLOCK_V=block,
            num_warps=8,
        )
    return grad_XV
