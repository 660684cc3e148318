"""Control study 1: which tail of agreement keeps training stable, and is it the mismatch or the missing reward?

    python -m experiments.control_study_1.budgets
    python -m experiments.control_study_1.decisive
    python -m experiments.control_study_1.study --output outputs/control_study_1

Each run is a `sparrow-train` process of one thread and leaves one JSON in `runs/`; a run whose JSON is there is
skipped, so the study can be stopped and continued, and two processes can share it with `--share 0/2` and `--share 1/2`.
`--steps 2 --runs <folder>` tries every arm without touching the results, the cheaper with further overrides at the end
(`data.max_validation_prompts=20`). `analysis.py` and `figures.py` read the results.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.control_study_1.arms import BUDGETS, STEPS, Run, all_runs, load_budgets
from experiments.folders import make_way

HERE = Path(__file__).parent
RUNS = HERE / "runs"

KEPT = (
    *("critic/score/mean", "rewards/outcome/correct", "tail/alpha/mean", "tail/alpha/p01", "tail/alpha/p05"),
    *("tail/disagreements", "tail/fraction_below", "actor/entropy", "actor/grad_norm", "rollout_corr/chi2_token"),
    *("response_length/mean", "timing_s/step", "schedule/kv_fraction_sparse_layers"),
)
"""Columns of a run's metrics that are kept, beside p5 of each bin."""


def train(run: Run, pages: list[int] | None, output: Path, further: list[str]) -> dict[str, Any]:
    """One training run, as what is kept of it."""
    folder = make_way(output / run.name)
    overrides = [*run.overrides(pages), *further, f"paths.run_dir={folder}"]
    subprocess.run([sys.executable, "-m", "sparrow.train", *overrides], check=True, stdout=subprocess.DEVNULL)
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    wanted = [key for key in rows[0] if key in KEPT or key.startswith("tail/alpha_p05/")]
    history = [{key: float(row[key]) for key in wanted if row[key]} for row in rows]
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "budget": run.budget,
        "means": run.means,
        "seed": run.seed,
        "pages": pages,
        "exact_match_before": summary["exact_match_before"],
        "exact_match_after": summary["exact_match_after"],
        "wall_s": summary["wall_s"],
        "history": history,
    }


def main() -> None:
    """Command line: where runs go, how long they are, and which share of them to run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the JSON of each run goes")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--share", default="0/1", help="which of how many processes this is, as 0/2")
    parser.add_argument("--only", help="the runs whose name contains this")
    parser.add_argument("--budgets", type=Path, default=BUDGETS)
    parser.add_argument("overrides", nargs="*", help="further overrides of sparrow-train")
    options = parser.parse_args()
    if (options.steps != STEPS or options.overrides) and options.runs == RUNS:
        parser.error("another number of steps or further overrides make no run of the study: give a folder by --runs")
    share, of = (int(part) for part in options.share.split("/"))
    budgets = load_budgets(options.budgets)
    options.runs.mkdir(parents=True, exist_ok=True)
    for run in all_runs(budgets)[share::of]:
        path = options.runs / f"{run.name}.json"
        if path.is_file() or (options.only and options.only not in run.name):
            continue
        result = train(run, budgets[run.budget], options.output, [*options.overrides, f"steps={options.steps}"])
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{run.name}: {result['exact_match_before']:.3f} -> {result['exact_match_after']:.3f}", flush=True)


if __name__ == "__main__":
    main()
