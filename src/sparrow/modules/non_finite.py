"""What to do when a loss or a gradient is not finite: never step on it, never lose the batch that caused it."""

import math
from pathlib import Path

import lightning
import torch
from lightning.pytorch.utilities import rank_zero_warn

from sparrow.modules.experience import Experience


class NonFiniteUpdate(RuntimeError):
    """A gradient norm was not finite; the weights are as they were, and the batch was saved."""


def check_finite(norm: float, experience: Experience, policy: str, trainer: lightning.Trainer) -> bool:
    """Whether a step may be taken.

    Args:
        norm: total gradient norm, the same on all ranks.
        experience: the rollout of this step.
        policy: ``stop`` raises after saving the batch, ``skip`` warns.
        trainer: tells the step and the run folder.

    Raises:
        NonFiniteUpdate: the norm is not finite and the policy is ``stop``.
    """
    if math.isfinite(norm):
        return True
    step = trainer.global_step
    if policy == "skip":
        rank_zero_warn(f"RL step {step}: gradient norm is {norm}; the step is skipped, weights are untouched")
        return False
    path = Path(trainer.default_root_dir) / f"non_finite_step_{step}_rank_{trainer.global_rank}.pt"
    torch.save(vars(experience), path)
    raise NonFiniteUpdate(
        f"RL step {step}: gradient norm is {norm}; weights are untouched and the batch was saved to {path} "
        "(update.on_non_finite=skip drops such steps instead)"
    )
