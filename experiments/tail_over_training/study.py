"""Does the tail depend on how far training has come? The same problems, before and after runs of the quickstart.

    python -m experiments.tail_over_training.study --runs outputs/tail_over_training

Every folder in it is a run (`export/base` is read). Policies that were measured already are kept; `--plot` draws alone.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from experiments.common import LONGEST, axes, held_out_problems, save, write
from experiments.sampled_alpha import sampled_alpha
from sparrow.callbacks.tail import page_end
from sparrow.metrics import TailAcceptance
from sparrow.schedule import BudgetSchedule

HERE = Path(__file__).parent
SCHEDULES = {"chosen": [8, 8, 12, 20, 96], "three quarters": [6, 6, 9, 15, 72], "half": [4, 4, 6, 10, 48]}
"""Pages per bin of 64 tokens: the packaged policy's schedule, and parts of it."""

FILLED = 300


def measure(policy: str, pages: list[int]) -> dict[str, Any]:
    """Tail of one policy under one schedule, on traces that the actor samples."""
    problems = held_out_problems(16, policy)
    schedule = BudgetSchedule(pages, page_size=4, bin_tokens=64)
    experience, alpha_BT, _ = sampled_alpha(
        problems.model,
        schedule,
        problems.prompts,
        problems.eos_token_ids,
        samples=2,
        max_new_tokens=LONGEST,
        seed=0,
    )
    alpha_X = alpha_BT[experience.decoded_BT].double()
    tail = TailAcceptance(bin_tokens=64, num_bins=len(pages))
    tail.update(alpha_BT, page_end(experience.position_BT, 4), experience.decoded_BT)
    bins = zip(tail.quantile_bins().tolist(), tail.count_bins().tolist(), strict=True)
    return {
        "mean": float(alpha_X.mean()),
        "p05": float(torch.quantile(alpha_X, 0.05)),
        "disagreements": float((1 - alpha_X).sum() / len(experience)),
        "p05_bins": [p5 if count >= FILLED else None for p5, count in bins],
    }


def plot(results: dict[str, Any]) -> None:
    """``tail.png``: p5 per bin, one plot per schedule, one line per policy."""
    figure, grid = axes(len(SCHEDULES))
    for ax, schedule in zip(grid, SCHEDULES, strict=True):
        for policy, found in results.items():
            points = [(64 * i + 32, p5) for i, p5 in enumerate(found[schedule]["p05_bins"]) if p5 is not None]
            ax.plot(*zip(*points, strict=True), marker="o", label=policy)
        ax.set(xlabel="cached tokens", ylabel="p5 of exact alpha", title=f"{schedule}: {SCHEDULES[schedule]}")
    save(figure, HERE / "tail.png")


def main() -> None:
    """Command line: the folder of runs, and optionally the plot alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--plot", action="store_true", help="measure nothing")
    options = parser.parse_args()
    file = HERE / "results.json"
    results: dict[str, Any] = json.loads(file.read_text())["policies"] if file.is_file() else {}
    if not options.plot:
        after = sorted(options.runs.iterdir()) if options.runs else []
        policies = {"before": "tiny"} | {f"after {run.name}": str(run / "export" / "base") for run in after}
        for name, policy in policies.items():
            if name not in results:
                results[name] = {schedule: measure(policy, pages) for schedule, pages in SCHEDULES.items()}
                print(name, json.dumps(results[name]))
        write(HERE, {"policies": results})
    plot(results)


if __name__ == "__main__":
    main()
