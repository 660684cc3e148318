"""Several processes: the same weights as one, the same bits after a cut, and an end for all when one of them fails.

Weights are held whole by each (DDP) or spread over all (FSDP2); processes are started by sparrow-train itself, by the
scripts for torchrun and SLURM, or, in place of SLURM, by what sets its variables.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparrow.models.tiny import tiny_path

SCRIPTS = Path(__file__).parents[1] / "scripts"
COMMON = (
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
SHARDED = ("trainer=fsdp2",)


def open_process(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables)


def start(run_dir: Path, *overrides: str, experiment: str = "quickstart", **environment: str) -> subprocess.Popen[str]:
    whole = (f"experiment={experiment}", *COMMON, f"paths.run_dir={run_dir}", *overrides)
    return open_process([sys.executable, "-m", "sparrow.train", *whole], environment)


def finish(*processes: subprocess.Popen[str], seconds: float = 600) -> None:
    for process in processes:
        printed, _ = process.communicate(timeout=seconds)
        assert process.returncode == 0, printed[-3000:]


def weights(run_dir: Path, part: str = "base/model") -> dict[str, torch.Tensor]:
    return load_file(run_dir / "export" / f"{part}.safetensors")


def furthest(left: Path, right: Path, part: str = "base/model") -> float:
    """The greatest difference of a weight between two runs."""
    ours, others = weights(left, part), weights(right, part)
    assert ours.keys() == others.keys()
    return max(float((ours[name] - others[name]).abs().max()) for name in ours)


def free_port() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
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
def test_sharded_weights_and_adapter_equal_replicated_ones_and_continue_to_the_bit(tmp_path: Path) -> None:
    run = {"experiment": "distill-quickstart"}
    finish(start(tmp_path / "ddp", *TWO, "steps=3", **run))
    finish(start(tmp_path / "whole", *SHARDED, "steps=3", **run))
    cut = tmp_path / "whole" / "checkpoints" / "step_1.ckpt"
    assert sorted(path.name for path in cut.iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp", "meta.pt"]
    finish(start(tmp_path / "cut", *SHARDED, "steps=3", f"resume={cut}", **run))
    for part in ("base/model", "adapter/adapter_model"):
        assert furthest(tmp_path / "ddp", tmp_path / "whole", part) < 1e-6
        assert furthest(tmp_path / "whole", tmp_path / "cut", part) == 0.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sharded_equals_one_and_its_export_is_a_plain_folder(tmp_path: Path) -> None:
    finish(start(tmp_path / "one"))
    finish(start(tmp_path / "two", *SHARDED, "update.recompute=true", "held_out=true", "val_every=2"))
    assert furthest(tmp_path / "one", tmp_path / "two") < 1e-6
    export = tmp_path / "two" / "export" / "base"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(export), AutoTokenizer.from_pretrained(export)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "one" / "export" / "base")
    tokens = tokenizer("12+34", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, expected(tokens).logits, atol=1e-4, rtol=0)
    cut = tmp_path / "two" / "checkpoints" / "step_1.ckpt"
    refused = start(tmp_path / "refused", f"resume={cut}")
    printed, _ = refused.communicate(timeout=120)
    assert refused.returncode == 1
    assert "a sharded checkpoint, which only trainer=fsdp2" in printed
    assert "Traceback" not in printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bf16_policy_keeps_masters_in_fp32(tmp_path: Path) -> None:
    finish(start(tmp_path / "run", *SHARDED, "trainer.strategy.compute_dtype=bfloat16"))
    found, start_of = weights(tmp_path / "run"), AutoModelForCausalLM.from_pretrained(tiny_path()).state_dict()
    moved = max(float((found[name] - start_of[name]).abs().max()) for name in found)
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert 1e-5 < moved < 1e-2  # two steps of AdamW at 1e-3, warm-up included, far below a bf16 step of most weights


SRUN = """#!/usr/bin/env bash
# In the place of srun: a process per task, each on a node of its own.
for rank in $(seq 0 $((SLURM_NTASKS - 1))); do
    SLURM_PROCID=$rank SLURM_NODEID=$rank SLURM_LOCALID=0 "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit "${status:-0}"
"""


def slurm(folder: Path, nodes: str) -> dict[str, str]:
    """Variables of a SLURM job of one task per node, and an srun of its own on the path."""
    binaries = folder / "bin"
    binaries.mkdir()
    (binaries / "srun").write_text(SRUN)
    (binaries / "srun").chmod(0o755)
    path = os.pathsep.join((str(binaries), str(Path(sys.executable).parent), os.environ["PATH"]))
    named = {"SLURM_NTASKS": nodes, "SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": nodes, "SLURM_JOB_ID": "7"}
    return named | {
        "SLURM_JOB_NAME": "sparrow",
        "SLURM_NODELIST": "localhost",
        "PATH": path,
        "MASTER_PORT": free_port(),
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_nodes_by_torchrun_and_by_slurm_equal_one(tmp_path: Path) -> None:
    finish(start(tmp_path / "one"))
    overrides = ("experiment=quickstart", *COMMON)
    here = {"RUN_DIR": str(tmp_path / "torchrun"), "NODES": "2", "GPUS": "1", "PORT": free_port()}
    torchrun = [str(SCRIPTS / "torchrun.sh"), *overrides, "trainer=ddp_2node"]
    finish(*(open_process(torchrun, {**here, "NODE_RANK": str(rank)}) for rank in (0, 1)))
    environment = slurm(tmp_path, "2") | {"RUN_DIR": str(tmp_path / "slurm")}
    finish(open_process([str(SCRIPTS / "slurm.sbatch"), *overrides, "trainer=fsdp2_multinode"], environment))
    assert furthest(tmp_path / "one", tmp_path / "torchrun") < 1e-6
    assert furthest(tmp_path / "torchrun", tmp_path / "slurm") < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rank_that_dies_ends_all(tmp_path: Path) -> None:
    process = start(tmp_path / "run", *TWO, "steps=1000")
    metrics = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 300
    while not metrics.is_file():  # both train by then
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.5)
    os.kill(rank_of(process.pid, 1), signal.SIGKILL)
    died = time.monotonic()
    process.communicate(timeout=600)
    assert process.returncode not in (0, None)
    assert time.monotonic() - died < 300


def rank_of(launcher: int, rank: int) -> int:
    """The process of a rank that another one has started."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"LOCAL_RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"process {launcher} has no child of local rank {rank}")
