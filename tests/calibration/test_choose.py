"""The choice on made-up grids: least, monotone, bin by bin, with the next smaller budget refused."""

import pytest

from sparrow.calibration.choose import choose_bin_by_bin, propose_from_constants
from sparrow.evaluation.intervals import Estimate
from sparrow.schedule import ALL_PAGES

GRID = [2, 4, 8]
LOW = {
    0: {2: 0.90, 4: 0.95, 8: 0.99, ALL_PAGES: 1.0},
    1: {2: 0.70, 4: 0.80, 8: 0.90, ALL_PAGES: 1.0},
    2: {2: 0.95, 4: 0.95, 8: 0.95, ALL_PAGES: 1.0},
    3: {2: 0.10, 4: 0.20, 8: 0.30, ALL_PAGES: 0.9},
}


def reader(table, filled=range(10), seen=None):
    def read(path):
        if seen is not None:
            seen.append(path)
        index = len(path) - 1
        low = table.get(index, {}).get(path[-1])
        return Estimate(low + 0.02, low, low + 0.04) if index in filled and low is not None else None

    return read


def test_least_budget_per_bin_never_falling():
    seen = []
    choice = choose_bin_by_bin(reader(LOW, seen=seen), GRID, 5, 0.85)
    assert choice.pages == (2, 8, 8, ALL_PAGES)
    assert choice.holds
    # Bin 2 alone would do with 2 pages; monotony starts it at 8. Each candidate continues the choices before it.
    assert seen == [
        (2,), (2, 2), (2, 4), (2, 8), (2, 8, 8), (2, 8, 8, 8), (2, 8, 8, ALL_PAGES), (2, 8, 8, ALL_PAGES, ALL_PAGES),
    ]  # fmt: skip
    assert choice.refused(0) is None
    assert choice.refused(1).pages == 4
    assert choice.refused(1).low == 0.80
    assert choice.refused(2) is None
    assert choice.refused(3).pages == 8
    assert choice.taken(1).low == 0.90


def test_the_lower_end_decides_not_the_value():
    assert choose_bin_by_bin(reader(LOW), GRID, 1, 0.91).pages == (4,)  # 2 pages read .92 with a lower end of .90


def test_what_not_even_all_pages_hold_is_said():
    choice = choose_bin_by_bin(reader(LOW), GRID, 4, 0.93)
    assert choice.pages == (4, ALL_PAGES, ALL_PAGES, ALL_PAGES)
    assert not choice.holds
    assert choice.taken(3).holds is False
    assert (choice.refused(1).pages, choice.refused(1).holds) == (8, False)


def test_bins_before_the_first_filled_one_take_its_budget():
    seen = []
    choice = choose_bin_by_bin(reader(LOW, filled=[1, 2], seen=seen), GRID, 4, 0.75)
    assert choice.pages == (4, 4, 4)
    assert choice.first_filled == 1
    assert seen[:3] == [(2,), (2, 2), (4, 4)]
    assert choice.holds


def test_no_filled_bin_is_an_error():
    with pytest.raises(ValueError, match="no bin is filled"):
        choose_bin_by_bin(reader(LOW, filled=[]), GRID, 3, 0.8)


def test_proposal_from_constant_budgets():
    constants = {pages: [Estimate(LOW[index][pages], LOW[index][pages], 1.0) for index in range(4)] for pages in GRID}
    assert propose_from_constants(constants, 0.85, 4) == (2, 8, 8, ALL_PAGES)
    constants[2][1] = constants[4][1] = constants[8][1] = None
    assert propose_from_constants(constants, 0.94, 3) == (4, 4, 4)
    constants[2][0] = constants[4][0] = constants[8][0] = None
    assert propose_from_constants(constants, 0.955, 4) == (ALL_PAGES,) * 4  # bin 2 reads .95 with 8 pages
    assert propose_from_constants(constants, 0.94, 3) == (2, 2, 2)
