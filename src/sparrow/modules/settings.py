"""The numbers of one RL step: how trajectories are sampled and how the policy is updated from them."""

import math
from dataclasses import dataclass
from typing import Literal

Alpha = Literal["exact", "bounds", "off"]
SOURCES = ("actor", "traces")


@dataclass(frozen=True)
class RolloutSettings:
    """How the actor samples during training.

    Attributes:
        samples: completions per prompt (the group size).
        max_new_tokens: longest completion; longer ones are truncated.
        temperature: the one temperature of sampling, log-probs, entropy, divergences and alpha.
        top_p: must be 1 in training: the trainer's distribution has the full support.
        top_k: must be 0 in training, for the same reason.
        min_p: must be 0 in training, for the same reason.
        max_batch: sequences decoded at a time.
        max_cached_tokens: tokens the page pool holds; null sizes it for a full batch.
        keep_pool: whether the page pool stays allocated between rollouts; false frees its memory for the update.
        poll_every: decode steps between two looks of the host at what was drawn; null: 8 on a GPU, 1 elsewhere.
        graphs: whether decode steps are CUDA graphs; null: on a GPU, unless the page score has no kernels.
        page_score: how pages are ranked, a name of the page-score registry.
        draft_tokens: lossless mode: tokens that the sparse actor proposes at a time to the dense policy, which accepts
            or corrects them, so that what is sampled and recorded is dense; 0: the sparse actor itself samples.
        alpha: how the agreement with the dense policy is measured: ``exact`` from the actor's recorded hidden states,
            ``bounds`` from its recorded top-k, or ``off``.
        top_k_recorded: candidates recorded per token for ``alpha=bounds``.
        oversample: so many times ``samples`` are drawn per prompt, and the best ``samples`` by reward train.
        filter_groups: dynamic sampling: groups whose scores are all equal are left out, and further prompts sampled.
        max_tries: with ``filter_groups``, times that a step samples prompts, the first included.
        refresh_every: RL steps between two refreshes of the actor's weights; above 1 it samples with those of the last
            one, held as a second copy.
        source: where completions come from: the ``actor``, or the rows' own ``traces`` (the supervised stage).

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    samples: int = 8
    max_new_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_batch: int = 64
    max_cached_tokens: int | None = None
    keep_pool: bool = True
    poll_every: int | None = None
    graphs: bool | None = None
    page_score: str = "mean"
    draft_tokens: int = 0
    alpha: Alpha = "exact"
    top_k_recorded: int = 20
    oversample: int = 1
    filter_groups: bool = False
    max_tries: int = 4
    refresh_every: int = 1
    source: Literal["actor", "traces"] = "actor"

    def __post_init__(self) -> None:
        for key in (
            "samples",
            "max_new_tokens",
            "max_batch",
            "top_k_recorded",
            "oversample",
            "max_tries",
            "refresh_every",
        ):
            _at_least_one(f"rollout.{key}", getattr(self, key))
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"rollout.temperature={self.temperature}: must be a finite number above 0 in training")
        for key, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            if getattr(self, key) != neutral:
                raise ValueError(
                    f"rollout.{key}={getattr(self, key)}: training allows only {neutral}, since a truncated sampler "
                    "and a full trainer are different distributions (evaluation may set it)"
                )
        for key in ("poll_every", "max_cached_tokens"):
            if getattr(self, key) is not None:
                _at_least_one(f"rollout.{key}", getattr(self, key))
        if self.draft_tokens < 0:
            raise ValueError(f"rollout.draft_tokens={self.draft_tokens}: must be 0 or more")
        if self.alpha not in ("exact", "bounds", "off"):
            raise ValueError(f"rollout.alpha={self.alpha!r}: must be exact, bounds or off")
        if self.source not in SOURCES:
            raise ValueError(f"rollout.source={self.source!r}: must be one of {', '.join(SOURCES)}")

    @property
    def record(self) -> tuple[str, ...]:
        """What the engine must record for ``alpha``."""
        return {"exact": ("hidden",), "bounds": ("topk",), "off": ()}[self.alpha]


@dataclass(frozen=True)
class UpdateSettings:
    """How one rollout becomes optimizer steps.

    Attributes:
        minibatches: optimizer steps per pass over a rollout.
        epochs: passes over a rollout. With one mini-batch and one epoch the old log-probs are the current ones,
            detached, and the clip is inactive.
        micro_batch_tokens: padded tokens of one forward and backward; only memory depends on it.
        max_grad_norm: gradients are scaled down to this norm; null leaves them.
        denominator: what a mean over tokens divides by: ``all`` response tokens, or those a correction ``kept``.
        entropy_bonus: added to the objective as this times the mean entropy.
        warmup_steps: RL steps over which the learning rate rises linearly from 0.
        cooldown_steps: last RL steps of the run over which it falls linearly towards 0.
        on_non_finite: ``stop`` ends the run with the batch saved, ``skip`` drops the step; weights stay untouched.
        recompute: activation checkpointing: a layer keeps its input alone for backward and is computed again there.
        balance: on several ranks sequences train where there is least to do, not where they were sampled.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    minibatches: int = 1
    epochs: int = 1
    micro_batch_tokens: int = 16384
    max_grad_norm: float | None = 1.0
    denominator: Literal["all", "kept"] = "all"
    entropy_bonus: float = 0.0
    warmup_steps: int = 0
    cooldown_steps: int = 0
    on_non_finite: Literal["stop", "skip"] = "stop"
    recompute: bool = False
    balance: bool = True

    def __post_init__(self) -> None:
        for key in ("minibatches", "epochs", "micro_batch_tokens"):
            _at_least_one(f"update.{key}", getattr(self, key))
        if not math.isfinite(self.entropy_bonus):
            raise ValueError(f"update.entropy_bonus={self.entropy_bonus}: must be a finite number")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"update.max_grad_norm={self.max_grad_norm}: must be above 0, or null")
        for key in ("warmup_steps", "cooldown_steps"):
            if getattr(self, key) < 0:
                raise ValueError(f"update.{key}={getattr(self, key)}: must be 0 or more")
        if self.denominator not in ("all", "kept"):
            raise ValueError(f"update.denominator={self.denominator!r}: must be all or kept")
        if self.on_non_finite not in ("stop", "skip"):
            raise ValueError(f"update.on_non_finite={self.on_non_finite!r}: must be stop or skip")

    @property
    def single(self) -> bool:
        """Whether a rollout makes exactly one optimizer step, so that old and current log-probs coincide."""
        return self.minibatches * self.epochs == 1


def rate_factor(step: int, warmup: int, cooldown: int, steps: int) -> float:
    """What the learning rate is multiplied with at an RL step.

    Args:
        step: RL steps done.
        warmup: steps of the linear rise; the first step takes 1 / warmup.
        cooldown: steps of the linear fall; the last step takes 1 / (cooldown + 1).
        steps: RL steps of the run; -1 if open, and then nothing falls.
    """
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    fall = min(1.0, max(0.0, (steps - step) / (cooldown + 1))) if cooldown and steps > 0 else 1.0
    return rise * fall


def _at_least_one(key: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{key}={value}: must be 1 or more")
