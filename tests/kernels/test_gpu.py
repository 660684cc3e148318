"""The Triton kernels on a CUDA device in bf16, through the public functions, against fp32 or fp64 references."""

import pytest
import torch
from torch import Tensor

from sparrow.kernels import get_page_score, page_landmarks, page_scores, paged_attention, select_pages
from sparrow.kernels.page_landmarks import reference as landmarks_reference
from sparrow.kernels.page_scores import reference as scores_reference
from sparrow.kernels.paged_attention import reference as attention_reference
from sparrow.kernels.select_pages import reference as select_reference

pytestmark = pytest.mark.gpu

SHAPES = [
    (8, 2, 128),
    (3, 3, 64),
    (2, 1, 80),
    (1, 4, 96),
    (2, 5, 128),
    (1, 6, 64),
    (1, 7, 24),
    (1, 8, 256),
    (1, 16, 128),
]
"""KV heads, group, head size."""


def relative_rms(got: Tensor, want: Tensor) -> float:
    return float(((got.double() - want.double()).square().mean() / want.double().square().mean()).sqrt())


def poisoned_cache(
    lengths: list[int], kv_heads: int, head_size: int, page_size: int, name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Keys, values, landmarks, page table and lengths; every sequence is written by one call as a prompt."""
    score = get_page_score(name)
    width = max(-(-t // page_size) for t in lengths) + 1
    pool = len(lengths) * width
    keys = torch.full((pool, kv_heads, page_size, head_size), torch.nan, dtype=torch.bfloat16, device="cuda")
    values = keys.clone()
    landmarks = keys.new_full((pool, kv_heads, score.width, head_size), torch.nan)
    table = torch.randperm(pool, device="cuda").view(len(lengths), width)
    for b, t in enumerate(lengths):
        position = torch.arange(t, device="cuda")
        page, offset = table[b][position // page_size], position % page_size
        key, value = torch.randn(2, t, kv_heads, head_size, device="cuda").bfloat16().unbind()
        page_landmarks(key, value, keys, values, landmarks, page, offset, score)
        table[b, -(-t // page_size) :] = 2**31 - 1
    return keys, values, landmarks, table.int(), torch.tensor(lengths, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("name", ["mean", "minmax", "random"])
@pytest.mark.parametrize("tokens", [1, 37, 256, 257, 1000])
def test_page_landmarks(name: str, tokens: int) -> None:
    score = get_page_score(name)
    shape = (80, 3, 16, 64)
    got = [torch.full(shape, torch.nan, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    got.append(got[0].new_full((80, 3, score.width, 64), torch.nan))
    want = [x.clone() for x in got]
    slots = torch.randperm(80 * 16, device="cuda")
    for part in (slots[:tokens], slots[tokens:]):
        key, value = torch.randn(2, len(part), 3, 64, device="cuda").bfloat16().unbind()
        page_landmarks(key, value, *got, part // 16, part % 16, score)
        landmarks_reference.page_landmarks(key, value, *want, part // 16, part % 16, score)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    # fp32 sums in another order may round to the neighbouring bf16.
    torch.testing.assert_close(got[2], want[2], rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("name", ["mean", "minmax"])
@pytest.mark.parametrize(("kv_heads", "group", "head_size"), SHAPES)
def test_page_scores(name: str, kv_heads: int, group: int, head_size: int) -> None:
    _, _, landmarks, table, cached = poisoned_cache([0, 15, 16, 1000, 4001], kv_heads, head_size, 16, name)
    query = torch.randn(5, kv_heads * group, head_size, device="cuda").bfloat16()
    arguments = (query, landmarks, table, cached, get_page_score(name))
    got, want = (f(*arguments, page_size=16) for f in (page_scores, scores_reference.page_scores))
    live = want > -torch.inf
    assert torch.equal(got > -torch.inf, live)
    assert relative_rms(got[live], want[live]) < 1e-5


@pytest.mark.parametrize("pages", [1, 5, 64, 157, 1000, 2375, 4096, 10000])
@pytest.mark.parametrize("rounded", [False, True], ids=["fp32", "ties"])
def test_select_pages(pages: int, rounded: bool) -> None:
    scores = torch.randn(6, 8, pages, device="cuda")
    scores = scores.round() if rounded else scores
    cached = torch.tensor([pages * 16, pages * 16 - 15, pages * 8, 0, 1, pages * 16], device="cuda")
    budget = torch.tensor([29, 253, 0, 3, 3, max(0, pages - 4)], device="cuda")
    options = {"page_size": 16, "first": 1, "last": 2, "max_pages": max(256, pages)}
    got, want = (f(scores, cached, budget, **options) for f in (select_pages, select_reference.select_pages))
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[0], want[0])


@pytest.mark.parametrize("page_size", [4, 16, 128])
@pytest.mark.parametrize(("kv_heads", "group", "head_size"), SHAPES)
def test_paged_attention(kv_heads: int, group: int, head_size: int, page_size: int) -> None:
    lengths = [0, 1, page_size, page_size + 1, 255, 257, 3001]
    keys, values, landmarks, table, cached = poisoned_cache(lengths, kv_heads, head_size, page_size, "mean")
    query = torch.randn(len(lengths), kv_heads * group, head_size, device="cuda").bfloat16()
    scores = page_scores(query, landmarks, table, cached, get_page_score("mean"), page_size=page_size)
    budget = torch.full((len(lengths),), 9, device="cuda")
    chosen = select_pages(scores, cached, budget, page_size=page_size, first=1, last=2, max_pages=12)
    for pages, count in ((None, None), chosen):
        arguments = (table, pages, count, cached, head_size**-0.5)
        got = paged_attention(query, keys, values, *arguments)
        want = attention_reference.paged_attention(query.double(), keys.double(), values.double(), *arguments)
        assert got.dtype == torch.bfloat16
        assert (got[0] == 0).all()
        assert relative_rms(got, want) < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_paged_attention_in_other_dtypes(dtype: torch.dtype) -> None:
    keys, values, _, table, cached = poisoned_cache([1, 300, 2000], 2, 128, 16, "mean")
    query = torch.randn(3, 4, 128, device="cuda", dtype=dtype)
    arguments = (table, None, None, cached, 128**-0.5)
    got = paged_attention(query, keys.to(dtype), values.to(dtype), *arguments)
    want = attention_reference.paged_attention(query.double(), keys.double(), values.double(), *arguments)
    assert relative_rms(got, want) < (1e-5 if dtype == torch.float32 else 1e-3)


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    lengths = [3000, 17, 0, 900, 256] * 8
    keys, values, _, table, cached = poisoned_cache(lengths, 8, 128, 16, "mean")
    query = torch.randn(len(lengths), 16, 128, device="cuda").bfloat16()
    batch = paged_attention(query, keys, values, table, None, None, cached, 0.1)
    for b in range(5):
        row = slice(b, b + 1)
        own = table[row, : max(1, -(-lengths[b] // 16))].contiguous()
        assert torch.equal(paged_attention(query[row], keys, values, own, None, None, cached[row], 0.1)[0], batch[b])


def test_a_decode_step_can_be_captured_in_a_graph() -> None:
    """No operator reads a value on the host: a captured step gives the bits of an eager one on new inputs."""
    score = get_page_score("mean")
    keys, values, landmarks, table, cached = poisoned_cache([1000, 500], 2, 128, 16, "mean")
    query, key, value = (torch.randn(2, n, 128, device="cuda").bfloat16() for n in (4, 2, 2))
    budget = torch.tensor([29, 29], device="cuda")

    def step() -> Tensor:
        position = cached.long() - 1
        page = table.long().gather(1, (position // 16).unsqueeze(1)).squeeze(1)
        page_landmarks(key, value, keys, values, landmarks, page, position % 16, score)
        scores = page_scores(query, landmarks, table, cached, score, page_size=16)
        chosen = select_pages(scores, cached, budget, page_size=16, first=1, last=2, max_pages=32)
        return paged_attention(query, keys, values, table, *chosen, cached, 0.1)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    query.copy_(torch.randn(2, 4, 128, device="cuda"))
    budget.fill_(5)
    graph.replay()
    assert torch.equal(out, step())
