from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparrow.kernels import get_page_score
from sparrow.kernels.paged_attention import gpu, reference

MEAN = get_page_score("mean")


def random_lists(cache, page_size: int, keep: float, spare: int = 0) -> tuple[Tensor, Tensor]:
    """Ascending lists with the last page in them; unlisted entries point nowhere."""
    width, kv_heads = cache.page_table_BN.shape[1], cache.key_pages.shape[1]
    chosen = torch.rand(len(cache.cached_B), kv_heads, width) < keep
    live = (cache.cached_B + page_size - 1) // page_size
    page = torch.arange(width)
    chosen = (chosen | (page == live.view(-1, 1, 1) - 1)) & (page < live.view(-1, 1, 1))
    ascending = torch.where(chosen, page, 2**31 - 1).sort(dim=-1).values
    return torch.nn.functional.pad(ascending, (0, spare), value=-1).int(), chosen.sum(dim=-1).int()


def compare(query: Tensor, cache, pages: Tensor | None, count: Tensor | None, scale: float) -> Tensor:
    got = gpu.paged_attention(
        query, cache.key_pages, cache.value_pages, cache.page_table_BN, pages, count, cache.cached_B, scale
    )
    if pages is not None and count is not None:
        pages = torch.where(torch.arange(pages.shape[-1]) < count.unsqueeze(-1), pages, 0)
    exact = [x.double() for x in (query, cache.key_pages, cache.value_pages)]
    want = reference.paged_attention(*exact, cache.page_table_BN, pages, count, cache.cached_B, scale)
    # Logits reach 12, so fp32 knows a weight to about 1e-6.
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-5)
    return got


@pytest.mark.parametrize(
    ("page_size", "kv_heads", "group", "head_size"),
    [
        (1, 1, 2, 16),
        (3, 2, 1, 16),
        (4, 1, 4, 80),
        (4, 2, 7, 24),
        (16, 1, 2, 128),
        (16, 3, 3, 64),
        (16, 1, 5, 96),
        (16, 1, 6, 128),
        (16, 1, 8, 64),
        (128, 1, 2, 64),
    ],
)
def test_matches_the_reference(make_cache: Callable, page_size: int, kv_heads: int, group: int, head_size: int) -> None:
    cache = make_cache(
        [0, 1, page_size - 1, page_size, page_size + 1, 3 * page_size + 2], kv_heads, head_size, page_size, MEAN
    )
    query = torch.randn(len(cache.keys), kv_heads * group, head_size) * 3
    assert (compare(query, cache, None, None, head_size**-0.5)[0] == 0).all()
    assert (compare(query, cache, *random_lists(cache, page_size, 0.5), head_size**-0.5)[0] == 0).all()


@pytest.mark.parametrize(("group", "head_size"), [(16, 128), (32, 64), (1, 256), (3, 1), (17, 20)])
def test_large_groups_and_heads(make_cache: Callable, group: int, head_size: int) -> None:
    cache = make_cache([37, 300], 1, head_size, 16, MEAN)
    query = torch.randn(2, group, head_size)
    compare(query, cache, None, None, 0.3)


@pytest.mark.parametrize("page_size", [3, 16])
def test_many_splits(make_cache: Callable, page_size: int) -> None:
    # 256 tokens to a split: none, one, just one, just more than one, and more than the combining kernel takes at once.
    cache = make_cache([0, 5, 255, 256, 257, 4700], 1, 16, page_size, MEAN)
    query = torch.randn(6, 2, 16) * 2
    out = compare(query, cache, None, None, 0.5)
    assert (out[0] == 0).all()
    compare(query, cache, *random_lists(cache, page_size, 0.7), 0.5)


def test_the_bits_depend_on_the_list_alone(make_cache: Callable) -> None:
    cache = make_cache([700, 5, 0, 300], 2, 32, 4, MEAN)
    query = torch.randn(4, 6, 32)
    pages, count = random_lists(cache, 4, 0.6)

    def attend(rows: slice, pages: Tensor | None, count: Tensor | None) -> Tensor:
        return gpu.paged_attention(
            query[rows],
            cache.key_pages,
            cache.value_pages,
            cache.page_table_BN[rows],
            None if pages is None else pages[rows],
            None if count is None else count[rows],
            cache.cached_B[rows],
            0.2,
        )

    batch = attend(slice(0, 4), pages, count)
    for b in range(4):
        # Alone, and with a list of just its own length: a single split then takes another way out.
        own = pages[..., : max(1, int(count[b].max()))]
        assert torch.equal(attend(slice(b, b + 1), own, count)[0], batch[b])
    wide = torch.nn.functional.pad(pages, (0, 900), value=-1)
    assert torch.equal(attend(slice(0, 4), wide, count), batch)

    identity, all_pages = reference.every_page(cache.cached_B, 2, cache.page_table_BN.shape[1], 4)
    dense = attend(slice(0, 4), None, None)
    assert torch.equal(attend(slice(0, 4), identity, all_pages), dense)
    padded = torch.nn.functional.pad(identity, (0, 77), value=-1)
    assert torch.equal(attend(slice(0, 4), padded, all_pages), dense)


def test_an_impossible_list_gives_nan(make_cache: Callable) -> None:
    cache = make_cache([20, 20, 0], 1, 16, 4, MEAN)
    pages = torch.arange(4).expand(3, 1, 4).int()
    for spare in (0, 300):
        wide = torch.nn.functional.pad(pages, (0, spare), value=-1)
        count = torch.tensor([[-1], [4], [-1]]).int()
        out = gpu.paged_attention(
            torch.randn(3, 2, 16),
            cache.key_pages,
            cache.value_pages,
            cache.page_table_BN,
            wide,
            count,
            cache.cached_B,
            1.0,
        )
        assert out[0].isnan().all()
        assert out[1].isfinite().all()
        assert (out[2] == 0).all()


def test_large_logits_do_not_overflow(make_cache: Callable) -> None:
    cache = make_cache([600], 1, 16, 4, MEAN)
    query = torch.randn(1, 2, 16) * 1e4
    got = gpu.paged_attention(
        query, cache.key_pages, cache.value_pages, cache.page_table_BN, None, None, cache.cached_B, 1.0
    )
    # The softmax is an argmax here.
    logits = torch.einsum("hd,td->ht", query[0], cache.keys[0][:, 0])
    torch.testing.assert_close(got[0], cache.values[0][logits.argmax(dim=1), 0])


@pytest.mark.parametrize("pages", [10, 100])
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the NaN that this test is about
def test_nan_in_a_live_key_is_not_hidden(make_cache: Callable, pages: int) -> None:
    cache = make_cache([pages * 4], 1, 16, 4, MEAN)
    cache.key_pages[cache.page_table_BN[0, 3].item(), 0, 1, 5] = torch.nan
    out = gpu.paged_attention(
        torch.randn(1, 1, 16), cache.key_pages, cache.value_pages, cache.page_table_BN, None, None, cache.cached_B, 1.0
    )
    assert out.isnan().all()


def test_the_query_may_be_a_slice_of_a_fused_projection(make_cache: Callable) -> None:
    cache = make_cache([40, 20], 2, 16, 4, MEAN)
    fused = torch.randn(2, 8, 16)
    compare(fused[:, 2:6], cache, None, None, 0.25)
    compare(torch.randn(2, 16, 4).mT, cache, None, None, 0.25)


def test_errors_name_the_value_and_what_is_served() -> None:
    def attend(
        heads: int = 2, head_size: int = 16, page_size: int = 4, dtype: torch.dtype = torch.float32, step: int = 1
    ) -> None:
        query = torch.zeros(1, heads, head_size)
        pages = torch.zeros(1, 1, page_size * step, head_size, dtype=dtype)[:, :, ::step]
        table = torch.zeros(1, 1, dtype=torch.int32)
        gpu.paged_attention(query, pages, pages, table, None, None, torch.ones(1, dtype=torch.int32), 1.0)

    with pytest.raises(ValueError, match="query heads per KV head is 33, the Triton kernel serves 1 to 32"):
        attend(heads=33)
    with pytest.raises(ValueError, match="paged_attention: head size is 257, the Triton kernel serves 1 to 256"):
        attend(head_size=257)
    with pytest.raises(ValueError, match="paged_attention: page size is 512, the Triton kernel serves 1 to 256"):
        attend(page_size=512)
    with pytest.raises(TypeError, match=r"key_pages has dtype torch\.bfloat16, the Triton kernel serves that of the q"):
        attend(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"key_pages has strides .*, the Triton kernel serves contiguous pools only"):
        attend(step=2)
