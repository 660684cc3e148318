"""What an audit finds, and how it is put together from measurements."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sparrow.auditing.beta_fit import BetaFit, fit_beta
from sparrow.auditing.corrections import Effect
from sparrow.auditing.lengths import blocks_of, correlation
from sparrow.auditing.measurement import READINGS, Measured
from sparrow.auditing.settings import AuditSettings
from sparrow.auditing.tokens import Shown
from sparrow.auditing.verdict import Threshold, Verdict
from sparrow.evaluation.intervals import Estimate
from sparrow.evaluation.prompt_tail import PromptTail, Statistic, mean_alpha, quantile_of, share_below
from sparrow.metrics.functional import health_metrics, health_state

STATISTICS: dict[str, Statistic] = {
    "mean": mean_alpha,
    "p01": quantile_of(0.01),
    "p05": quantile_of(0.05),
    "p10": quantile_of(0.10),
}
"""Per bin and over all tokens, each with an interval over prompts."""

ALL = "all tokens"


@dataclass(frozen=True)
class Reading:
    """One estimator over the length bins.

    Attributes:
        bins: bin, in words -> statistic -> estimate; filled bins, and all tokens together.
        tokens: bin -> tokens.
    """

    bins: Mapping[str, Mapping[str, Estimate]]
    tokens: Mapping[str, int]

    @property
    def worst(self) -> tuple[str, Estimate] | None:
        """The filled bin of least p5; None without one."""
        filled = [(name, statistics["p05"]) for name, statistics in self.bins.items() if name != ALL]
        return min(filled, key=lambda pair: pair[1].value, default=None)


@dataclass(frozen=True)
class Audit:
    """Everything a report shows.

    Attributes:
        threshold: what the verdict goes by.
        verdict: in words.
        floors: estimator -> dense engine against dense trainer.
        readings: estimator -> sparse actor against dense policy.
        floor_weight_error: largest distance of a weight from 1, dense against dense.
        below_tau: share of tokens below tau, by the threshold's estimator.
        with_length: Pearson's r of block means and of block p5 with length.
        beta: fit of the part that disagrees; None with too few tokens.
        health: weights of the sampled tokens before any truncation, keys as in training.
        effects: correction -> what it would keep.
        lowest: tokens of least alpha.
        advantages: where the gradients' advantages come from.
        correct: share of sequences judged right; NaN where nothing was judged.
        kv_fraction: tokens read / tokens cached, all layers.
        seconds: wall time by stage.
    """

    threshold: Threshold
    verdict: Verdict
    floors: Mapping[str, Reading]
    readings: Mapping[str, Reading]
    floor_weight_error: float
    below_tau: Estimate
    with_length: Mapping[str, Estimate]
    beta: BetaFit | None
    health: Mapping[str, float]
    effects: Mapping[str, Effect]
    lowest: Sequence[Shown]
    advantages: str
    correct: float
    kv_fraction: float
    seconds: Mapping[str, float]

    def summary(self) -> dict[str, float]:
        """Flat numbers for ``summary.json``."""
        flat = {"tau": self.threshold.tau, "healthy": float(self.verdict.word == "healthy")}
        for name in READINGS:
            for prefix, readings in (("alpha", self.readings), ("floor", self.floors)):
                whole, worst = readings[name].bins.get(ALL), readings[name].worst
                flat |= {f"{prefix}_{name}_{key}": value.value for key, value in (whole or {}).items()}
                flat[f"{prefix}_{name}_p05_min"] = math.nan if worst is None else worst[1].value
        flat |= {"share_below_tau": self.below_tau.value, "floor_weight_error_max": self.floor_weight_error}
        flat |= {f"pearson_{name}_length": value.value for name, value in self.with_length.items()}
        if self.beta is not None:
            flat |= {f"beta_{key}": float(value) for key, value in asdict(self.beta).items()}
        flat |= {"correct": self.correct, "kv_fraction": self.kv_fraction}
        for name, effect in self.effects.items():
            flat |= {f"{name}/rejected": effect.rejected, f"{name}/gradient_kept": effect.gradient_kept}
        return flat | {f"timing_s/{stage}": seconds for stage, seconds in self.seconds.items()}

    def details(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {"threshold": asdict(self.threshold), "verdict": asdict(self.verdict)} | {
            "floors": {name: asdict(reading) for name, reading in self.floors.items()},
            "readings": {name: asdict(reading) for name, reading in self.readings.items()},
            "with_length": {name: asdict(value) for name, value in self.with_length.items()},
            "beta": None if self.beta is None else asdict(self.beta),
            "health": dict(self.health),
            "effects": {name: asdict(effect) for name, effect in self.effects.items()},
            "lowest": [asdict(shown) for shown in self.lowest],
            "advantages": self.advantages,
        }


def read_tail(tail: PromptTail, settings: AuditSettings) -> Reading:
    """Every statistic of the filled bins, and of all tokens together."""
    filled, tokens, width = tail.filled(settings.filled), tail.tokens(), tail.bin_tokens
    names = [f"{index * width} to {(index + 1) * width} cached tokens" for index in range(tail.num_bins)]
    wanted: list[tuple[str, int | None]] = [(names[index], index) for index in range(tail.num_bins) if filled[index]]
    if sum(tokens):
        wanted.append((ALL, None))
    bins = {
        name: {
            key: tail.interval(index, statistic, level=settings.level, resamples=settings.resamples)
            for key, statistic in STATISTICS.items()
        }
        for name, index in wanted
    }
    return Reading(bins, {**dict(zip(names, tokens, strict=True)), ALL: sum(tokens)})


def share_below_tau(tail: PromptTail, tau: float, settings: AuditSettings) -> Estimate:
    """Share of tokens below tau with its interval."""
    return tail.interval(None, share_below(tau), level=settings.level, resamples=settings.resamples)


def length_correlations(measured: Measured, settings: AuditSettings) -> dict[str, Estimate]:
    """Pearson's r of exact alpha's block mean and block p5 with length."""
    blocks = blocks_of(measured, "exact", settings.block_tokens)
    return {
        name: correlation(blocks, values, level=settings.level, resamples=min(settings.resamples, 500))
        for name, values in (("mean", blocks.mean), ("p05", blocks.tail))
    }


def disagreement_fit(measured: Measured) -> BetaFit | None:
    """The Beta fit of all decoded tokens' exact alpha."""
    return fit_beta(measured.alphas["exact"][measured.experience.decoded_BT])


def weight_health(measured: Measured) -> dict[str, float]:
    """Weights exp(dense - actor) of the sampled tokens, before any truncation."""
    experience = measured.experience
    state = health_state(measured.dense_logprobs_BT, experience.sparse_logprobs_BT, experience.mask_BT)
    return {key: float(torch.as_tensor(value)) for key, value in health_metrics(state).items()}
