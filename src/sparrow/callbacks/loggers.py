"""Loggers of a run: CSV always, Weights & Biases online where a key is set and offline otherwise."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, WandbLogger


def csv_logger(run_dir: str) -> CSVLogger:
    """``metrics.csv`` in the run folder, one row per RL step."""
    return CSVLogger(save_dir=run_dir, name="", version="", flush_logs_every_n_steps=1)


def wandb_logger(run_dir: str, project: str = "sparrow", name: str | None = None) -> WandbLogger:
    """A W&B run; without ``WANDB_API_KEY`` it is kept in the run folder, to be synced later by ``wandb sync``.

    The run's id lies in the folder, so a resumed run goes on in the same W&B run.
    """
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_SILENT", "true")
    return WandbLogger(
        save_dir=run_dir,
        project=project,
        name=name,
        id=run_id(Path(run_dir)),
        resume="allow",
        offline="WANDB_API_KEY" not in os.environ,
        log_model=False,
    )


def run_id(folder: Path) -> str:
    """The id kept in a run folder's ``wandb_id``, made at first; the same for processes that ask at the same time."""
    marker, drawn = folder / "wandb_id", folder / f"wandb_id.{os.getpid()}"
    drawn.write_text(secrets.token_hex(4))
    with suppress(FileExistsError):
        os.link(drawn, marker)  # appears with its content, or not at all if another process was first
    drawn.unlink()
    return marker.read_text()
