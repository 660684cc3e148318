"""Finds, for the packaged policy, the budgets whose p5 of exact alpha starts at a given value in every bin.

    python -m experiments.control_study_1.budgets

Bin by bin, shortest first and the earlier ones as found: the least pages whose p5 is at least the target, by bisection.
Four more budgets lie between those and the quickstart's schedule, and one is destructive. What p1, mean and
disagreements per trace are at the start is stored beside p5, since on a confident policy p5 alone says little.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.control_study_1.arms import BUDGETS
from experiments.control_study_1.tails import Tails, read_tails
from sparrow.data import PromptDataModule
from sparrow.data.sources.packaged import RunningSum
from sparrow.models.loading import eos_token_ids, load_policy
from sparrow.schedule import BudgetSchedule

TARGETS = ("0.92", "0.86", "0.80", "0.75")
CHOSEN = [8, 8, 12, 20, 96]
"""The schedule of the quickstart."""

PARTS = {
    "three-quarters": [6, 6, 9, 15, 72],
    "five-eighths": [5, 5, 8, 13, 60],
    "three-fifths": [5, 5, 7, 12, 58],
    "half": [4, 4, 6, 10, 48],
}
"""About these parts of it: they lie between it and the budgets that are searched, in disagreements a trace."""

PROMPT, LONGEST, MOST = 68, 220, 69
"""Tokens of a prompt, of the longest trace, and every page of a sequence, reserved ones not counted."""


def least_pages(p5: Callable[[int], float], target: float, low: int, high: int) -> int:
    """Least count in ``low .. high`` whose p5 is at least the target, or ``high``; p5 is taken to rise with pages."""
    while low < high:
        middle = (low + high) // 2
        if p5(middle) >= target:
            high = middle
        else:
            low = middle + 1
    return low


class Search:
    """Reads tails of the packaged policy; a table is read once.

    Args:
        prompts: held-out problems per reading.
        samples: traces of each.
    """

    def __init__(self, prompts: int, samples: int) -> None:
        self.model, self.tokenizer = load_policy("tiny")
        self.eos_token_ids = eos_token_ids(self.model, self.tokenizer)
        data = PromptDataModule(RunningSum(count=1, validation_count=1000, numbers=34), self.tokenizer, 8, 0)
        data.setup("validate")
        self.prompts, self.samples = data.validation_prompts[-prompts:], samples
        self.base = BudgetSchedule(CHOSEN, page_size=4, bin_tokens=64)
        self.seen: dict[tuple[tuple[int, ...], int], Tails] = {}

    def read(self, pages: Sequence[int], tokens: int = LONGEST) -> Tails:
        """Tails under a table, of traces cut to ``tokens``."""
        key = tuple(pages), tokens
        if key not in self.seen:
            self.seen[key] = read_tails(
                self.model,
                self.base.replace(pages=list(pages)),
                self.prompts,
                self.eos_token_ids,
                samples=self.samples,
                max_new_tokens=tokens,
                seed=1,
            )
        return self.seen[key]

    def find(self, target: float) -> list[int]:
        """Pages per bin that start at the target."""
        pages = [1] * 5
        for index in range(1, 5):
            tokens = min(LONGEST, (index + 1) * 64 - PROMPT)
            p5 = self._p5_of(index, pages, tokens)
            pages[index:] = [least_pages(p5, target, pages[index - 1], MOST)] * (5 - index)
        return pages

    def _p5_of(self, index: int, pages: Sequence[int], tokens: int) -> Callable[[int], float]:
        return lambda count: self.read([*pages[:index], *[count] * (5 - index)], tokens).p05_bins[index]


def main() -> None:
    """Command line: problems and traces per reading."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--output", type=Path, default=BUDGETS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    search = Search(options.prompts, options.samples)
    tables = {"chosen": CHOSEN, **PARTS}
    tables |= {target: search.find(float(target)) for target in TARGETS}
    tables["destructive"] = [1, 1, 1, 1, 1]
    found: dict[str, Any] = {}
    for name, pages in tables.items():
        found[name] = {"pages": pages, "start": search.read(pages).to_dict()}
        print(name, pages, found[name]["start"])
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
