"""The study behind DistillSparse: which divergence holds the tail of a cheaper schedule best, and for what it costs.

    python -m experiments.distill_sparse.study --output outputs/distill_study

Each run is a `sparrow-train` process of its own. Finished runs are kept in `results.json` and not run again, so the
study can be stopped and continued. `--only chosen/0` runs one of them, `--plot` draws from what is there.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import yaml

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from experiments.folders import make_way

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"

EXPERIMENT = "experiment=distill-quickstart"
CHEAPER = "[8,8,12,20,32]"
"""Pages that the adapter is trained for."""

ON_POLICY = (f"schedule.pages={CHEAPER}", "distill.schedule=null", "distill.policy_loss=true")
"""The actor samples with its adapter under the cheaper schedule from the first step on."""

ARMS: dict[str, tuple[str, ...]] = {
    "chosen": (),
    "k3": ("divergence=k3",),
    "reverse-kl": ("divergence=reverse-kl",),
    "forward-kl-top-k": ("divergence=forward-kl-top-k",),
    "total-variation": ("divergence=total-variation",),
    "own-schedule": ("distill.schedule=null", "distill.policy_loss=true"),
    "on-policy": ON_POLICY,
    "on-policy-worst-share": (*ON_POLICY, "divergence=worst-share"),
    "every-step": ("distill.every=1",),
    "rank-32": ("distill.rank=32", "distill.alpha=64.0"),
    "attention-only": ("distill.targets=[q_proj,k_proj,v_proj,o_proj]",),
}
"""Name of an arm and what makes it; `chosen` is the experiment as it is shipped, the others differ from it."""

SEEDS: dict[str, tuple[int, ...]] = {"chosen": (0, 1, 2)}
"""Seeds of an arm; of all others the first alone."""


def run(arm: str, seed: int, output: Path) -> dict[str, Any]:
    """One training run: its summary, and p5 per bin of each schedule under ``bins``."""
    folder = make_way(output / f"{arm}_{seed}")
    command = [sys.executable, "-m", "sparrow.train", EXPERIMENT, *ARMS[arm], f"seed={seed}", "logger=csv", "threads=1"]
    subprocess.run([*command, "~callbacks.checkpoint", f"paths.run_dir={folder}"], check=True)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    found = {"bins": json.loads((folder / "adapter_tail.json").read_text())}
    return summary | found | {"cheaper": yaml.safe_load((folder / "adapter_schedule.yaml").read_text())["pages"]}


def plot(results: dict[str, dict[str, Any]], arm: str = "chosen") -> None:
    """``tail_bins.png``: p5 per length bin under each schedule, mean over the seeds of one arm, adapter on and off."""
    runs = [result for name, result in results.items() if name.partition("/")[0] == arm]
    if not runs:
        return
    figure, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for index, schedule in enumerate(runs[0]["bins"]):
        for reading, style in (("adapter_off", "--"), ("adapter_on", "-")):
            values: dict[float, list[float]] = {}
            for result in runs:
                for low, high, p5, _ in result["bins"][schedule][reading]:
                    values.setdefault((low + high) / 2, []).append(p5)
            means = [statistics.mean(values[centre]) for centre in sorted(values)]
            label = f"{schedule}, {reading.replace('_', ' ')}"
            ax.plot(sorted(values), means, style, color=f"C{index}", marker="o", label=label)
    ax.set(xlabel="cached tokens", ylabel="p5 of alpha", title=f"Held-out tail, same pages, {len(runs)} seeds")
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")
    figure.savefig(HERE / "tail_bins.png", dpi=130)
    plt.close(figure)


def main() -> None:
    """Command line: the output folder, and optionally one run or the plot alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", help="one run, as <arm>/<seed>")
    parser.add_argument("--plot", action="store_true", help="run nothing")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    names = [f"{arm}/{seed}" for arm in ARMS for seed in SEEDS.get(arm, (0,))]
    for name in [] if options.plot else names:
        if name in results or (options.only and options.only != name):
            continue
        arm, _, seed = name.partition("/")
        results[name] = run(arm, int(seed), options.output)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    plot(results)


if __name__ == "__main__":
    main()
