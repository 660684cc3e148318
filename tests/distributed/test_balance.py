"""Sharing out by hand-worked loads, and the work of a sequence."""

import random

import pytest

from sparrow.distributed import assign, sequence_cost
from sparrow.models.architecture import Architecture

SIZES = Architecture(layers=2, hidden=8, intermediate=16, heads=2, kv_heads=1, head_dim=4, vocab=11, tied=True)


def loads(costs: list[float], owner: list[int], ranks: int) -> list[float]:
    return [sum(cost for cost, rank in zip(costs, owner, strict=True) if rank == place) for place in range(ranks)]


def test_a_short_sequence_costs_its_tokens_and_a_long_one_attention_as_well() -> None:
    # q and o are 8 x 8, k and v 8 x 4, the MLP 3 x 8 x 16, two norms of 8: 64 + 64 + 32 + 32 + 384 + 16 = 592.
    assert SIZES.layer_parameters == 592
    assert sequence_cost(1, SIZES) == pytest.approx(1 + 8 / 592)
    assert sequence_cost(592, SIZES) == pytest.approx(592 * (1 + 8))  # 592 x 2 x 4 / 592 = 8


@pytest.mark.parametrize(
    ("costs", "home", "ranks", "expected"),
    [
        ([5.0, 5.0, 5.0, 5.0], [0, 0, 1, 1], 2, [0, 0, 1, 1]),
        # At home 17 and 3; 9 | 8, then 2 to the 8, 1 to the 9: 10 and 10.
        ([9.0, 8.0, 2.0, 1.0], [0, 0, 1, 1], 2, [0, 1, 1, 0]),
        # At home 10.4 and 9.6, the best is 10 and 10: within a twentieth, nothing moves.
        ([6.0, 4.4, 5.6, 4.0], [0, 0, 1, 1], 2, [0, 0, 1, 1]),
        # One long sequence holds its rank, the rest goes elsewhere.
        ([100.0, 20.0, 1.0, 1.0, 1.0, 1.0], [0, 0, 1, 1, 2, 2], 3, [0, 1, 2, 2, 2, 2]),
    ],
)
def test_sharing_out_by_hand(costs: list[float], home: list[int], ranks: int, expected: list[int]) -> None:
    found = assign(costs, home, ranks)
    assert sorted(loads(costs, found, ranks)) == sorted(loads(costs, expected, ranks))
    if home == expected:
        assert found == home


def test_the_busiest_rank_has_little_more_than_its_share_and_no_rank_is_empty() -> None:
    draw = random.Random(3)
    for _ in range(200):
        ranks = draw.randint(1, 9)
        home = [rank for rank in range(ranks) for _ in range(draw.randint(1, 6))]
        costs = [draw.uniform(1, 1000) for _ in home]
        found = assign(costs, home, ranks)
        assert set(found) == set(range(ranks))
        # What any list scheduling keeps: the last one started when every rank had as much or more.
        assert max(loads(costs, found, ranks)) <= 1.05 * (sum(costs) / ranks + max(costs) * (1 - 1 / ranks)) + 1e-9
        assert found == assign(costs, home, ranks)
