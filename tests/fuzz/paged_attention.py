"""`paged_attention`: against the reference in fp64; pools, tables and lists are poisoned where nothing may be read."""

import random
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from sparrow.kernels import paged_attention
from sparrow.kernels.paged_attention import gpu, reference
from tests.fuzz.caches import NOWHERE, fill, hold, page_table, poisoned, relative_rms


@dataclass(frozen=True)
class Case:
    seed: int
    kv_heads: int
    group: int
    head_size: int
    page_size: int
    lengths: tuple[int, ...]
    keep: float
    """Share of the pages that are listed; 1 lists all, 2 gives no list (dense)."""
    magnitude: float
    """Typical size of a logit."""
    spare: int
    """Columns of table and list beyond the longest."""
    split_tokens: int
    tile_tokens: int
    long_lengths: bool
    sliced: bool
    """The query is a slice of a fused projection."""


def draw(random: random.Random) -> Case:
    page_size = random.choice([1, 2, 3, 4, 4, 8, 16, 16, 16, 32, 128])
    most = random.choice([1, 20, 60, 150])
    around = [0, 1, page_size - 1, page_size, page_size + 1]
    lengths = [random.choice([*around, random.randint(0, most), most]) for _ in range(random.randint(1, 2))]
    group = random.choice([1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8, 16, 32])
    return Case(
        seed=random.getrandbits(32),
        kv_heads=random.choice([1, 1, 2]) if group < 8 else 1,
        group=group,
        head_size=random.choice([1, 7, 16, 24, 64, 64, 80, 96, 128, 128, 256]),
        page_size=page_size,
        lengths=tuple(lengths),
        keep=random.choice([0.0, 0.3, 0.7, 1.0, 2.0]),
        magnitude=random.choice([0.01, 1.0, 1.0, 10.0]),
        spare=random.choice([0, 0, 1, 40]),
        split_tokens=random.choice([32, 64, 256]),
        tile_tokens=random.choice([16, 32, 64, 64]),
        long_lengths=random.random() < 0.5,
        sliced=random.random() < 0.3,
    )


def check(case: Case) -> dict[str, float]:
    torch.manual_seed(case.seed)
    table, pool = page_table(list(case.lengths), case.page_size, case.spare)
    pools = [poisoned(pool, case.kv_heads, case.page_size, case.head_size) for _ in range(2)]
    fill(pools, table, list(case.lengths))
    heads = case.kv_heads * case.group
    query = torch.randn(len(case.lengths), 2 * heads, case.head_size)[:, heads:] * case.magnitude
    if not case.sliced:
        query = query.contiguous()
    cached = torch.tensor(case.lengths, dtype=torch.int64 if case.long_lengths else torch.int32)
    pages, count = (None, None) if case.keep > 1 else _lists(case, table.shape[1])
    scale = case.head_size**-0.5
    exact = [x.double() for x in (query, *pools)]
    want = reference.paged_attention(*exact, table, pages, count, cached, scale)
    tile = gpu.Tile(tokens=case.tile_tokens, warps=4, stages=1)
    errors = {}
    with patch.object(gpu, "SPLIT_TOKENS", case.split_tokens), patch.object(gpu, "tile", lambda *_: tile):
        for path, attend in {"cpu": paged_attention, "triton": gpu.paged_attention}.items():
            got = attend(query, *pools, table, pages, count, cached, scale)
            for b, t in enumerate(case.lengths):
                assert t or (got[b] == 0).all(), f"{path}: row {b} is empty but not zero"
            errors[path] = relative_rms(got, want)
    # A logit of size 10 is known to about 1e-6 in fp32, and so are the weights.
    return hold(errors, 1e-6 * (1 + case.magnitude))


def _lists(case: Case, width: int) -> tuple[Tensor, Tensor]:
    """Ascending lists, the last page always in them; entries past the count point nowhere."""
    live = torch.tensor([-(-t // case.page_size) for t in case.lengths]).view(-1, 1, 1)
    page = torch.arange(width)
    chosen = (torch.rand(len(case.lengths), case.kv_heads, width) < case.keep) | (page == live - 1)
    chosen &= page < live
    return torch.where(chosen, page, NOWHERE).sort(dim=-1).values.int(), chosen.sum(dim=-1).int()
