"""Measures what the scaling study rests on: phase times of one process, and a step on one and on two processes.

    python -m experiments.scaling.measure --output outputs/scaling                 # a few minutes on two cores
    python -m experiments.scaling.measure --output outputs/scaling --phases-only

Each process has one thread, so that two of them have twice the processor of one. Strong scaling keeps the prompts of a
step, weak scaling doubles them. Results, with the machine they come from: `phases_cpu.json` and `processes.json`.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.folders import make_way
from experiments.scaling.model import Phases
from sparrow.callbacks.provenance import provenance
from sparrow.models.loading import load_policy
from sparrow.modules.passes import dense_pass, hidden_states
from sparrow.rollout import RolloutEngine
from sparrow.schedule import load_schedule

HERE = Path(__file__).parent

COMMON = (
    "experiment=quickstart",
    "logger=csv",
    "held_out=false",
    "threads=1",
    "steps=4",
    "samples.every=null",
    "callbacks.checkpoint.every_n_train_steps=100",
    "~callbacks.progress",
)

RUNS = {
    "one": ("data.prompts_per_step=4",),
    "two, same step": ("data.prompts_per_step=4", "trainer=ddp"),
    "two, twice the step": ("data.prompts_per_step=8", "trainer=ddp"),
    "two, same step, sharded": ("data.prompts_per_step=4", "trainer=fsdp2"),
}
"""Name of a run and what it needs beside `COMMON`."""

BATCHES = (8, 32, 64)
"""Sequences at a time of the rollouts that a decode step is measured by."""

TOKENS = 96


def decode_times(repeats: int = 2) -> tuple[float, float]:
    """Seconds of a decode step, and more per sequence in it: a line through the times of several batches."""
    model, _ = load_policy("tiny")
    engine = RolloutEngine(model, load_schedule("tiny"), max_batch=max(BATCHES))
    seconds: list[float] = []
    for batch in BATCHES:
        found = []
        for repeat in range(repeats + 1):  # the first one warms up
            started = time.perf_counter()
            engine.generate([[1, 2, 3]], n=batch, max_new_tokens=TOKENS, seed=repeat, eos_token_ids=())
            found.append((time.perf_counter() - started) / TOKENS)
        seconds.append(min(found[1:]))
    slope, start = np.polyfit(BATCHES, seconds, 1)
    return float(start), float(slope)


def train_token_time(batch: int = 16, length: int = 128, repeats: int = 3) -> float:
    """Seconds of a forward and backward pass per token."""
    model, _ = load_policy("tiny")
    tokens_BT = torch.randint(0, model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))
    found = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        with dense_pass(model):
            hidden_states(model, tokens_BT).square().mean().backward()  # type: ignore[no-untyped-call]
        found.append((time.perf_counter() - started) / tokens_BT.numel())
    return min(found[1:])


def measure_phases() -> Phases:
    """Phase times of the packaged policy on this machine, one thread."""
    torch.set_num_threads(1)
    step, row = decode_times()
    return Phases(step, row, train_token_time(), 0.0, "the packaged policy on one thread of the machine named here")


def run(name: str, folder: Path) -> dict[str, float]:
    """Medians of a run's phases, its first step left out."""
    run_dir = make_way(folder / name.replace(", ", "_").replace(" ", "_"))
    command = [sys.executable, "-m", "sparrow.train", *COMMON, *RUNS[name], f"paths.run_dir={run_dir}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with (run_dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))[1:]
    keys = ("timing_s/step", "timing_s/gen", "timing_s/reward", "timing_s/dense_pass", "timing_s/update_actor")
    return {key: statistics.median(float(row[key]) for row in rows) for key in keys}


def efficiencies(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Strong: half of the time is 1. Weak: the same time is 1."""
    seconds = {name: phases["timing_s/step"] for name, phases in found.items()}
    one = seconds["one"]
    return {
        "strong": one / (2 * seconds["two, same step"]),
        "strong, sharded": one / (2 * seconds["two, same step, sharded"]),
        "weak": one / seconds["two, twice the step"],
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--phases-only", action="store_true", help="measure no runs")
    options = parser.parse_args()
    machine = provenance()
    results: dict[str, Any] = {"phases": vars(measure_phases()), "machine": machine}
    (HERE / "phases_cpu.json").write_text(json.dumps(results, indent=1) + "\n")
    print(results["phases"])
    if options.phases_only:
        return
    found = {name: run(name, options.output) for name in RUNS}
    report = {"runs": found, "efficiency": efficiencies(found), "machine": machine}
    (HERE / "processes.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["efficiency"], indent=1))


if __name__ == "__main__":
    main()
