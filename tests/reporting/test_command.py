"""``sparrow-report`` as a user runs it: it draws the folder it was given and names it last."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparrow.report import main


def test_the_last_line_is_the_folder_of_the_run(
    tmp_path: Path, make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sparrow-report", f"run={folder}"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(folder)
    assert lines[-2].startswith(f"{folder / 'report.html'}: ")
    assert "Tail per length bin" in (folder / "report.html").read_text()


def test_a_run_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARROW_TRACEBACK", raising=False)
    monkeypatch.setattr("sys.argv", ["sparrow-report"])
    with pytest.raises(SystemExit, match="sparrow-report: run=null: must be the folder of a training run"):
        main()
