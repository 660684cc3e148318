"""A checkpoint is whole or absent: full disks, folders that cannot be written, interrupted writes."""

import errno
import resource
import signal
from pathlib import Path

import pytest
import torch

from sparrow.checkpoints import WholeFiles, newest_checkpoint, resume_path
from sparrow.checkpoints.storage import PARTIAL

STATE = {"weights": torch.arange(1000.0), "step": 3}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "step_3.ckpt"
    WholeFiles().save_checkpoint(STATE, path)
    found = WholeFiles().load_checkpoint(path)
    assert found["step"] == 3
    assert torch.equal(found["weights"], torch.arange(1000.0))
    assert [file.name for file in path.parent.iterdir()] == ["step_3.ckpt"]


def test_a_full_disk_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "step_3.ckpt"
    WholeFiles().save_checkpoint(STATE, path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # a write beyond the limit then fails like one on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"checkpoint {path}: could not be written"):
            WholeFiles().save_checkpoint({"weights": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["step_3.ckpt"]


def test_a_write_without_space_names_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"step_1.ckpt: could not be written, No space left on device"):
        WholeFiles().save_checkpoint(STATE, tmp_path / "step_1.ckpt")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(OSError, match=r"checkpoints/step_1.ckpt: could not be written, File exists"):
        WholeFiles().save_checkpoint(STATE, tmp_path / "checkpoints" / "step_1.ckpt")


def saved(path: Path) -> Path:
    WholeFiles().save_checkpoint(STATE, path)
    return path


def test_the_newest_is_the_last_step_that_was_written_to_its_end(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    for step in (2, 9, 10):
        saved(tmp_path / "checkpoints" / f"step_{step}.ckpt")
    cut = tmp_path / "checkpoints" / "step_11.ckpt"
    cut.write_bytes((tmp_path / "checkpoints" / "step_10.ckpt").read_bytes()[:-40])
    (tmp_path / "checkpoints" / f"step_12.ckpt{PARTIAL}").write_bytes(b"PK")
    (tmp_path / "checkpoints" / "last.ckpt").symlink_to("step_2.ckpt")
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step_10.ckpt"


def test_resume_takes_auto_a_file_or_a_run_folder(tmp_path: Path) -> None:
    assert resume_path(None, tmp_path) is None
    assert resume_path("auto", tmp_path) is None
    (tmp_path / "metrics.csv").write_text("")
    assert resume_path("auto", tmp_path) is None  # cut before its first checkpoint: it starts anew
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match=f"resume=auto: {tmp_path} holds a finished run and no checkpoint to go on"):
        resume_path("auto", tmp_path)
    path = saved(tmp_path / "checkpoints" / "step_2.ckpt")
    assert resume_path("auto", tmp_path) == resume_path(str(tmp_path), Path("/nowhere")) == path
    assert resume_path(str(path), Path("/nowhere")) == path


def test_resume_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="resume=/nowhere: there is no such file"):
        resume_path("/nowhere", tmp_path)
    with pytest.raises(FileNotFoundError, match="the folder holds no checkpoint named"):
        resume_path(str(tmp_path), tmp_path)
    (tmp_path / "step_1.ckpt").write_bytes(b"PK\x03\x04 half of a file")
    with pytest.raises(ValueError, match="no complete checkpoint"):
        resume_path(str(tmp_path / "step_1.ckpt"), tmp_path)
