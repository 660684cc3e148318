"""One decode step: the three operators one after the other, bit for bit, and their errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sparrow.kernels import decode_attention, get_page_score, page_scores, paged_attention, select_pages
from sparrow.kernels.page_scores import reference as scores_reference
from sparrow.kernels.paged_attention import reference as attention_reference
from sparrow.kernels.select_pages import reference as select_reference

LENGTHS = [0, 1, 4, 15, 16, 17, 47, 160, 333]
BUDGETS = [0, 2, 0, 1, 3, 0, 2, 5, 100]


def inputs(
    make_cache: Callable[..., Any], score: str, page_size: int, head_size: int, group: int = 3
) -> dict[str, Any]:
    cache = make_cache(LENGTHS, 2, head_size, page_size, get_page_score(score))
    return {
        "query_BHD": torch.randn(len(LENGTHS), 2 * group, head_size),
        "key_pages": cache.key_pages,
        "value_pages": cache.value_pages,
        "landmarks": cache.landmarks,
        "page_table_BN": cache.page_table_BN,
        "cached_B": cache.cached_B,
        "budget_B": torch.tensor(BUDGETS, dtype=torch.int32),
        "score": get_page_score(score),
        "first": 1,
        "last": 2,
        "max_pages": 103,
        "scale": head_size**-0.5,
    }


def one_by_one(
    query_BHD: Any, key_pages: Any, value_pages: Any, landmarks: Any, page_table_BN: Any, cached_B: Any, budget_B: Any,
    score: Any, scale: float, steps: tuple[Any, Any, Any] = (page_scores, select_pages, paged_attention), **choice: int,
) -> Any:  # fmt: skip
    page_size = key_pages.shape[2]
    scores_BKN = steps[0](query_BHD, landmarks, page_table_BN, cached_B, score, page_size=page_size)
    pages_BKS, count_BK = steps[1](scores_BKN, cached_B, budget_B, page_size=page_size, **choice)
    cache = (key_pages, value_pages, page_table_BN)
    return steps[2](query_BHD, *cache, pages_BKS, count_BK, cached_B, scale), pages_BKS, count_BK


@pytest.mark.parametrize("score", ["mean", "minmax", "streaming"])
@pytest.mark.parametrize(("page_size", "head_size"), [(4, 32), (16, 64), (5, 7)])
def test_the_bits_are_those_of_the_three_operators(
    make_cache: Callable[..., Any], score: str, page_size: int, head_size: int
) -> None:
    given = inputs(make_cache, score, page_size, head_size)
    for ours, theirs in zip(decode_attention(**given), one_by_one(**given), strict=True):
        assert torch.equal(ours, theirs)


def test_the_values_are_those_of_the_references(make_cache: Callable[..., Any]) -> None:
    given = inputs(make_cache, "mean", 4, 32)
    steps = (scores_reference.page_scores, select_reference.select_pages, attention_reference.paged_attention)
    ours, theirs = decode_attention(**given), one_by_one(**given, steps=steps)
    torch.testing.assert_close(ours[0], theirs[0], atol=2e-6, rtol=0)
    assert torch.equal(ours[1], theirs[1])
    assert torch.equal(ours[2], theirs[2])


def test_a_budget_beyond_an_int32_is_every_page(make_cache: Callable[..., Any]) -> None:
    given = inputs(make_cache, "mean", 4, 32)
    many = torch.tensor([2**32 + 1] * len(LENGTHS))
    assert torch.equal(decode_attention(**given | {"budget_B": many})[2], one_by_one(**given | {"budget_B": many})[2])
    assert decode_attention(**given | {"budget_B": many})[2][-1].tolist() == [84, 84]


@pytest.mark.parametrize("changes", [{"cached_B": torch.zeros(9)}, {"budget_B": torch.ones(9, dtype=torch.bool)}])
def test_counts_are_whole_numbers(make_cache: Callable[..., Any], changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"(cached|budget)_B has dtype .*, allowed: torch.int32, torch.int64"):
        decode_attention(**inputs(make_cache, "mean", 4, 32) | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget_B": torch.tensor([0, 0, -1, 0, 0, 0, 0, 0, 0])}, "row 2 has a budget of -1 pages"),
        ({"max_pages": 7}, "row 8 selects 84 pages, but max_pages is 7"),
        ({"cached_B": torch.tensor([0, 1, 4, 15, 16, 17, 47, 160, 400])}, "row 8 has 100 pages"),
        ({"first": -1}, "first is -1, must not be negative"),
        ({"key_pages": torch.zeros(3, 2, 4, 31)}, "key_pages"),
        ({"landmarks": torch.zeros(3, 2, 2, 32)}, "landmarks"),
    ],
)
def test_errors_are_those_of_the_three_operators(
    make_cache: Callable[..., Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decode_attention(**inputs(make_cache, "mean", 4, 32) | changes)
