"""Five steps with stored numbers: a change that is meant to alter nothing alters nothing here.

After a change that is meant to alter them (the packaged policy, a default of the step), store the new ones:

    python -m tests.test_golden
"""

import csv
import json
import tempfile
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from sparrow.config import check_config
from sparrow.config_dir import config_dir
from sparrow.train import train

STORED = Path(__file__).parent / "golden_five_steps.json"

OVERRIDES = (
    "experiment=quickstart", "debug=default", "steps=5", "reward=running-sum-steps", "rollout.temperature=1.5",
    "rollout.samples=4", "rollout.max_new_tokens=40", "optimizer.lr=2e-5", "threads=1",
)  # fmt: skip
"""Forty tokens reach into the first length bin where the schedule leaves pages out."""

COLUMNS = (
    "actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/score/mean", "critic/advantages/max",
    "tail/alpha/mean", "tail/alpha/p05", "rollout_corr/kl", "rollout_corr/rollout_is_mean",
    "schedule/kv_fraction_sparse_layers", "response_length/mean",
)  # fmt: skip


def five_steps(run_dir: Path) -> list[dict[str, float]]:
    """The stored columns of the run."""
    run_dir.mkdir(parents=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", overrides=[*OVERRIDES, f"paths.run_dir={run_dir}", "~callbacks.progress"])
    check_config(cfg)
    train(cfg, run_dir)
    with (run_dir / "metrics.csv").open() as file:
        return [{name: float(row[name]) for name in COLUMNS} for row in csv.DictReader(file)]


def test_five_steps_give_the_stored_numbers(tmp_path: Path) -> None:
    stored = json.loads(STORED.read_text())
    rows = five_steps(tmp_path / "run")
    assert len(rows) == len(stored) == 5
    # Another CPU rounds in other places; Adam makes of 1e-7 in a gradient up to 1e-4 in a loss.
    for row, expected in zip(rows, stored, strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert rows[0]["actor/grad_norm"] > 0.01, "the run has something to learn from"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        STORED.write_text(json.dumps(five_steps(Path(folder) / "run"), indent=1) + "\n")
