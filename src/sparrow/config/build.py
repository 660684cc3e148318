"""Building an object from its configuration node."""

import re
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from sparrow.config.check import ConfigError


def plain_config(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers, interpolations resolved."""
    found = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def build(node: DictConfig, **arguments: Any) -> Any:
    """Instantiate ``node`` with further arguments that only code can give.

    Containers reach the target as plain lists and dicts, and objects built within them as they are.

    Raises:
        ConfigError: there is no target, or it refused its arguments; the message is the target's own, with the whole
            key where that names an argument alone.
    """
    if not isinstance(node, DictConfig) or "_target_" not in node:
        raise ConfigError(f"{node!r} cannot be built: must be a mapping with a _target_")
    try:
        if not arguments:
            return instantiate(node, _convert_="all")
        # Hydra would turn a dataclass among the arguments into a plain dict, so they never pass through it.
        return instantiate(node, _convert_="all", _partial_=True)(**arguments)
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise ConfigError(f"{node['_target_']}: {whole_key(str(cause), _failed(node, str(error)))}") from error
    except ValueError as error:
        raise ConfigError(whole_key(str(error), node._get_full_key(None))) from error


def _failed(node: DictConfig, message: str) -> str:
    """Key of the node that could not be built, this one or one within it; Hydra writes rules0 for rules[0]."""
    found = re.search(r"^full_key: (.+)$", message, re.MULTILINE)
    if found is None:
        return ""
    known = OmegaConf.select(node._get_root(), found[1]) is not None
    return found[1] if known else re.sub(r"(?<=[a-z_])(\d+)(?=\.|$)", r"[\1]", found[1])


def whole_key(message: str, path: str) -> str:
    """A message about ``argument=value`` with the key that a user wrote in the place of the argument.

    Args:
        message: of a constructor, which knows its arguments and perhaps the group it is meant for.
        path: key of the node that it was built from.

    >>> whole_key("patience=0: must be 1 or more", "callbacks.phase_switch")
    'callbacks.phase_switch.patience=0: must be 1 or more'
    >>> whole_key("health.chi2=-1: must be above 0", "callbacks.health")
    'callbacks.health.chi2=-1: must be above 0'
    >>> whole_key("rollout.samples=0: must be 1 or more", "rollout")
    'rollout.samples=0: must be 1 or more'
    >>> whole_key("there is no such file", "data")
    'there is no such file'
    """
    named = re.match(r"([a-z_]\w*)((?:\.\w+)*)=", message)
    if named is None or not path:
        return message
    above, _, last = path.rpartition(".")
    if not named[2]:
        return f"{path}.{message}"
    return f"{above}.{message}" if above and named[1] == last else message
