"""How alpha is distributed under constant budgets, and how well a Beta distribution fits the part below 0.999.

    python -m experiments.skew.study

Results and plots are written beside this file.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from experiments.common import LONGEST, axes, held_out_problems, save, write
from experiments.sampled_alpha import sampled_alpha
from sparrow.auditing.beta_fit import UPPER, fit_beta
from sparrow.schedule import BudgetSchedule

HERE = Path(__file__).parent
BUDGETS = (2, 4, 8, 16)
"""Pages beside the three reserved ones, of 4 tokens."""

BINS = 40


def describe(alpha_X: Tensor) -> dict[str, Any]:
    """Statistics, histogram on [0, 1] and fit of the alphas of some tokens."""
    fit = fit_beta(alpha_X)
    levels = torch.quantile(alpha_X.double(), torch.tensor([0.01, 0.05], dtype=torch.float64)).tolist()
    return {
        "tokens": len(alpha_X),
        "mean": float(alpha_X.double().mean()),
        "p01": levels[0],
        "p05": levels[1],
        "share_below_0.999": float((alpha_X < UPPER).double().mean()),
        "beta": None if fit is None else asdict(fit),
        "histogram": torch.histc(alpha_X.float(), BINS, 0, 1).int().tolist(),
    }


def plot(results: dict[str, Any]) -> None:
    """``alpha.png``: tokens per bin of alpha on a log axis, and the fits of the part below 0.999."""
    figure, (left, right) = axes(2)
    edges = torch.linspace(0, 1, BINS + 1).numpy()
    grid = torch.linspace(0.01, 0.99, 300).numpy()
    for place, (name, found) in enumerate(results.items()):
        left.stairs(found["histogram"], edges, color=f"C{place}")
        fit = found["beta"]
        if fit is not None:
            label = f"{name} pages: Beta({fit['a']:.2f}, {fit['b']:.2f}), KS {fit['ks']:.3f}"
            right.plot(grid, stats.beta.pdf(grid, fit["a"], fit["b"], scale=UPPER), color=f"C{place}", label=label)
    left.set(xlabel="exact alpha", ylabel="tokens", yscale="log", title="All tokens")
    right.set(xlabel="exact alpha", ylabel="density", ylim=(0, 6), title="Fits of the part below 0.999")
    save(figure, HERE / "alpha.png")


def main() -> None:
    """Measure every budget, write ``results.json`` and ``alpha.png``."""
    problems = held_out_problems(16)
    results = {}
    for pages in BUDGETS:
        schedule = BudgetSchedule.constant(pages, page_size=4)
        experience, alpha_BT, _ = sampled_alpha(
            problems.model,
            schedule,
            problems.prompts,
            problems.eos_token_ids,
            samples=4,
            max_new_tokens=LONGEST,
            seed=0,
        )
        results[str(pages)] = describe(alpha_BT[experience.decoded_BT])
        print(pages, json.dumps({key: value for key, value in results[str(pages)].items() if key != "histogram"}))
    write(HERE, {"pages": results})
    plot(results)


if __name__ == "__main__":
    main()
