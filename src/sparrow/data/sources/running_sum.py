"""Rows of the running-sum task, the packaged tiny policy's prompt source.

Rows are made, not stored: row `index` of a seed is a pure function of (seed, index, numbers), from SHAKE-256, so it
is the same on every machine and library version, and any slice can be made alone. Seeds below `HELD_OUT_SEED` are
for training and the others are held out. Besides, each prompt text belongs to one side only, by its own hash, and a
draw of the other side's prompt is drawn again: no choice of seeds can put a held-out prompt into training.
"""

import hashlib
from typing import Any

from sparrow.rewards.running_sum import running_sum_answer, running_sum_prompt

DATA_SOURCE = "sparrow/running_sum"
TRAIN_SEED = 0
HELD_OUT_SEED = 1_000_000
NUMBERS = 34
MIN_NUMBERS = 2

_HELD_OUT_SHARE_OF_256 = 16


def split_of_seed(seed: int) -> str:
    """The split a seed belongs to: "train" below `HELD_OUT_SEED`, else "held_out"."""
    return "train" if seed < HELD_OUT_SEED else "held_out"


def split_of_prompt(prompt: str) -> str:
    """The one split a prompt text may appear in: 1 of 16 texts is held out, by the text's SHA-256."""
    held_out = hashlib.sha256(prompt.encode()).digest()[0] < _HELD_OUT_SHARE_OF_256
    return "held_out" if held_out else "train"


def draw_numbers(seed: int, index: int, numbers: int) -> list[int]:
    """The one-digit numbers of row `index`, redrawn until their prompt is of the seed's split.

    Args:
        seed: the stream, from 0 on; decides the split.
        index: the row within the stream, from 0 on.
        numbers: how many numbers to add, 2 or more.

    Returns:
        `numbers` integers in 0..9.
    """
    split, attempt = split_of_seed(seed), 0
    while True:
        drawn = _digits(f"sparrow/running_sum/{seed}/{index}/{numbers}/{attempt}", numbers)
        if split_of_prompt(running_sum_prompt(drawn)) == split:
            return drawn
        attempt += 1


def running_sum_rows(start: int, count: int, numbers: int = NUMBERS, seed: int = TRAIN_SEED) -> list[dict[str, Any]]:
    """Rows start .. start + count - 1 of a seed, in the field's prompt schema.

    `reward_model.ground_truth` is in the trace's notation: the sum modulo 100, ones digit first.

    Args:
        start: first index, from 0 on.
        count: how many rows.
        numbers: numbers to add in each row; the right trace has 6 x numbers + 4 tokens.
        seed: the stream; from `HELD_OUT_SEED` on it is held out.

    Raises:
        ValueError: if an argument is negative, or `numbers` below 2.
    """
    for name, value, least in (
        ("start", start, 0), ("count", count, 0), ("numbers", numbers, MIN_NUMBERS), ("seed", seed, 0),
    ):  # fmt: skip
        if value < least:
            raise ValueError(f"running_sum rows: {name}={value} is not allowed; it must be {least} or more")
    return [_row(seed, index, numbers) for index in range(start, start + count)]


def _row(seed: int, index: int, numbers: int) -> dict[str, Any]:
    drawn = draw_numbers(seed, index, numbers)
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": running_sum_prompt(drawn)}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": running_sum_answer(drawn)},
        "extra_info": {"split": split_of_seed(seed), "index": index, "numbers": drawn},
    }


def _digits(key: str, count: int) -> list[int]:
    """`count` uniform digits from SHAKE-256 of `key`; bytes of 250 and more are skipped to stay uniform."""
    length = 2 * count + 64
    digits = [byte % 10 for byte in hashlib.shake_256(key.encode()).digest(length) if byte < 250]
    return digits[:count]
