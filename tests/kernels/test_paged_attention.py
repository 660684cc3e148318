import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparrow.kernels import get_page_score, paged_attention
from sparrow.kernels.paged_attention import cpu, reference

MEAN = get_page_score("mean")


def by_loop(cache, query: Tensor, lists: list[list[list[int]]], page_size: int, scale: float) -> Tensor:
    """Token by token in float64."""
    batch, heads, head_size = query.shape
    kv_heads = cache.key_pages.shape[1]
    out = torch.zeros(batch, heads, head_size, dtype=torch.float64)
    for b, h in ((b, h) for b in range(batch) for h in range(heads)):
        k = h // (heads // kv_heads)
        tokens = [n * page_size + j for n in lists[b][k] for j in range(page_size)]
        tokens = [t for t in tokens if t < len(cache.keys[b])]
        if not tokens:
            continue
        logits = [float(query[b, h].double() @ cache.keys[b][t, k].double()) * scale for t in tokens]
        weights = [math.exp(x - max(logits)) for x in logits]
        for weight, t in zip(weights, tokens):
            out[b, h] += weight / sum(weights) * cache.values[b][t, k].double()
    return out


def random_lists(cache, page_size: int, keep: float) -> list[list[list[int]]]:
    kv_heads = cache.key_pages.shape[1]

    def one(t: int) -> list[int]:
        pages = -(-t // page_size)
        return [n for n in range(pages) if n >= pages - 1 or torch.rand(()) < keep]

    return [[one(len(keys)) for _ in range(kv_heads)] for keys in cache.keys]


def tensors(lists: list[list[list[int]]], width: int) -> tuple[Tensor, Tensor]:
    pages = [[row + [-1] * (width - len(row)) for row in sequence] for sequence in lists]
    count = [[len(row) for row in sequence] for sequence in lists]
    return torch.tensor(pages, dtype=torch.int32), torch.tensor(count, dtype=torch.int32)


def lengths_around(page_size: int) -> list[int]:
    return [0, 1, page_size - 1, page_size, page_size + 1, 3 * page_size + 2]


def test_by_hand() -> None:
    # Logits 0 and log 3: weights 1/4 and 3/4. The third slot of the page holds no token.
    keys = torch.tensor([[[[0.0], [math.log(3)], [torch.nan], [torch.nan]]]])
    values = torch.tensor([[[[4.0], [8.0], [torch.nan], [torch.nan]]]])
    table = torch.zeros(1, 1, dtype=torch.int32)
    for attend in (paged_attention, reference.paged_attention):
        out = attend(torch.ones(1, 1, 1), keys, values, table, None, None, torch.tensor([2]), 1.0)
        assert out.item() == pytest.approx(7.0, rel=1e-6)


@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
@pytest.mark.parametrize(
    ("kv_heads", "group", "head_size"),
    [(2, 1, 16), (1, 2, 32), (3, 3, 64), (1, 4, 80), (1, 5, 96), (1, 6, 128), (2, 7, 24), (1, 8, 64)],
)
def test_matches_the_loop(make_cache: Callable, page_size: int, kv_heads: int, group: int, head_size: int) -> None:
    cache = make_cache(lengths_around(page_size), kv_heads, head_size, page_size, MEAN)
    query = torch.randn(len(cache.keys), kv_heads * group, head_size) * 3
    scale = head_size**-0.5
    lists = random_lists(cache, page_size, keep=0.5)
    want = by_loop(cache, query, lists, page_size, scale)
    pages, count = tensors(lists, width=5)
    for attend in (paged_attention, reference.paged_attention):
        out = attend(
            query, cache.key_pages, cache.value_pages, cache.page_table_BN, pages, count, cache.cached_B, scale
        )
        # Logits reach 12, so fp32 knows a weight to about 1e-6.
        torch.testing.assert_close(out.double(), want, rtol=2e-5, atol=1e-5)
    assert (out[0] == 0).all()


@pytest.mark.parametrize("pages", [300, 2500])
def test_long_rows_match_the_reference(make_cache: Callable, pages: int) -> None:
    cache = make_cache([pages * 4 - 1, pages * 2], 2, 32, 4, MEAN)
    query = torch.randn(2, 4, 32)
    arguments = (cache.key_pages, cache.value_pages, cache.page_table_BN, None, None, cache.cached_B, 0.5)
    got, want = paged_attention(query, *arguments), reference.paged_attention(query, *arguments)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_dense_has_the_bits_of_the_identity_list(make_cache: Callable) -> None:
    cache = make_cache([0, 3, 16, 150, 161], 2, 64, 16, MEAN)
    query = torch.randn(5, 6, 64)
    caches = (cache.key_pages, cache.value_pages, cache.page_table_BN)
    dense = paged_attention(query, *caches, None, None, cache.cached_B, 0.125)
    # The capacity of the list does not matter either.
    pages, count = tensors([[list(range(-(-t // 16)))] * 2 for t in (0, 3, 16, 150, 161)], width=40)
    assert torch.equal(dense, paged_attention(query, *caches, pages, count, cache.cached_B, 0.125))


def test_a_row_has_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads(make_cache: Callable) -> None:
    cache = make_cache([700, 5, 0, 333, 64], 3, 64, 16, MEAN)
    query = torch.randn(5, 9, 64)
    lists = random_lists(cache, 16, keep=0.6)
    pages, count = tensors(lists, width=50)

    def attend(rows: slice) -> Tensor:
        return paged_attention(
            query[rows],
            cache.key_pages,
            cache.value_pages,
            cache.page_table_BN[rows],
            pages[rows],
            count[rows],
            cache.cached_B[rows],
            0.125,
        )

    batch = attend(slice(0, 5))
    for b in range(5):
        assert torch.equal(batch[b], attend(slice(b, b + 1))[0])
    assert torch.equal(batch.flip(0), torch.cat([attend(slice(b, b + 1)) for b in reversed(range(5))]))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(threads, 2))
        assert torch.equal(batch, attend(slice(0, 5)))
    finally:
        torch.set_num_threads(threads)


def test_large_logits_do_not_overflow(make_cache: Callable) -> None:
    cache = make_cache([200], 1, 16, 4, MEAN)
    query = torch.randn(1, 2, 16) * 1e4
    arguments = (cache.key_pages, cache.value_pages, cache.page_table_BN, None, None, cache.cached_B, 1.0)
    got = paged_attention(query, *arguments)
    # The softmax is an argmax here.
    logits = torch.einsum("hd,td->ht", query[0], cache.keys[0][:, 0])
    torch.testing.assert_close(got[0], cache.values[0][logits.argmax(dim=1), 0])


def test_nan_in_a_live_key_is_not_hidden(make_cache: Callable) -> None:
    cache = make_cache([40], 1, 16, 4, MEAN)
    cache.key_pages[cache.page_table_BN[0, 3].item(), 0, 1, 5] = torch.nan
    out = paged_attention(
        torch.randn(1, 1, 16),
        cache.key_pages,
        cache.value_pages,
        cache.page_table_BN,
        None,
        None,
        cache.cached_B,
        1.0,
    )
    assert out.isnan().all()


def test_bf16_takes_the_torch_path(make_cache: Callable) -> None:
    cache = make_cache([37, 0], 2, 32, 4, MEAN)
    query = torch.randn(2, 4, 32)
    half = [x.bfloat16() for x in (query, cache.key_pages, cache.value_pages)]
    out = paged_attention(*half, cache.page_table_BN, None, None, cache.cached_B, 0.2)
    assert out.dtype == torch.bfloat16
    want = paged_attention(*[x.float() for x in half], cache.page_table_BN, None, None, cache.cached_B, 0.2)
    torch.testing.assert_close(out, want.bfloat16(), rtol=2**-7, atol=1e-6)


def test_exp2_is_right_to_the_last_bits() -> None:
    for x in [0.0, -0.0, -1e-8, -0.49, -0.5, -0.51, -1.0, -3.7, -25.3, -99.99, -125.9]:
        assert cpu.exp2(torch.tensor(x).numpy()[()]) == pytest.approx(2.0 ** float(torch.tensor(x)), rel=2.5e-7)
    assert cpu.exp2(torch.tensor(-torch.inf).numpy()[()]) == 0
    assert math.isnan(cpu.exp2(torch.tensor(torch.nan).numpy()[()]))


def test_errors(make_cache: Callable) -> None:
    cache = make_cache([9], 2, 16, 4, MEAN)
    caches = (cache.key_pages, cache.value_pages, cache.page_table_BN)
    pages, _ = tensors([[[0], [0]]], width=1)
    with pytest.raises(ValueError, match="pages_BKS and count_BK belong together"):
        paged_attention(torch.zeros(1, 4, 16), *caches, pages, None, cache.cached_B, 1.0)
    with pytest.raises(ValueError, match="5 query heads cannot be shared by 2 KV heads"):
        paged_attention(torch.zeros(1, 5, 16), *caches, None, None, cache.cached_B, 1.0)
    with pytest.raises(ValueError, match=r"key_pages has shape .*, expected \(any, any, any, 8\)"):
        paged_attention(torch.zeros(1, 4, 8), *caches, None, None, cache.cached_B, 1.0)
