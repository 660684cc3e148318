"""What a suite leaves in its run folder: numbers as flat JSON, and where they came from."""

import json
import math
from pathlib import Path
from typing import Any

from sparrow.callbacks.provenance import provenance


def write_results(run_dir: Path, name: str, summary: dict[str, float | None], details: dict[str, Any]) -> None:
    """Write ``summary.json``, ``provenance.json`` and ``<name>.json``.

    Args:
        run_dir: the run folder.
        name: of the suite.
        summary: flat numbers; None or NaN: could not be measured.
        details: everything else, written with the machine's description beside it.
    """
    machine = provenance()
    _write(run_dir / "summary.json", summary)
    _write(run_dir / "provenance.json", machine)
    _write(run_dir / f"{name}.json", {"machine": machine, **details})


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(finite(content), indent=1) + "\n", encoding="utf-8")


def finite(content: Any) -> Any:
    """The same content with NaN and infinity, which JSON does not know, as None."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return content
