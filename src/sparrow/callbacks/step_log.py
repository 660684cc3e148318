"""One row per RL step, the same for every logger: what the parts of a step left in ``step_metrics``."""

import time
from typing import Any

import lightning
from lightning.pytorch.loggers import CSVLogger

from sparrow.callbacks.over_ranks import over_ranks
from sparrow.callbacks.progress import SHOWN, StepProgress
from sparrow.modules import DensePolicy


class StepLog(lightning.Callback):
    """Comes last in the list of callbacks and writes the step's row, so that it holds what every other one measured."""

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []
        self.begun = False

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the steps of the checkpoint again where a run is resumed: the CSV logger starts its file anew."""
        self.begun = True
        for logger in trainer.loggers:
            if isinstance(logger, CSVLogger):
                for row in self.history:
                    logger.log_metrics(dict(row), step=int(row["training/global_step"]))
                logger.save()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the row and show its main numbers on the terminal."""
        assert isinstance(pl_module, DensePolicy)
        metrics = pl_module.step_metrics
        elapsed = time.perf_counter() - pl_module.step_started
        metrics["timing_s/step"] = elapsed
        others = sum(metrics.get(f"timing_s/{part}", 0.0) for part in ("gen", "reward", "testing"))
        metrics["timing_s/update_actor"] = elapsed - others
        metrics["perf/throughput"] = int(batch["experience"].length_B.sum()) / elapsed
        metrics["training/global_step"] = trainer.global_step
        metrics = pl_module.step_metrics = over_ranks(metrics)
        self.history.append(dict(metrics))
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)
        for name, (key, _) in SHOWN.items():
            if key in metrics:
                pl_module.log(name, metrics[key], prog_bar=True, logger=False, batch_size=1)
        if isinstance(trainer.progress_bar_callback, StepProgress):
            trainer.progress_bar_callback.say(trainer.global_step, trainer.max_steps, metrics)

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Say so where a resumed run was at its end already: nothing is written anew then."""
        if not self.begun:
            done, wanted = trainer.global_step, trainer.max_steps
            trainer.print(f"no step was left: the checkpoint is of step {done}, and steps={wanted}")

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.history = state_dict["history"]
