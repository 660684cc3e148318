"""Integer thresholds, clamps and errors of a schedule."""

import dataclasses

import pytest

from sparrow.schedule import ALL_PAGES, BudgetSchedule, schedule_from_dict


@pytest.mark.parametrize(
    ("page_size", "bin_tokens", "cached", "expected"),
    [
        (16, 2000, 0, 0),
        (16, 2000, 1, 0),
        (16, 2000, 1984, 0),  # 124 pages
        (16, 2000, 1985, 1),  # 125 pages = 2000 tokens
        (16, 2000, 2000, 1),
        (16, 2000, 2001, 1),
        (16, 2000, 3984, 1),  # 249 pages = 3984 tokens
        (16, 2000, 3985, 2),  # 250 pages
        (16, 2000, 10**6, 2),  # the last bin holds for all longer sequences
        (4, 64, 60, 0),
        (4, 64, 61, 1),  # 16 pages = 64 tokens
        (7, 20, 14, 0),  # 2 pages = 14 tokens
        (7, 20, 15, 1),  # 3 pages = 21 tokens
        (32, 2000, 1984, 0),  # 62 pages
        (32, 2000, 1985, 1),  # 63 pages = 2016 tokens
        (1, 2000, 1999, 0),
        (1, 2000, 2000, 1),
        (2000, 2000, 1, 1),  # one page fills the first bin
    ],
)
def test_bin_counts_whole_pages(page_size: int, bin_tokens: int, cached: int, expected: int) -> None:
    schedule = BudgetSchedule([5, 6, 7], page_size=page_size, bin_tokens=bin_tokens)
    assert schedule.bin_of(cached) == expected
    assert schedule.pages(cached) == 5 + expected


def test_total_adds_reserved_pages_up_to_what_there_is() -> None:
    schedule = BudgetSchedule([29, 253])
    assert schedule.reserved == 3
    assert schedule.total_pages(0) == 0
    assert schedule.total_pages(1) == 1
    assert schedule.total_pages(31 * 16 + 1) == 32
    assert schedule.total_pages(32 * 16) == 32
    assert schedule.total_pages(32 * 16 + 1) == 32  # 33 pages, one of them left out
    assert schedule.total_pages(1985) == 125  # 253 + 3 is more than there is
    assert schedule.total_pages(5000) == 256
    assert BudgetSchedule([0], first=0, last=1).total_pages(100) == 1


def test_num_pages_counts_the_partial_one() -> None:
    schedule = BudgetSchedule([1], page_size=4)
    assert [schedule.num_pages(t) for t in (0, 1, 3, 4, 5, 8, 9)] == [0, 1, 1, 1, 2, 2, 3]
    with pytest.raises(ValueError, match="cached_tokens=-1: must be 0 or more"):
        schedule.num_pages(-1)


def test_constant_and_dense() -> None:
    constant = BudgetSchedule.constant(8, page_size=4, dense_layers=())
    assert [constant.pages(t) for t in (0, 1, 10**6)] == [8, 8, 8]
    assert (constant.page_size, constant.dense_layers, constant.is_dense) == (4, (), False)
    dense = BudgetSchedule.dense(page_size=4, dense_layers=())
    assert dense.is_dense
    assert dense.pages(10**6) == ALL_PAGES
    assert dense.total_pages(10**6) == 250_000
    assert not BudgetSchedule([5, ALL_PAGES]).is_dense


def test_replace_and_dict() -> None:
    schedule = BudgetSchedule([1, 2], tau=0.9, estimator="exact", dense_layers=(3, 0, 3))
    assert schedule.dense_layers == (0, 3)
    assert schedule.num_bins == 2
    changed = schedule.replace(pages=[4], page_size=8)
    assert (changed.table, changed.page_size, changed.tau, changed.dense_layers) == ((4,), 8, 0.9, (0, 3))
    assert schedule.to_dict() == {
        "pages": [1, 2],
        "page_size": 16,
        "bin_tokens": 2000,
        "first": 1,
        "last": 2,
        "dense_layers": [0, 3],
        "tau": 0.9,
        "estimator": "exact",
        "provenance": None,
    }
    assert schedule_from_dict(schedule.to_dict()) == schedule
    assert BudgetSchedule.dense().to_dict()["pages"] == "all"
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.table = (9,)  # type: ignore[misc]


@pytest.mark.parametrize("pages", [[ALL_PAGES], [ALL_PAGES, ALL_PAGES], [3, ALL_PAGES], [0]])
def test_dictionary_keeps_every_table(pages: list[int]) -> None:
    schedule = BudgetSchedule(pages, provenance={"model": "tiny", "date": "2026-11-30"})
    assert schedule_from_dict(schedule.to_dict()) == schedule


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pages": []}, r"pages=\[\]: must be a non-empty list of whole numbers"),
        ({"pages": "29"}, r"pages='29': must be a non-empty list of whole numbers"),
        ({"pages": b"hi"}, r"pages=b'hi': must be a non-empty list of whole numbers"),
        ({"pages": [29, -1]}, r"pages\[1\]=-1: must be a whole number from 0 to 1073741824"),
        ({"pages": [29.0]}, r"pages\[0\]=29.0: must be a whole number"),
        ({"pages": [True]}, r"pages\[0\]=True: must be a whole number"),
        ({"pages": [ALL_PAGES + 1]}, r"pages\[0\]=1073741825: must be a whole number from 0 to 1073741824"),
        ({"page_size": 0}, r"page_size=0: must be a whole number from 1"),
        ({"page_size": "16"}, r"page_size='16': must be a whole number from 1"),
        ({"bin_tokens": 0}, r"bin_tokens=0: must be a whole number from 1"),
        ({"first": -1}, r"first=-1: must be a whole number from 0"),
        ({"last": 0}, r"last=0: must be a whole number from 1"),
        ({"dense_layers": [0, -2]}, r"dense_layers\[1\]=-2: must be a whole number from 0"),
        ({"dense_layers": 2}, r"dense_layers=2: must be a list of whole numbers"),
        ({"tau": 1.5, "estimator": "exact"}, r"tau=1.5: must be a number above 0 and at most 1, or null"),
        ({"tau": 0, "estimator": "exact"}, r"tau=0: must be a number above 0"),
        ({"tau": float("nan"), "estimator": "exact"}, r"tau=nan: must be a number above 0"),
        ({"tau": "0.9", "estimator": "exact"}, r"tau='0.9': must be a number above 0"),
        ({"tau": 0.86}, r"estimator is missing beside tau=0.86: a tau belongs to one of exact, bounds, top20"),
        ({"tau": 0.86, "estimator": "top10"}, r"estimator='top10': must be one of exact, bounds, top20"),
    ],
)
def test_wrong_values_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        BudgetSchedule(**{"pages": [29], **fields})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^here: "):
        schedule_from_dict({"pages": [29], **fields}, where="here")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pages": [1], "page_sise": 4}, r"s: unknown field 'page_sise'; did you mean 'page_size'\? \(allowed: pages"),
        ({"pages": [1], 7: 4}, r"s: unknown field '7' \(allowed: pages, page_size, bin_tokens, first, last, dense_"),
        ({"page_size": 4}, r"s: field 'pages' is missing \(a list of page counts per bin, a number, or 'all'\)"),
        ({"pages": "every"}, r"s: pages='every': must be a list of page counts per bin, a number, or 'all'"),
        ({"pages": None}, r"s: pages\[0\]=None: must be a whole number from 0"),
        ({"pages": {"a": 1}}, r"s: pages\[0\]=\{'a': 1\}: must be a whole number from 0"),
    ],
)
def test_wrong_fields_are_named(fields: dict[object, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        schedule_from_dict(fields, where="s")  # type: ignore[arg-type]


def test_one_number_is_a_constant_budget() -> None:
    assert schedule_from_dict({"pages": 61, "page_size": 8}) == BudgetSchedule.constant(61, page_size=8)


def test_schedules_that_read_the_same_pages_need_not_be_equal() -> None:
    here = BudgetSchedule([3, 5], tau=0.9, estimator="exact", provenance="here")
    assert here.reads_as(BudgetSchedule([3, 5]))
    assert not here.reads_as(here.replace(pages=[3, 6]))
    assert not here.reads_as(here.replace(dense_layers=(0,)))
