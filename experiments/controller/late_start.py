"""A learning rate of zero until the budgets have been found, so that search and drift can be told apart."""

from typing import Any

import lightning


class LateStart(lightning.Callback):
    """Trains nothing before a step; the optimizer's own schedule holds from there on.

    Args:
        step: first RL step whose update changes the weights, counted from 0.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the rate of this step; the scheduler sets it anew after every one."""
        if trainer.global_step < self.step:
            for optimizer in trainer.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = 0.0
