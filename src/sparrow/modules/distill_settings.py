"""The numbers of an adapter on the sparse actor."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparrow.models.adapter import LINEAR_LAYERS
from sparrow.schedule.derive import ScheduleSpec


@dataclass(frozen=True)
class DistillSettings:
    """How the adapter is made and trained.

    Attributes:
        enabled: whether there is one; off, the run is a plain DensePolicy.
        rank: rank of the LoRA update.
        alpha: the update is scaled by ``alpha / rank``.
        targets: ``all-linear``, or some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.
        weight: lambda, the factor of the divergence to the dense policy.
        policy_loss: whether the policy loss of the sparse pass is part of the adapter's loss.
        lr_factor: the adapter's learning rate over the policy's.
        every: the adapter is trained on every this many RL steps.
        base: weights that the sparse pass sees: ``sampled``, those that sampled, before any optimizer step; or
            ``updated``, those after the policy's steps, as in the study's release.
        replay: read the page sets recorded while sampling instead of choosing pages again. Takes memory: one bit per
            page, decoded token, KV head and sparse layer.
        schedule: the schedule that the adapter is trained for, where it is not the rollout's: a name or path, or the
            fields in which it differs from the run's first schedule (see `derive_schedule`). The actor samples without
            the adapter until another callback moves the run to a schedule that reads the same pages.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    enabled: bool = False
    rank: int = 32
    alpha: float = 64.0
    targets: Sequence[str] | str = "all-linear"
    weight: float = 1e-3
    policy_loss: bool = True
    lr_factor: float = 5.0
    every: int = 1
    base: Literal["sampled", "updated"] = "sampled"
    replay: bool = False
    schedule: ScheduleSpec | None = None

    def __post_init__(self) -> None:
        for key in ("rank", "every"):
            if getattr(self, key) < 1:
                raise ValueError(f"distill.{key}={getattr(self, key)}: must be 1 or more")
        for key in ("alpha", "lr_factor"):
            if not 0 < getattr(self, key) < math.inf:
                raise ValueError(f"distill.{key}={getattr(self, key)}: must be above 0")
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"distill.weight={self.weight}: must be 0 or more")
        named = [self.targets] if isinstance(self.targets, str) else list(self.targets)
        if self.targets != "all-linear" and (not named or set(named) - set(LINEAR_LAYERS)):
            options = ", ".join(LINEAR_LAYERS)
            raise ValueError(f"distill.targets={self.targets!r}: must be all-linear or some of {options}")
        if self.weight == 0 and not self.policy_loss:
            raise ValueError("distill.weight=0 with distill.policy_loss=false: the adapter would have no loss")
        if self.base not in ("sampled", "updated"):
            raise ValueError(f"distill.base={self.base!r}: must be sampled or updated")
        if self.schedule is not None and (self.policy_loss or self.replay):
            raise ValueError(
                f"distill.schedule={self.schedule!r} with distill.policy_loss={self.policy_loss}, distill.replay="
                f"{self.replay}: the actor did not sample under that schedule, so both must be false"
            )
