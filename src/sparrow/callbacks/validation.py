"""Evaluation during training: every so many steps, on the held-out problems, dense and sparse.

It has an engine and a scorer of its own, draws by its own seed, and reads and writes no global random state, so the
training stream is the same with it and without it.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import torch

from sparrow.data import Prompt, PromptDataModule
from sparrow.distributed import gathered
from sparrow.evaluation import EvaluationSettings, Problem, evaluate, flat_metrics, make_report
from sparrow.evaluation.reading import Decoder
from sparrow.modules import DensePolicy
from sparrow.rewards import Scorer
from sparrow.rollout import RolloutEngine


class Validation(lightning.Callback):
    """Writes ``val/arm/set/metric`` into the step's row, and a line into ``validation.jsonl`` of the run folder.

    Args:
        run_dir: the run folder.
        tokenizer: reads completions.
        scorer: judges them; its own, so that counts of training stay apart. The outcome counts, not the score.
        eos_token_ids: ids that end a completion.
        settings: how to evaluate.
        every: RL steps between two evaluations.

    Raises:
        ValueError: ``every`` is below 1.
    """

    def __init__(
        self,
        run_dir: Path,
        tokenizer: Decoder,
        scorer: Scorer,
        eos_token_ids: Sequence[int],
        settings: EvaluationSettings,
        every: int,
    ) -> None:
        if every < 1:
            raise ValueError(f"val_every={every}: must be 1 or more, or null")
        self.run_dir = run_dir
        self.tokenizer = tokenizer
        self.scorer = scorer
        self.eos_token_ids = tuple(eos_token_ids)
        self.settings = settings
        self.every = every

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Find out now, not at the first evaluation, that there is nothing to evaluate on."""
        self._prompts(trainer)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Evaluate if it is time."""
        assert isinstance(pl_module, DensePolicy)
        if trainer.global_step % self.every:
            return
        started = time.perf_counter()
        prompts = self._prompts(trainer)
        arms: dict[str, list[Problem]] = {
            arm: self._run(trainer, pl_module, arm, prompts) for arm in self.settings.arms
        }
        report = make_report(arms, self.settings)
        pl_module.step_metrics |= flat_metrics(report)
        pl_module.step_metrics["timing_s/testing"] = time.perf_counter() - started
        if trainer.is_global_zero:
            with (self.run_dir / "validation.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": trainer.global_step, **report.to_dict()}) + "\n")

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """End the scorer's workers."""
        self.scorer.close()

    def _run(
        self, trainer: lightning.Trainer, module: DensePolicy, arm: str, prompts: Sequence[Prompt]
    ) -> list[Problem]:
        """Every rank takes its share of the problems; all get all results, in the order of the prompts."""
        with gathered(module.model):
            engine = RolloutEngine(
                module.model,
                module.schedule if arm == "sparse" else None,
                page_score=module.rollout.page_score,
                max_batch=self.settings.max_batch,
            )
            own = evaluate(
                engine,
                prompts[trainer.global_rank :: trainer.world_size],
                self.tokenizer,
                self.scorer,
                self.settings,
                eos_token_ids=self.eos_token_ids,
                adapter=arm == "sparse" and module.actor_adapter,
            )
        if trainer.world_size == 1:
            return own
        parts: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(parts, own)
        return [parts[place % trainer.world_size][place // trainer.world_size] for place in range(len(prompts))]

    def _prompts(self, trainer: lightning.Trainer) -> Sequence[Prompt]:
        data = trainer.datamodule  # type: ignore[attr-defined]  # set by fit(datamodule=...), missing in the stubs
        assert isinstance(data, PromptDataModule)
        if not data.validation_prompts:
            raise ValueError("val_every needs held-out problems, but data.source has no validation rows")
        return data.validation_prompts[: self.settings.max_problems]
