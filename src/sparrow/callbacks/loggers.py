"""Loggers of a run: CSV always, Weights & Biases online where a key is set and offline otherwise."""

import os
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, WandbLogger


def csv_logger(run_dir: str) -> CSVLogger:
    """``metrics.csv`` in the run folder, one row per RL step."""
    return CSVLogger(save_dir=run_dir, name="", version="", flush_logs_every_n_steps=1)


def wandb_logger(run_dir: str, project: str = "sparrow", name: str | None = None) -> WandbLogger:
    """A W&B run; without ``WANDB_API_KEY`` it is kept in the run folder, to be synced later by ``wandb sync``."""
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_SILENT", "true")
    return WandbLogger(
        save_dir=run_dir, project=project, name=name, offline="WANDB_API_KEY" not in os.environ, log_model=False
    )
