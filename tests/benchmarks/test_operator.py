"""What is told of one operator: ratios by hand, and reasons where there is none."""

import pytest

from sparrow.benchmarks.operator import COPY, NO_COUNTERPART, Operator, candidates, row
from sparrow.benchmarks.timing import Measured, Timing


def nothing() -> None:
    """Stands for a call."""


def test_row_by_hand() -> None:
    operator = Operator("paged_attention/32", nothing, 6_000_000_000, reference=nothing, sdpa=nothing)
    timings = {"paged_attention/32": (2.0, 1.0, 3.0), "paged_attention/32/reference": (8.0,), "sdpa": (5.0,)}
    measured = Measured({name: Timing(seconds) for name, seconds in timings.items()}, {})
    assert row(operator, measured, copy_rate=12e9) == {
        "operator": "paged_attention/32",
        "seconds": 2.0,
        "seconds_fastest": 1.0,
        "seconds_slowest": 3.0,
        "bytes_moved": 6_000_000_000,
        "gb_per_s": 3.0,
        "share_of_copy": 0.25,
        "reference_seconds": 8.0,
        "speed_over_reference": 4.0,
        "sdpa_seconds": 5.0,
        "speed_over_sdpa": 2.5,
        "not_measured": {},
    }


def test_what_was_not_measured_has_a_reason_and_no_number() -> None:
    operator = Operator("page_scores", nothing, 10, reference=nothing, missing={"sdpa": NO_COUNTERPART})
    measured = Measured(
        {"page_scores": Timing((1.0,)), "sdpa": Timing((1.0,))}, {"page_scores/reference": "out of memory: 7 TiB"}
    )
    found = row(operator, measured, copy_rate=1.0)
    assert found["speed_over_reference"] is found["speed_over_sdpa"] is None
    assert found["not_measured"] == {"reference": "out of memory: 7 TiB", "sdpa": NO_COUNTERPART}


def test_an_operator_that_failed_has_no_ratio() -> None:
    operator = Operator("paged_attention/dense", nothing, 10, reference=nothing, sdpa=nothing)
    measured = Measured({"sdpa": Timing((1.0,))}, {"paged_attention/dense": "out of memory: much"})
    found = row(operator, measured, copy_rate=1.0)
    assert [found[key] for key in ("seconds", "gb_per_s", "share_of_copy", "speed_over_sdpa")] == [None] * 4
    assert found["not_measured"]["run"] == "out of memory: much"


@pytest.mark.parametrize(
    ("name", "sdpa"), [("sparse_step/32", "sdpa"), ("block_sparse_attention/forward", "sdpa/forward")]
)
def test_decode_operators_share_one_dense_attention(name: str, sdpa: str) -> None:
    found = candidates([Operator(name, nothing, 1, sdpa=nothing)], nothing)
    assert set(found) == {COPY, name, sdpa}
