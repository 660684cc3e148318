"""Whether a run can write where it is told to, and overwrites no other one; found out before anything is loaded."""

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sparrow.config.check import ConfigError


def check_writable(cfg: DictConfig) -> None:
    """Check that the run folder can be made and written.

    Args:
        cfg: a composed configuration; where the folder's name holds the time, its parent is checked.

    Raises:
        ConfigError: it cannot; the message names the key, the folder and what is in the way.
    """
    for key in ("paths.run_dir", "paths.output_dir"):
        try:
            value = OmegaConf.select(cfg, key)
        except OmegaConfBaseException:  # Hydra fills in the name of the job only when it runs
            continue
        if value is not None:
            _check_folder(key, Path(value))
            return


RESULTS = ("summary.json", "metrics.csv", "evaluation.json", "train.jsonl", "validation.jsonl", "checkpoints/*.ckpt")
"""What commands leave in a run folder once they have begun to find something; the configuration is there before."""


def result_in(folder: Path) -> Path | None:
    """Something that a run has left in a folder, or None where none has come so far."""
    return next((path for pattern in RESULTS for path in sorted(folder.glob(pattern))), None)


def check_unused(cfg: DictConfig, folder: Path | None = None) -> bool:
    """Check that a run overwrites no other one.

    Args:
        cfg: a composed configuration; a run with ``resume=auto``, or with a checkpoint of this very folder, goes on
            with what it finds there.
        folder: the run folder; None: the one that is written in the configuration. One whose name holds the time is
            new.

    Returns:
        Whether an earlier run lies there, to go on with.

    Raises:
        ConfigError: another run's results are there.
    """
    if folder is None:
        try:
            folder = Path(OmegaConf.select(cfg, "paths.run_dir"))
        except (OmegaConfBaseException, TypeError):  # Hydra fills in the name of the job only when it runs
            return False
    found = result_in(folder)
    if found is None or _goes_on(cfg.get("resume"), folder):
        return found is not None
    instead = ", or resume=auto to go on with it" if "resume" in cfg else ""
    raise ConfigError(
        f"paths.run_dir={folder}: holds a run already ({found.name}), which is not overwritten; allowed: another folder"
        f"{instead}"
    )


def _goes_on(resume: str | None, folder: Path) -> bool:
    if resume is None or resume == "auto":
        return resume == "auto"
    return Path(str(resume)).resolve().is_relative_to(folder.resolve())


def _check_folder(key: str, folder: Path) -> None:
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise ConfigError(f"{key}={folder}: cannot be reached, {error.strerror}; must be a writable folder") from error
    if not there.is_dir():
        raise ConfigError(f"{key}={folder}: cannot be made, {there} is a file; must be a writable folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={folder}: cannot be written, no permission in {there}; must be a writable folder")
