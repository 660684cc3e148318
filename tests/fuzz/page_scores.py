"""`page_scores`: random lengths and shapes; landmarks of pages that are not full are poisoned."""

import random
from dataclasses import dataclass

import torch

from sparrow.kernels import get_page_score, page_scores
from sparrow.kernels.page_scores import gpu, reference
from tests.fuzz.caches import hold, page_table, poisoned, relative_rms


@dataclass(frozen=True)
class Case:
    seed: int
    score: str
    kv_heads: int
    group: int
    head_size: int
    page_size: int
    lengths: tuple[int, ...]
    spare: int
    """Columns of the page table that no sequence needs."""
    long_lengths: bool
    """Lengths in int64 instead of int32."""
    sliced: bool
    """The query is a slice of a fused projection."""


def draw(random: random.Random) -> Case:
    page_size = random.choice([1, 3, 4, 4, 16, 16, 128])
    most = page_size * random.choice([1, 3, 10, 70, 150])
    lengths = [random.choice([0, 1, page_size, random.randint(0, most)]) for _ in range(random.randint(1, 3))]
    return Case(
        seed=random.getrandbits(32),
        score=random.choice(["mean", "mean", "minmax", "minmax", "random"]),
        kv_heads=random.choice([1, 1, 2, 3]),
        group=random.choice([1, 2, 3, 4, 5, 6, 7, 8, 16, 32]),
        head_size=random.choice([1, 7, 16, 24, 64, 80, 96, 128, 256]),
        page_size=page_size,
        lengths=tuple(lengths),
        spare=random.choice([0, 0, 1, 5, 80]),
        long_lengths=random.random() < 0.5,
        sliced=random.random() < 0.3,
    )


def check(case: Case) -> dict[str, float]:
    torch.manual_seed(case.seed)
    score = get_page_score(case.score)
    table, pool = page_table(list(case.lengths), case.page_size, case.spare)
    landmarks = poisoned(pool, case.kv_heads, score.width, case.head_size)
    for b, t in enumerate(case.lengths):
        full = table[b, : t // case.page_size].long()
        landmarks[full] = torch.randn(len(full), case.kv_heads, score.width, case.head_size)
    heads = case.kv_heads * case.group
    query = torch.randn(len(case.lengths), 2 * heads, case.head_size)[:, :heads]
    if not case.sliced:
        query = query.contiguous()
    cached = torch.tensor(case.lengths, dtype=torch.int64 if case.long_lengths else torch.int32)
    arguments = (query, landmarks, table, cached, score)
    want = reference.page_scores(*arguments, page_size=case.page_size)
    errors = {}
    for path, scores in {"cpu": page_scores, "triton": gpu.page_scores}.items():
        got = scores(*arguments, page_size=case.page_size)
        assert got.dtype == torch.float32
        assert torch.equal(got == -torch.inf, want == -torch.inf), f"{path}: other pages are masked"
        live = want != -torch.inf
        # A score is a sum of up to 2 * D products; its error is measured against their typical size, not against a sum
        # that may cancel to nothing.
        errors[path] = relative_rms(got[live], want[live]) if live.sum() >= 20 else _close(got[live], want[live])
    return hold(errors, 2e-6)


def _close(got: torch.Tensor, want: torch.Tensor) -> float:
    """For a handful of scores: the largest difference over 1 + the largest score."""
    return float((got - want).abs().max() / (1 + want.abs().max())) if len(want) else 0.0
