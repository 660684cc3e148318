"""`select_pages`: lists and counts must be equal to the last entry, whatever the scores."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparrow.kernels import select_pages
from sparrow.kernels.select_pages import gpu, reference

FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "bf16": lambda x: x.bfloat16().float(),
    "constant": lambda x: torch.full_like(x, 0.37),
    "zeros": lambda x: torch.where(x > 0, 0.0, -0.0),
    "few": lambda x: x.round(),
    "ramp": lambda x: torch.arange(float(x.shape[-1])).expand_as(x).contiguous(),
    "falling": lambda x: -torch.arange(float(x.shape[-1])).expand_as(x).contiguous(),
    "nan": lambda x: torch.where(x > 0.5, torch.nan, x),
    "infinite": lambda x: torch.where(x > 1, torch.inf, torch.where(x < -1, -torch.inf, x)),
    "denormal": lambda x: x * 1e-43,
    "huge": lambda x: x * 1e38,
    "neighbours": lambda x: 1.0 + (x * 4).round() * 2**-23,
}
"""Scores made from normal ones."""


@dataclass(frozen=True)
class Case:
    seed: int
    fill: str
    kv_heads: int
    num_pages: int
    page_size: int
    lengths: tuple[int, ...]
    budgets: tuple[int, ...]
    first: int
    last: int
    spare: int
    """Entries of the list beyond the longest."""
    long_numbers: bool
    """Lengths and budgets in int64 instead of int32."""


def draw(random: random.Random) -> Case:
    most = random.choice([1, 2, 3, 4, 5, 8, 30, 70, 70, 130, 300, 1000, 4096])
    num_pages = random.randint(max(1, most // 2), most)
    page_size = random.choice([1, 3, 4, 16, 16])
    first, last = random.choice([(1, 2), (1, 2), (0, 0), (0, 1), (2, 0), (3, 5)])
    lengths, budgets = [], []
    for _ in range(random.randint(1, 2)):
        pages = random.choice([num_pages, random.randint(0, num_pages)])
        lengths.append(max(0, pages * page_size - random.randrange(page_size)))
        around = max(0, pages - first - last + random.choice([-2, -1, 0, 1]))
        budgets.append(random.choice([0, 1, 29, around, random.randint(0, num_pages), 2**30]))
    return Case(
        seed=random.getrandbits(32),
        fill=random.choice(list(FILLS)),
        kv_heads=random.choice([1, 1, 2]),
        num_pages=num_pages,
        page_size=page_size,
        lengths=tuple(lengths),
        budgets=tuple(budgets),
        first=first,
        last=last,
        spare=random.choice([0, 0, 1, 300]),
        long_numbers=random.random() < 0.5,
    )


def check(case: Case) -> dict[str, float]:
    torch.manual_seed(case.seed)
    scores = FILLS[case.fill](torch.randn(len(case.lengths), case.kv_heads, case.num_pages))
    dtype = torch.int64 if case.long_numbers else torch.int32
    listed = [
        min(-(-t // case.page_size), budget + case.first + case.last) for t, budget in zip(case.lengths, case.budgets)
    ]
    arguments = (scores, torch.tensor(case.lengths, dtype=dtype), torch.tensor(case.budgets, dtype=dtype))
    options = {
        "page_size": case.page_size,
        "first": case.first,
        "last": case.last,
        "max_pages": max(listed) + case.spare,
    }
    want_pages, want_count = reference.select_pages(*arguments, **options)
    for path, select in {"cpu": select_pages, "triton": gpu.select_pages}.items():
        pages, count = select(*arguments, **options)
        assert torch.equal(count, want_count), f"{path}: counts {count.tolist()}, expected {want_count.tolist()}"
        assert torch.equal(pages, want_pages), f"{path}: other pages"
    return {"cpu": 0.0, "triton": 0.0}
