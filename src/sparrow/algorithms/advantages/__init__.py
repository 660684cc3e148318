"""From the rewards of a step to one advantage per sample; each estimator is a function of `GroupedRewards`."""

from sparrow.algorithms.advantages.dapo import mixed_groups, overlong_penalty
from sparrow.algorithms.advantages.dr_grpo import dr_grpo
from sparrow.algorithms.advantages.grpo import grpo
from sparrow.algorithms.advantages.pass_at_k import best_minus_second, pass_at_k
from sparrow.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from sparrow.algorithms.advantages.remax import remax
from sparrow.algorithms.advantages.rloo import rloo

__all__ = [
    "best_minus_second",
    "dr_grpo",
    "grpo",
    "mixed_groups",
    "overlong_penalty",
    "pass_at_k",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
]
