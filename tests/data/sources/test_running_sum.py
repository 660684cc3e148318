"""Rows of the running-sum source: what is in them, and that the splits never meet."""

import itertools

import pytest

from sparrow.data.sources.running_sum import (
    HELD_OUT_SEED,
    TRAIN_SEED,
    running_sum_rows,
    split_of_prompt,
    split_of_seed,
)
from sparrow.rewards.outcome import Outcome
from sparrow.rewards.running_sum import running_sum_outcome, running_sum_trace


def _prompts(rows):
    return [row["prompt"][0]["content"] for row in rows]


def test_a_row_is_what_it_was():
    """A stored row: the stream must not change between machines or releases."""
    assert running_sum_rows(0, 1, numbers=4) == [
        {
            "data_source": "sparrow/running_sum",
            "prompt": [{"role": "user", "content": "3+3+7+6="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "91"},
            "extra_info": {"split": "train", "index": 0, "numbers": [3, 3, 7, 6]},
        }
    ]


@pytest.mark.parametrize("seed", [TRAIN_SEED, HELD_OUT_SEED, HELD_OUT_SEED + 3])
def test_ground_truth_and_prompt_follow_from_the_numbers(seed):
    for row in running_sum_rows(5, 20, numbers=42, seed=seed):
        numbers = row["extra_info"]["numbers"]
        assert row["prompt"][0]["content"] == "+".join(map(str, numbers)) + "="
        total = sum(numbers)
        assert row["reward_model"]["ground_truth"] == f"{total % 10}{total // 10 % 10}"
        assert row["extra_info"]["split"] == split_of_seed(seed)
        assert running_sum_outcome(running_sum_trace(numbers), row) == Outcome(1.0, "correct")


def test_a_slice_equals_the_rows_made_alone():
    rows = running_sum_rows(0, 30, numbers=11, seed=5)
    assert rows[10:20] == running_sum_rows(10, 10, numbers=11, seed=5)
    assert [row["extra_info"]["index"] for row in rows] == list(range(30))
    assert running_sum_rows(0, 0) == []


def test_seeds_indices_and_lengths_give_different_rows():
    rows = [*running_sum_rows(0, 200), *running_sum_rows(0, 200, seed=1), *running_sum_rows(0, 200, numbers=41)]
    assert len(set(_prompts(rows))) == 600


def test_digits_are_uniform():
    """10 000 digits: each count within 4 standard deviations (30) of 1000."""
    drawn = [number for row in running_sum_rows(0, 250, numbers=40) for number in row["extra_info"]["numbers"]]
    counts = [drawn.count(digit) for digit in range(10)]
    assert sum(counts) == 10_000
    assert all(880 <= count <= 1120 for count in counts)


def test_splits_are_disjoint_even_where_prompts_are_few():
    """Of 1000 three-number prompts the two splits draw from complementary sets."""
    train = set(_prompts(running_sum_rows(0, 3000, numbers=3)))
    held_out = set(_prompts(running_sum_rows(0, 1000, numbers=3, seed=HELD_OUT_SEED)))
    every = ["+".join(digits) + "=" for digits in itertools.product("0123456789", repeat=3)]
    assert held_out == {prompt for prompt in every if split_of_prompt(prompt) == "held_out"}
    assert not train & held_out
    assert 40 <= len(held_out) <= 85


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("start", (-1, 1)), ("count", (0, -1)), ("numbers", (0, 1, 1)), ("seed", (0, 1, 40, -1))],
)
def test_a_bad_argument_is_named(name, arguments):
    with pytest.raises(ValueError, match=f"{name}=-?1 is not allowed"):
        running_sum_rows(*arguments)
