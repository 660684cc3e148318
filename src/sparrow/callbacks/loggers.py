"""Loggers of a run: CSV always, W&B online where a key is set and offline otherwise, TensorBoard on wish."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import wandb
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from sparrow.callbacks.steady_wandb import SteadyWandb


class _Rows(ExperimentWriter):
    """The rows of ``metrics.csv``; an earlier file gives way to the first row, and not before.

    Lightning's own writer removes the file when it is made, which is before a checkpoint is read: a resumed run that
    is then refused, or has nothing left to do, would have lost its rows.
    """

    begun = False

    def save(self) -> None:
        """Write the rows that are waiting."""
        if self.metrics and not self.begun:
            self.begun = True
            Path(self.metrics_file_path).unlink(missing_ok=True)
        super().save()

    def _check_log_dir_exists(self) -> None:
        """Leave the folder as it is."""


class StepCSV(CSVLogger):
    """Lightning's CSV logger over rows that give way late."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The writer, made at its first use."""
        if self._experiment is None:
            Path(self.log_dir).mkdir(parents=True, exist_ok=True)
            self._experiment = _Rows(log_dir=self.log_dir)
        return self._experiment


def csv_logger(run_dir: str) -> CSVLogger:
    """``metrics.csv`` in the run folder, one row per RL step."""
    return StepCSV(save_dir=run_dir, name="", version="", flush_logs_every_n_steps=1)


def tensorboard_logger(run_dir: str) -> TensorBoardLogger:
    """Event files in the run folder's ``tensorboard``, under the same keys and steps."""
    return TensorBoardLogger(save_dir=run_dir, name="", version="tensorboard", default_hp_metric=False)


def wandb_logger(
    run_dir: str, project: str = "sparrow", name: str | None = None, timeout_s: float = 60.0
) -> WandbLogger:
    """A W&B run; without ``WANDB_API_KEY`` it is kept in the run folder, to be synced later by ``wandb sync``.

    The run's id lies in the folder, so a resumed run goes on in the same W&B run. If the server does not answer, the
    run is told so and kept in the folder as well.

    Args:
        run_dir: the run folder.
        project: W&B's project.
        name: of the run.
        timeout_s: seconds to wait for the server at the start.
    """
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_SILENT", "true")
    logger = SteadyWandb(
        save_dir=run_dir,
        project=project,
        name=name,
        id=run_id(Path(run_dir)),
        resume="allow",
        offline="WANDB_API_KEY" not in os.environ,
        log_model=False,
        settings=wandb.Settings(init_timeout=timeout_s),
    )
    # Lightning 2.6 always passes it, and W&B 0.31 warns of it whatever it is.
    logger._wandb_init.pop("anonymous", None)
    return logger


def run_id(folder: Path) -> str:
    """The id kept in a run folder's ``wandb_id``, made at first; the same for processes that ask at the same time."""
    marker, drawn = folder / "wandb_id", folder / f"wandb_id.{os.getpid()}"
    drawn.write_text(secrets.token_hex(4))
    with suppress(FileExistsError):
        os.link(drawn, marker)  # appears with its content, or not at all if another process was first
    drawn.unlink()
    return marker.read_text()
