"""The tail under a fixed budget, on sequences that the sparse actor samples itself: the answer to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from experiments.sampled_alpha import sampled_alpha
from sparrow.callbacks.tail import page_end
from sparrow.data import Prompt
from sparrow.metrics import TailAcceptance
from sparrow.schedule import BudgetSchedule
from sparrow.tail.evidence import Evidence, count_below


@dataclass(frozen=True)
class Reading:
    """One length bin under one budget: p5, tokens, and the share of tokens below a line, by prompt."""

    p5: float
    tokens: int
    evidence: Evidence


def read(
    model: torch.nn.Module,
    schedule: BudgetSchedule,
    prompts: Sequence[Prompt],
    eos_token_ids: Sequence[int],
    *,
    line: float,
    samples: int,
    max_new_tokens: int,
    seed: int,
) -> list[Reading]:
    """Sample under ``schedule`` and read every bin of it.

    Args:
        model: the policy, loaded as a run loads it.
        schedule: the budget.
        prompts: one trace of each is one cluster of the interval; ``samples`` traces of each.
        eos_token_ids: ids that end a trace.
        line: evidence counts tokens below it.
        samples: traces per prompt.
        max_new_tokens: longest trace.
        seed: of the sampler.
    """
    experience, alpha_BT, _ = sampled_alpha(
        model, schedule, prompts, eos_token_ids, samples=samples, max_new_tokens=max_new_tokens, seed=seed
    )
    where = page_end(experience.position_BT, schedule.page_size), experience.decoded_BT
    bins = {"bin_tokens": schedule.bin_tokens, "num_bins": schedule.num_bins}
    tail = TailAcceptance(**bins)
    tail.update(alpha_BT, *where)
    moments = count_below(alpha_BT, *where, experience.group_B, line=line, **bins)
    return [
        Reading(p5, count, Evidence(*row))
        for p5, count, row in zip(
            tail.quantile_bins().tolist(), tail.count_bins().tolist(), moments.tolist(), strict=True
        )
    ]
