"""The arms of the study: budgets that start at a given tail, and what separates mismatch from reward starvation."""

import json
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BUDGETS = HERE / "budgets.json"
"""What `python -m experiments.control_study_1.budgets` found: pages per bin and their tail, by name."""

SEEDS = (0, 1, 2)
STEPS = 16

COMMON = (
    *("experiment=quickstart", f"steps={STEPS}", "data.max_validation_prompts=300", "logger=csv", "threads=1"),
    "~callbacks.checkpoint",
)

UNCORRECTED = "correction=none"
CORRECTED = "correction=token-tis"

MEANS = {
    "plain": (UNCORRECTED,),
    "corrected": (CORRECTED,),
    "best-of-two": (UNCORRECTED, "rollout.oversample=2"),
    "steps": (UNCORRECTED, "reward=running-sum-steps"),
}
"""What is done besides the budget: nothing; the usual correction; twice as many samples, of which the better half
trains (matched reward); the share of right steps as half of the reward (matched reward)."""

EVERYWHERE = ("plain",)
CHOSEN = ("dense", "0.86", "destructive")
"""Budgets that are also run in all other ways."""


@dataclass(frozen=True)
class Run:
    """One training run of the study."""

    budget: str
    means: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.budget}_{self.means}_{self.seed}"

    def overrides(self, pages: list[int] | None) -> list[str]:
        """Overrides of `sparrow-train`; ``pages`` is None for dense rollouts."""
        table = "[1073741824,1073741824,1073741824,1073741824,1073741824]" if pages is None else str(pages)
        return [*COMMON, *MEANS[self.means], f"seed={self.seed}", f"schedule.pages={table.replace(' ', '')}"]


def load_budgets(path: Path = BUDGETS) -> dict[str, list[int] | None]:
    """Pages per bin by name, dense first.

    Raises:
        FileNotFoundError: the budgets were not searched yet; the message says how.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: run `python -m experiments.control_study_1.budgets` first")
    found = json.loads(path.read_text())
    return {"dense": None, **{name: entry["pages"] for name, entry in found.items()}}


def all_runs(budgets: dict[str, list[int] | None]) -> list[Run]:
    """Every run of the study, seed by seed, so that a part of it is already a comparison."""
    return [
        Run(budget, means, seed)
        for seed in SEEDS
        for means in MEANS
        for budget in budgets
        if means in EVERYWHERE or budget in CHOSEN
    ]
