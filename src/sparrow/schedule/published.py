"""The published per-model page budgets (arXiv 2606.08446 and its release), and the YAML files made from them.

The figures live in ``published_schedules.json`` beside this module. The files ``configs/schedule/<name>.yaml`` are
generated from it, so that they can be chosen, overridden and read like any other option::

    python -m sparrow.schedule configs/schedule
"""

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from sparrow.schedule.budget import BudgetSchedule


@cache
def _data() -> dict[str, Any]:
    text = resources.files("sparrow.schedule").joinpath("published_schedules.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def published_names() -> list[str]:
    """Names of the published schedules, ``<model>-<tau>``."""
    return list(_data()["schedules"])


def published_schedule(name: str) -> BudgetSchedule:
    """One published schedule by name; its tau is in the study's own estimator, ``top20``.

    Raises:
        KeyError: no schedule of that name was published.
    """
    data = _data()
    if name not in data["schedules"]:
        raise KeyError(f"no published schedule '{name}' (one of: {', '.join(published_names())})")
    entry = data["schedules"][name]
    return BudgetSchedule(
        pages=entry["pages"],
        page_size=data["page_size"],
        bin_tokens=data["bin_tokens"],
        first=data["reserved_pages"]["first"],
        last=data["reserved_pages"]["last"],
        dense_layers=data["dense_layers"],
        tau=entry["tau"],
        estimator="top20",
        provenance=f"published, arXiv 2606.08446, model {entry['model']}",
    )


def write_presets(folder: str | Path) -> list[Path]:
    """Write one YAML file per published schedule into ``folder`` and return the paths."""
    paths = []
    for name in published_names():
        path = Path(folder) / f"{name}.yaml"
        published_schedule(name).to_yaml(path)
        paths.append(path)
    return paths
