"""Several processes: the same weights as one, the same bits after a cut, and an end for all when one of them fails."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

COMMON = (
    "experiment=quickstart",
    "debug=default",
    "held_out=false",
    "threads=1",
    "reward=running-sum-steps",  # partial credit and a high temperature: samples differ, so the weights move
    "rollout.temperature=2.0",
    "optimizer.lr=1e-3",
    "callbacks.checkpoint.every_n_train_steps=1",
    "~callbacks.progress",
)
TWO = ("trainer=ddp",)  # the two prompts of a step are shared out


def start(run_dir: Path, *overrides: str, launcher: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, "-m", "sparrow.train", *COMMON, f"paths.run_dir={run_dir}", *overrides]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables)


def finish(*processes: subprocess.Popen[str], seconds: float = 600) -> None:
    for process in processes:
        printed, _ = process.communicate(timeout=seconds)
        assert process.returncode == 0, printed[-3000:]


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "export" / "base" / "model.safetensors")


def furthest(left: Path, right: Path) -> float:
    """The greatest difference of a weight between two runs."""
    ours, others = weights(left), weights(right)
    assert ours.keys() == others.keys()
    return max(float((ours[name] - others[name]).abs().max()) for name in ours)


def free_port() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


def test_two_processes_equal_one(tmp_path: Path) -> None:
    finish(start(tmp_path / "one"))
    finish(start(tmp_path / "two", *TWO))
    assert furthest(tmp_path / "one", tmp_path / "two") < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_processes_continue_to_the_bit(tmp_path: Path) -> None:
    finish(start(tmp_path / "whole", *TWO, "steps=3"))
    cut = tmp_path / "whole" / "checkpoints" / "step_1.ckpt"
    finish(start(tmp_path / "cut", *TWO, "steps=3", f"resume={cut}"))
    assert furthest(tmp_path / "whole", tmp_path / "cut") == 0.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    finish(start(tmp_path / "two", *TWO))
    cut = tmp_path / "two" / "checkpoints" / "step_1.ckpt"
    process = start(tmp_path / "one", f"resume={cut}")
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "world_size" in printed
    assert "Traceback" not in printed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_nodes_by_torchrun_and_by_slurm_equal_one(tmp_path: Path) -> None:
    finish(start(tmp_path / "one"))
    port = free_port()
    torchrun = ("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1")
    nodes = [
        start(
            tmp_path / "torchrun",
            *TWO,
            "trainer.num_nodes=2",
            "trainer.devices=1",
            launcher=(*torchrun, f"--master-port={port}", f"--node-rank={rank}"),
        )
        for rank in (0, 1)
    ]
    finish(*nodes)
    port = free_port()
    tasks = [
        start(
            tmp_path / "slurm",
            *TWO,
            "trainer.num_nodes=2",
            "trainer.devices=1",
            SLURM_NTASKS="2",
            SLURM_NTASKS_PER_NODE="1",
            SLURM_NNODES="2",
            SLURM_JOB_ID="7",
            SLURM_JOB_NAME="sparrow",
            SLURM_PROCID=str(rank),
            SLURM_LOCALID="0",
            SLURM_NODEID=str(rank),
            SLURM_NODELIST="localhost",
            MASTER_PORT=port,
        )
        for rank in (0, 1)
    ]
    finish(*tasks)
    assert furthest(tmp_path / "one", tmp_path / "torchrun") < 1e-6
    assert furthest(tmp_path / "torchrun", tmp_path / "slurm") == 0.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rank_that_dies_ends_all(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(
        "import os\n\n\ndef dies_on_rank_1(completion, row):\n"
        "    if os.environ.get('LOCAL_RANK') == '1':\n        os._exit(9)\n    return 0.5\n"
    )
    reward = (
        "reward=routed",
        "+reward.reward._target_=hydra.utils.get_method",
        "+reward.reward.path=dying.dies_on_rank_1",
    )
    started = time.monotonic()
    process = start(tmp_path / "run", *TWO, *reward, PYTHONPATH=str(tmp_path))
    process.communicate(timeout=600)
    assert process.returncode not in (0, None)
    assert time.monotonic() - started < 300
