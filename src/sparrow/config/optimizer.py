"""Settings of a torch optimizer, tried on a single number before a model is loaded.

A torch optimizer checks its arguments when it gets its parameters, which is late in a run, and names them in words of
its own. The argument at fault is the one that, tried alone, is refused in the same words.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer

from sparrow.config.check import HYDRA_KEYS, ConfigError

ALLOWED = {
    "lr": "a finite number, 0 or more",
    "betas": "two numbers, each 0 or more and below 1",
    "eps": "a finite number, 0 or more",
    "weight_decay": "a finite number, 0 or more",
    "momentum": "a finite number, 0 or more",
    "dampening": "a finite number",
    "alpha": "a finite number, 0 or more",
    "lr_decay": "a finite number, 0 or more",
    "lambd": "a finite number, 0 or more",
}
"""What the arguments that torch's optimizers share may be."""


def check_optimizer(node: DictConfig, group: str = "optimizer") -> None:
    """Check the settings of an optimizer of torch or of a subclass; a factory function is not called.

    Args:
        node: ``_target_`` and arguments.
        group: key of the node.

    Raises:
        ConfigError: an argument is not finite, has another number of values than its default, or is refused by the
            optimizer; the message names the key, the value and what is allowed.
    """
    settings: Any = OmegaConf.to_container(node, resolve=True)
    target = get_object(settings["_target_"])
    if not (inspect.isclass(target) and issubclass(target, Optimizer)):
        return
    given = {str(key): value for key, value in settings.items() if key not in HYDRA_KEYS}
    expected = inspect.signature(target).parameters
    defaults = {key: parameter.default for key, parameter in expected.items()}
    for key, value in given.items():
        reason = _shape(value, defaults.get(key))
        if reason:
            raise _at_fault(f"{group}.{key}", value, target, defaults.get(key), reason)
    refusal = _refused(target, given)
    if not refusal:
        return
    for key, value in given.items():
        if _refused(target, _with_required(expected, given, key)) == refusal:
            raise _at_fault(f"{group}.{key}", value, target, defaults.get(key), refusal)
    raise ConfigError(f"{', '.join(f'{group}.{key}={value}' for key, value in given.items())}: {refusal}")


def _at_fault(key: str, value: Any, target: type[Optimizer], default: Any, reason: str) -> ConfigError:
    allowed = ALLOWED.get(key.rpartition(".")[2]) or f"what {target.__name__} takes, by default {default!r}"
    return ConfigError(f"{key}={value}: must be {allowed}; {reason}")


def _shape(value: Any, default: Any) -> str:
    """What is wrong with a value by itself: a number that is not finite, one number for two."""
    if isinstance(default, tuple) and (not _is_list(value) or len(value) != len(default)):
        found = f"{len(value)} values" if _is_list(value) else "one"
        return f"it has {found}, and {len(default)} are needed"
    numbers = [part for part in (value if _is_list(value) else [value]) if isinstance(part, int | float)]
    return "" if all(math.isfinite(number) for number in numbers) else "it is not finite"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _with_required(expected: Mapping[str, inspect.Parameter], given: Mapping[str, Any], key: str) -> dict[str, Any]:
    """One argument, and those without which there is no optimizer at all."""
    needed = [name for name, parameter in expected.items() if parameter.default is parameter.empty]
    return {name: value for name, value in given.items() if name == key or name in needed}


def _refused(target: type[Optimizer], arguments: Mapping[str, Any]) -> str:
    """What the optimizer says of its arguments, over a matrix of one number; nothing if it takes them."""
    make: Any = target
    try:
        make([torch.nn.Parameter(torch.zeros(1, 1))], **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{target.__name__}: {error}"
    return ""
