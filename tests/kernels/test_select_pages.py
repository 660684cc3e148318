from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparrow.kernels import select_pages
from sparrow.kernels.select_pages import reference


def by_loop(scores: Tensor, cached: int, budget: int, page_size: int, first: int, last: int) -> list[int]:
    """The definition for one row: Python's sort is stable."""
    pages = -(-cached // page_size)
    if pages <= budget + first + last:
        return list(range(pages))
    values = [-torch.inf if x != x else x for x in scores.tolist()]
    candidates = sorted(range(first, pages - last), key=lambda n: -values[n])
    return sorted([*range(first), *candidates[:budget], *range(pages - last, pages)])


def check(
    scores: Tensor, cached: list[int], budget: list[int], *, first: int = 1, last: int = 2, page: int = 4
) -> None:
    wants = [
        [by_loop(scores[b, k], cached[b], budget[b], page, first, last) for k in range(scores.shape[1])]
        for b in range(len(cached))
    ]
    capacity = max([1, *(len(want) for row in wants for want in row)])
    for select in (select_pages, reference.select_pages):
        pages, count = select(
            scores,
            torch.tensor(cached),
            torch.tensor(budget),
            page_size=page,
            first=first,
            last=last,
            max_pages=capacity,
        )
        assert count.tolist() == [[len(want) for want in row] for row in wants]
        padded = [[want + [-1] * (capacity - len(want)) for want in row] for row in wants]
        assert pages.tolist() == padded


def test_by_hand() -> None:
    # 8 pages, 2 chosen besides 0, 6 and 7: pages 2 and 3 hold the best; 7 would be better but is reserved anyway.
    scores = torch.tensor([[[9.0, 1.0, 5.0, 7.0, 2.0, 5.0, 8.0, -torch.inf]]])
    pages, count = select_pages(
        scores, torch.tensor([29]), torch.tensor([2]), page_size=4, first=1, last=2, max_pages=6
    )
    assert pages.tolist() == [[[0, 2, 3, 6, 7, -1]]]
    assert count.tolist() == [[5]]
    assert pages.dtype == count.dtype == torch.int32


@pytest.mark.parametrize("pages", [*range(1, 41), 63, 64, 65, 157, 299, 300, 2500])
def test_matches_a_stable_sort_at_every_length(pages: int) -> None:
    cached = [pages * 4, pages * 4 - 3, pages * 4 - 3, 0, 1, max(0, pages - 3) * 4]
    budget = [max(0, pages - 4), max(0, pages - 3), max(0, pages - 2), 3, 3, min(29, pages)]
    check(torch.randn(6, 2, pages), cached, budget)


@pytest.mark.parametrize(
    "fill",
    [
        lambda n: torch.zeros(n),
        lambda n: torch.randint(0, 3, (n,)).float(),
        lambda n: torch.arange(n).float(),
        lambda n: -torch.arange(n).float(),
        lambda n: torch.where(torch.arange(n) % 2 == 0, 0.0, -0.0),
        lambda n: torch.full((n,), torch.nan),
        lambda n: torch.where(torch.rand(n) < 0.5, torch.nan, torch.randn(n)),
        lambda n: torch.where(torch.rand(n) < 0.8, -torch.inf, torch.randn(n)),
        lambda n: torch.where(torch.rand(n) < 0.3, torch.inf, torch.randn(n) * 1e38),
        lambda n: torch.randn(n) * 1e-44,
    ],
    ids=["zeros", "ties", "ramp", "falling", "signed-zeros", "nan", "some-nan", "mostly-minus-inf", "inf", "denormal"],
)
@pytest.mark.parametrize("pages", [5, 40, 300])
def test_ties_and_odd_values(fill: Callable[[int], Tensor], pages: int) -> None:
    rows = torch.stack([fill(pages) for _ in range(4)]).unsqueeze(1)
    check(rows, [pages * 4] * 4, [0, 1, pages // 2, pages - 4])


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (2, 0), (1, 2), (3, 5)])
def test_other_reserved_pages(first: int, last: int) -> None:
    check(torch.randn(5, 3, 20), [80, 77, 12, 3, 0], [4, 4, 4, 4, 4], first=first, last=last)


@given(st.data())
def test_matches_a_stable_sort_on_any_floats(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.floats(width=32), min_size=1, max_size=30))
    budget, first, last = (data.draw(st.integers(0, 12)) for _ in range(3))
    cached = data.draw(st.integers(0, 4 * len(values)))
    check(torch.tensor(values).view(1, 1, -1), [cached], [budget], first=first, last=last)


def test_dense_budget_lists_everything() -> None:
    pages, count = select_pages(
        torch.randn(1, 1, 9), torch.tensor([33]), torch.tensor([2**30]), page_size=4, first=1, last=2, max_pages=9
    )
    assert pages.tolist() == [[list(range(9))]]
    assert count.item() == 9


def test_errors_name_the_row() -> None:
    scores, cached = torch.randn(2, 1, 10), torch.tensor([8, 40])

    def select(cached: Tensor, budget: list[int], max_pages: int = 8) -> None:
        select_pages(scores, cached, torch.tensor(budget), page_size=4, first=1, last=2, max_pages=max_pages)

    with pytest.raises(ValueError, match="row 1 selects 6 pages, but max_pages is 5"):
        select(cached, [3, 3], 5)
    with pytest.raises(ValueError, match="row 1 has 11 pages, but scores_BKN has room for 10"):
        select(cached + 1, [3, 3])
    with pytest.raises(ValueError, match="row 0 has a budget of -1 pages"):
        select(cached, [-1, 3])
    with pytest.raises(TypeError, match=r"scores_BKN has dtype torch\.float64"):
        select_pages(scores.double(), cached, cached, page_size=4, first=1, last=2, max_pages=9)
