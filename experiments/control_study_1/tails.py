"""The candidates for a predictor, read from traces that the sparse actor samples itself."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from experiments.sampled_alpha import sampled_alpha
from sparrow.callbacks.tail import page_end
from sparrow.data import Prompt
from sparrow.metrics import TailAcceptance
from sparrow.metrics.functional import disagreements
from sparrow.schedule import BudgetSchedule

FILLED = 300


@dataclass(frozen=True)
class Tails:
    """Numbers of one budget.

    Attributes:
        p05_min: least p5 of exact alpha over bins with at least 300 tokens.
        p05: over all tokens.
        p01: over all tokens.
        mean: over all tokens.
        disagreements: sum of 1 - alpha of a trace, mean over traces.
        p05_bins: per bin; NaN where it is empty.
        kv_fraction: share of the cache read in sparse layers.
    """

    p05_min: float
    p05: float
    p01: float
    mean: float
    disagreements: float
    p05_bins: list[float]
    kv_fraction: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, null for NaN."""
        bins = [None if math.isnan(value) else value for value in self.p05_bins]
        return {**asdict(self), "p05_bins": bins}


def read_tails(
    model: torch.nn.Module,
    schedule: BudgetSchedule,
    prompts: Sequence[Prompt],
    eos_token_ids: Sequence[int],
    *,
    samples: int,
    max_new_tokens: int,
    seed: int,
) -> Tails:
    """Sample under ``schedule`` at temperature 1 and read its tails."""
    experience, alpha_BT, statistics = sampled_alpha(
        model, schedule, prompts, eos_token_ids, samples=samples, max_new_tokens=max_new_tokens, seed=seed
    )
    tail = TailAcceptance(bin_tokens=schedule.bin_tokens, num_bins=schedule.num_bins)
    tail.update(alpha_BT, page_end(experience.position_BT, schedule.page_size), experience.decoded_BT)
    values, bins = tail.compute(), tail.quantile_bins().tolist()
    filled = [p5 for p5, count in zip(bins, tail.count_bins().tolist(), strict=True) if count >= FILLED]
    return Tails(
        p05_min=min(filled, default=math.nan),
        p05=float(values["p05"]),
        p01=float(values["p01"]),
        mean=float(values["mean"]),
        disagreements=float(disagreements(alpha_BT, experience.decoded_BT).mean()),
        p05_bins=bins,
        kv_fraction=statistics.kv_fraction_sparse_layers,
    )
