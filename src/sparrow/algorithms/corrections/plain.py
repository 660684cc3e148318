"""The two corrections that weigh nothing: none at all, and bypass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparrow.algorithms.corrections.rule import Rule, health, kept, mismatch
from sparrow.algorithms.types import Correction, PolicyInputs


@dataclass(frozen=True, kw_only=True)
class NoCorrection(Rule):
    """Weight 1 everywhere: the gap is ignored, but still measured.

    A token without a recorded log-prob trains all the same (nothing reads it); health leaves it out.
    """

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        measured_BT = torch.isfinite(inputs.sparse_logprobs_BT) & inputs.mask_BT
        delta_BT, _ = mismatch(self, inputs.masked(measured_BT))
        ones_BT = torch.ones_like(delta_BT)
        return kept(ones_BT, inputs.mask_BT, inputs, health(delta_BT, measured_BT))


@dataclass(frozen=True, kw_only=True)
class Bypass(Rule):
    """log old := log sparse, weight 1: the clip of the loss does the importance sampling (two policies, not three).

    verl `bypass_mode`, slime `use_rollout_logprobs`; prime-rl always.
    """

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        delta_BT, mask_BT = mismatch(self, inputs)
        plain = kept(torch.ones_like(delta_BT), mask_BT, inputs, health(delta_BT, mask_BT))
        return Correction(plain.weight_BT, mask_BT, plain.metrics, inputs.sparse_logprobs_BT.detach())
