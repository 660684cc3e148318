"""Building an object from its configuration node."""

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
        ConfigError: there is no target, or it refused its arguments; the message is the target's own and names the
            node.
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
        raise ConfigError(f"{node['_target_']}: {cause}") from error
