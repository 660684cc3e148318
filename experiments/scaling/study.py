"""Weak and strong scaling of an RL step up to 512 devices, worked out by `model.py`; tables and a plot.

    python -m experiments.scaling.study                                    # by the roofline of an H200
    python -m experiments.scaling.study --phases experiments/scaling/phases_cpu.json

The first takes the phase times of a device from `sparrow.schedule.cost`; the second takes what `measure.py` measured.
Writes `scaling_<name>.json`, `scaling_<name>.md` and `scaling_<name>.png` beside this file.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.scaling.model import Cost, Job, Network, Phases, simulate
from sparrow.distributed.balance import sequence_cost
from sparrow.models.architecture import Architecture
from sparrow.schedule import BudgetSchedule, load_schedule
from sparrow.schedule.cost import MODEL_SHAPES, rollout_cost

HERE = Path(__file__).parent

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

HARDWARE = {"h200": (989e12, 4.8e12)}
"""Peak dense bf16 operations and bytes of memory per second, from the vendor's data sheet."""

NETWORK = Network(per_node=8, inside=450e9, between=50e9, latency_s=5e-6)
"""Assumed: fourth-generation NVLink one way, one 400 Gb/s port per device, 5 microseconds a hop."""

EFFICIENCY = 0.4
"""Assumed share of the peak that a pass reaches; the study reports about as much of the decode roofline."""

MODEL = "qwen3-1.7b"
SIZES = Architecture(
    layers=28, hidden=2048, intermediate=6144, heads=16, kv_heads=8, head_dim=128, vocab=151936, tied=True, qk_norm=True
)

JOB = Job(
    prompts=512,
    samples=8,
    max_batch=64,
    median=8000.0,
    sigma=0.7,
    limit=37000,
    parameters=MODEL_SHAPES[MODEL].parameters,
    layers=28,
    sharded=True,
    micro_batch_tokens=37000,
)
"""Strong scaling: this step on more and more devices. Weak: 8 prompts per device."""

WEAK_PROMPTS = 8


def roofline_phases(model: str, gpu: str, schedule: BudgetSchedule, length: int, efficiency: float) -> Phases:
    """Phase times of a device that reaches a share of its peak, for completions of ``length`` tokens.

    A decode step reads the weights once, and for each sequence what the schedule lets it read of the cache, averaged
    over the completion. A training pass computes 6 operations per weight and token; attention is counted by
    `sequence_cost`. The fixed part is not known from a roofline and left out.
    """
    peak, bandwidth = HARDWARE[gpu]
    shape = MODEL_SHAPES[model]
    read = rollout_cost(
        shape, samples=1, prompt_len=0, response_len=length, schedule=schedule, intensity=peak / bandwidth
    ).memory
    row_bytes = read / length - 2 * shape.parameters
    return Phases(
        decode_step_s=2 * shape.parameters / (bandwidth * efficiency),
        decode_row_s=row_bytes / (bandwidth * efficiency),
        train_token_s=6 * shape.parameters / (peak * efficiency),
        fixed_s=0.0,
        source=f"roofline of {model} on {gpu} at {efficiency:.0%} of the peak, completions of {length} tokens",
    )


def scale(
    job: Job, phases: Phases, network: Network, ranks: Sequence[int], cost: Cost, *, weak: bool, seeds: int
) -> list[dict[str, float]]:
    """A row per number of devices: means over seeds, and the efficiency against the first one.

    Args:
        job: of the smallest number of devices (weak) or of all (strong).
        phases: of a device.
        network: between devices.
        ranks: numbers of devices, ascending.
        cost: work of a sequence in tokens.
        weak: prompts grow with the devices.
        seeds: draws of lengths.
    """
    rows: list[dict[str, float]] = []
    for count in ranks:
        here = replace(job, prompts=job.prompts * count // ranks[0]) if weak else job
        steps = [simulate(here, phases, network, count, cost, seed) for seed in range(seeds)]
        names = asdict(steps[0])
        row = {"devices": float(count), "prompts": float(here.prompts), "seconds": mean(s.seconds for s in steps)}
        row |= {name: mean(getattr(step, name) for step in steps) for name in names}
        ideal = rows[0]["seconds"] * (1 if weak else ranks[0] / count) if rows else row["seconds"]
        row["efficiency"] = ideal / row["seconds"]
        rows.append(row)
    return rows


def table(rows: Sequence[dict[str, float]]) -> str:
    """Rows as Markdown."""
    lines = [
        "| devices | prompts | step, s | sampling | training | network | idle sampling | idle training | efficiency |",
        "|" + "---|" * 9,
    ]
    for row in rows:
        seconds = " | ".join(f"{row[name]:.1f}" for name in ("seconds", "generation", "update", "communication"))
        shares = " | ".join(f"{row[name]:.0%}" for name in ("rollout_idle", "update_idle", "efficiency"))
        lines.append(f"| {row['devices']:.0f} | {row['prompts']:.0f} | {seconds} | {shares} |")
    return "\n".join(lines)


def plot(path: Path, results: dict[str, Any]) -> None:
    """Efficiency and idle time against the number of devices."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name, rows in results["tables"].items():
        devices = [row["devices"] for row in rows]
        left.plot(devices, [row["efficiency"] for row in rows], marker="o", label=name)
        right.plot(devices, [row["rollout_idle"] for row in rows], marker="o", label=name)
    for axis, title in ((left, "efficiency"), (right, "idle share while sampling")):
        axis.set(xscale="log", xlabel="devices", title=title, ylim=(0, 1.05))
        axis.set_xticks(devices, [f"{count:.0f}" for count in devices])
        axis.minorticks_off()
    right.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Work out both scalings, dense and sparse, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", type=Path, help="phase times that measure.py wrote; default: the roofline")
    parser.add_argument("--seeds", type=int, default=3, help="draws of completion lengths")
    options = parser.parse_args()
    if options.phases is None:
        name = "roofline"
        schedules = {"dense": BudgetSchedule.dense(), "sparse": load_schedule("qwen3-1.7b-0.86")}
        phases = {key: roofline_phases(MODEL, "h200", s, int(JOB.median), EFFICIENCY) for key, s in schedules.items()}
    else:
        name = options.phases.stem.removeprefix("phases_")
        phases = {"measured": Phases(**json.loads(options.phases.read_text())["phases"])}
    cost = partial(sequence_cost, sizes=SIZES)
    tables = {}
    for key, times in phases.items():
        tables[f"{key}, strong"] = scale(JOB, times, NETWORK, RANKS, cost, weak=False, seeds=options.seeds)
        weak = replace(JOB, prompts=WEAK_PROMPTS)
        tables[f"{key}, weak"] = scale(weak, times, NETWORK, RANKS, cost, weak=True, seeds=options.seeds)
    results = {"job": asdict(JOB), "network": asdict(NETWORK), "tables": tables}
    results["phases"] = {key: asdict(times) for key, times in phases.items()}
    (HERE / f"scaling_{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    text = "\n\n".join(f"**{key}**\n\n{table(rows)}" for key, rows in tables.items())
    (HERE / f"scaling_{name}.md").write_text(text + "\n")
    plot(HERE / f"scaling_{name}.png", results)
    print(text)


if __name__ == "__main__":
    main()
