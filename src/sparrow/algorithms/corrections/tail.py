"""Corrections that read the measured acceptance alpha instead of the ratio of one sampled token.

Alpha tells how far the two distributions agree at a position, whichever token was drawn there: it finds the positions
of the tail also where the draw happened to be a likely token. Both rules are this project's; neither has a published
default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparrow.algorithms.corrections.rule import Rule, health, kept, mismatch
from sparrow.algorithms.masked import inside
from sparrow.algorithms.types import Correction, Mean, PolicyInputs
from sparrow.ranges import Share


@dataclass(frozen=True)
class TailMask(Rule):
    """Drop tokens with alpha < threshold; weight 1 on the rest.

    Attributes:
        threshold: least acceptance that trains, in the units of the estimator that fills `alpha_BT`.
    """

    threshold: Share = 0.5
    needs: ClassVar[frozenset[str]] = frozenset({"alpha_BT"})

    def judge(self, alpha_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Weight of each token and whether it stays."""
        return torch.ones_like(alpha_BT), alpha_BT >= self.threshold

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        alpha_BT = inputs.need("alpha_BT", type(self).__name__)
        delta_BT, mask_BT = mismatch(self, inputs)
        mask_BT = self.present(alpha_BT, "alpha_BT", mask_BT)
        weight_BT, stays_BT = self.judge(inside(alpha_BT.detach(), mask_BT))
        metrics = health(delta_BT, mask_BT) | {
            "rollout_corr/tail_fraction": Mean.of(alpha_BT < self.threshold, mask_BT),
        }
        return kept(weight_BT, mask_BT & stays_BT, inputs, metrics)


@dataclass(frozen=True)
class TailWeight(TailMask):
    """Weight min(1, alpha / threshold): tokens of the tail count less, none is dropped (unless its alpha is 0)."""

    threshold: Share = 0.9

    def judge(self, alpha_BT: Tensor) -> tuple[Tensor, Tensor]:
        return (alpha_BT / self.threshold).clamp(max=1.0), alpha_BT > 0
