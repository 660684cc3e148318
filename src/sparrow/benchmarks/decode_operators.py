"""The operators of one decode step, with what they are compared against, over a synthetic cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sparrow.benchmarks.operator import NO_COUNTERPART, Operator
from sparrow.benchmarks.timing import InTurn
from sparrow.benchmarks.traffic import DecodeShape
from sparrow.kernels import decode_attention, get_page_score, page_landmarks, page_scores, paged_attention, select_pages
from sparrow.kernels.cache_memory import cache_zeros
from sparrow.kernels.page_landmarks.reference import page_landmarks as reference_page_landmarks
from sparrow.kernels.page_scores.reference import page_scores as reference_page_scores
from sparrow.kernels.paged_attention.reference import paged_attention as reference_paged_attention
from sparrow.kernels.select_pages.reference import select_pages as reference_select_pages

FIRST, LAST = 1, 2
"""Reserved pages."""

Lists = tuple[Tensor, Tensor]


@dataclass
class DecodeInputs:
    """A cache of B sequences of T tokens with random keys and values, its pages scattered over the pool.

    Args:
        shape: sizes.
        device: where everything lives.
        dtype: of cache and queries.
        seed: of all random numbers.
    """

    shape: DecodeShape
    device: torch.device
    dtype: torch.dtype
    seed: int
    query_BHD: Tensor = field(init=False)
    key_BKTD: Tensor = field(init=False)
    value_BKTD: Tensor = field(init=False)
    page_table_BN: Tensor = field(init=False)
    cached_B: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = self.shape
        self.score = get_page_score("mean")
        self._generator = torch.Generator(self.device).manual_seed(self.seed)
        self.query_BHD = self._random(shape.batch, shape.heads, shape.head_dim)
        sizes = (shape.batch, shape.kv_heads, shape.tokens, shape.head_dim)
        # On the same kind of memory as the pages, so that a comparison is of the operators alone.
        rows = [cache_zeros(sizes, self.dtype, self.device) for _ in range(2)]
        self.key_BKTD, self.value_BKTD = (x.normal_(generator=self._generator) for x in rows)
        pool = shape.batch * shape.num_pages
        order = torch.randperm(pool, generator=self._generator, device=self.device)
        self.page_table_BN = order.view(shape.batch, shape.num_pages).int()
        self.cached_B = torch.full((shape.batch,), shape.tokens, dtype=torch.int32, device=self.device)
        pages = (pool, shape.kv_heads, shape.page_size, shape.head_dim)
        self.key_pages = cache_zeros(pages, self.dtype, self.device)
        self.value_pages = cache_zeros(pages, self.dtype, self.device)
        self.landmarks = cache_zeros((pool, shape.kv_heads, 1, shape.head_dim), self.dtype, self.device)
        self.fill(page_landmarks)
        self.append_key_BKD = self.key_BKTD[:, :, 0].contiguous()
        self.append_page_B = self.page_table_BN[:, max(0, shape.num_pages - 2)].long()

    def _random(self, *sizes: int) -> Tensor:
        return torch.randn(sizes, generator=self._generator, device=self.device, dtype=self.dtype)

    @property
    def scale(self) -> float:
        """What multiplies q . k."""
        return float(self.shape.head_dim**-0.5)

    @cached_property
    def rows_XKD(self) -> Lists:
        """Keys and values of all tokens as rows."""
        return tuple(x.transpose(1, 2).flatten(0, 1).contiguous() for x in (self.key_BKTD, self.value_BKTD))  # type: ignore[return-value]

    def fill(self, write: Callable[..., None]) -> None:
        """Write the whole cache with an implementation of ``page_landmarks``."""
        position_T = torch.arange(self.shape.tokens, device=self.device)
        page_X = self.page_table_BN[:, position_T // self.shape.page_size].long().flatten()
        offset_X = (position_T % self.shape.page_size).repeat(self.shape.batch)
        write(*self.rows_XKD, self.key_pages, self.value_pages, self.landmarks, page_X, offset_X, self.score)

    def append(self, write: Callable[..., None]) -> None:
        """Write the last token of a page again, which makes its landmark, in each sequence."""
        row = self.append_key_BKD
        offset_B = torch.full_like(self.append_page_B, self.shape.page_size - 1)
        pages = (self.key_pages, self.value_pages, self.landmarks)
        write(row, row, *pages, self.append_page_B, offset_B, self.score)

    def scores(self, score_pages: Callable[..., Tensor]) -> Tensor:
        """Scores of all pages, [B, K, N]."""
        cache = (self.landmarks, self.page_table_BN, self.cached_B)
        return score_pages(self.query_BHD, *cache, self.score, page_size=self.shape.page_size)

    def select(self, choose: Callable[..., Lists], scores_BKN: Tensor, pages: int) -> Lists:
        """Lists of the ``pages`` pages to read, reserved ones included."""
        budget_B = torch.full((self.shape.batch,), pages - FIRST - LAST, dtype=torch.int32, device=self.device)
        size = self.shape.page_size
        return choose(scores_BKN, self.cached_B, budget_B, page_size=size, first=FIRST, last=LAST, max_pages=pages)

    def attend(self, attention: Callable[..., Tensor], lists: Lists | None) -> Tensor:
        """Attention to the listed pages, or to all."""
        pages_BKS, count_BK = lists or (None, None)
        cache = (self.key_pages, self.value_pages, self.page_table_BN)
        return attention(self.query_BHD, *cache, pages_BKS, count_BK, self.cached_B, self.scale)

    def step(self, pages: int) -> Tensor:
        """Scores, choice and attention, as a sparse layer runs them."""
        budget_B = torch.full((self.shape.batch,), pages - FIRST - LAST, dtype=torch.int32, device=self.device)
        cache = (self.key_pages, self.value_pages, self.landmarks, self.page_table_BN, self.cached_B)
        choice = {"first": FIRST, "last": LAST, "max_pages": pages, "scale": self.scale}
        return decode_attention(self.query_BHD, *cache, budget_B, self.score, **choice)[0]  # type: ignore[arg-type]

    def reference_step(self, pages: int) -> Tensor:
        """The same in plain torch."""
        scores_BKN = self.scores(reference_page_scores)
        return self.attend(reference_paged_attention, self.select(reference_select_pages, scores_BKN, pages))

    def sdpa(self) -> Tensor:
        """Torch's dense attention in its fastest layout: the G heads of a KV head as G queries, [B, K, G, D]."""
        query_BKGD = torch.unflatten(self.query_BHD, 1, (self.shape.kv_heads, -1))
        return scaled_dot_product_attention(query_BKGD, self.key_BKTD, self.value_BKTD, scale=self.scale)


def layered_operators(layers: Sequence[DecodeInputs], pages: list[int]) -> list[Operator]:
    """The operators of `decode_operators`, with torch's attention, on every layer's cache in turn.

    Writing the whole cache and the plain references stay with the first layer: what they take hardly depends on caches.
    """
    merged = []
    for first, *others in zip(*(decode_operators(inputs, pages) for inputs in layers), strict=True):
        if first.name.endswith("/fill"):
            merged.append(first)
            continue
        runs = InTurn((first.run, *(other.run for other in others)))
        sdpa = None if first.sdpa is None else InTurn((first.sdpa, *(other.sdpa for other in others if other.sdpa)))
        merged.append(replace(first, run=runs, sdpa=sdpa))
    return merged


def decode_operators(inputs: DecodeInputs, pages: list[int]) -> list[Operator]:
    """Every operator of a decode step, those with a budget once per entry of ``pages``."""
    shape = inputs.shape
    full = shape.batch * (shape.tokens // shape.page_size)
    operators = [
        Operator(
            "page_landmarks/append",
            partial(inputs.append, page_landmarks),
            shape.landmarks(shape.batch, shape.batch),
            partial(inputs.append, reference_page_landmarks),
            missing={"sdpa": NO_COUNTERPART},
        ),
        Operator(
            "page_landmarks/fill",
            partial(inputs.fill, page_landmarks),
            shape.landmarks(shape.batch * shape.tokens, full),
            partial(inputs.fill, reference_page_landmarks),
            missing={"sdpa": NO_COUNTERPART},
        ),
        Operator(
            "page_scores",
            partial(inputs.scores, page_scores),
            shape.scores(),
            partial(inputs.scores, reference_page_scores),
            missing={"sdpa": NO_COUNTERPART},
        ),
        Operator(
            "paged_attention/dense",
            partial(inputs.attend, paged_attention, None),
            shape.attention(shape.num_pages),
            partial(inputs.attend, reference_paged_attention, None),
            inputs.sdpa,
        ),
    ]
    return operators + [operator for count in pages for operator in _with_budget(inputs, count)]


def _with_budget(inputs: DecodeInputs, pages: int) -> list[Operator]:
    shape = inputs.shape
    scores_BKN = inputs.scores(page_scores)
    lists = inputs.select(select_pages, scores_BKN, pages)
    return [
        Operator(
            f"select_pages/{pages}",
            partial(inputs.select, select_pages, scores_BKN, pages),
            shape.selection(pages),
            partial(inputs.select, reference_select_pages, scores_BKN, pages),
            missing={"sdpa": NO_COUNTERPART},
        ),
        Operator(
            f"paged_attention/{pages}",
            partial(inputs.attend, paged_attention, lists),
            shape.attention(pages),
            partial(inputs.attend, reference_paged_attention, lists),
            inputs.sdpa,
        ),
        Operator(
            f"sparse_step/{pages}",
            partial(inputs.step, pages),
            shape.sparse_step(pages),
            partial(inputs.reference_step, pages),
            inputs.sdpa,
        ),
    ]
