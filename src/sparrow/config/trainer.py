"""What Lightning's trainer is told, checked before a model is loaded.

Lightning finds most of these mistakes by itself, but late, with a traceback, and in the words of its own arguments; and
where nothing is left to be trained it ends as if all were well.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from sparrow.config.check import ConfigError

OWN_STEPS: dict[str, tuple[tuple[Any, ...], str]] = {
    "gradient_clip_val": ((None, 0), "must be null: the policy steps its optimizers itself; use update.max_grad_norm"),
    "gradient_clip_algorithm": (
        (None,),
        "must be null: the policy steps its optimizers itself; use update.max_grad_norm, which clips by the norm",
    ),
    "accumulate_grad_batches": (
        (1,),
        "must be 1: the policy steps its optimizers itself; data.prompts_per_step makes a step larger, and "
        "update.micro_batch_tokens bounds its memory",
    ),
}
"""Keys that Lightning honours only where it steps the optimizers: what is allowed, and what to use in their place."""

HINTS = {
    "enable_checkpointing": "leave the callback out by ~callbacks.checkpoint",
    "enable_progress_bar": "leave the callback out by ~callbacks.progress",
}
"""What to do about keys that contradict a callback."""


def check_trainer(node: DictConfig) -> None:
    """Check the trainer's settings.

    Raises:
        ConfigError: the device is not there, a key has no effect on a policy that steps its own optimizers, or no
            step could ever be made.
    """
    settings: Any = OmegaConf.to_container(node, resolve=True)
    for key, (allowed, reason) in OWN_STEPS.items():
        if settings.get(key, allowed[0]) not in allowed:
            raise ConfigError(f"trainer.{key}={settings[key]}: {reason}")
    _check_steps(settings)
    accelerator = settings.get("accelerator")
    if isinstance(accelerator, str) and accelerator in ("gpu", "cuda") and not _has_gpu(accelerator):
        raise ConfigError(f"trainer.accelerator={accelerator}: there is no GPU here; must be cpu or auto (trainer=cpu)")


def check_device(key: str, device: Any) -> None:
    """Check a device by name, before a model is put there.

    Raises:
        ConfigError: it is no device, or not there.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"{key}={device}: must be cpu or cuda") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        there = f"there are {torch.cuda.device_count()} CUDA devices here"
        raise ConfigError(f"{key}={device}: {there}; must be cpu, or cuda for one of them")


def named_settings(settings: Mapping[str, Any], message: str) -> str:
    """The keys that one of Lightning's messages is about, with their values, and what to do where that is known.

    >>> named_settings({"devices": 3, "limit_train_batches": 0.01}, "increase the `limit_train_batches` argument")
    'trainer.limit_train_batches=0.01: increase the `limit_train_batches` argument'
    """
    about = [key for key in settings if re.search(rf"\b{re.escape(key)}\b", message)]
    about = about or [key for key in ("accelerator", "devices", "strategy") if key in settings]
    shown = ", ".join(f"trainer.{key}={_short(settings[key])}" for key in about)
    hints = "".join(f"; {hint}" for key, hint in HINTS.items() if key in about)
    return f"{shown}: {' '.join(message.split())}{hints}"


def _short(value: Any) -> Any:
    return value.get("_target_", value) if isinstance(value, Mapping) else value


def _has_gpu(accelerator: str) -> bool:
    return torch.cuda.is_available() or (accelerator == "gpu" and torch.backends.mps.is_available())


def _check_steps(settings: Mapping[str, Any]) -> None:
    """Settings under which training would end before its first step."""
    batches = settings.get("limit_train_batches")
    if batches is not None and not _some_batches(batches):
        raise ConfigError(
            f"trainer.limit_train_batches={batches}: must be a whole number, 1 or more, or a share of the data set "
            "above 0.0 and at most 1.0, or null"
        )
    for key in ("max_steps", "max_epochs"):
        value = settings.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1)):
            raise ConfigError(f"trainer.{key}={value}: must be a whole number, 1 or more, or -1 for no limit")
    longest = settings.get("max_time")
    if longest is not None and _is_no_time(longest):
        raise ConfigError(f"trainer.max_time={longest}: must be more than no time, as 00:12:00:00 (DD:HH:MM:SS)")


def _some_batches(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return value > 0 and (value <= 1 or value == int(value))


def _is_no_time(value: Any) -> bool:
    """Whether a duration is zero: a text of days, hours, minutes and seconds, or a mapping of them."""
    parts = list(value.values()) if isinstance(value, Mapping) else re.findall(r"\d+", str(value))
    return all(str(part) in ("0", "00", "0.0") for part in parts)
