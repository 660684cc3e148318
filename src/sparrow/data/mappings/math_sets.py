r"""Layouts of mathematical data sets: which columns hold the question and the gold answer.

The prompt asks for `\boxed{}`, which is what the `Math` reward looks for first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparrow.data.mappings.fields import Raw, answer_of, kept, text_of
from sparrow.rewards.extract import after_hash, last_boxed

BOXED = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class MathLayout:
    """One mathematical data set.

    Attributes:
        data_source: its name, by which it is routed.
        question: column of the question.
        answer: finds the gold answer in a raw row.
        split: "train" or "test".
        keep: columns kept in `extra_info`, where a row has them.
    """

    data_source: str
    question: str
    answer: Callable[[Raw], str]
    split: str
    keep: tuple[str, ...] = ()

    def __call__(self, raw: Raw, index: int) -> dict[str, Any]:
        """The common fields of a raw row."""
        return {
            "data_source": self.data_source,
            "prompt": [{"role": "user", "content": text_of(raw, self.question) + BOXED}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": self.answer(raw)},
            "extra_info": {"split": self.split, "index": index, **kept(raw, self.keep)},
        }


def column(name: str) -> Callable[[Raw], str]:
    """The answer in a column."""
    return lambda raw: answer_of(raw, name)


def boxed(name: str) -> Callable[[Raw], str]:
    """The answer in the last box of a solution column."""

    def answer(raw: Raw) -> str:
        solution = text_of(raw, name)
        found = last_boxed(solution)
        if not found:
            raise ValueError(f"field {name} is {solution[-80:]!r}; allowed: a solution with its answer in \\boxed{{}}")
        return found

    return answer


def hashed(name: str) -> Callable[[Raw], str]:
    """The answer after `####` in a column."""

    def answer(raw: Raw) -> str:
        solution = text_of(raw, name)
        found = after_hash(solution)
        if not found:
            raise ValueError(f"field {name} is {solution[-80:]!r}; allowed: a solution that ends in '#### answer'")
        return found.replace(",", "")

    return answer


def dapo(raw: Raw, index: int) -> dict[str, Any]:
    """BytedTsinghua-SIA/DAPO-Math-17k: in the common schema already, with its own instruction in the prompt.

    The published file holds each row about 100 times; read it with `distinct`.
    """
    return {
        "data_source": "BytedTsinghua-SIA/DAPO-Math-17k",
        "prompt": [dict(message) for message in raw["prompt"]],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": raw["reward_model"]["ground_truth"]},
        "extra_info": {"split": "train", "index": raw["extra_info"]["index"]},
    }


MATH_SETS: dict[str, Callable[[Raw, int], dict[str, Any]]] = {
    "polaris-53k": MathLayout(
        "POLARIS-Project/Polaris-Dataset-53K", "problem", column("answer"), "train", ("difficulty",)
    ),
    "deepscaler": MathLayout("agentica-org/DeepScaleR-Preview-Dataset", "problem", column("answer"), "train"),
    "dapo-math-17k": dapo,
    "dapo-math-17k-processed": MathLayout("open-r1/DAPO-Math-17k-Processed", "prompt", column("solution"), "train"),
    "math": MathLayout("EleutherAI/hendrycks_math", "problem", boxed("solution"), "train", ("level", "type")),
    "math-test": MathLayout("EleutherAI/hendrycks_math", "problem", boxed("solution"), "test", ("level", "type")),
    "math-500": MathLayout(
        "HuggingFaceH4/MATH-500", "problem", column("answer"), "test", ("subject", "level", "unique_id")
    ),
    "gsm8k": MathLayout("openai/gsm8k", "question", hashed("answer"), "train"),
    "gsm8k-test": MathLayout("openai/gsm8k", "question", hashed("answer"), "test"),
    "aime-2024": MathLayout("HuggingFaceH4/aime_2024", "problem", column("answer"), "test", ("id", "year", "url")),
    "aime-2024-maxwell-jia": MathLayout("Maxwell-Jia/AIME_2024", "Problem", column("Answer"), "test", ("ID",)),
    "aime-2025": MathLayout("MathArena/aime_2025", "problem", column("answer"), "test", ("problem_idx",)),
    "aime-2025-opencompass": MathLayout("opencompass/AIME2025", "question", column("answer"), "test"),
    "aime-2026": MathLayout("MathArena/aime_2026", "problem", column("answer"), "test", ("problem_idx",)),
    "amc": MathLayout("AI-MO/aimo-validation-amc", "problem", column("answer"), "test", ("id", "url")),
    "amc-23": MathLayout("math-ai/amc23", "question", column("answer"), "test", ("id", "url")),
    "amc-22-24": MathLayout("scottgeng00/amc_22-24", "problem", column("answer"), "test", ("year", "url")),
    "minerva-math": MathLayout("math-ai/minervamath", "question", column("answer"), "test"),
}
"""Name of a layout to its mapping."""
