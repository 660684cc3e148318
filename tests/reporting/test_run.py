"""Reading a run folder back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparrow.reporting import Trace, read_run

Make = Callable[..., Path]


def test_rows_keep_what_was_recorded(tmp_path: Path, make_run: Make, trace: dict[str, Any]) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert run.rows[0] == {"critic/score/mean": 0.25, "tail/alpha_p05/bin_64_128": 0.99, "training/global_step": 1}
    assert run.series("critic/score/mean") == ([1.0, 2.0], [0.25, 0.5])
    assert run.series("tail/alpha_p05/bin_128_192") == ([2.0], [0.8])
    assert run.series("nothing") == ([], [])
    assert run.keys("tail/alpha_p05/bin_") == ["tail/alpha_p05/bin_64_128", "tail/alpha_p05/bin_128_192"]
    assert run.summary == {"steps": 2, "tail_p05_min": None}
    assert run.schedule is not None
    assert run.schedule.tau == 0.9
    assert run.traces == [Trace(**trace)]


def test_a_run_that_goes_on_can_be_read(tmp_path: Path, make_run: Make) -> None:
    run = read_run(make_run(tmp_path / "run", ended=False))
    assert (run.summary, run.provenance, run.config) == ({}, {}, "")
    assert len(run.rows) == 2


def test_what_is_wrong_is_named(tmp_path: Path, make_run: Make) -> None:
    with pytest.raises(FileNotFoundError, match="no metrics.csv there; must be the folder of a training run"):
        read_run(tmp_path)
    folder = make_run(tmp_path / "run")
    (folder / "metrics.csv").write_text("a,training/global_step\n1,1\nx,2\n")
    with pytest.raises(ValueError, match=r"metrics.csv, line 3: could not convert string to float: 'x'"):
        read_run(folder)
    (folder / "metrics.csv").write_text("a\n1\n")
    with pytest.raises(ValueError, match=r"metrics.csv, line 2: no training/global_step"):
        read_run(folder)
    make_run(folder)
    (folder / "samples.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"samples.jsonl, line 1: "):
        read_run(folder)
    make_run(folder)
    (folder / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary.json: "):
        read_run(folder)
