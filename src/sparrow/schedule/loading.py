"""Finding a schedule by name or path."""

import difflib
import os
from pathlib import Path

import yaml

from sparrow.config_dir import config_dir
from sparrow.schedule.budget import BudgetSchedule, schedule_from_dict
from sparrow.schedule.published import published_names, published_schedule

_NOT_YAML = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""PyYAML's own error, and what its constructors let through: a bad date, an empty ``!!int``, nesting without end."""


def load_schedule(name_or_path: str | Path) -> BudgetSchedule:
    """Load a schedule.

    Args:
        name_or_path: ``dense``, a published name such as ``qwen3-1.7b-0.86``, another option of ``configs/schedule``,
            or the path of a YAML file (recognised by its ending).

    Raises:
        ValueError: the name is unknown (the options and the nearest one are listed) or the file's content is wrong.
        FileNotFoundError: the path does not exist.
    """
    name = str(name_or_path)
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    if name == "dense":
        return BudgetSchedule.dense()
    if name in published_names():
        return published_schedule(name)
    shipped = {path.stem: path for path in sorted((config_dir() / "schedule").glob("*.yaml"))}
    if name not in shipped:
        options = sorted({"dense", *published_names(), *shipped})
        near = difflib.get_close_matches(name, options, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"unknown schedule '{name}'{hint} (a path ending in .yaml, or one of: {', '.join(options)})")
    return _read(shipped[name])


def _read(path: Path) -> BudgetSchedule:
    if not os.path.isfile(path):  # unlike Path.is_file, also False for a name that no file can have
        raise FileNotFoundError(f"schedule file {path} does not exist")
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except _NOT_YAML as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path}: must hold a mapping of schedule fields, found {type(fields).__name__}")
    return schedule_from_dict(fields, where=str(path))
