"""Values that no constructor of ours sees: the plain keys of a run, and what must fit the model."""

import math
from typing import Any

from omegaconf import DictConfig

from sparrow.config.check import ConfigError
from sparrow.schedule import BudgetSchedule

WHOLE_NUMBERS = {"steps": 1, "seed": 0, "threads": 1, "val_every": 1}
"""Keys of a training run and the least value of each; null is allowed where the configuration has it by default."""

NULLABLE = ("threads", "val_every")


def check_run(cfg: DictConfig) -> None:
    """Check the plain keys of a training run.

    Raises:
        ConfigError: a key is no whole number or too small, or ``optimizer.lr`` is no finite number from 0 on.
    """
    for key, least in WHOLE_NUMBERS.items():
        value: Any = cfg.get(key)
        if value is None and key in NULLABLE:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{key}={value}: must be a whole number, {least} or more")
    rate: Any = cfg.optimizer.get("lr", 0.0)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or rate < 0:
        raise ConfigError(f"optimizer.lr={rate}: must be a finite number, 0 or more")


def check_layers(schedule: BudgetSchedule, layers: int) -> None:
    """Check that the layers a schedule leaves dense exist.

    Args:
        schedule: the run's schedule.
        layers: the model's number of layers.

    Raises:
        ConfigError: a dense layer is not one of the model's.
    """
    outside = [layer for layer in schedule.dense_layers if layer >= layers]
    if outside:
        raise ConfigError(
            f"schedule.dense_layers: {outside[0]} is not a layer of this model, which has 0 to {layers - 1}"
        )
