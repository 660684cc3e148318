"""Checks of a composed configuration against the signatures of what it will build.

YAML selects a class or function by ``_target_`` and gives its arguments. The signature of that target is the schema:
its parameters are the allowed keys, its annotations the allowed types and ranges, its docstring the sentence per field.
So a new part is one Python object and one YAML file, and a misspelt key fails before a model is loaded.
"""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, OverrideParseException
from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException
from torch import Tensor

from sparrow.ranges import check_value

HYDRA_KEYS = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")
SCALARS = (bool, int, float, str)


class ConfigError(ValueError):
    """A configuration that cannot run; the message names the key, the value and what is allowed."""


def nearest(key: str, known: Iterable[str]) -> str:
    """A hint that names the closest known key, or lists all of them."""
    options = sorted(known)
    near = difflib.get_close_matches(key, options, n=1)
    return f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(options) or 'none'}"


def check_overrides(folder: Path, name: str, overrides: list[str], added: Path | None = None) -> DictConfig:
    """Compose once and turn Hydra's refusal of an override into a message with the nearest right key.

    Args:
        folder: the configuration tree.
        name: the primary configuration, without its ending.
        overrides: command-line overrides, as Hydra takes them.
        added: a user's own folder, whose options join the groups.

    Returns:
        The composed configuration, Hydra's own part included.

    Raises:
        ConfigError: the user's folder does not exist; an override names an unknown key or option, or cannot be
            parsed.
    """
    if added is not None:
        if not added.is_dir():
            raise ConfigError(f"--config-dir={added}: there is no such folder")
        overrides = [f"hydra.searchpath=['file://{added.resolve()}']", *overrides]
    with initialize_config_dir(str(folder), version_base="1.3"):
        plain = compose(name, return_hydra_config=True)
        try:
            composed = compose(name, overrides=overrides, return_hydra_config=True)
        except OverrideParseException as error:
            text = f"'{error.override}' cannot be read: must be key=value, group=option or ~key"
            raise ConfigError(text) from error
        except (ConfigCompositionException, OmegaConfBaseException, ValueError) as error:
            raise ConfigError(_explain(str(error), overrides, plain)) from error
    unknown = sorted(set(map(str, composed)) - set(map(str, plain)))
    if unknown:
        raise ConfigError(f"unknown key '{unknown[0]}': {nearest(unknown[0], map(str, plain))}")
    return composed


def check_config(cfg: DictConfig) -> None:
    """Check every node that has a ``_target_`` against its signature, and that nothing mandatory is missing.

    Raises:
        ConfigError: a mandatory value is missing, a target cannot be imported, a key is not a parameter of its
            target, or a value has the wrong type or is out of the range that its annotation states.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
    except InterpolationToMissingValueError as error:
        missing = [str(error).splitlines()[0].rpartition(": ")[2]]
    if missing:
        raise ConfigError(f"mandatory value missing: {', '.join(missing)} (set it as {missing[0]}=...)")
    _check_node(OmegaConf.to_container(cfg, resolve=True), OmegaConf.to_container(cfg, resolve=False), "")


def _check_node(node: Any, written: Any, path: str) -> None:
    """Check a node and what lies in it; ``written`` is the same node before interpolations were resolved."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            _check_node(item, written[index] if isinstance(written, list) else None, f"{path}[{index}]")
    if not isinstance(node, Mapping):
        return
    before = written if isinstance(written, Mapping) else {}
    if "_target_" in node:
        _check_target(node, before, path)
    for key, value in node.items():
        _check_node(value, before.get(key), f"{path}.{key}" if path else str(key))


def _check_target(node: Mapping[str, Any], written: Mapping[str, Any], path: str) -> None:
    target = _locate(node["_target_"], path)
    try:
        parameters = inspect.signature(target).parameters
        hints = _hints(target)
    except (TypeError, ValueError, NameError):
        return  # builtins without a signature or with unresolvable annotations: instantiation itself will tell
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for key, value in node.items():
        where = f"{path}.{key}" if path else str(key)
        if key in HYDRA_KEYS:
            continue
        if key not in parameters:
            raise ConfigError(f"unknown key '{where}' for {node['_target_']}: {nearest(str(key), parameters)}")
        where = _source_of(written.get(key)) or where
        _check_type(value, _without_metadata(hints.get(key)), where)
        _check_range(value, hints.get(key), where)


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of what a target is called with; a dataclass inherits fields whose names mean something elsewhere."""
    whole = dataclasses.is_dataclass(target) or not inspect.isclass(target)
    return typing.get_type_hints(target if whole else target.__init__, include_extras=True)


def _check_range(value: Any, hint: Any, where: str) -> None:
    try:
        check_value(where, value, hint)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _source_of(written: Any) -> str | None:
    """The key that a value was taken from: who wrote ``seed=abc`` knows of no ``data.seed``."""
    found = re.fullmatch(r"\$\{([A-Za-z_][\w.]*)\}", written) if isinstance(written, str) else None
    return found[1] if found else None


def _locate(target: str, path: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = get_object(target)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}._target_='{target}' cannot be imported: {error}") from error
    return found


def _check_type(value: Any, hint: Any, where: str) -> None:
    allowed = _scalar_types(hint)
    if allowed is None or (value is None and type(None) in typing.get_args(hint)):
        return
    if isinstance(value, Mapping) and "_target_" in value:
        return
    if isinstance(value, float) and value != value:
        raise ConfigError(f"{where}=nan: must be a finite number")
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return
    if (isinstance(value, bool) and bool not in allowed) or not isinstance(value, tuple(allowed)):
        names = " or ".join(sorted(t.__name__ for t in allowed))
        shown, kind = ("null", "null") if value is None else (repr(value), type(value).__name__)
        raise ConfigError(f"{where}={shown}: must be {names}, not {kind}")


def _without_metadata(hint: Any) -> Any:
    """The annotation without ranges: ``float | None`` of ``Positive | None``."""
    if typing.get_origin(hint) is typing.Annotated:
        return typing.get_args(hint)[0]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.Union[tuple(_without_metadata(part) for part in typing.get_args(hint))]  # noqa: UP007
    return hint


def _scalar_types(hint: Any) -> set[type] | None:
    """The scalar types an annotation allows, or None where it allows anything else."""
    if hint in SCALARS:
        return {hint}
    if hint is Tensor:
        return set()  # YAML cannot hold one
    if typing.get_origin(hint) is typing.Literal:
        return {type(option) for option in typing.get_args(hint)}
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        parts = [_scalar_types(part) for part in typing.get_args(hint) if part is not type(None)]
        if all(part is not None for part in parts):
            return {t for part in parts for t in part or ()}
    return None


def _explain(message: str, overrides: list[str], plain: DictConfig | ListConfig) -> str:
    """Hydra's message in one line, with the nearest right key or option."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    option = re.search(r"Could not find '(?P<group>[^']+)/(?P<option>[^/']+)'", message)
    if option and "Available options in" in message:
        start = next(index for index, line in enumerate(lines) if line.startswith("Available options in"))
        end = next((i for i, line in enumerate(lines) if line.startswith("Config search path")), len(lines))
        options = lines[start + 1 : end]
        near = difflib.get_close_matches(option["option"], options, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        return f"{option['group']}={option['option']}: no such option; {hint}(options: {', '.join(options)})"
    if "Config group override must be" in message:
        wrong = next((word for word in overrides if word.endswith(("=null", "=None", "="))), "a group")
        return f"{wrong}: a group takes the name of an option (~{wrong.partition('=')[0]} leaves it out)"
    for override in overrides:
        key = override.split("=", 1)[0].lstrip("+~").split("@", 1)[0]
        parent, _, leaf = key.rpartition(".")
        node = OmegaConf.select(plain, parent) if parent else plain
        known = [str(k) for k in node] if isinstance(node, DictConfig) else None
        if known is not None and leaf not in known and f"'{key}'" in message:
            return f"unknown key '{key}': {nearest(leaf, known)}"
    return " ".join(lines[:3])
