"""A W&B logger that does not end a run when the server cannot be reached."""

from typing import Any

import wandb
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_warn
from wandb.errors import CommError


class SteadyWandb(WandbLogger):
    """Opens the run online, and offline where that fails; says so, and how to send it later.

    A connection that is lost later needs nothing here: W&B's own process keeps everything in the run folder and tries
    again by itself.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run, made when first asked for."""
        if self._experiment is None and not self._offline:
            try:
                return super().experiment
            except CommError as error:
                self._go_offline(error)
        return super().experiment

    def _go_offline(self, error: CommError) -> None:
        self._offline = True
        self._wandb_init["mode"] = "offline"
        wandb.teardown()  # the process that still waits for the server
        rank_zero_warn(
            f"W&B could not be reached ({str(error).splitlines()[0]}): the run goes on and is kept offline; "
            f"`wandb sync {self.save_dir}/wandb/offline-run-*` sends it later",
            category=UserWarning,
        )
