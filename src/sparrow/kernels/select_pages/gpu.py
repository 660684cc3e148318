"""Triton path of `select_pages`: one program holds a row of scores in registers and never sorts.

Scores become int32 keys of the same order. The key of the last page that fits is found bit by bit: the largest t that
at least `budget` keys reach. One running sum then gives every chosen page its place, so the list comes out ascending,
and the pages that tie at t are taken from the lowest index on. Budgets and lengths stay on the device.

A row that cannot be listed (a negative budget, more pages than scores or list entries) cannot raise without stopping
the device: its count is -1 and its list empty, and `paged_attention` turns it into NaN.
"""

import torch
import triton.language as tl
from torch import Tensor

from sparrow.kernels.triton_tools import kernel, power_of_two, serve_device, serve_size

OPERATOR = "select_pages"
WARPS = {1024: 4, 2048: 4, 4096: 8, 8192: 16, 16384: 16}
"""Scores of a row, rounded up to a power of two, and the warps that hold them; 1024 and less take the first entry."""
LARGEST_ROW = max(WARPS)
PAD_BLOCK = 256


@kernel
def _keys(score: tl.tensor) -> tl.tensor:
    """int32 that order like the scores: both zeros are equal, NaN counts as -inf."""
    score = tl.where(score != score, float("-inf"), score)
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@kernel
def _cut(key: tl.tensor, candidate: tl.tensor, wanted: tl.tensor) -> tl.tensor:
    """The largest t found with at least `wanted` candidates >= t; the search ends early when just so many are."""
    threshold = tl.full((), -2147483648, tl.int32)
    count = wanted + 1
    bit = tl.full((), 31, tl.int32)
    while (bit >= 0) & (count != wanted):
        # Bit by bit from the sign down: 2 ** 31 added to the lowest int32 is 0.
        trial = tl.where(bit == 31, 0, threshold + (1 << tl.minimum(bit, 30)))
        reached = tl.sum((candidate & (key >= trial)).to(tl.int32), axis=0)
        enough = reached >= wanted
        threshold = tl.where(enough, trial, threshold)
        count = tl.where(enough, reached, count)
        bit -= 1
    return threshold


@kernel(runtime=("num_pages", "capacity", "first", "last"))
def _select(
    scores: tl.tensor,
    cached: tl.tensor,
    budget: tl.tensor,
    pages: tl.tensor,
    counts: tl.tensor,
    num_pages: tl.tensor,
    capacity: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    K: tl.constexpr,
    P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    """Fills the list of one sequence and KV head."""
    row = tl.program_id(0).to(tl.int64)
    b = row // K
    n = tl.arange(0, BLOCK_N)
    # A dense schedule asks for 2 ** 30 pages or more: no sum may leave int32.
    wanted = tl.minimum(tl.load(budget + b).to(tl.int64), BLOCK_N).to(tl.int32)
    live64 = (tl.load(cached + b).to(tl.int64) + P - 1) // P
    live = tl.minimum(live64, BLOCK_N).to(tl.int32)
    length = tl.minimum(live, wanted + first + last)
    refused = (wanted < 0) | (live64 > num_pages) | (length > capacity)
    live = tl.where(refused, 0, live)
    length = tl.where(refused, 0, length)

    everything = length == live
    score = tl.load(scores + row * num_pages + n, mask=n < live, other=float("-inf")).to(tl.float32)
    candidate = (n >= first) & (n < live - last) & (everything == 0)
    key = _keys(score)
    # A row that lists everything has nothing to search for: no candidate, and 0 wanted ends the search at once.
    wanted = tl.where(everything, 0, wanted)
    threshold = _cut(key, candidate, wanted)
    above = candidate & (key > threshold)
    tie = candidate & (key == threshold)
    ties = wanted - tl.sum(above.to(tl.int32), axis=0)
    sure = above | ((n < live) & (candidate == 0))

    # Two running sums in one: sure pages in the upper half of the word, tied ones in the lower.
    running = tl.cumsum((sure.to(tl.int32) << 16) + tie.to(tl.int32), axis=0)
    tied = running & 0xFFFF
    chosen = sure | (tie & (tied <= ties))
    place = (running >> 16) + tl.minimum(tied, ties) - 1
    out = pages + row * capacity
    tl.store(out + place, n, mask=chosen)
    tl.store(counts + row, tl.where(refused, -1, length))
    for start in range(0, capacity, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        tl.store(out + s, tl.full((BLOCK_S,), -1, tl.int32), mask=(s >= length) & (s < capacity))


def warps(block_n: int) -> int:
    """Warps for a row of `block_n` scores."""
    return WARPS[max(block_n, min(WARPS))]


def select_pages(
    scores_BKN: Tensor,
    cached_B: Tensor,
    budget_B: Tensor,
    *,
    page_size: int,
    first: int,
    last: int,
    max_pages: int,
) -> tuple[Tensor, Tensor]:
    """Launches one kernel over (sequence, KV head)."""
    batch, kv_heads, num_pages = scores_BKN.shape
    serve_device(OPERATOR, scores_BKN)
    if num_pages:
        serve_size(OPERATOR, "scores per row", num_pages, LARGEST_ROW)
    for name, reserved in (("first", first), ("last", last)):
        if reserved > LARGEST_ROW:
            raise ValueError(f"{OPERATOR}: {name} is {reserved}, the Triton kernel serves 0 to {LARGEST_ROW}")
    pages_BKS = torch.empty(batch, kv_heads, max_pages, dtype=torch.int32, device=scores_BKN.device)
    count_BK = torch.empty(batch, kv_heads, dtype=torch.int32, device=scores_BKN.device)
    if count_BK.numel() == 0:
        return pages_BKS, count_BK
    block_n = power_of_two(num_pages)
    _select[(batch * kv_heads,)](
        scores_BKN.contiguous(),
        cached_B.contiguous(),
        budget_B.contiguous(),
        pages_BKS,
        count_BK,
        num_pages,
        max_pages,
        first,
        last,
        K=kv_heads,
        P=page_size,
        BLOCK_N=block_n,
        BLOCK_S=PAD_BLOCK,
        num_warps=warps(block_n),
    )
    return pages_BKS, count_BK
