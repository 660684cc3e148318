"""The command, and evaluation during training: what it leaves behind, and that it leaves training alone."""

import csv
import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from sparrow.config import check_config
from sparrow.config_dir import config_dir
from sparrow.evaluate import evaluate
from sparrow.train import train

SMALL = (
    "evaluation.samples=2", "evaluation.ks=[1,2]", "evaluation.max_problems=3", "evaluation.max_new_tokens=60",
    "data.source.numbers=6", "evaluation.resamples=20",
)  # fmt: skip


def composed(name, run_dir, *overrides):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose(name, overrides=[*overrides, f"paths.run_dir={run_dir}"])
    check_config(cfg)
    run_dir.mkdir(parents=True, exist_ok=True)
    return cfg


def test_both_arms_side_by_side(tmp_path, capsys):
    evaluate(composed("evaluate", tmp_path, *SMALL), tmp_path)
    found = json.loads((tmp_path / "evaluation.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [line["arm"] for line in lines] == ["dense"] * 3 + ["sparse"] * 3
    assert [line["key"] for line in lines[:3]] == [line["key"] for line in lines[3:]]
    for arm in ("dense", "sparse"):
        own = [line for line in lines if line["arm"] == arm]
        share = sum(label == "correct" for line in own for label in line["labels"]) / 6
        assert found["arms"][arm]["sparrow/running_sum"]["avg@2"]["value"] == pytest.approx(share)
        tokens = sum(sum(line["tokens"]) for line in own) / 6
        assert found["arms"][arm]["sparrow/running_sum"]["tokens"]["value"] == pytest.approx(tokens)
    assert found["problems"] == {"sparrow/running_sum": 3}
    assert "sparse - dense" in capsys.readouterr().out
    again = tmp_path / "again"
    evaluate(composed("evaluate", again, *SMALL), again)
    assert (again / "samples.jsonl").read_text() == (tmp_path / "samples.jsonl").read_text()


def test_a_set_without_held_out_problems_is_an_error(tmp_path):
    cfg = composed("evaluate", tmp_path, *SMALL, "data.source.validation_count=0")
    with pytest.raises(ValueError, match="data.source has no validation rows"):
        evaluate(cfg, tmp_path)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("experiment=quickstart",), 220),
        (("experiment=quickstart", "debug=default"), 24),
        (("experiment=quickstart", "rollout.max_new_tokens=100"), 100),
        (("experiment=quickstart", "evaluation.max_new_tokens=50"), 50),
    ],
)
def test_evaluation_in_training_is_as_long_as_training_allows(tmp_path, overrides, expected):
    assert composed("train", tmp_path, *overrides).evaluation.max_new_tokens == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_training_is_bit_equal_with_evaluation_and_without(tmp_path):
    options = (
        "experiment=quickstart", "debug=default", "~callbacks.progress", "reward=running-sum-steps",
        "rollout.temperature=2.0", "optimizer.lr=1e-3", "evaluation.samples=2", "evaluation.ks=[1,2]",
        "evaluation.max_problems=3", "evaluation.max_new_tokens=24", "evaluation.resamples=20",
    )  # fmt: skip
    rows = {}
    for name, every in (("off", "null"), ("on", "1")):
        folder = tmp_path / name
        train(composed("train", folder, *options, f"val_every={every}"), folder)
        with (folder / "metrics.csv").open() as file:
            rows[name] = list(csv.DictReader(file))
    dropped = ("timing_s/", "perf/", "val/")
    kept = {
        name: [{key: value for key, value in row.items() if not key.startswith(dropped)} for row in found]
        for name, found in rows.items()
    }
    assert kept["on"] == kept["off"]
    assert len(kept["on"]) == 2
    weights = [(tmp_path / name / "export" / "base" / "model.safetensors").read_bytes() for name in rows]
    assert weights[0] == weights[1]
    assert {"val/dense/sparrow/running_sum/pass@2", "val/paired/sparrow/running_sum/avg@2"} <= set(rows["on"][0])
    steps = [json.loads(line)["step"] for line in (tmp_path / "on" / "validation.jsonl").read_text().splitlines()]
    assert steps == [1, 2]


def test_evaluation_without_held_out_problems_fails_before_the_first_step(tmp_path):
    cfg = composed(
        "train", tmp_path, "experiment=quickstart", "debug=default", "~callbacks.progress", "val_every=1",
        "data.source.validation_count=0",
    )  # fmt: skip
    with pytest.raises(ValueError, match="val_every needs held-out problems"):
        train(cfg, tmp_path)
    assert not Path(tmp_path / "metrics.csv").exists()
