from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparrow.kernels.select_pages import gpu, reference


def check(
    scores: Tensor,
    cached: list[int],
    budget: list[int],
    *,
    first: int = 1,
    last: int = 2,
    page: int = 4,
    spare: int = 0,
) -> None:
    """The kernel's lists are those of the two stable sorts, to the last entry."""
    total = [min(-(-t // page), n + first + last) for t, n in zip(cached, budget)]
    options = {"page_size": page, "first": first, "last": last, "max_pages": max([1, *total]) + spare}
    arguments = (scores, torch.tensor(cached), torch.tensor(budget))
    got, want = gpu.select_pages(*arguments, **options), reference.select_pages(*arguments, **options)
    for x, y in zip(got, want):
        assert x.dtype == torch.int32
        assert torch.equal(x, y)


def test_by_hand() -> None:
    scores = torch.tensor([[[9.0, 1.0, 5.0, 7.0, 2.0, 5.0, 8.0, -torch.inf]]])
    pages, count = gpu.select_pages(
        scores, torch.tensor([29]), torch.tensor([2]), page_size=4, first=1, last=2, max_pages=7
    )
    assert pages.tolist() == [[[0, 2, 3, 6, 7, -1, -1]]]
    assert count.tolist() == [[5]]


@pytest.mark.parametrize("pages", [*range(1, 19), 31, 32, 33, 63, 64, 65, 157, 300, 1000, 1025, 2375, 4095, 4096])
def test_every_length(pages: int) -> None:
    cached = [pages * 4, pages * 4 - 3, pages * 4 - 3, 0, 1, max(0, pages - 3) * 4]
    budget = [max(0, pages - 4), max(0, pages - 3), max(0, pages - 2), 3, 3, min(29, pages)]
    check(torch.randn(6, 2, pages), cached, budget)


@pytest.mark.parametrize(
    "fill",
    [
        lambda n: torch.zeros(n),
        lambda n: torch.randint(0, 3, (n,)).float(),
        lambda n: torch.randint(-1, 2, (n,)).float() * 1e-3,
        lambda n: torch.arange(n).float(),
        lambda n: -torch.arange(n).float(),
        lambda n: torch.where(torch.arange(n) % 2 == 0, 0.0, -0.0),
        lambda n: torch.full((n,), torch.nan),
        lambda n: torch.where(torch.rand(n) < 0.5, torch.nan, torch.randn(n)),
        lambda n: torch.where(torch.rand(n) < 0.5, -torch.nan, torch.randn(n)),
        lambda n: torch.where(torch.rand(n) < 0.8, -torch.inf, torch.randn(n)),
        lambda n: torch.where(torch.rand(n) < 0.3, torch.inf, torch.randn(n) * 1e38),
        lambda n: torch.full((n,), torch.finfo(torch.float32).max),
        lambda n: torch.full((n,), -torch.finfo(torch.float32).max),
        lambda n: torch.randn(n) * 1e-44,
        lambda n: torch.randn(n).bfloat16().float(),
    ],
    ids=[
        "zeros",
        "ties",
        "signed-ties",
        "ramp",
        "falling",
        "signed-zeros",
        "nan",
        "some-nan",
        "negative-nan",
        "mostly-minus-inf",
        "inf",
        "largest",
        "lowest",
        "denormal",
        "bf16",
    ],
)
@pytest.mark.parametrize("pages", [5, 40, 300])
def test_ties_and_odd_values(fill: Callable[[int], Tensor], pages: int) -> None:
    rows = torch.stack([fill(pages) for _ in range(5)]).unsqueeze(1)
    check(rows, [pages * 4] * 5, [0, 1, pages // 2, pages - 4, pages - 3])


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (2, 0), (1, 2), (3, 5)])
def test_other_reserved_pages_and_room_to_spare(first: int, last: int) -> None:
    check(torch.randn(5, 3, 20), [80, 77, 12, 3, 0], [4, 0, 4, 4, 4], first=first, last=last, spare=300)


def test_scores_past_the_end_do_not_count() -> None:
    scores = torch.full((1, 1, 40), torch.inf)
    scores[..., :10] = torch.arange(10.0)
    check(scores, [40], [3])
    scores[..., 10:] = torch.nan
    check(scores, [40], [3])


def test_a_dense_budget_lists_everything() -> None:
    scores = torch.randn(2, 1, 9)
    for budget in (2**30, 2**31 - 1, 2**40):
        pages, count = gpu.select_pages(
            scores, torch.tensor([33, 8]), torch.tensor([budget] * 2), page_size=4, first=1, last=2, max_pages=9
        )
        assert pages.tolist() == [[list(range(9))], [[0, 1, *[-1] * 7]]]
        assert count.tolist() == [[9], [2]]


def test_a_row_that_cannot_be_listed_is_marked() -> None:
    scores, cached = torch.randn(4, 2, 10), torch.tensor([40, 40, 41, 8], dtype=torch.int32)
    budget = torch.tensor([3, -1, 1, 5], dtype=torch.int32)
    pages, count = gpu.select_pages(scores, cached, budget, page_size=4, first=1, last=2, max_pages=5)
    # Six pages for five entries; a negative budget; eleven pages with ten scores; all well.
    assert count.tolist() == [[-1, -1]] * 3 + [[2, 2]]
    assert pages.tolist() == [[[-1] * 5] * 2] * 3 + [[[0, 1, -1, -1, -1]] * 2]


def test_errors_name_the_value_and_what_is_served() -> None:
    cached = torch.tensor([4])
    with pytest.raises(ValueError, match="select_pages: scores per row is 16385, the Triton kernel serves 1 to 16384"):
        gpu.select_pages(torch.zeros(1, 1, 16385), cached, cached, page_size=4, first=1, last=2, max_pages=9)
