"""``sparrow-train``: one reinforcement-learning run, as a list of what it is made of."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Checkpoint
from omegaconf import DictConfig

from sparrow.callbacks import Demonstrations, HeldOut, Rollout, SampleLog, StepLog, Summary, Tail, Validation
from sparrow.checkpoints import Preemption, RunConfig, resume_path
from sparrow.config import ConfigError, build, build_schedule, check_run, plain_config, run_command
from sparrow.config.trainer import named_settings
from sparrow.data import PromptDataModule
from sparrow.distributed import Sharded, full_state
from sparrow.models.adapter import has_adapter, save_adapter
from sparrow.models.loading import eos_token_ids, export_policy, load_policy
from sparrow.modules import DensePolicy, DistillSettings, DistillSparse, Recipe, check_together
from sparrow.rewards import Scorer, check_routes
from sparrow.schedule import BudgetSchedule


def train(cfg: DictConfig, run_dir: Path) -> None:
    """Run what ``cfg`` describes and leave the results in ``run_dir``."""
    started = time.perf_counter()
    check_run(cfg)
    resume = resume_path(cfg.resume, run_dir)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    lightning.seed_everything(cfg.seed, workers=True, verbose=False)
    schedule = build_schedule(cfg.schedule)
    parts = build_parts(cfg)  # what does not go together is refused before anything is loaded
    model, tokenizer = load_policy(cfg.model.name_or_path)
    data: PromptDataModule = build(cfg.data, tokenizer=tokenizer)
    scorer: Scorer = build(cfg.reward)
    data.setup("fit")
    check_routes([prompt.row for prompt in data.train_prompts], scorer)
    module = build_module(cfg, model, schedule, parts)
    callbacks = build_callbacks(cfg, run_dir, schedule, tokenizer, scorer, eos_token_ids(model, tokenizer), started)
    loggers = [build(node) for node in (cfg.logger or {}).values() if node is not None]
    keeps = any(isinstance(callback, Checkpoint) for callback in callbacks)
    own = {} if keeps else {"enable_checkpointing": False}  # Lightning would add one of its own
    with named_by_key(cfg.trainer):
        trainer: lightning.Trainer = build(cfg.trainer, callbacks=callbacks, logger=loggers, **own)
    check_checkpoint(resume, trainer)
    if resume is not None and trainer.is_global_zero:
        print(f"going on from {resume}")
    with scorer, named_by_key(cfg.trainer):
        trainer.fit(module, datamodule=data, ckpt_path=resume)
    state = full_state(module.model)
    if trainer.is_global_zero:
        export_policy(module.model, tokenizer, run_dir / "export" / "base", state)
        if has_adapter(module.model):
            save_adapter(module.model, run_dir / "export" / "adapter", state)


@contextmanager
def named_by_key(settings: DictConfig) -> Iterator[None]:
    """Say what Lightning refuses in one line, by the keys of the trainer.

    Raises:
        ConfigError: Lightning has found a mistake in how it is used.
    """
    try:
        yield
    except MisconfigurationException as error:
        raise ConfigError(named_settings(settings, str(error))) from error


def check_checkpoint(resume: Path | None, trainer: lightning.Trainer) -> None:
    """Check that the trainer's strategy can read a checkpoint.

    Raises:
        ValueError: one file per rank, and the strategy holds the whole policy on each.
    """
    if resume is not None and resume.is_dir() and not isinstance(trainer.strategy, Sharded):
        raise ValueError(
            f"resume={resume}: a sharded checkpoint, which only trainer=fsdp2 or fsdp2_multinode reads; to go on in "
            "another way start from the run's export (model.name_or_path=<run folder>/export/base)"
        )


def build_parts(cfg: DictConfig) -> dict[str, Any]:
    """The algorithm and its settings, checked against each other."""
    parts: dict[str, Any] = {
        "recipe": Recipe(
            advantage=build(cfg.advantage),
            correction=build(cfg.correction),
            loss=build(cfg.loss),
            aggregation=build(cfg.aggregation),
        ),
        "optimizer": build(cfg.optimizer),
        "rollout": build(cfg.rollout),
        "update": build(cfg["update"]),  # cfg.update is a method
        "reference": build(cfg.reference),
    }
    check_together(parts["recipe"], parts["rollout"], parts["reference"])
    return parts


def build_module(
    cfg: DictConfig, model: torch.nn.Module, schedule: BudgetSchedule, parts: dict[str, Any]
) -> DensePolicy:
    """The policy with its algorithm, and the adapter of its sparse actor where there is one."""
    distill: DistillSettings = build(cfg.distill)
    if not distill.enabled:
        return DensePolicy(model, schedule, **parts)
    return DistillSparse(model, schedule, **parts, distill=distill, divergence=build(cfg.divergence))


def build_callbacks(
    cfg: DictConfig,
    run_dir: Path,
    schedule: BudgetSchedule,
    tokenizer: Any,
    scorer: Scorer,
    eos: tuple[int, ...],
    started: float,
) -> list[lightning.Callback]:
    """Callbacks in the order they act within a step: sample first, write the row last."""
    rollout = Rollout(tokenizer, scorer, cfg.seed, eos, cfg.unjudged)
    tail: Tail = build(cfg.tail, schedule=schedule)
    log = StepLog()
    held_out = HeldOut(tokenizer, Scorer(), eos) if cfg.held_out else None
    summary = Summary(run_dir, rollout, tail, log, held_out, started)
    controller = [build(cfg.controller)] if cfg.controller else []
    extra = [build(node) for node in (cfg.callbacks or {}).values() if node is not None]
    keeping = [RunConfig(plain_config(cfg), run_dir / "config.yaml"), Preemption(run_dir / "checkpoints")]
    validation: list[lightning.Callback] = []
    if cfg.val_every is not None:
        settings = build(cfg.evaluation)
        validation = [Validation(run_dir, tokenizer, build(cfg.reward), eos, settings, cfg.val_every)]
    sampling = [rollout, tail, *controller, SampleLog(run_dir, tokenizer, build(cfg.samples))]
    if cfg.rollout.source == "traces":
        sampling = [Demonstrations(tokenizer, scorer, eos)]
    return [*sampling, *([held_out] if held_out else []), *validation, *extra, log, summary, *keeping]


def main() -> None:
    """Entry point of ``sparrow-train`` and ``python -m sparrow.train``."""
    run_command("train", train)


if __name__ == "__main__":
    main()
