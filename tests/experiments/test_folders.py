"""A study's run folders: what an interrupted run left is cleared, everything else stays."""

from pathlib import Path

import pytest

from experiments.folders import make_way


@pytest.mark.parametrize("left", ["metrics.csv", "summary.json", "checkpoints/step_1.ckpt"])
def test_what_an_interrupted_run_left_is_removed(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "run"
    (folder / left).parent.mkdir(parents=True)
    (folder / left).write_text("half")
    (folder / "config.yaml").write_text("steps: 2")
    (tmp_path / "other").mkdir()
    assert make_way(folder) == folder
    assert not folder.exists()
    assert (tmp_path / "other").is_dir()


def test_a_folder_that_holds_no_result_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert make_way(folder) == folder
    assert (folder / "notes.txt").read_text() == "mine"
    assert make_way(tmp_path / "absent") == tmp_path / "absent"
    assert not (tmp_path / "absent").exists()
