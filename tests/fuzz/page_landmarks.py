"""`page_landmarks`: several calls on poisoned pools, tokens in any order; rows exactly, landmarks to fp32 rounding."""

import random
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from sparrow.kernels import get_page_score, page_landmarks
from sparrow.kernels.page_landmarks import gpu, reference
from tests.fuzz.caches import hold, poisoned


@dataclass(frozen=True)
class Case:
    seed: int
    score: str
    kv_heads: int
    page_size: int
    head_size: int
    pool: int
    tokens: tuple[int, ...]
    """Tokens of each call."""
    skipped: int
    """Padded slots in each call."""
    in_order: bool
    sliced: bool
    """Keys and values are slices of a fused projection."""
    dense: bool
    """No landmarks."""
    fused_tokens: int


def draw(random: random.Random) -> Case:
    page_size = random.choice([1, 2, 3, 4, 4, 5, 8, 16, 16])
    pool = random.randint(1, 6)
    slots = min(pool * page_size, 20)
    tokens, calls = [], random.randint(1, 3)
    for _ in range(calls):
        tokens.append(random.randint(0, slots))
        slots -= tokens[-1]
    return Case(
        seed=random.getrandbits(32),
        score=random.choice(["mean", "mean", "minmax", "random"]),
        kv_heads=random.choice([1, 1, 1, 2, 3]),
        page_size=page_size,
        head_size=random.choice([1, 7, 16, 24, 64, 80, 96, 128]),
        pool=pool,
        tokens=tuple(tokens),
        skipped=random.choice([0, 0, 1, 3]),
        in_order=random.random() < 0.5,
        sliced=random.random() < 0.3,
        dense=random.random() < 0.1,
        fused_tokens=random.choice([0, 256, 256]),
    )


def check(case: Case) -> dict[str, float]:
    torch.manual_seed(case.seed)
    score = get_page_score(case.score)
    shape = (case.pool, case.kv_heads, case.page_size, case.head_size)
    paths = {"reference": reference.page_landmarks, "cpu": page_landmarks, "triton": gpu.page_landmarks}
    blank = (poisoned(*shape), poisoned(*shape), poisoned(case.pool, case.kv_heads, score.width, case.head_size))
    pools = {path: [x.clone() for x in blank] for path in paths}
    slots = torch.arange(case.pool * case.page_size) if case.in_order else torch.randperm(case.pool * case.page_size)
    for tokens in case.tokens:
        now, slots = slots[:tokens], slots[tokens:]
        call = _call(case, now)
        for path, write in paths.items():
            keys, values, landmarks = pools[path]
            with patch.object(gpu, "FUSED_TOKENS", case.fused_tokens):
                write(*call[:2], keys, values, None if case.dense else landmarks, *call[2:], score)
    want = pools["reference"]
    errors = {}
    for path in ("cpu", "triton"):
        got = pools[path]
        for name, x, y in zip(("key_pages", "value_pages"), got, want):
            assert torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)), f"{path}: {name} differ"
        assert torch.equal(got[2].isnan(), want[2].isnan()), f"{path}: landmarks of other pages"
        error = (got[2] - want[2]).nan_to_num(0.0).abs().max()
        errors[path] = float(error / want[2].nan_to_num(0.0).abs().max().clamp(min=1e-30))
    return hold(errors, 1e-6)


def _call(case: Case, slots: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Key, value, page and offset of one call."""
    slots = torch.cat((slots, torch.full((case.skipped,), -1)))
    if not case.in_order:
        slots = slots[torch.randperm(len(slots))]
    page = torch.where(slots < 0, -1, slots // case.page_size)
    fused = torch.randn(len(slots), 3 * case.kv_heads, case.head_size)
    key, value = fused[:, case.kv_heads : 2 * case.kv_heads], fused[:, 2 * case.kv_heads :]
    if not case.sliced:
        key, value = key.contiguous(), value.contiguous()
    return key, value, page, slots.clamp(min=0) % case.page_size
