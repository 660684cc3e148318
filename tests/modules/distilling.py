"""A small distilled policy, its rollouts and a trainer: what the tests of DistillSparse share."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from sparrow.algorithms import advantages, aggregation, corrections, losses
from sparrow.algorithms.distillation import Distillation, OverVocabulary, SampledToken, WorstShare
from sparrow.models.adapter import adapter_parameters
from sparrow.modules import (
    DensePolicy,
    DistillSettings,
    DistillSparse,
    Experience,
    Recipe,
    RolloutSettings,
    UpdateSettings,
    collect,
)
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule

SPARSE = BudgetSchedule.constant(0, page_size=4, dense_layers=())
PROMPTS = [[1, 2, 3, 4, 5], [6, 7, 8]]
MakeModel = Callable[[], PreTrainedModel]

DIVERGENCES: list[Distillation] = [
    SampledToken("k3"), OverVocabulary("forward_kl"), OverVocabulary("reverse_kl"), OverVocabulary("total_variation"),
    OverVocabulary("forward_kl", top_k=3), WorstShare(0.1),
]  # fmt: skip


def parts(lr: float, **update: Any) -> dict[str, Any]:
    return {
        "recipe": Recipe(advantages.grpo, corrections.TokenTIS(), losses.ppo_clip, aggregation.token_mean),
        "optimizer": partial(torch.optim.SGD, lr=lr),
        "rollout": RolloutSettings(),
        "update": UpdateSettings(**update),
    }


def policy(
    model: PreTrainedModel,
    divergence: Distillation | None = None,
    lr: float = 1e-2,
    distill: dict[str, Any] | None = None,
    **update: Any,
) -> DistillSparse:
    """A DistillSparse whose adapter already does something: its B matrices are not the zeros of a new one."""
    torch.manual_seed(7)
    settings = DistillSettings(enabled=True, **({"rank": 3, "weight": 1.0} | (distill or {})))
    made = DistillSparse(
        model, SPARSE, **parts(lr, **update), distill=settings, divergence=divergence or OverVocabulary("forward_kl")
    )
    for parameter in adapter_parameters(made.model):
        torch.nn.init.normal_(parameter, std=0.05)
    return made


def roll(module: DensePolicy, record: tuple[str, ...] = ("hidden",)) -> Experience:
    """2 prompts, 4 samples each, by the module's own actor."""
    engine = RolloutEngine(module.model, module.schedule, max_batch=8)
    completions = engine.generate(
        PROMPTS,
        n=4,
        max_new_tokens=40,
        seed=3,
        eos_token_ids=(12,),
        adapter=module.actor_adapter,
        record=record,
    )
    group_B = torch.tensor([completion.prompt_index for completion in completions])
    advantages_B = torch.linspace(-1.5, 1.5, len(completions))
    prompts = [PROMPTS[completion.prompt_index] for completion in completions]
    return collect(prompts, completions, [0.0] * len(completions), advantages_B, group_B)


class Insert(lightning.Callback):
    """Puts the module's own rollout, or a fixed one, into each batch."""

    def __init__(self, experience: Experience | None = None, record: tuple[str, ...] = ("hidden",)) -> None:
        self.experience, self.record = experience, record

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        batch["experience"] = self.experience or roll(pl_module, self.record)


def fit(module: DensePolicy, insert: Insert, folder: Path, steps: int = 1) -> lightning.Trainer:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[insert],
    )
    trainer.fit(module, DataLoader([{"prompts": [i]} for i in range(steps)], batch_size=None))  # type: ignore[arg-type]
    return trainer


def flat(parameters: list[torch.nn.Parameter]) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters])
