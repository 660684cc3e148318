"""The schedule at which a reading falls to a level, against a walk over all of them."""

import doctest
import random

import pytest

from sparrow.schedule import BudgetSchedule, search
from sparrow.schedule.search import fewer_pages, first_at_most

RICH = BudgetSchedule([8, 12, 40], page_size=4, bin_tokens=64, tau=0.9, estimator="exact", provenance="test")
POOR = RICH.replace(pages=[8, 10, 15])


def test_pages_are_taken_from_every_bin_down_to_the_poor_one() -> None:
    assert [fewer_pages(RICH, POOR, pages).table for pages in (0, 1, 2, 3, 25, 99)] == [
        (8, 12, 40),
        (8, 11, 39),
        (8, 10, 38),
        (8, 10, 37),
        (8, 10, 15),
        (8, 10, 15),
    ]
    less = fewer_pages(RICH, POOR, 3)
    assert (less.tau, less.estimator, less.provenance) == (None, None, "test, 3 pages less")
    assert (less.page_size, less.bin_tokens, less.dense_layers) == (4, 64, RICH.dense_layers)


def test_it_is_the_first_of_a_walk_wherever_the_reading_falls() -> None:
    draw = random.Random(0)
    for _ in range(50):
        readings = sorted((draw.random() for _ in range(26)), reverse=True)
        walked = next((index for index, value in enumerate(readings) if value <= 0.5), 25)
        read: list[int] = []

        def reading(schedule: BudgetSchedule, values: list[float] = readings, read: list[int] = read) -> float:
            read.append(40 - schedule.table[-1])
            return values[read[-1]]

        assert first_at_most(0.5, RICH, POOR, reading).table[-1] == 40 - walked
        assert len(read) <= 5  # bisection over 26 schedules


def test_the_ends_stand_where_the_level_lies_beyond_them() -> None:
    assert first_at_most(0.8, RICH, POOR, lambda _: 0.1).table == RICH.table
    assert first_at_most(0.8, RICH, POOR, lambda _: 0.9).table == POOR.table
    assert first_at_most(0.8, RICH, RICH, lambda _: 0.9).table == RICH.table


@pytest.mark.parametrize(
    ("poor", "message"),
    [
        (RICH.replace(page_size=8), "differs from the run's first schedule in more than its pages"),
        (RICH.replace(pages=[8, 12]), "differs from the run's first schedule in more than its pages"),
        (RICH.replace(pages=[9, 12, 15]), r"pages=\[9, 12, 15\]: must be at most \[8, 12, 40\]"),
    ],
)
def test_schedules_without_a_way_between_them_are_refused(poor: BudgetSchedule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        first_at_most(0.8, RICH, poor, lambda _: 0.5)


def test_doctests() -> None:
    assert doctest.testmod(search).attempted > 0
    assert doctest.testmod(search).failed == 0
