"""How far the policy moves away from an actor that keeps old weights: KL by the age of the actor's weights.

    python -m experiments.staleness.study --output outputs/staleness

Runs are kept, so it can be continued; `--plot` draws from `results.json` alone.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.common import axes, save, write
from experiments.folders import make_way

HERE = Path(__file__).parent
STEPS, EVERY = 8, 4
ARMS = {"sparse": "experiment=quickstart", "dense": "experiment=quickstart-dense"}
COMMON = (
    *(f"steps={STEPS}", f"rollout.refresh_every={EVERY}", "update.warmup_steps=0", "update.cooldown_steps=0"),
    *("data.prompts_per_step=2", "held_out=false", "logger=csv", "threads=1", "~callbacks.checkpoint"),
)
KEYS = {
    "age": "off_policy/staleness",
    "policy_against_held": "actor/ppo_kl",
    "gap_of_held": "rollout_corr/k3_kl",
    "p05": "tail/alpha/p05",
}
"""Mean of (old - current) log-probs; k3 of actor and dense policy under the same held weights; p5 of alpha."""


def run(arm: str, output: Path) -> list[dict[str, float]]:
    """One training run, unless it is there; age and distances of every step."""
    folder = output / arm
    if not (folder / "summary.json").is_file():
        command = [sys.executable, "-m", "sparrow.train", ARMS[arm], *COMMON, f"paths.run_dir={make_way(folder)}"]
        subprocess.run(command, check=True)
    with (folder / "metrics.csv").open() as file:
        return [{name: float(row[key]) for name, key in KEYS.items()} for row in csv.DictReader(file)]


def by_age(rows: list[dict[str, float]], name: str) -> dict[int, float]:
    """Mean of a number over the steps of each age."""
    ages = sorted({int(row["age"]) for row in rows})
    values = {age: [row[name] for row in rows if int(row["age"]) == age] for age in ages}
    return {age: sum(found) / len(found) for age, found in values.items()}


def plot(results: dict[str, Any]) -> None:
    """``kl.png``: both distances by age."""
    figure, (left, right) = axes(2)
    for arm, rows in results.items():
        for ax, name in ((left, "policy_against_held"), (right, "gap_of_held")):
            found = by_age(rows, name)
            ax.plot(list(found), list(found.values()), marker="o", label=f"{arm} rollouts")
    age = "age of the actor's weights, RL steps"
    left.set(xlabel=age, ylabel="mean (old - current), nats", title="Weights have moved")
    right.set(xlabel=age, ylabel="k3 (actor, policy), nats", title="At equal weights")
    right.set_yscale("symlog", linthresh=1e-9)
    save(figure, HERE / "kl.png")


def main() -> None:
    """Command line: the output folder, and optionally the plot alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", action="store_true", help="run nothing")
    options = parser.parse_args()
    if options.plot:
        plot(json.loads((HERE / "results.json").read_text())["runs"])
        return
    results = {arm: run(arm, options.output) for arm in ARMS}
    write(HERE, {"steps": STEPS, "refresh_every": EVERY, "runs": results})
    plot(results)


if __name__ == "__main__":
    main()
