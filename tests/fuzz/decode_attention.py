"""`decode_attention`: the bits of the three operators one after the other, and the values of the references in fp64.

On a GPU it is those three operators, so there is no Triton path of its own.
"""

import random
from dataclasses import dataclass
from typing import Any

import torch

from sparrow.kernels import decode_attention, get_page_score, page_scores, paged_attention, select_pages
from sparrow.kernels.paged_attention import reference
from tests.fuzz.caches import fill, hold, page_table, poisoned, relative_rms


@dataclass(frozen=True)
class Case:
    seed: int
    score: str
    kv_heads: int
    group: int
    head_size: int
    page_size: int
    lengths: tuple[int, ...]
    budgets: tuple[int, ...]
    first: int
    last: int
    spare: int
    """Columns of the page table, and entries of the list, beyond the longest."""
    long_numbers: bool
    """Lengths and budgets in int64 instead of int32."""
    threads: int
    sliced: bool
    """The query is a slice of a fused projection."""


def draw(random: random.Random) -> Case:
    page_size = random.choice([1, 3, 4, 4, 16, 16, 32])
    most = page_size * random.choice([1, 3, 10, 70])
    first, last = random.choice([(1, 2), (1, 2), (0, 0), (0, 1), (2, 0), (3, 5)])
    lengths, budgets = [], []
    for _ in range(random.randint(1, 3)):
        length = random.choice([0, 1, page_size, random.randint(0, most)])
        around = max(0, -(-length // page_size) - first - last + random.choice([-2, -1, 0, 1]))
        lengths.append(length)
        budgets.append(random.choice([0, 1, 5, around, 2**30]))
    return Case(
        seed=random.getrandbits(32),
        score=random.choice(["mean", "mean", "minmax", "streaming"]),
        kv_heads=random.choice([1, 1, 2, 3]),
        group=random.choice([1, 2, 3, 4, 5, 7, 8]),
        head_size=random.choice([1, 7, 16, 32, 64, 64, 80, 128]),
        page_size=page_size,
        lengths=tuple(lengths),
        budgets=tuple(budgets),
        first=first,
        last=last,
        spare=random.choice([0, 0, 1, 40]),
        long_numbers=random.random() < 0.3,
        threads=random.choice([1, 2, 3]),
        sliced=random.random() < 0.3,
    )


def check(case: Case) -> dict[str, float]:
    torch.manual_seed(case.seed)
    score, scale = get_page_score(case.score), case.head_size**-0.5
    table, pool = page_table(list(case.lengths), case.page_size, case.spare)
    keys, values = (poisoned(pool, case.kv_heads, case.page_size, case.head_size) for _ in range(2))
    landmarks = poisoned(pool, case.kv_heads, score.width, case.head_size)
    fill([keys, values], table, list(case.lengths))
    for b, t in enumerate(case.lengths):
        full = table[b, : t // case.page_size].long()
        landmarks[full] = torch.randn(len(full), case.kv_heads, score.width, case.head_size)
    heads = case.kv_heads * case.group
    query = torch.randn(len(case.lengths), 2 * heads, case.head_size)[:, heads:]
    if not case.sliced:
        query = query.contiguous()
    dtype = torch.int64 if case.long_numbers else torch.int32
    cached, budget = torch.tensor(case.lengths, dtype=dtype), torch.tensor(case.budgets, dtype=dtype)
    listed = [
        min(-(-t // case.page_size), pages + case.first + case.last) for t, pages in zip(case.lengths, case.budgets)
    ]
    choice: dict[str, Any] = {"first": case.first, "last": case.last, "max_pages": max(listed) + case.spare}
    before = torch.get_num_threads()
    torch.set_num_threads(case.threads)
    try:
        got, pages, count = decode_attention(
            query, keys, values, landmarks, table, cached, budget, score, scale=scale, **choice
        )
    finally:
        torch.set_num_threads(before)
    scores = page_scores(query, landmarks, table, cached, score, page_size=case.page_size)
    want_pages, want_count = select_pages(scores, cached, budget, page_size=case.page_size, **choice)
    assert torch.equal(count, want_count), f"counts {count.tolist()}, expected {want_count.tolist()}"
    assert torch.equal(pages, want_pages), "other pages"
    steps = paged_attention(query, keys, values, table, want_pages, want_count, cached, scale)
    assert torch.equal(got, steps), "other bits than the three operators"
    exact = [x.double() for x in (query, keys, values)]
    want = reference.paged_attention(*exact, table, want_pages, want_count, cached, scale)
    return hold({"cpu": relative_rms(got, want)}, 2e-6)
