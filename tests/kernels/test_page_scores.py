from collections.abc import Callable

import pytest
import torch

from sparrow.kernels import get_page_score, page_scores
from sparrow.kernels.page_scores import reference


def test_by_hand() -> None:
    # Two query heads share one KV head: their mean is (2, 1). Page 1 of the pool is full, page 0 half full.
    query = torch.tensor([[[1.0, 0.0], [3.0, 2.0]]])
    landmarks = torch.tensor([[[[9.0, 9.0]]], [[[5.0, -1.0]]]])
    table = torch.tensor([[1, 0, 77]], dtype=torch.int32)
    scores = page_scores(query, landmarks, table, torch.tensor([6]), get_page_score("mean"), page_size=4)
    assert scores.tolist() == [[[9.0, -torch.inf, -torch.inf]]]


@pytest.mark.parametrize("name", ["mean", "minmax"])
@pytest.mark.parametrize(
    ("kv_heads", "group", "head_size"), [(1, 1, 16), (2, 3, 32), (3, 3, 64), (2, 5, 80), (1, 8, 96)]
)
@pytest.mark.parametrize("page_size", [4, 16])
def test_matches_the_plain_loop(
    make_cache: Callable, name: str, kv_heads: int, group: int, head_size: int, page_size: int
) -> None:
    score = get_page_score(name)
    lengths = [0, 1, page_size - 1, page_size, page_size + 1, 7 * page_size + 3, 70 * page_size]
    cache = make_cache(lengths, kv_heads, head_size, page_size, score)
    query = torch.randn(len(lengths), kv_heads * group, head_size)
    arguments = (cache.landmarks, cache.page_table_BN, cache.cached_B, score)
    got = page_scores(query, *arguments, page_size=page_size)
    plain = reference.page_scores(query, *arguments, page_size=page_size)
    want = torch.full_like(got, -torch.inf)
    for b, t in enumerate(lengths):
        for n in range(t // page_size):
            keys = cache.keys[b][n * page_size : (n + 1) * page_size]
            for k in range(kv_heads):
                mean_query = query[b, k * group : (k + 1) * group].mean(0)
                if name == "mean":
                    want[b, k, n] = mean_query @ keys[:, k].mean(0)
                else:
                    corners = torch.stack((mean_query * keys[:, k].amin(0), mean_query * keys[:, k].amax(0)))
                    want[b, k, n] = corners.amax(0).sum()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pages", [1, 2, 3, 63, 64, 65, 300, 2500])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(make_cache: Callable, pages: int) -> None:
    score = get_page_score("mean")
    cache = make_cache([pages * 4 + 1, 5, 4 * pages], 2, 32, 4, score)
    query = torch.randn(3, 4, 32)
    batch = page_scores(query, cache.landmarks, cache.page_table_BN, cache.cached_B, score, page_size=4)
    for b in range(3):
        row = cache.row(b)
        alone = page_scores(query[b : b + 1], row.landmarks, row.page_table_BN, row.cached_B, score, page_size=4)
        assert torch.equal(batch[b], alone[0])


def test_a_score_without_a_fast_path_runs_by_its_own_formula(make_cache: Callable) -> None:
    score = get_page_score("random")
    cache = make_cache([9, 0], 2, 16, 4, score)
    scores = page_scores(
        torch.randn(2, 2, 16), cache.landmarks, cache.page_table_BN, cache.cached_B, score, page_size=4
    )
    assert (scores[0, :, :2] >= 0).all()
    assert (scores[0, :, 2:] == -torch.inf).all()
    assert (scores[1] == -torch.inf).all()


def test_bf16_landmarks_are_scored_in_fp32() -> None:
    # 256 + 1 is not a bf16 number: a sum in bf16 would lose the 1.
    landmarks = torch.tensor([[[[256.0, 1.0]]]], dtype=torch.bfloat16)
    table = torch.zeros(1, 1, dtype=torch.int32)
    query = torch.ones(1, 1, 2, dtype=torch.bfloat16)
    scores = page_scores(query, landmarks, table, torch.tensor([4]), get_page_score("mean"), page_size=4)
    assert scores.tolist() == [[[257.0]]]


def test_errors() -> None:
    landmarks, table = torch.zeros(1, 2, 1, 16), torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="3 query heads cannot be shared by 2 KV heads"):
        page_scores(torch.zeros(1, 3, 16), landmarks, table, torch.tensor([1]), get_page_score("mean"), page_size=4)
    with pytest.raises(ValueError, match=r"landmarks has shape \(1, 2, 1, 16\), expected \(any, any, 2, 16\)"):
        page_scores(torch.zeros(1, 4, 16), landmarks, table, torch.tensor([1]), get_page_score("minmax"), page_size=4)
