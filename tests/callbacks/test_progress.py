"""What a run shows while it goes on: a bar on a terminal, a line a step elsewhere."""

from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger

from sparrow.callbacks.progress import StepProgress, step_line

METRICS = {"critic/score/mean": 0.4219, "tail/alpha/p05": 0.99812, "perf/rollout_tokens_per_s": 3912.4, "other": 1.0}


def bar(terminal: bool, monkeypatch: pytest.MonkeyPatch, rank: int = 0) -> StepProgress:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    made = StepProgress(refresh_rate=1)
    trainer: Any = SimpleNamespace(is_global_zero=rank == 0)
    made.setup(trainer, None, "fit")  # type: ignore[arg-type]
    return made


def test_a_line_holds_what_was_measured() -> None:
    assert step_line(3, 16, METRICS) == "step 3/16  reward 0.422  p5 0.998  tok/s 3912"
    assert step_line(3, -1, {"actor/entropy": 1.0}) == "step 3"


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = bar(False, monkeypatch)
    made.say(1, 2, METRICS)
    assert not made.is_enabled
    assert capsys.readouterr().out == "step 1/2  reward 0.422  p5 0.998  tok/s 3912\n"


def test_a_bar_and_no_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = bar(True, monkeypatch)
    made.say(1, 2, METRICS)
    assert made.is_enabled
    assert capsys.readouterr().out == ""


def test_only_the_first_process_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = bar(False, monkeypatch, rank=1)
    made.say(1, 2, METRICS)
    assert capsys.readouterr().out == ""


def test_the_loggers_version_is_not_shown(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = CSVLogger(save_dir=tmp_path, name="", version="long_name_1")
    trainer: Any = SimpleNamespace(is_global_zero=True, loggers=[logger], progress_bar_metrics={"reward": 0.5})
    assert bar(True, monkeypatch).get_metrics(trainer, None) == {"reward": 0.5}  # type: ignore[arg-type]
