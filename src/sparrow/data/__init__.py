"""Data: the prompt schema, sources of rows, tokenised prompts, loaders that resume exactly, the data module."""

from sparrow.data.loader import EvaluationLoader, PromptLoader
from sparrow.data.module import PromptDataModule, Source
from sparrow.data.prompts import PromptCounts, make_prompts, tokenize_row
from sparrow.data.schema import Prompt, PromptRow, row_key

__all__ = [
    "EvaluationLoader",
    "Prompt",
    "PromptCounts",
    "PromptDataModule",
    "PromptLoader",
    "PromptRow",
    "Source",
    "make_prompts",
    "row_key",
    "tokenize_row",
]
