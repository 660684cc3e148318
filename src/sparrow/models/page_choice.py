"""Which pages the sparse actor read: decode's choice, made again for every response position of whole sequences.

The query at index j sees t = j + 1 cached tokens, and chooses among their pages by the schedule's budget at t. The
choice runs through the very operators of decode, row for row: scores, ties and rounding of landmarks are the same.
"""

from bisect import bisect_right
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from sparrow.kernels import PageScore, page_scores, select_pages
from sparrow.kernels.page_bits import WORD_BITS, num_words, pack_lists
from sparrow.kernels.page_score import LinearScore
from sparrow.schedule import BudgetSchedule, BudgetTable

CHOICE_BYTES = 2**26
"""About the most temporary memory of one piece of the page choice, in bytes."""


@dataclass(frozen=True)
class SparsePass:
    """What the sparse attention of one forward needs to know.

    Attributes:
        schedule: page budget by length, reserved pages, dense layers.
        score: how pages are ranked.
        prompt_len_B: [B] integer tokens of each prompt.
        length_B: [B] integer tokens of prompt and response.
        page_sets: layer -> chosen_BKTM to read instead of choosing (a replay).
        record: a dict that receives layer -> chosen_BKTM, the sets that were read.

    Raises:
        ValueError: lengths whose shape or values do not fit.
    """

    schedule: BudgetSchedule
    score: PageScore
    prompt_len_B: Tensor
    length_B: Tensor
    page_sets: MutableMapping[int, Tensor] | None = None
    record: MutableMapping[int, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.prompt_len_B.ndim != 1 or self.prompt_len_B.shape != self.length_B.shape:
            shapes = f"{tuple(self.prompt_len_B.shape)} and {tuple(self.length_B.shape)}"
            raise ValueError(f"prompt_len_B and length_B have shapes {shapes}: must be [B] both")

    def is_dense(self, layer: int) -> bool:
        """Whether the layer reads every page at every position."""
        return self.schedule.is_dense or layer in self.schedule.dense_layers

    @cached_property
    def rows(self) -> "SparseRows":
        """The positions that choose; the same in every layer, so worked out once per pass."""
        return sparse_rows(self.schedule, self.prompt_len_B, self.length_B)


@dataclass(frozen=True)
class SparseRows:
    """Response positions whose sequence has more pages than they may read, by ascending position.

    Attributes:
        batch_X: int64 [X], on the device, as all tensors here.
        position_X: int64 [X].
        cached_X: int32 [X] tokens seen, position + 1.
        budget_X: int32 [X] scored pages to read.
        num_pages: pages seen, per row (on the host).
        capacity: pages read, per row (on the host).
        longest: largest length of a sequence.
    """

    batch_X: Tensor
    position_X: Tensor
    cached_X: Tensor
    budget_X: Tensor
    num_pages: list[int]
    capacity: list[int]
    longest: int


def sparse_rows(schedule: BudgetSchedule, prompt_len_B: Tensor, length_B: Tensor) -> SparseRows:
    """List the positions at which a page choice is made. Waits for the device once.

    Raises:
        ValueError: a prompt longer than its sequence, or a negative length.
    """
    prompt_B, end_B = prompt_len_B.cpu(), length_B.cpu()
    for row, (prompt_len, length) in enumerate(zip(prompt_B.tolist(), end_B.tolist(), strict=True)):
        if not 0 <= prompt_len <= length:
            raise ValueError(f"row {row}: prompt_len={prompt_len}, length={length}: must be 0 <= prompt_len <= length")
    longest = max(end_B.tolist(), default=0)
    cached_T = torch.arange(1, longest + 1, dtype=torch.int32)
    pages_T = (cached_T + (schedule.page_size - 1)) // schedule.page_size
    budget_T = BudgetTable(schedule).budget(cached_T)
    total_T = budget_T + schedule.reserved
    choosing_TB = (total_T < pages_T).unsqueeze(1) & (cached_T.unsqueeze(1) > prompt_B)
    index_X, batch_X = (choosing_TB & (cached_T.unsqueeze(1) <= end_B)).nonzero(as_tuple=True)
    device = length_B.device
    return SparseRows(
        batch_X=batch_X.to(device),
        position_X=index_X.to(device),
        cached_X=cached_T[index_X].to(device),
        budget_X=budget_T[index_X].to(device),
        num_pages=pages_T[index_X].tolist(),
        capacity=total_T[index_X].tolist(),
        longest=longest,
    )


@torch.no_grad()
def choose_pages(query_BHTD: Tensor, key_BKTD: Tensor, sparse_pass: SparsePass) -> Tensor:
    """The pages that decode would read at every response position of one layer.

    Args:
        query_BHTD: [B, H, T, D] after q-norm and RoPE.
        key_BKTD: [B, K, T, D] after k-norm and RoPE.
        sparse_pass: schedule, score and lengths.

    Returns:
        chosen_BKTM, int32 [B, K, T, M] bit sets over ceil(T / P) pages; outside prompt_len <= t < length they hold
        every page up to the position's own, and are not read.

    Raises:
        ValueError: a sequence longer than T.
    """
    schedule, score, rows = sparse_pass.schedule, sparse_pass.score, sparse_pass.rows
    batch, kv_heads, length, _ = key_BKTD.shape
    if rows.longest > length or sparse_pass.length_B.shape[0] != batch:
        given = f"{sparse_pass.length_B.shape[0]} sequences of up to {rows.longest} tokens"
        raise ValueError(f"sparse_pass describes {given}, but the batch is {batch} x {length} tokens")
    chosen_BKTM = _every_page(length, schedule.page_size, key_BKTD.device).repeat(batch, kv_heads, 1, 1)
    landmarks, table_BN = _landmarks(key_BKTD, schedule.page_size, score)
    for piece, num_pages, capacity in _pieces(rows, _floats_per_page(key_BKTD, score)):
        batch_X, position_X, cached_X = rows.batch_X[piece], rows.position_X[piece], rows.cached_X[piece]
        query_XHD = query_BHTD[batch_X, :, position_X]
        table_XN = table_BN[batch_X, :num_pages]
        scores_XKN = page_scores(query_XHD, landmarks, table_XN, cached_X, score, page_size=schedule.page_size)
        pages_XKS, _ = select_pages(
            scores_XKN,
            cached_X,
            rows.budget_X[piece],
            page_size=schedule.page_size,
            first=schedule.first,
            last=schedule.last,
            max_pages=capacity,
        )
        chosen_BKTM[batch_X, :, position_X] = pack_lists(pages_XKS, table_BN.shape[1])
    return chosen_BKTM


def _landmarks(key_BKTD: Tensor, page_size: int, score: PageScore) -> tuple[Tensor, Tensor]:
    """Landmarks of all full pages as a pool [B * F, K, W, D], and the pool's page table [B, N], int32."""
    batch, kv_heads, length, head_size = key_BKTD.shape
    full = length // page_size
    paged_shape = (batch, kv_heads, full, page_size, head_size)
    key_BNKPD = key_BKTD[:, :, : full * page_size].reshape(paged_shape).transpose(1, 2)
    pool_XWD = score.landmarks(key_BNKPD.reshape(-1, page_size, head_size).float()).to(key_BKTD.dtype)
    # The entry of a partly filled last page is never followed; it only has to exist.
    page_N = torch.arange(-(-length // page_size), device=key_BKTD.device).clamp(max=max(full - 1, 0))
    table_BN = torch.arange(batch, device=key_BKTD.device).unsqueeze(1) * full + page_N
    return pool_XWD.view(batch * full, kv_heads, score.width, head_size), table_BN.int()


def _pieces(rows: SparseRows, floats_per_page: int) -> Iterator[tuple[slice, int, int]]:
    """Cut the rows so that a piece's temporaries stay within bounds: (rows, pages to score, capacity of the lists)."""
    pages, start = rows.num_pages, 0
    while start < len(pages):
        limit = CHOICE_BYTES // (4 * floats_per_page)
        cost = partial(_piece_cost, pages, start)  # ascending in the end of the piece, as pages are
        fitting = bisect_right(range(start + 1, len(pages) + 1), limit, key=cost)
        stop = start + max(fitting, 1)
        yield slice(start, stop), pages[stop - 1], max(rows.capacity[start:stop])
        start = stop


def _floats_per_page(key_BKTD: Tensor, score: PageScore) -> int:
    """Numbers held per row and page: scores, order and bits, and landmarks where no kernel reads them in place."""
    _, kv_heads, _, head_size = key_BKTD.shape
    in_place = isinstance(score, LinearScore) and (key_BKTD.is_cuda or key_BKTD.dtype == torch.float32)
    return kv_heads * (4 + (0 if in_place else score.width * head_size))


def _piece_cost(pages: list[int], start: int, stop: int) -> int:
    return (stop - start) * pages[stop - 1]


def _every_page(length: int, page_size: int, device: torch.device) -> Tensor:
    """Bit sets [T, M] of the pages 0 .. t // P at each position."""
    seen_T1 = torch.arange(length, device=device).unsqueeze(1) // page_size + 1
    words = num_words(-(-length // page_size))
    bits_TM = (seen_T1 - WORD_BITS * torch.arange(words, device=device)).clamp(0, WORD_BITS)
    unsigned_TM = (torch.ones_like(bits_TM) << bits_TM) - 1
    return torch.where(unsigned_TM < 2**31, unsigned_TM, unsigned_TM - 2**32).int()
