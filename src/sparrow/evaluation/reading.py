"""From completions to what a verifier reads; training, held-out evaluation and validation all do it alike."""

from collections.abc import Sequence
from typing import Protocol

from sparrow.data import Prompt
from sparrow.rewards import Sample
from sparrow.rollout import Completion


class Decoder(Protocol):
    """What is used of a tokenizer to read a completion."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids."""
        ...


def read_samples(prompts: Sequence[Prompt], completions: Sequence[Completion], tokenizer: Decoder) -> list[Sample]:
    """The completions' own texts, each with the row it answers.

    Args:
        prompts: what was sampled from.
        completions: in any order; each names its prompt.
        tokenizer: reads token ids.
    """
    return [
        Sample(
            tokenizer.decode(completion.token_ids, skip_special_tokens=True),
            prompts[completion.prompt_index].row,
            completion.finish_reason,
            len(completion.token_ids),
        )
        for completion in completions
    ]
