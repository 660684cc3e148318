"""Whether a run can write where it is told to, found out before anything is loaded."""

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


def _check_folder(key: str, folder: Path) -> None:
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise ConfigError(f"{key}={folder}: cannot be reached, {error.strerror}; must be a writable folder") from error
    if not there.is_dir():
        raise ConfigError(f"{key}={folder}: cannot be made, {there} is a file; must be a writable folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={folder}: cannot be written, no permission in {there}; must be a writable folder")
