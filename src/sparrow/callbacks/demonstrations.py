"""The supervised stage before reinforcement learning: given completions take the place of a rollout.

The step is the usual one. With advantage 1, no correction and the plain policy gradient, -A log p averaged over tokens
is the cross-entropy of the completions, so `actor/pg_loss` is the loss in nats a token; mini- and micro-batches, ranks,
learning rate, checkpoints and export are those of any run.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import lightning

from sparrow.data import Prompt
from sparrow.distributed import own_rank
from sparrow.modules import DensePolicy
from sparrow.modules.experience import demonstrate
from sparrow.rewards import Scorer
from sparrow.rewards.base import reward_row


class Encoder(Protocol):
    """What is used of a tokenizer to write a completion."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text."""
        ...


class Demonstrations(lightning.Callback):
    """Writes the rows' gold completions into each training batch.

    A row's completion is the text ``extra_info.completion`` if it has one, else what its reward gives as a completion
    that must score 1: for the packaged task the whole trace, for most others only an answer in the right form.

    Args:
        tokenizer: turns completions into ids.
        scorer: knows each row's reward.
        eos_token_ids: every id that ends a completion; the first is added where a text ends in none.
    """

    def __init__(self, tokenizer: Encoder, scorer: Scorer, eos_token_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.scorer = scorer
        self.eos_token_ids = tuple(eos_token_ids)

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Put the completions into ``batch``."""
        assert isinstance(pl_module, DensePolicy)
        pl_module.step_started = started = time.perf_counter()
        prompts: Sequence[Prompt] = batch["prompts"]
        responses = [self.response(prompt, pl_module.rollout.max_new_tokens) for prompt in prompts]
        experience = demonstrate([prompt.token_ids for prompt in prompts], responses).to(pl_module.device)
        group_B = experience.group_B + own_rank() * len(prompts)  # every rank has equally many
        batch["experience"] = replace(experience, group_B=group_B)
        lengths = [len(response) for response in responses]
        pl_module.step_metrics = {
            "timing_s/gen": time.perf_counter() - started,
            "timing_s/reward": 0.0,
            "response_length/mean": sum(lengths) / len(lengths),
            "response_length/max": float(max(lengths)),
            "response_length/min": float(min(lengths)),
        }

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Drop what would compare with an actor: none sampled."""
        assert isinstance(pl_module, DensePolicy)
        for name in [name for name in pl_module.step_metrics if name.startswith("rollout_corr/")]:
            del pl_module.step_metrics[name]

    def response(self, prompt: Prompt, max_tokens: int) -> list[int]:
        """Token ids of a prompt's gold completion.

        Raises:
            ValueError: the row has none, or it is longer than ``max_tokens``; the message names the row.
        """
        text = prompt.row.extra_info.get("completion")
        if text is None:
            text = self.scorer.reward_of(prompt.row).gold_completion(reward_row(prompt.row))
        if not isinstance(text, str) or not text:
            raise ValueError(
                f"{_named(prompt)}: no gold completion (extra_info.completion is missing, and the reward gives none); "
                "allowed: text that is not empty"
            )
        ids = list(self.tokenizer.encode(text, add_special_tokens=False))
        if ids[-1] not in self.eos_token_ids:
            ids.append(self.eos_token_ids[0])
        if len(ids) > max_tokens:
            raise ValueError(
                f"{_named(prompt)}: its gold completion has {len(ids)} tokens; allowed: up to "
                f"rollout.max_new_tokens={max_tokens}"
            )
        return ids


def _named(prompt: Prompt) -> str:
    row = prompt.row
    return f"row {row.extra_info.get('index')} of data_source {row.data_source!r}"
