"""Loggers beside metrics.csv: what they are given and where they write."""

import csv
from pathlib import Path
from typing import Any

import pytest

from sparrow.callbacks.loggers import csv_logger, tensorboard_logger, wandb_logger


def test_wandb_is_not_given_what_it_warns_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def init(**arguments: Any) -> object:
        given.update(arguments)
        return object()

    monkeypatch.setattr("wandb.init", init)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert wandb_logger(str(tmp_path), name="run").experiment is not None
    assert "anonymous" not in given
    assert (given["project"], given["name"], given["resume"]) == ("sparrow", "run", "allow")
    assert given["id"] == (tmp_path / "wandb_id").read_text()


def test_an_earlier_metrics_file_gives_way_to_the_first_row_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("reward,step\n0.5,1\n")
    logger = csv_logger(str(tmp_path))
    assert logger.experiment is logger.experiment  # what Lightning makes at the start, and saves before any step
    logger.save()
    logger.finalize("failed")
    assert path.read_text() == "reward,step\n0.5,1\n"
    for step, row in ((1, {"reward": 0.25}), (2, {"reward": 0.75, "length": 3.0})):
        logger.log_metrics(row, step=step)
    logger.finalize("success")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert rows == [{"length": "", "reward": "0.25", "step": "1"}, {"length": "3.0", "reward": "0.75", "step": "2"}]


def test_tensorboard_writes_into_the_run_folder(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = tensorboard_logger(str(tmp_path))
    for step, value in ((1, 0.25), (2, 0.5)):
        logger.log_metrics({"critic/score/mean": value}, step=step)
    logger.finalize("success")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("critic/score/mean")] == [(1, 0.25), (2, 0.5)]
