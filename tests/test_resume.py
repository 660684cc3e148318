"""A run that was cut and continued ends with the bits of one that was not: cuts between steps, signals, kills."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from safetensors.torch import load_file

from sparrow.config import check_config
from sparrow.config_dir import config_dir
from sparrow.train import train

SMALL = (
    "debug=default",
    "held_out=false",
    "reward=running-sum-steps",  # partial credit and a high temperature: samples differ, so the weights move
    "rollout.temperature=2.0",
    "optimizer.lr=1e-3",
    "callbacks.checkpoint.every_n_train_steps=1",
    "~callbacks.progress",
)
FEW_ROWS = "data.source.count=4"  # with two prompts a step an epoch has two steps
TIMES = ("timing_s", "perf", "distill/cost_ratio")
"""Metrics that no two runs share."""


def overrides(run_dir: Path, *more: str) -> list[str]:
    return [*SMALL, f"paths.run_dir={run_dir}", *more]


def run(run_dir: Path, *more: str) -> None:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", overrides=overrides(run_dir, *more))
    check_config(cfg)
    run_dir.mkdir(parents=True, exist_ok=True)
    train(cfg, run_dir)


def rows(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open() as file:
        found = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in found]


def weights(run_dir: Path, part: str = "base/model") -> dict[str, torch.Tensor]:
    return load_file(run_dir / "export" / f"{part}.safetensors")


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


# A run that goes on does so beside its own checkpoints.
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
@pytest.mark.parametrize(
    ("experiment", "cuts"),
    [
        ("quickstart", (1, 2)),  # inside an epoch and at its end
        pytest.param("distill-quickstart", (3,), marks=pytest.mark.slow),  # inside the second
    ],
)
def test_every_cut_ends_with_the_same_bits(experiment: str, cuts: tuple[int, ...], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run(whole, f"experiment={experiment}", "steps=4", FEW_ROWS)
    start, before = weights(whole), rows(whole)
    if experiment == "quickstart":  # nothing is left, and nothing is lost
        summary = (whole / "summary.json").read_bytes()
        run(whole, f"experiment={experiment}", "steps=4", FEW_ROWS, "resume=auto")
        assert rows(whole) == before
        assert (whole / "summary.json").read_bytes() == summary
        assert_equal(weights(whole), start)
    for step in cuts:
        cut = tmp_path / f"cut_{step}"
        checkpoint = whole / "checkpoints" / f"step_{step}.ckpt"
        run(cut, f"experiment={experiment}", "steps=4", FEW_ROWS, f"resume={checkpoint}")
        assert_equal(weights(cut), start)
        assert rows(cut) == rows(whole)
        if experiment.startswith("distill"):
            assert_equal(weights(cut, "adapter/adapter_model"), weights(whole, "adapter/adapter_model"))


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_a_run_that_was_killed_after_its_last_step_writes_its_results_when_resumed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    more = ("experiment=quickstart", "steps=2", FEW_ROWS)
    run(run_dir, *more, "held_out=true", "data.max_validation_prompts=3")
    summary = run_dir / "summary.json"
    whole = json.loads(summary.read_text())
    plots = list(run_dir.glob("*.png"))
    for left in (None, summary.read_text()[:40], '{"steps": 1}'):  # nothing, half of it, of an earlier end
        for path in plots:
            path.unlink()
        summary.unlink() if left is None else summary.write_text(left)
        run(run_dir, *more, "held_out=true", "data.max_validation_prompts=3", "resume=auto")
        found = json.loads(summary.read_text())
        assert found.keys() == whole.keys()
        timed = [key for key in whole if key.startswith(("rollout_speedup", "rollout_tokens_per_s", "wall_s"))]
        assert {key: found[key] for key in found if key not in timed} == {
            key: whole[key] for key in whole if key not in timed
        }
        assert all(path.is_file() for path in plots)


@pytest.mark.filterwarnings("ignore:steps=3. it was 2:UserWarning")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_a_finished_run_goes_on_where_more_steps_are_asked_for(tmp_path: Path) -> None:
    seldom = ("experiment=quickstart", FEW_ROWS, "callbacks.checkpoint.every_n_train_steps=20")
    run(tmp_path / "run", *seldom, "steps=2")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_2.ckpt"]
    run(tmp_path / "run", *seldom, "steps=3", "resume=auto")
    assert len(rows(tmp_path / "run")) == 3
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step_2.ckpt", "step_3.ckpt"]


def test_a_run_without_the_checkpoint_callback_leaves_none(tmp_path: Path) -> None:
    run(tmp_path / "run", "experiment=quickstart", "steps=1", FEW_ROWS, "~callbacks.checkpoint")
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def process(run_dir: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sparrow.train", *overrides(run_dir, "experiment=quickstart", "threads=1", *more)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)


def wait_for(path: Path, child: subprocess.Popen[str], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert child.poll() is None, child.communicate()[0][-2000:]
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_ends_the_run(signum: signal.Signals, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    child = process(run_dir, "steps=500", "callbacks.checkpoint.every_n_train_steps=3")
    wait_for(run_dir / "checkpoints" / "step_3.ckpt", child)
    child.send_signal(signum)
    printed, _ = child.communicate(timeout=120)
    assert child.returncode == 128 + signum, printed[-2000:]
    assert "Traceback" not in printed
    done = sorted(int(path.stem.split("_")[1]) for path in (run_dir / "checkpoints").glob("step_*.ckpt"))
    assert f"{signum.name}: saved {run_dir / 'checkpoints' / f'step_{done[-1]}.ckpt'}" in printed
    assert len(rows(run_dir)) == done[-1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_end_with_the_same_bits(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, "experiment=quickstart", "steps=40")
    draw = random.Random(0)
    kills = 0
    while kills < 20:
        child = process(killed, "steps=40", "resume=auto")
        wait_for(killed / "metrics.csv", child)  # from a moment of the start or of a step
        time.sleep(draw.uniform(0.0, 1.5))
        if child.poll() is not None:
            break
        child.kill()
        child.communicate()
        kills += 1
    child = process(killed, "steps=40", "resume=auto")
    printed, _ = child.communicate(timeout=600)
    assert child.returncode == 0, printed[-2000:]
    print(f"{kills} kills")
    assert kills == 20
    assert_equal(weights(killed), weights(whole))
    assert rows(killed) == rows(whole)
