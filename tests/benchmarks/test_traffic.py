"""Bytes of the operators, worked by hand."""

import pytest

from sparrow.benchmarks.traffic import DecodeShape, TrainingShape, statistics_backward_bytes, statistics_bytes
from sparrow.schedule import BudgetSchedule
from sparrow.schedule.cost import attention_bound

SMALL = DecodeShape(batch=2, heads=4, kv_heads=2, head_dim=3, page_size=4, tokens=10, element=2)
"""Three pages, the last one with 2 tokens. A key of all heads has 12 bytes, a query 24."""


def test_decode_bytes_by_hand() -> None:
    assert (SMALL.num_pages, SMALL.key_bytes, SMALL.query_bytes) == (3, 12, 24)
    assert [SMALL.tokens_read(pages) for pages in (1, 2, 3, 9)] == [2, 6, 10, 10]
    assert SMALL.landmarks(5, 1) == 4 * 5 * 12 + (4 + 1) * 12
    assert SMALL.scores() == 2 * (2 * 12 + 24 + 3 * 2 * 4)
    assert SMALL.selection(2) == 2 * 2 * 4 * (3 + 2 + 1)
    assert SMALL.selection(9) == 2 * 2 * 4 * (3 + 3 + 1)
    assert SMALL.attention(2) == 2 * (2 * 6 * 12 + 2 * 24)
    assert SMALL.attention(3) == 2 * (2 * 10 * 12 + 2 * 24)
    assert SMALL.sparse_step(2) == 144 + 96 + 384


def test_training_bytes_by_hand() -> None:
    shape = TrainingShape(batch=1, heads=4, kv_heads=2, head_dim=3, page_size=4, tokens=10, element=2)
    assert shape.set_bytes == 1 * 2 * 10 * 1 * 4
    assert shape.forward() == (4 + 2 + 2 + 4) * 10 * 3 * 2 + 80
    assert shape.backward() == (4 + 2 + 2 + 4 + 4 + 4 + 2 + 2) * 10 * 3 * 2 + 80
    wide = TrainingShape(batch=2, heads=2, kv_heads=2, head_dim=8, page_size=16, tokens=16 * 32 + 1, element=4)
    assert wide.set_bytes == 2 * 2 * 513 * 2 * 4  # 33 pages take two words


def test_statistics_bytes_by_hand() -> None:
    assert statistics_bytes(10, 3, 7, 2) == (7 + 10) * 3 * 2
    assert statistics_bytes(10, 3, 7, 2, policies=2) == (7 + 20) * 3 * 2
    assert statistics_backward_bytes(10, 3, 7, 2) == 2 * (7 + 10) * 3 * 2


@pytest.mark.parametrize("pages", [32, 64, 256])
def test_bytes_approach_the_bound(pages: int) -> None:
    """For many tokens and few queries the ratio of bytes is the bound of the cost model."""
    shape = DecodeShape(batch=1, heads=1, kv_heads=1, head_dim=4096, page_size=16, tokens=8000, element=2)
    bound = attention_bound(8000, BudgetSchedule.constant(pages - 3))
    assert bound == pytest.approx(16000 / (500 + 32 * pages))
    assert shape.attention(shape.num_pages) / shape.sparse_step(pages) == pytest.approx(bound, rel=0.005)
