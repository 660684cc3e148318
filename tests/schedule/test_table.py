"""The device table gives what the schedule gives, at every length."""

import pytest
import torch

from sparrow.schedule import ALL_PAGES, MAX_BINS, BudgetSchedule, BudgetTable, published_schedule

SCHEDULES = {
    "published": published_schedule("qwen3-1.7b-0.86"),
    "tiny": BudgetSchedule([3, 4, 9, 2], page_size=4, bin_tokens=64),
    "odd": BudgetSchedule([1, 5, 2], page_size=7, bin_tokens=20),
    "wide": BudgetSchedule(list(range(MAX_BINS)), page_size=3, bin_tokens=10),
    "page-above-bin": BudgetSchedule([1, 2, 3, 4], page_size=100, bin_tokens=30),
    "dense": BudgetSchedule.dense(),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_length_matches_the_schedule(name: str) -> None:
    schedule = SCHEDULES[name]
    for dtype in (torch.int32, torch.int64):
        budget_B = BudgetTable(schedule).budget(torch.arange(5001, dtype=dtype))
        assert budget_B.dtype == torch.int32
        assert budget_B.tolist() == [schedule.pages(t) for t in range(5001)]


def test_dense_is_all_pages() -> None:
    assert BudgetTable(BudgetSchedule.dense()).budget(torch.tensor([0, 2**20])).tolist() == [ALL_PAGES, ALL_PAGES]


def test_load_takes_over_in_place() -> None:
    table = BudgetTable(BudgetSchedule([1, 2], bin_tokens=32))
    address = table._table_Q.data_ptr()
    table.load(BudgetSchedule([7, 8, 9], bin_tokens=64))
    assert table._table_Q.data_ptr() == address
    assert table.budget(torch.tensor([32, 64, 128, 9999])).tolist() == [7, 8, 9, 9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_size": 8}, "page_size=8 does not fit the running cache, laid out for 16"),
        ({"first": 0}, "first=0 does not fit the running cache, laid out for 1"),
        ({"last": 3}, "last=3 does not fit the running cache, laid out for 2"),
        ({"dense_layers": ()}, r"dense_layers=\(\) does not fit the running cache, laid out for \(0, 1\)"),
        ({"pages": [1] * (MAX_BINS + 1)}, "schedule has 65 bins: at most 64 are supported"),
    ],
)
def test_another_geometry_is_refused(change: dict[str, object], message: str) -> None:
    table = BudgetTable(BudgetSchedule([5]))
    with pytest.raises(ValueError, match=message):
        table.load(table.schedule.replace(**change))
    assert table.budget(torch.tensor([10])).tolist() == [5]
