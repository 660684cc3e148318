"""What goes wrong outside the algorithm: each fault ends, or is got over, within its time and says what it was.

The full disk is a limit on the size of a file (RLIMIT_FSIZE): Python ignores its signal, and a write beyond it fails as
one does for want of space.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from wandb.errors import CommError

import sparrow.config.folders
from sparrow.callbacks.loggers import wandb_logger
from sparrow.checkpoints import newest_checkpoint
from sparrow.config import ConfigError
from sparrow.config.folders import check_writable
from sparrow.train import main

COMMON = (
    "experiment=quickstart",
    "debug=default",
    "held_out=false",
    "threads=1",
    "samples.every=null",
    "callbacks.checkpoint.every_n_train_steps=1",
    "~callbacks.progress",
)
SECONDS = 120
"""Within which every fault ends the run on a busy machine; a hang would last for trainer.strategy.timeout."""


def run(run_dir: Path, *overrides: str, before: str = "", **environment: str) -> tuple[int, str]:
    """Exit status and everything printed by a run, and by the processes it starts."""
    command = [sys.executable, "-m", "sparrow.train", *COMMON, f"paths.run_dir={run_dir}", *overrides]
    if before:
        command = ["bash", "-c", f'{before}; exec "$0" "$@"', *command]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    started = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        printed, _ = started.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        raise
    return started.returncode, printed


def test_a_run_folder_below_a_file_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(sys, "argv", ["sparrow-train", *COMMON, f"paths.run_dir={tmp_path}/file/run"])
    started = time.monotonic()
    with pytest.raises(SystemExit) as refused:
        main()
    assert str(refused.value) == (
        f"sparrow-train: paths.run_dir={tmp_path}/file/run: cannot be made, {tmp_path}/file is a file; must be a "
        "writable folder"
    )
    assert time.monotonic() - started < 30


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def access(path: Path, mode: int) -> bool:
        asked.append((path, mode))
        return False

    monkeypatch.setattr(sparrow.config.folders.os, "access", access)  # who runs this may be root, who may do anything
    from omegaconf import OmegaConf

    for key, value in (("run_dir", f"{tmp_path}/a/b"), ("output_dir", str(tmp_path))):
        later = "${hydra:job.name}/run" if key == "output_dir" else value
        cfg = OmegaConf.create({"paths": {"output_dir": str(tmp_path), "run_dir": later}})
        with pytest.raises(ConfigError, match=rf"paths.{key}={value}: cannot be written, no permission in {tmp_path};"):
            check_writable(cfg)
    assert asked == [(tmp_path, os.W_OK | os.X_OK)] * 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trainer", ["cpu", "ddp", "fsdp2"])
def test_a_full_disk_ends_all_ranks_with_the_name_of_the_checkpoint(trainer: str, tmp_path: Path) -> None:
    limit = "ulimit -f 1000"  # KiB; a checkpoint, and a rank's share of one, is larger, every other file is smaller
    status, printed = run(tmp_path / "run", f"trainer={trainer}", before=limit)
    assert status == 1, printed[-3000:]
    path = tmp_path / "run" / "checkpoints" / "step_1.ckpt"
    # Shares are written through a buffer: which of its writes meets the limit depends on their sizes.
    causes = ("File too large", "a write was cut short, as on a full disk")[: 2 if trainer == "fsdp2" else 1]
    assert any(f"checkpoint {path}: could not be written, {cause}" in printed for cause in causes)
    assert "Traceback" not in printed
    if trainer == "ddp":  # the first rank alone writes
        assert f"rank 0 failed, so all 2 ranks end: OSError: checkpoint {path}" in printed
    assert newest_checkpoint(tmp_path / "run") is None
    assert list(path.parent.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trainer", ["ddp", "fsdp2"])
def test_an_error_on_one_rank_while_it_judges_ends_all_with_its_text(trainer: str, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "import os\n\n\ndef shape(outcome, tokens):\n"
        "    if os.environ.get('LOCAL_RANK') == '1':\n        raise ValueError('no length for rank 1')\n"
        "    return outcome\n"
    )
    shaping = "+reward.shaping=[{_target_: hydra.utils.get_method, path: failing.shape}]"
    status, printed = run(tmp_path / "run", f"trainer={trainer}", shaping, PYTHONPATH=str(tmp_path))
    assert status == 1, printed[-3000:]
    assert "sparrow-train: no length for rank 1" in printed
    assert "rank 1 failed, so all 2 ranks end: ValueError: no length for rank 1" in printed
    assert "Traceback" not in printed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trainer", ["ddp", "fsdp2"])
def test_a_loss_that_is_not_a_number_on_one_rank_ends_all(trainer: str, tmp_path: Path) -> None:
    (tmp_path / "nan_loss.py").write_text(
        "import os\n\nfrom sparrow.algorithms import TokenLoss\n\n\ndef loss(inputs):\n"
        "    bad = float('nan') if os.environ.get('LOCAL_RANK') == '1' else 1.0\n"
        "    return TokenLoss(-inputs.advantages_BT * inputs.dense_logprobs_BT * bad)\n"
    )
    chosen = ("loss=reinforce", "loss._target_=nan_loss.loss", "update.balance=false", f"trainer={trainer}")
    status, printed = run(tmp_path / "run", *chosen, PYTHONPATH=str(tmp_path))
    assert status == 1, printed[-3000:]
    for rank in (0, 1):
        path = tmp_path / "run" / f"non_finite_step_0_rank_{rank}.pt"
        assert f"gradient norm is nan; weights are untouched and the batch was saved to {path}" in printed
        assert path.is_file()


def test_a_server_that_does_not_answer_leaves_the_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def init(**arguments: Any) -> object:
        given.append(arguments)
        if arguments.get("mode") != "offline":
            raise CommError("Run initialization has timed out after 5.0 sec.\nmore")
        return object()

    monkeypatch.setattr("wandb.init", init)
    monkeypatch.setattr("wandb.teardown", lambda: None)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_MODE", "offline")  # given back afterwards: the logger sets it
    logger = wandb_logger(str(tmp_path), timeout_s=5)
    with pytest.warns(
        UserWarning, match=r"W&B could not be reached \(Run initialization has timed out after 5.0 sec.\)"
    ):
        first = logger.experiment
    assert logger.experiment is first
    assert [arguments.get("mode") for arguments in given] == [None, "offline"]
    assert given[0]["id"] == given[1]["id"]
    assert given[0]["settings"].init_timeout == 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_without_its_server_goes_on_to_the_end(tmp_path: Path) -> None:
    nowhere = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_MODE": "online"}
    status, printed = run(tmp_path / "run", "logger=default", "logger.wandb.timeout_s=5", **nowhere)
    assert status == 0, printed[-3000:]
    assert "W&B could not be reached" in printed
    assert f"wandb sync {tmp_path / 'run'}/wandb/offline-run-*" in printed
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert (tmp_path / "run" / "summary.json").is_file()
