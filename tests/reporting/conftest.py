"""A run folder of two steps, written by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sparrow.schedule import BudgetSchedule

TRACE = {
    "step": 1,
    "prompt": "1+2=",
    "tokens": ["<", "3&"],
    "alpha": [None, 0.25],
    "reward": 1.0,
    "outcome": "correct",
    "advantage": 0.5,
}


def write_run(folder: Path, *, ended: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_text(
        "critic/score/mean,tail/alpha_p05/bin_128_192,tail/alpha_p05/bin_64_128,training/global_step\n"
        "0.25,,0.99,1\n0.5,0.8,0.97,2\n"
    )
    BudgetSchedule([4, 8], page_size=4, bin_tokens=64, tau=0.9, estimator="exact").to_yaml(folder / "schedule.yaml")
    (folder / "samples.jsonl").write_text(json.dumps(TRACE) + "\n")
    if ended:
        (folder / "summary.json").write_text(json.dumps({"steps": 2, "tail_p05_min": None}))
        (folder / "provenance.json").write_text(json.dumps({"torch": "2.13.0"}))
        (folder / "config.yaml").write_text("name: <demo>\n")
    return folder


@pytest.fixture
def trace() -> dict[str, object]:
    """The one sample of the run."""
    return dict(TRACE)


@pytest.fixture
def make_run() -> Callable[..., Path]:
    """Writes the run into a folder and returns it."""
    return write_run
