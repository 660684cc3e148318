"""RL steps on a given rollout, several settings one after the other; run as a script by each of some processes.

python steps.py <rollout.pt> <output folder> <setting> ...     a setting is <strategy>-<case>, e.g. fsdp2-distill

Every process writes <output folder>/<setting>_<rank>.pt: the whole weights, and the scores of the sequences that it
brought along. The test imports this file for the same steps in one process.
"""

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM

from sparrow.algorithms import advantages, aggregation, corrections, losses
from sparrow.algorithms.distillation import OverVocabulary
from sparrow.distributed import Replicated, Sharded, full_state
from sparrow.modules import (
    DensePolicy,
    DistillSettings,
    DistillSparse,
    Experience,
    Recipe,
    RolloutSettings,
    UpdateSettings,
)
from sparrow.schedule import BudgetSchedule

SPARSE = BudgetSchedule.constant(2, page_size=4, dense_layers=(0,))
RESPONSES = (500, 420, 77, 300, 1, 2, 1, 3)
"""Response tokens of each sequence: the first half is one rank's, the second half the other's."""
PROMPT = 5


def model(*, tied: bool) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=13,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
    )
    made = Qwen3ForCausalLM(config)
    made.config.use_cache = False
    return made


def rollout() -> Experience:
    """Made-up completions of very different lengths, with what an actor would have recorded."""
    generator = torch.Generator().manual_seed(5)
    length_B = torch.tensor(RESPONSES) + PROMPT
    shape = (len(RESPONSES), int(length_B.max()))
    response_BT = (torch.arange(shape[1]) >= PROMPT) & (torch.arange(shape[1]) < length_B[:, None])
    tokens_BT = torch.randint(0, 13, shape, generator=generator)
    logprobs_BT = -2.5 + 0.3 * torch.randn(shape, generator=generator)
    return Experience(
        tokens_BT=tokens_BT.where(torch.arange(shape[1]) < length_B[:, None], 0),
        prompt_len_B=torch.full((len(RESPONSES),), PROMPT),
        length_B=length_B,
        sparse_logprobs_BT=logprobs_BT.where(response_BT, 0.0),
        rewards_B=torch.zeros(len(RESPONSES)),
        advantages_B=torch.randn(len(RESPONSES), generator=generator),
        group_B=torch.arange(len(RESPONSES)) // 2,
        sparse_hidden=tuple(torch.randn(count, 32, generator=generator) for count in RESPONSES),
    )


def parts(aggregate: Any = aggregation.token_mean, **update: Any) -> dict[str, Any]:
    return {
        "recipe": Recipe(advantages.grpo, corrections.TokenTIS(), losses.ppo_clip, aggregate),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "rollout": RolloutSettings(),
        "update": UpdateSettings(**({"micro_batch_tokens": 520} | update)),
    }


def dense(*, tied: bool = True, **options: Any) -> DensePolicy:
    return DensePolicy(model(tied=tied), SPARSE, **parts(**options))


def distilled(base: Any = "sampled", **options: Any) -> DistillSparse:
    settings = DistillSettings(enabled=True, rank=3, weight=1.0, base=base)
    torch.manual_seed(1)
    return DistillSparse(
        model(tied=False), SPARSE, **parts(**options), distill=settings, divergence=OverVocabulary("forward_kl")
    )


CASES: dict[str, Callable[[], DensePolicy]] = {
    "dense": dense,
    "untied": partial(dense, tied=False, recompute=True),
    "stay": partial(dense, balance=False),
    "minibatches": partial(dense, minibatches=2, epochs=2),
    "per_prompt": partial(dense, aggregate=aggregation.per_prompt),
    "distill": distilled,
    "updated": partial(distilled, base="updated", minibatches=2),
}


class Share(lightning.Callback):
    """Hands each rank its half of the rollout: whole groups, as the loader does."""

    def __init__(self, whole: Experience) -> None:
        self.whole = whole

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        per_rank = len(self.whole) // trainer.world_size
        first = trainer.global_rank * per_rank
        batch["experience"] = self.whole.select(range(first, first + per_rank))


def run(case: str, strategy: Any, devices: int, folder: Path, experience: Experience) -> dict[str, Any]:
    """Two steps of a case; whole weights, scores of this rank's own sequences, and micro-batches' metrics."""
    module = CASES[case]()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
        callbacks=[Share(experience)],
    )
    trainer.fit(module, DataLoader([{"prompts": [0]}, {"prompts": [1]}], batch_size=None))  # type: ignore[arg-type]
    assert trainer.global_step == 2
    assert module.scores is not None
    state = full_state(module.model) or {name: value.clone() for name, value in module.model.state_dict().items()}
    return {
        "weights": state,
        "logprobs_BT": module.scores.logprobs_BT,
        "alpha_BT": module.scores.alpha_BT,
        "rows": len(module.sharing.held),
        "grad_norm": module.step_metrics["actor/grad_norm"],
    }


def main() -> None:
    experience, folder = Experience(**torch.load(sys.argv[1], weights_only=True)), Path(sys.argv[2])
    for setting in sys.argv[3:]:
        name, case = setting.split("-")
        kind = {"ddp": Replicated, "fsdp2": Sharded}[name]
        found = run(case, kind(process_group_backend="gloo", timeout=timedelta(seconds=60)), 2, folder, experience)
        torch.save(found, folder / f"{setting}_{torch.distributed.get_rank()}.pt")


if __name__ == "__main__":
    main()
