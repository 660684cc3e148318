"""Values that no constructor of ours sees: the plain keys of a run."""

import math
from typing import Any

from omegaconf import DictConfig

from sparrow.config.check import ConfigError
from sparrow.config.optimizer import check_optimizer
from sparrow.config.trainer import check_device, check_trainer

WHOLE_NUMBERS = {"steps": 1, "seed": 0, "threads": 1, "val_every": 1, "cost_samples": 1, "check_rows": 1}
"""Keys of commands and the least value of each; null is allowed where the configuration has it by default."""

NULLABLE = ("threads", "val_every", "check_rows")


def check_run(cfg: DictConfig) -> None:
    """Check the plain keys of a command, those of them that it has.

    Raises:
        ConfigError: a key is no whole number or too small, ``held_out`` is neither true nor false, ``optimizer.lr`` is
            no finite number from 0 on, or the device, the optimizer or the trainer cannot be had so.
    """
    for key, least in WHOLE_NUMBERS.items():
        if key not in cfg:
            continue
        value: Any = cfg.get(key)
        if value is None and key in NULLABLE:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{key}={value}: must be a whole number, {least} or more")
    if not isinstance(cfg.get("held_out", True), bool):
        raise ConfigError(f"held_out={cfg.held_out}: must be true or false")
    rate: Any = cfg.optimizer.get("lr", 0.0) if "optimizer" in cfg else 0.0
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or rate < 0:
        raise ConfigError(f"optimizer.lr={rate}: must be a finite number, 0 or more")
    if "device" in cfg:
        check_device("device", cfg.device)
    if "optimizer" in cfg:
        check_optimizer(cfg.optimizer)
    if "trainer" in cfg:
        check_trainer(cfg.trainer)
