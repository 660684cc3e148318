"""A schedule as a change of another one."""

import doctest

import pytest

from sparrow.schedule import BudgetSchedule, derive, derive_schedule, published_schedule

BASE = BudgetSchedule(
    [8, 13, 96], page_size=4, bin_tokens=64, dense_layers=[0], tau=0.9, estimator="exact", provenance="test"
)


def test_scale_multiplies_the_table_and_keeps_the_rest():
    half = derive_schedule(BASE, {"scale": 0.5})
    assert half.table == (4, 6, 48)
    assert half == BASE.replace(pages=[4, 6, 48], provenance="test, pages x 0.5")
    assert derive_schedule(BASE, {"scale": 0}).table == (0, 0, 0)


def test_fields_replace_those_of_the_base():
    assert derive_schedule(BASE, {"pages": [1, 2], "last": 3}) == BASE.replace(pages=[1, 2], last=3)


def test_a_scale_of_null_leaves_room_for_pages():
    derived = derive_schedule(BudgetSchedule([8, 12]), {"scale": None, "pages": [3, 5]})
    assert derived.table == (3, 5)


def test_a_name_is_loaded():
    assert derive_schedule(BASE, "qwen3-1.7b-0.80") == published_schedule("qwen3-1.7b-0.80")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"scale": 0.5, "pages": [1]}, "scale or pages, not both"),
        ({"scale": -1}, "scale=-1: must be a number, 0 or more"),
        ({"scale": True}, "scale=True: must be a number"),
        ({"page": [1]}, "unknown field 'page'; did you mean 'pages'"),
        ("nowhere", "unknown schedule 'nowhere'"),
    ],
)
def test_what_is_wrong_is_named(spec, message):
    with pytest.raises(ValueError, match=message):
        derive_schedule(BASE, spec)


def test_the_example_is_true():
    assert doctest.testmod(derive).failed == 0
