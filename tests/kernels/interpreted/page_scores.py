from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparrow.kernels import get_page_score
from sparrow.kernels.page_score import LinearScore, MeanScore
from sparrow.kernels.page_scores import gpu, reference


class FirstHalfScore(LinearScore):
    """A linear score of one's own, with two landmarks."""

    name = "first-half"
    width = 2

    def landmarks(self, key_XPD: Tensor) -> Tensor:
        return torch.stack((key_XPD[:, 0], key_XPD.mean(dim=1)), dim=1)

    def weights(self, query_BKD: Tensor) -> Tensor:
        return torch.stack((query_BKD * 0.5, query_BKD.abs()), dim=2)


class NegatedScore(MeanScore):
    """Another class than its base: the kernel must not take it for the mean."""

    def weights(self, query_BKD: Tensor) -> Tensor:
        return -super().weights(query_BKD)


SCORES = [*(get_page_score(name) for name in ("mean", "minmax", "random")), FirstHalfScore(), NegatedScore()]


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name + type(score).__name__)
@pytest.mark.parametrize(
    ("kv_heads", "group", "head_size", "page_size"),
    [(1, 1, 16, 4), (2, 2, 128, 16), (3, 3, 64, 16), (1, 5, 80, 4), (2, 7, 96, 3), (1, 16, 24, 1), (1, 32, 256, 128)],
)
def test_matches_the_reference(
    make_cache: Callable, score, kv_heads: int, group: int, head_size: int, page_size: int
) -> None:
    lengths = [0, 1, page_size - 1, page_size, page_size + 1, 5 * page_size + 1]
    cache = make_cache(lengths, kv_heads, head_size, page_size, score)
    query = torch.randn(len(lengths), kv_heads * group, head_size)
    arguments = (query, cache.landmarks, cache.page_table_BN, cache.cached_B, score)
    got = gpu.page_scores(*arguments, page_size=page_size)
    want = reference.page_scores(*arguments, page_size=page_size)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pages", [1, 63, 64, 65, 200])
def test_any_number_of_pages(make_cache: Callable, pages: int) -> None:
    score = get_page_score("mean")
    cache = make_cache([pages * 2, 2 * (pages // 2) + 1], 2, 16, 2, score)
    arguments = (torch.randn(2, 4, 16), cache.landmarks, cache.page_table_BN, cache.cached_B, score)
    got = gpu.page_scores(*arguments, page_size=2)
    torch.testing.assert_close(got, reference.page_scores(*arguments, page_size=2), rtol=1e-5, atol=1e-5)
    assert (got[1, :, pages // 2 :] == -torch.inf).all()


def test_a_row_has_the_same_bits_alone_and_in_a_batch(make_cache: Callable) -> None:
    score = get_page_score("minmax")
    cache = make_cache([300, 7, 0, 64], 2, 24, 4, score)
    query = torch.randn(4, 6, 24)
    batch = gpu.page_scores(query, cache.landmarks, cache.page_table_BN, cache.cached_B, score, page_size=4)
    for b in range(4):
        row = cache.row(b)
        alone = gpu.page_scores(query[b : b + 1], row.landmarks, row.page_table_BN, row.cached_B, score, page_size=4)
        assert torch.equal(alone[0], batch[b])


def test_the_query_may_be_a_slice_of_a_fused_projection(make_cache: Callable) -> None:
    score = get_page_score("mean")
    cache = make_cache([40, 20], 2, 16, 4, score)
    fused = torch.randn(2, 8, 16)
    arguments = (cache.landmarks, cache.page_table_BN, cache.cached_B, score)
    got = gpu.page_scores(fused[:, 2:6], *arguments, page_size=4)
    assert torch.equal(got, gpu.page_scores(fused[:, 2:6].contiguous(), *arguments, page_size=4))


def test_errors_name_the_value_and_what_is_served() -> None:
    def scores(heads: int = 2, head_size: int = 16, dtype: torch.dtype = torch.float32) -> None:
        query = torch.zeros(1, heads, head_size)
        landmarks = torch.zeros(1, 1, 1, head_size, dtype=dtype)
        table, cached = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
        gpu.page_scores(query, landmarks, table, cached, get_page_score("mean"), page_size=4)

    with pytest.raises(
        ValueError, match="page_scores: query heads per KV head is 33, the Triton kernel serves 1 to 32"
    ):
        scores(heads=33)
    with pytest.raises(ValueError, match="page_scores: head size is 320, the Triton kernel serves 1 to 256"):
        scores(head_size=320)
    with pytest.raises(TypeError, match=r"page_scores: landmarks has dtype torch\.float64"):
        scores(dtype=torch.float64)
