"""How alpha falls and KL grows along the sequence under constant budgets.

    python -m experiments.length_growth.study

Results and plots are written beside this file.
"""

import csv
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.common import LONGEST, axes, both_logprobs, held_out_problems, save, write
from experiments.sampled_alpha import sampled_alpha
from sparrow.auditing.lengths import pearson
from sparrow.modules import Experience
from sparrow.schedule import BudgetSchedule

HERE = Path(__file__).parent
RUNS = HERE.parent / "quickstart" / "runs"
BUDGETS = (2, 4, 8, 16)
BLOCK = 16
"""Tokens of a block: consecutive ones of one sequence."""


def blocks(alpha_BT: Tensor, experience: Experience) -> tuple[Tensor, Tensor, Tensor]:
    """Middle position, mean and 5th percentile of alpha of every whole block of a sequence."""
    rows = []
    for row, decoded_T in enumerate(experience.decoded_BT):
        values, first = alpha_BT[row][decoded_T].double(), int(experience.prompt_len_B[row]) + 1
        for start in range(0, len(values) - BLOCK + 1, BLOCK):
            part = values[start : start + BLOCK]
            rows.append([first + start + (BLOCK - 1) / 2, float(part.mean()), float(torch.quantile(part, 0.05))])
    position, mean, tail = torch.tensor(rows).T
    return position, mean, tail


def kl_by_length(
    dense_XV: Tensor, sparse_XV: Tensor, position_X: Tensor, width: int = 32
) -> list[tuple[float, float, float]]:
    """Middle of a bin, mean KL(actor, policy) and p5 of alpha there, for bins with at least 300 tokens."""
    kl_X = (sparse_XV.exp() * (sparse_XV - dense_XV)).sum(-1)
    alpha_X = torch.minimum(sparse_XV.exp(), dense_XV.exp()).sum(-1)
    found = []
    for index in range(int(position_X.max()) // width + 1):
        here = position_X // width == index
        if int(here.sum()) >= 300:
            tail = float(torch.quantile(alpha_X[here], 0.05))
            found.append(((index + 0.5) * width, float(kl_X[here].mean()), tail))
    return found


def plot(results: dict[str, Any]) -> None:
    """``length.png``: p5 of alpha and KL over the sequence; ``training.png``: KL over the steps of two runs."""
    figure, (left, right) = axes(2)
    for name, found in results.items():
        where, kl, tail = zip(*found["bins"], strict=True)
        left.plot(where, tail, marker="o")
        right.plot(where, kl, marker="o", label=f"{name} pages")
    left.set(xlabel="cached tokens", ylabel="p5 of exact alpha", title="The tail")
    right.set(xlabel="cached tokens", ylabel="KL(actor, policy), nats per token", yscale="log", title="The distance")
    save(figure, HERE / "length.png")
    figure, (ax,) = axes()
    for run in sorted(RUNS.iterdir()):
        with (run / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        steps = [float(row["training/global_step"]) for row in rows]
        ax.plot(steps, [float(row["rollout_corr/k3_kl"]) for row in rows], marker=".", label=run.name)
    ax.set(xlabel="RL step", ylabel="k3 of the gap, nats per token", yscale="log", title="Two runs of the quickstart")
    save(figure, HERE / "training.png")


def main() -> None:
    """Measure every budget, write ``results.json`` and the plots."""
    problems = held_out_problems(16)
    results: dict[str, Any] = {}
    for pages in BUDGETS:
        experience, alpha_BT, _ = sampled_alpha(
            problems.model,
            BudgetSchedule.constant(pages, page_size=4),
            problems.prompts,
            problems.eos_token_ids,
            samples=4,
            max_new_tokens=LONGEST,
            seed=0,
        )
        position, mean, tail = blocks(alpha_BT, experience)
        dense_XV, sparse_XV = both_logprobs(problems.model, experience)
        r = {name: pearson(position.numpy(), values.numpy()) for name, values in (("mean", mean), ("p05", tail))}
        bins = kl_by_length(dense_XV, sparse_XV, experience.position_BT[experience.decoded_BT])
        results[str(pages)] = {"pearson_with_length": r, "bins": bins}
        print(pages, json.dumps(results[str(pages)]))
    write(HERE, {"block_tokens": BLOCK, "pages": results})
    plot(results)


if __name__ == "__main__":
    main()
