"""The control study behind the quickstart's schedule: the same training under dense, chosen and halved budgets.

    python -m experiments.quickstart.study --output outputs/quickstart_study

Each run is a `sparrow-train` process of its own. Finished runs are kept in `results.json` and not run again, so the
study can be stopped and continued. `--only dense/0` runs one of them.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from experiments.folders import make_way

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"

ARMS: dict[str, list[str]] = {
    "dense": ["experiment=quickstart-dense"],
    "chosen": ["experiment=quickstart"],
    "half": ["experiment=quickstart", "schedule.pages=[4,4,6,10,48]"],
}
"""Name of an arm and what makes it; each arm differs from the quickstart in its schedule alone."""

SEEDS = {"chosen": (0, 1, 2), "dense": (0, 1, 2), "half": (0,)}


def run(arm: str, seed: int, output: Path) -> dict[str, float]:
    """One training run; its summary, and reward and tail per step."""
    folder = make_way(output / f"{arm}_{seed}")
    command = [sys.executable, "-m", "sparrow.train", *ARMS[arm], f"seed={seed}", "logger=csv"]
    subprocess.run([*command, f"paths.run_dir={folder}"], check=True)
    summary: dict[str, float] = json.loads((folder / "summary.json").read_text())
    return summary


def main() -> None:
    """Command line: the output folder, and optionally one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", help="one run, as <arm>/<seed>")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results are collected")
    options = parser.parse_args()
    results = json.loads(options.results.read_text()) if options.results.is_file() else {}
    for arm, seeds in SEEDS.items():
        for seed in seeds:
            name = f"{arm}/{seed}"
            if name in results or (options.only and options.only != name):
                continue
            results[name] = run(arm, seed, options.output)
            options.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
