"""Five algorithms on the quickstart, and the corrections under a budget that is too small; tables and plot of both.

    python -m experiments.algorithms.study --output outputs/algorithms_study          # what is missing, then the report
    python -m experiments.algorithms.study --output outputs/algorithms_study --only algorithms/dapo/1
    python -m experiments.algorithms.study --report                                   # tables and plot of what is there

Each run is a `sparrow-train` process of its own and leaves one file `runs/<table>_<arm>_<seed>.json`. A run whose file
exists is not run again, so the study can be stopped at any point and continued.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.algorithms.report import write_report
from experiments.folders import make_way

HERE = Path(__file__).parent

TOO_SMALL = "schedule.pages=[5,5,7,12,58]"
"""Six tenths of the quickstart's pages: three quarters need no correction, and a half starves at once."""

ALGORITHMS: dict[str, list[str]] = {
    "grpo": [],
    # The right trace has 208 of at most 220 tokens: only what is longer is punished.
    "dapo": ["reward.shaping.0.buffer_tokens=12"],
    "gspo": [],
    "cispo": [],
    "rloo": [],
}
"""Name of an algorithm and what it needs beside `algorithm=<name>`."""

CORRECTIONS: dict[str, list[str]] = {
    "token-tis": [],
    "none": [],
    "tail-mask": [],
    "token-mis": [],
    "sequence-tis": [],
    "icepop": [],
    "tail-weight": [],
    "geometric-mask": [],
    "veto": [],
    "jackpot": ["update.denominator=kept"],  # its weights are unbiased over the accepted tokens
}
"""Name of a correction and what it needs beside `correction=<name>`."""

KEPT = (
    "critic/score/mean", "critic/score_sampled/mean", "tail/alpha/p05", "actor/grad_norm", "actor/entropy",
    "rollout_corr/rollout_rs_masked_fraction", "rollout_corr/rollout_is_mean", "rollout_corr/chi2_token",
    "training/filter_groups/tries", "training/filter_groups/kept",
)  # fmt: skip
"""Columns of a run's log that go into its file, a value per step."""


def runs() -> dict[str, list[str]]:
    """Every run by name, `<table>/<arm>/<seed>`, with its overrides; cheapest answers first."""
    found = {}
    for seed in (0, 1, 2):
        for arm, extra in ALGORITHMS.items():
            found[f"algorithms/{arm}/{seed}"] = [f"algorithm={arm}", *extra]
        if seed == 0:
            for arm, extra in CORRECTIONS.items():
                found[f"corrections/{arm}/0"] = [f"correction={arm}", TOO_SMALL, *extra]
    return found


def run(name: str, overrides: list[str], output: Path, steps: int | None) -> dict[str, Any]:
    """One training run; its overrides, its summary, and the kept columns of its log."""
    folder = make_way(output / name.replace("/", "_"))
    command = [sys.executable, "-m", "sparrow.train", "experiment=quickstart", *overrides]
    command += [f"seed={name.rpartition('/')[2]}", "logger=csv", f"paths.run_dir={folder}"]
    if steps is not None:
        command += [f"steps={steps}", "held_out=false", "update.warmup_steps=0", "update.cooldown_steps=0"]
    subprocess.run(command, check=True)
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    log = {key: [float(row[key]) for row in rows] for key in KEPT if all(row.get(key) for row in rows)}
    return {"overrides": overrides, "summary": json.loads((folder / "summary.json").read_text()), "log": log}


def main() -> None:
    """Command line: where runs go, and optionally which of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where the run folders go")
    parser.add_argument("--only", help="runs whose name begins so, e.g. algorithms/dapo or corrections")
    parser.add_argument("--steps", type=int, help="a trial of so many steps, without held-out evaluation")
    parser.add_argument("--results", type=Path, default=HERE, help="where runs/, the tables and the plot are written")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    if options.output is None and not options.report:
        parser.error("--output is missing; allowed: a folder, or --report to run nothing")
    files = options.results / "runs"
    files.mkdir(parents=True, exist_ok=True)
    for name, overrides in runs().items():
        file = files / f"{name.replace('/', '_')}.json"
        if options.report or file.is_file() or (options.only and not name.startswith(options.only)):
            continue
        result = run(name, overrides, options.output, options.steps)
        file.write_text(json.dumps({"name": name, **result}, indent=1) + "\n")
        write_report(options.results)
    write_report(options.results)


if __name__ == "__main__":
    main()
