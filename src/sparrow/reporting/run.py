"""What a run folder holds, read back."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparrow.schedule import BudgetSchedule, load_schedule

Row = dict[str, float]


@dataclass(frozen=True)
class Trace:
    """One sampled completion as ``samples.jsonl`` keeps it.

    Attributes:
        step: RL step.
        prompt: its text.
        tokens: text of each response token.
        alpha: agreement of actor and policy at each token; None where it was not measured (the first one is dense).
        reward: score.
        outcome: the verifier's label.
        advantage: within its group.
    """

    step: int
    prompt: str
    tokens: list[str]
    alpha: list[float | None]
    reward: float
    outcome: str
    advantage: float


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        folder: where it lies.
        rows: one per RL step, by key; a value that a step does not have is missing.
        summary: ``summary.json``, empty while the run has not ended.
        provenance: versions, commit and machine.
        config: the composed configuration, as text.
        schedule: the page budget, if the run kept one.
        traces: sampled completions, if the run kept some.
    """

    folder: Path
    rows: list[Row]
    summary: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    config: str = ""
    schedule: BudgetSchedule | None = None
    traces: list[Trace] = field(default_factory=list)

    def series(self, key: str) -> tuple[list[float], list[float]]:
        """RL steps and values of a key, where it was recorded."""
        points = [(row["training/global_step"], row[key]) for row in self.rows if key in row]
        return [step for step, _ in points], [value for _, value in points]

    def keys(self, prefix: str) -> list[str]:
        """Recorded keys that begin with a prefix, bins in the order of their first token."""
        found = {key for row in self.rows for key in row if key.startswith(prefix)}
        return sorted(found, key=lambda key: (_first_number(key), key))


def read_run(folder: Path) -> Run:
    """Read a run folder; a run that goes on or was cut can be read too.

    Raises:
        FileNotFoundError: the folder or its ``metrics.csv`` does not exist.
        ValueError: a file is not what a run writes; the message names file and line.
    """
    if not (folder / "metrics.csv").is_file():
        raise FileNotFoundError(f"run={folder}: no metrics.csv there; must be the folder of a training run")
    schedule = folder / "schedule.yaml"
    config = folder / "config.yaml"
    return Run(
        folder,
        _read_rows(folder / "metrics.csv"),
        _read_json(folder / "summary.json"),
        _read_json(folder / "provenance.json"),
        config.read_text(encoding="utf-8") if config.is_file() else "",
        load_schedule(str(schedule)) if schedule.is_file() else None,
        _read_traces(folder / "samples.jsonl"),
    )


def _read_rows(path: Path) -> list[Row]:
    rows = []
    with path.open(encoding="utf-8", newline="") as file:
        for number, cells in enumerate(csv.DictReader(file), start=2):
            try:
                row = {key: float(value) for key, value in cells.items() if value not in ("", None)}
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            if "training/global_step" not in row:
                raise ValueError(f"{path}, line {number}: no training/global_step")
            rows.append(row)
    return rows


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    return found


def _read_traces(path: Path) -> list[Trace]:
    if not path.is_file():
        return []
    traces = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            traces.append(Trace(**json.loads(line)))
        except (TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return traces


def _first_number(key: str) -> int:
    digits = [part for part in key.replace("/", "_").split("_") if part.isdigit()]
    return int(digits[0]) if digits else 0
