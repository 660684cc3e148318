"""The controller, started from budgets far too small and far too large, against a sweep of fixed budgets.

    python -m experiments.controller.study --output outputs/controller_study

Two runs of the quickstart under `controller=adaptive`: the learning rate is zero for the first steps, in which the
budgets are to be found, and the weights change afterwards. Then budgets are held fixed and swept around what was
found, bin by bin, before and after the weights changed. Finished parts are kept, so the study can be continued;
`--plot` draws from what is there.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.controller.figures import plot
from experiments.controller.measure import Reading, read
from experiments.folders import make_way
from sparrow.data import PromptDataModule
from sparrow.data.sources.packaged import RunningSum
from sparrow.models.loading import eos_token_ids, load_policy
from sparrow.schedule import BudgetSchedule

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"

FROZEN = 30
"""RL steps without learning."""

STEPS = 42
STARTS = {"small": [1, 1, 1, 1, 1], "large": [96, 96, 96, 96, 96]}
"""Pages per bin that a run begins with; the controller takes 96 as every page."""

TAU, TOLERANCE = 0.95, 0.015
BINS = range(1, 5)
"""Bins that a trace of the packaged policy reaches; its prompts end in bin 1."""

NUMBERS, PROMPT, LONGEST = 34, 68, 220
"""Numbers of a problem, tokens of its prompt, tokens of the longest trace."""


def run(start: str, output: Path) -> None:
    """One run under control, unless it is there."""
    folder = output / start
    if (folder / "summary.json").is_file():
        return
    command = [
        *(sys.executable, "-m", "sparrow.train", "experiment=quickstart", "controller=adaptive"),
        *("reward=running-sum-steps", "optimizer.lr=5e-5", "update.warmup_steps=0", "update.cooldown_steps=0"),
        *("+callbacks.late_start._target_=experiments.controller.late_start.LateStart",),
        *(f"+callbacks.late_start.step={FROZEN}", f"steps={STEPS}", "held_out=false", "logger=csv", "threads=1"),
        *("rollout.samples=4",),
        *(f"schedule.pages={STARTS[start]}", f"paths.run_dir={make_way(folder)}"),
    ]
    subprocess.run([part.replace(" ", "") for part in command], check=True)


def history(folder: Path) -> list[dict[str, float]]:
    """The rows of a run's metrics that this study reads."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    wanted = ("schedule/pages/", "tail/alpha_p05/", "critic/score/mean", "controller/", "actor/entropy")
    return [{key: float(value) for key, value in row.items() if value and key.startswith(wanted)} for row in rows]


class Sweep:
    """Readings of fixed budgets under one set of weights.

    Args:
        policy: name or folder of the weights.
        prompts: problems per reading, disjoint from those that are trained on.
        samples: traces of each.
    """

    def __init__(self, policy: str, prompts: int = 16, samples: int = 4) -> None:
        self.model, tokenizer = load_policy(policy)
        self.eos_token_ids = eos_token_ids(self.model, tokenizer)
        data = PromptDataModule(RunningSum(count=1, validation_count=1000, numbers=NUMBERS), tokenizer, 8, 0)
        data.setup("validate")
        self.prompts, self.samples = data.validation_prompts[:prompts], samples
        self.seen: dict[tuple[int, ...], Reading] = {}

    def bin(self, index: int, pages: Sequence[int]) -> Reading:
        """One bin under a table; later bins have no say in it, and nothing beyond it is sampled."""
        key = tuple(pages[: index + 1])
        if key not in self.seen:
            self.seen[key] = self._read(index, pages)
        return self.seen[key]

    def _read(self, index: int, pages: Sequence[int]) -> Reading:
        schedule = BudgetSchedule(list(pages), page_size=4, bin_tokens=64)
        tokens = min(LONGEST, (index + 1) * 64 - PROMPT)
        readings = read(
            self.model,
            schedule,
            self.prompts,
            self.eos_token_ids,
            line=TAU - TOLERANCE,
            samples=self.samples,
            max_new_tokens=tokens,
            seed=1,
        )
        return readings[index]

    def around(self, table: Sequence[int], beside: int = 1) -> dict[str, list[dict[str, Any]]]:
        """Every bin at the table's count and at ``beside`` fewer and more, the other bins as in the table."""
        found: dict[str, list[dict[str, Any]]] = {}
        for index in BINS:
            counts = [table[index] + change for change in range(-beside, beside + 1)]
            found[str(index)] = [self.row(index, table, count) for count in counts if count >= 1]
        return found

    def row(self, index: int, table: Sequence[int], count: int) -> dict[str, Any]:
        """One reading as plain data."""
        pages = [*table[:index], count, *table[index + 1 :]]
        reading = self.bin(index, pages)
        low, high = reading.evidence.interval(0.95)
        share = {"share_below": reading.evidence.share, "share_low": low, "share_high": high}
        return {"pages": count, "p5": reading.p5, "tokens": reading.tokens, **share}


def table_at(rows: Sequence[dict[str, float]], step: int) -> list[int]:
    """Pages per bin that step ``step`` (counted from 1) was sampled under."""
    return [int(rows[step - 1][f"schedule/pages/bin_{index}"]) for index in range(5)]


def measure(output: Path, results: dict[str, Any]) -> None:
    """Sweep around the tables that each run had at the end of either phase."""
    sweeps: dict[str, Sweep] = {}
    for start in STARTS:
        rows = history(output / start)
        results.setdefault(start, {})["history"] = rows
        phases = {"frozen": (FROZEN, "tiny"), "final": (STEPS, str(output / start / "export" / "base"))}
        for phase, (step, policy) in phases.items():
            if phase in results[start]:
                continue
            table = table_at(rows, step)
            if policy not in sweeps:
                sweeps[policy] = Sweep(policy)
            results[start][phase] = {"step": step, "pages": table, "sweep": sweeps[policy].around(table)}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    """Command line: the output folder, and optionally the plot alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--plot", action="store_true", help="run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    if not options.plot:
        for start in STARTS:
            run(start, options.output)
        measure(options.output, results)
    plot(results, TAU - TOLERANCE, HERE)


if __name__ == "__main__":
    main()
