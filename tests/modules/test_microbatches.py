"""How a rollout is cut, worked by hand."""

import pytest

from sparrow.modules.microbatches import microbatches, minibatches


def test_one_minibatch_keeps_the_order() -> None:
    assert minibatches(4, 1, seed=3) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(("count", "parts"), [(8, 2), (7, 3), (5, 5)])
def test_minibatches_hold_every_sequence_once(count: int, parts: int) -> None:
    split = minibatches(count, parts, seed=1)
    assert sorted(row for part in split for row in part) == list(range(count))
    assert max(map(len, split)) - min(map(len, split)) <= 1
    assert split == minibatches(count, parts, seed=1)
    assert [sorted(part) for part in split] != [
        sorted(part) for part in minibatches(count, parts, seed=2)
    ] or parts == count


def test_more_minibatches_than_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="minibatches=3: must be from 1 to the 2 sequences"):
        minibatches(2, 3, seed=0)


def test_microbatches_by_hand() -> None:
    # Longest first: 9 alone fills 12 tokens (two of width 9 would be 18); 6 + 5 pad to 2 x 6 = 12; 2 goes alone,
    # since a third row of width 6 would make 18.
    assert microbatches([5, 9, 2, 6], [0, 1, 2, 3], max_tokens=12) == [[1], [3, 0], [2]]


def test_a_sequence_longer_than_the_budget_gets_its_own() -> None:
    assert microbatches([50, 3, 3], [0, 1, 2], max_tokens=8) == [[0], [1, 2]]


def test_microbatches_of_some_rows_only() -> None:
    assert microbatches([5, 9, 2, 6], [2, 0], max_tokens=100) == [[0, 2]]
