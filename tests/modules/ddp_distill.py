"""One RL step of DistillSparse on this rank's share of a fixed rollout; run as a script, on one process or on two.

python ddp_distill.py <rollout.pt> <weights.pt> <processes>
"""

import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM

from sparrow.algorithms import advantages, aggregation, corrections, losses
from sparrow.algorithms.distillation import Distillation, WorstShare
from sparrow.modules import DistillSettings, DistillSparse, Experience, Recipe, RolloutSettings, UpdateSettings
from sparrow.schedule import BudgetSchedule

SPARSE = BudgetSchedule.constant(0, page_size=4, dense_layers=())


def tiny_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=13,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def policy(divergence: Distillation) -> DistillSparse:
    torch.manual_seed(1)
    return DistillSparse(
        tiny_model(),
        SPARSE,
        recipe=Recipe(advantages.grpo, corrections.TokenTIS(), losses.ppo_clip, aggregation.token_mean),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        rollout=RolloutSettings(),
        update=UpdateSettings(micro_batch_tokens=60),
        distill=DistillSettings(enabled=True, rank=3, weight=1.0),
        divergence=divergence,
    )


class Share(lightning.Callback):
    """Hands each rank its half of the rollout: whole groups, as the loader does."""

    def __init__(self, path: str) -> None:
        self.whole = Experience(**torch.load(path, weights_only=True))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        per_rank = len(self.whole) // trainer.world_size
        first = trainer.global_rank * per_rank
        batch["experience"] = self.whole.select(range(first, first + per_rank))


def main() -> None:
    rollout, output, processes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    strategy: Any = "auto"
    if processes > 1:
        strategy = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=120))
    module = policy(WorstShare(0.2))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy=strategy,
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[Share(rollout)],
    )
    trainer.fit(module, DataLoader([{"prompts": [0]}, {"prompts": [1]}], batch_size=None))  # type: ignore[arg-type]
    weights = {name: parameter.detach().clone() for name, parameter in module.model.named_parameters()}
    weights["global_step"] = torch.tensor(trainer.global_step)
    torch.save(weights, output.with_name(f"{output.stem}_{trainer.global_rank}.pt"))


if __name__ == "__main__":
    main()
