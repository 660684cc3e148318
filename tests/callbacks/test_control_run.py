"""Controller and early warning in a real run: they leave their files, and a resumed run makes the same moves."""

import csv
import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from sparrow.config import check_config
from sparrow.config_dir import config_dir
from sparrow.schedule import load_schedule
from sparrow.train import train

OVERRIDES = (
    *("experiment=quickstart", "controller=adaptive", "callbacks=health-checkpoint", "logger=csv", "held_out=false"),
    *("steps=3", "data.prompts_per_step=2", "rollout.samples=2", "data.source.numbers=12", "rollout.max_new_tokens=84"),
    *("schedule.pages=[1,1,1,1,1]", "controller.filled=40", "controller.prompts=2", "~callbacks.progress"),
    *("reward=running-sum-steps", "optimizer.lr=1e-3", "callbacks.checkpoint.every_n_train_steps=1"),
)


def run(run_dir: Path, *overrides: str) -> list[dict[str, str]]:
    run_dir.mkdir(parents=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", overrides=[*OVERRIDES, *overrides, f"paths.run_dir={run_dir}"])
    check_config(cfg)
    train(cfg, run_dir)
    with (run_dir / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:RL step 3")  # one page a bin is far below tau: the warning is asserted below
def test_a_resumed_run_makes_the_same_moves(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", "controller.tau=0.999")
    checkpoint = tmp_path / "whole" / "checkpoints" / "step_1.ckpt"
    resumed = run(tmp_path / "resumed", "controller.tau=0.999", f"resume={checkpoint}")
    moved = [key for key in whole[0] if key.startswith(("schedule/pages/", "controller/", "health/", "tail/alpha"))]
    assert len(moved) > 12
    assert [[row[key] for key in moved] for row in resumed[-2:]] == [[row[key] for key in moved] for row in whole[1:]]
    pages = [[float(row[f"schedule/pages/bin_{index}"]) for index in range(5)] for row in whole]
    assert pages[0] == [1.0] * 5
    assert pages[0] != pages[2]
    assert load_schedule(tmp_path / "resumed" / "schedule_controlled.yaml") == load_schedule(
        tmp_path / "whole" / "schedule_controlled.yaml"
    )
    lines = [
        [json.loads(line) for line in (tmp_path / name / "controller.jsonl").read_text().splitlines()]
        for name in ("whole", "resumed")
    ]
    assert [line for line in lines[0] if line["step"] > 1] == [line for line in lines[1] if line["step"] > 1]
    reports = [json.loads((tmp_path / name / "health.json").read_text()) for name in ("whole", "resumed")]
    assert [warning["step"] for warning in reports[0]["warnings"]] == [3]
    assert reports[0]["warnings"] == reports[1]["warnings"]
    assert reports[0]["last_healthy_checkpoint"] is None
