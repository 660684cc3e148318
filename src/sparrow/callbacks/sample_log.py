"""Keeps a few completions of a step with the agreement at each token, for the report's heat maps and W&B's tables."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import WandbLogger

from sparrow.evaluation.reading import Decoder
from sparrow.modules import DensePolicy, Experience
from sparrow.rewards import Outcome

COLUMNS = ("step", "prompt", "completion", "reward", "outcome", "advantage", "alpha_min", "alpha_p05")


@dataclass(frozen=True)
class SampleLogSettings:
    """How many samples are kept, and how often.

    Attributes:
        every: RL steps between two steps that keep some; null for none.
        count: samples of such a step: the first ones, and in the last place the one that disagrees most.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    every: int | None = 10
    count: int = 2

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ValueError(f"samples.every={self.every}: must be 1 or more, or null")
        if self.count < 1:
            raise ValueError(f"samples.count={self.count}: must be 1 or more")


class SampleLog(lightning.Callback):
    """Appends to ``samples.jsonl`` in the run folder, on the first process.

    Args:
        run_dir: the run folder.
        tokenizer: reads token ids.
        settings: how many and how often.
    """

    def __init__(self, run_dir: Path, tokenizer: Decoder, settings: SampleLogSettings) -> None:
        self.path = run_dir / "samples.jsonl"
        self.tokenizer = tokenizer
        self.settings = settings

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Drop what a cut run wrote after the checkpoint that it now goes on from."""
        if trainer.is_global_zero and self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line)["step"] <= trainer.global_step]
            self.path.write_text("".join(kept), encoding="utf-8")

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep some samples of the step, if it is one of those."""
        assert isinstance(pl_module, DensePolicy)
        every, step = self.settings.every, trainer.global_step
        if every is None or not trainer.is_global_zero or (step - 1) % every:
            return
        samples = self._samples(step, pl_module, batch["experience"], batch["outcomes"])
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_table("samples", columns=list(COLUMNS), data=[_table_row(s) for s in samples], step=step)

    def _samples(
        self, step: int, module: DensePolicy, experience: Experience, outcomes: Sequence[Outcome]
    ) -> list[dict[str, Any]]:
        assert module.scores is not None
        alpha_BT = module.scores.alpha_BT
        rows = list(range(min(self.settings.count, len(experience))))
        if alpha_BT is not None:
            missing_BT = torch.where(experience.decoded_BT, 1 - alpha_BT, 0.0)
            worst = int(missing_BT.sum(dim=1).argmax())
            if worst not in rows:
                rows[-1] = worst
        return [self._sample(step, row, experience, outcomes[row], alpha_BT) for row in rows]

    def _sample(
        self, step: int, row: int, experience: Experience, outcome: Outcome, alpha_BT: torch.Tensor | None
    ) -> dict[str, Any]:
        ids = experience.tokens_BT[row].tolist()
        start, end = int(experience.prompt_len_B[row]), int(experience.length_B[row])
        alpha: list[float | None] = [None] * (end - start)
        if alpha_BT is not None:  # the first token comes from the dense prefill, its alpha is 1 by definition
            alpha[1:] = [round(value, 5) for value in alpha_BT[row, start + 1 : end].tolist()]
        return {
            "step": step,
            "prompt": self.tokenizer.decode(ids[:start], skip_special_tokens=False),
            "tokens": [self.tokenizer.decode([token], skip_special_tokens=False) for token in ids[start:end]],
            "alpha": alpha,
            "reward": outcome.score,
            "outcome": outcome.label,
            "advantage": float(experience.advantages_B[row]),
        }


def _table_row(sample: dict[str, Any]) -> list[Any]:
    alpha = sorted(value for value in sample["alpha"] if value is not None)
    low = [alpha[0], alpha[int(0.05 * (len(alpha) - 1))]] if alpha else [None, None]
    text = "".join(sample["tokens"])
    return [sample["step"], sample["prompt"], text, sample["reward"], sample["outcome"], sample["advantage"], *low]
