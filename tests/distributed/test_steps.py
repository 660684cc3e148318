"""Two processes make the step of one: replicated or sharded weights, sequences of 1 to 500 tokens, moved or not."""

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

PROCESSES = 2


def load(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def launch(script: Path, *arguments: str, seconds: float = 300) -> None:
    """Start the processes as torchrun does, and wait for them; a hang fails the test."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0"}
    shared |= {"WORLD_SIZE": str(PROCESSES), "LOCAL_WORLD_SIZE": str(PROCESSES), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    try:
        for process in started:
            printed, _ = process.communicate(timeout=seconds)
            assert process.returncode == 0, printed[-3000:]
    finally:
        for process in started:
            process.kill()


def together(folder: Path, settings: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """What each rank wrote, by setting."""
    steps = load("steps")
    torch.save(vars(steps.rollout()), folder / "rollout.pt")
    launch(Path(steps.__file__), str(folder / "rollout.pt"), str(folder), *settings)
    return {
        name: [torch.load(folder / f"{name}_{rank}.pt", weights_only=True) for rank in range(PROCESSES)]
        for name in settings
    }


def check(found: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Compare with one process: weights, and the scores of every sequence on the rank that sampled it."""
    steps = load("steps")
    for setting, ranks in found.items():
        one = steps.run(setting.split("-")[1], "auto", 1, folder, steps.rollout())
        assert ranks[0]["weights"].keys() == one["weights"].keys()
        for name, value in one["weights"].items():
            torch.testing.assert_close(ranks[0]["weights"][name], value, atol=1e-6, rtol=0, msg=f"{setting}: {name}")
        for rank, part in enumerate(ranks):
            for scores in ("logprobs_BT", "alpha_BT"):
                width = part[scores].shape[1]
                mine_BT = one[scores][4 * rank : 4 * rank + 4, :width]
                torch.testing.assert_close(part[scores], mine_BT, atol=1e-5, rtol=0, msg=f"{setting}: {scores}")
        assert sum(part["rows"] for part in ranks) == len(steps.RESPONSES)
        assert ranks[0]["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)


@pytest.mark.slow
def test_sharded_and_replicated_steps_equal_one_process(tmp_path: Path) -> None:
    found = together(tmp_path, ("fsdp2-distill", "ddp-dense"))
    check(found, tmp_path)
    assert found["ddp-dense"][0]["rows"] != 4  # the long half was one rank's, and part of it has moved


@pytest.mark.slow
def test_every_case_equals_one_process(tmp_path: Path) -> None:
    cases = ("dense", "untied", "stay", "minibatches", "per_prompt", "updated")
    found = together(tmp_path, (*(f"fsdp2-{case}" for case in cases), *(f"ddp-{case}" for case in cases[1:])))
    check(found, tmp_path)
    for setting in ("fsdp2-stay", "ddp-stay"):
        assert [part["rows"] for part in found[setting]] == [4, 4]
    for case in cases[1:]:  # both strategies: the same sums, but for the order of a norm's terms
        replicated, sharded = (found[f"{name}-{case}"][0]["weights"] for name in ("ddp", "fsdp2"))
        for name, value in replicated.items():
            torch.testing.assert_close(sharded[name], value, atol=1e-6, rtol=0, msg=f"{case}: {name}")
