"""Layouts of multiple-choice data sets."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LETTERS = "ABCDEFGHIJ"
INSTRUCTION = "\n\nThink step by step, then finish with the letter of the right choice in <answer> and </answer>."

Raw = Mapping[str, Any]


def gpqa(raw: Raw, index: int) -> dict[str, Any]:
    """Idavidrein/gpqa: the right answer and three wrong ones in columns; put in an order drawn by the row's index."""
    choices = [raw["Correct Answer"], *(raw[f"Incorrect Answer {number}"] for number in (1, 2, 3))]
    order = random.Random(f"gpqa/{index}").sample(range(4), 4)
    texts = [str(choices[place]).strip() for place in order]
    return _fields("Idavidrein/gpqa", raw["Question"], texts, order.index(0), index)


def mmlu(raw: Raw, index: int) -> dict[str, Any]:
    """cais/mmlu: choices in a list, the right one by its place."""
    return _fields("cais/mmlu", raw["question"], raw["choices"], raw["answer"], index, subject=raw["subject"])


def mmlu_pro(raw: Raw, index: int) -> dict[str, Any]:
    """TIGER-Lab/MMLU-Pro: up to ten options in a list, the right one by its place."""
    category = raw["category"]
    return _fields("TIGER-Lab/MMLU-Pro", raw["question"], raw["options"], raw["answer_index"], index, subject=category)


def _fields(
    data_source: str, question: str, choices: Sequence[str], right: int, index: int, **extra: Any
) -> dict[str, Any]:
    if not 0 <= right < len(choices) <= len(LETTERS):
        raise ValueError(
            f"right choice {right} of {len(choices)}; allowed: a place in a list of at most {len(LETTERS)}"
        )
    listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": f"{question.strip()}\n\n{listed}{INSTRUCTION}"}],
        "ability": "multiple_choice",
        "reward_model": {"style": "rule", "ground_truth": LETTERS[right]},
        "extra_info": {"split": "test", "index": index, **extra},
    }


CHOICE_SETS: dict[str, Callable[[Raw, int], dict[str, Any]]] = {"gpqa": gpqa, "mmlu": mmlu, "mmlu-pro": mmlu_pro}
"""Name of a layout to its mapping."""
