"""Layouts of multiple-choice data sets."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from sparrow.data.mappings.fields import Raw, text_of

LETTERS = "ABCDEFGHIJ"
INSTRUCTION = "\n\nThink step by step, then finish with the letter of the right choice in <answer> and </answer>."


def gpqa(raw: Raw, index: int) -> dict[str, Any]:
    """Idavidrein/gpqa: the right answer and three wrong ones in columns; put in an order drawn by the row's index."""
    choices = [text_of(raw, name) for name in ("Correct Answer", *(f"Incorrect Answer {place}" for place in (1, 2, 3)))]
    order = random.Random(f"gpqa/{index}").sample(range(4), 4)
    texts = [choices[place].strip() for place in order]
    return _fields("Idavidrein/gpqa", text_of(raw, "Question"), texts, order.index(0), index)


def mmlu(raw: Raw, index: int) -> dict[str, Any]:
    """cais/mmlu: choices in a list, the right one by its place."""
    return _fields("cais/mmlu", text_of(raw, "question"), raw["choices"], raw["answer"], index, subject=raw["subject"])


def mmlu_pro(raw: Raw, index: int) -> dict[str, Any]:
    """TIGER-Lab/MMLU-Pro: up to ten options in a list, the right one by its place."""
    category = raw["category"]
    return _fields(
        "TIGER-Lab/MMLU-Pro", text_of(raw, "question"), raw["options"], raw["answer_index"], index, subject=category
    )


def _fields(
    data_source: str, question: str, choices: Sequence[str], right: int, index: int, **extra: Any
) -> dict[str, Any]:
    if isinstance(choices, str) or not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise ValueError(f"field choices (or options) is {str(choices)[:80]!r}; allowed: a list of texts")
    if not isinstance(right, int) or isinstance(right, bool) or not 0 <= right < len(choices) <= len(LETTERS):
        raise ValueError(
            f"field answer (the right choice) is {str(right)[:80]!r} of {len(choices)}; "
            f"allowed: a place in a list of at most {len(LETTERS)}"
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
