"""The configuration kept in each checkpoint, so that a resumed run knows what it no longer has in common with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.utilities import rank_zero_warn
from omegaconf import OmegaConf

FREE = ("paths", "logger", "callbacks", "samples", "resume", "name", "threads", "debug", "experiment", "trainer")
"""Keys that say where and how a run works, not what it computes."""

FIXED = ("model", "data", "seed")
"""Keys that a resumed run must share: its weights, optimizer states and data position mean nothing without."""


class RunConfig(lightning.Callback):
    """Keeps the configuration in checkpoints; on resume it names every value that changed.

    Args:
        config: the composed configuration as plain containers.
        path: file of the run folder that is to hold it; None for none.
    """

    def __init__(self, config: Mapping[str, Any], path: Path | None = None) -> None:
        self.config = dict(config)
        self.path = path

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the file: now that any checkpoint has accepted the configuration, it is the run's."""
        if self.path is not None and trainer.is_global_zero:
            self.path.write_text(OmegaConf.to_yaml(OmegaConf.create(self.config)))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"config": self.config}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Compare with the checkpoint.

        Raises:
            ValueError: a key of :data:`FIXED` differs; the message holds both values.
        """
        for key, before, now in changed_keys(state_dict["config"], self.config):
            if key.split(".")[0] in FIXED:
                raise ValueError(f"{key}={now}: the checkpoint was made with {before}; a resumed run must keep it")
            rank_zero_warn(f"{key}={now}: it was {before} before this checkpoint", category=UserWarning)


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Values that differ, as (dotted key, before, now), those of :data:`FREE` left out.

    >>> changed_keys({"seed": 0, "a": {"b": 1}}, {"seed": 0, "a": {"b": 2}})
    [('a.b', 1, 2)]
    """
    old, new = (_flat({key: value for key, value in tree.items() if key not in FREE}) for tree in (before, now))
    return [
        (key, old.get(key, "not there"), new.get(key, "not there"))
        for key in sorted(old.keys() | new.keys())
        if old.get(key, "not there") != new.get(key, "not there")
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return flat
