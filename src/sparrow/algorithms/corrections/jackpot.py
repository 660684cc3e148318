"""Jackpot: rejection sampling of tokens under a budget (OBRS, arXiv 2602.06107).

A token drawn from the actor q is accepted with probability min(1, p / (C q)). The accepted ones follow min(q, p / C)
/ Z with Z = sum_v min(q, p / C), so their weight towards the policy p is C Z max(1, p / (C q)): never above C Z times
the clip, where a plain ratio has no bound. The weight is unbiased over accepted tokens (denominator "kept").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from sparrow.algorithms.corrections.rule import Rule, health, kept, mismatch
from sparrow.algorithms.masked import inside
from sparrow.algorithms.types import Correction, Mean, PolicyInputs
from sparrow.ranges import Positive, Range


@dataclass(frozen=True)
class Jackpot(Rule):
    """Keep with probability min(1, w / scale); weight scale Z clip(w / scale, 1, clip), w = exp(old - sparse).

    Z is `alpha_BT` when scale is 1, else `overlap_BT`. The draw is `noise_BT < probability`.

    Attributes:
        scale: C of the formulas.
        clip: upper bound of the last factor (Sparrow's release: 3).
        calibrate: multiply Z by mean(acceptance probability) / mean(Z) over the batch. Both means estimate the same
            number, so it does nothing to an exact Z, and corrects one from top-k ids, which is too low.
    """

    scale: Positive = 1.0
    clip: Annotated[float, Range(1, unbounded=True)] = 3.0
    calibrate: bool = True
    needs: ClassVar[frozenset[str]] = frozenset({"alpha_BT", "noise_BT"})
    importance: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale != 1:
            object.__setattr__(self, "needs", frozenset({"overlap_BT", "noise_BT"}))

    @property
    def needs_totals(self) -> bool:
        return self.calibrate

    @torch.no_grad()
    def statistics(self, inputs: PolicyInputs) -> Tensor:
        """Sum of acceptance probabilities and sum of Z; empty without `calibrate`."""
        if not self.calibrate:
            return super().statistics(inputs)
        ratio_BT, overlap_BT, mask_BT = self._terms(inputs)
        accepted_BT = inside(ratio_BT.clamp(max=1.0), mask_BT)
        return torch.stack([accepted_BT.double().sum(), overlap_BT.double().sum()])

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        delta_BT, _ = mismatch(self, inputs)
        ratio_BT, overlap_BT, mask_BT = self._terms(inputs)
        if self.calibrate:
            accepted, overlap = (self.statistics(inputs) if totals is None else totals).unbind()
            overlap_BT = overlap_BT * (accepted / overlap.clamp(min=1e-12)).to(overlap_BT.dtype)
        keep_BT = mask_BT & (inputs.need("noise_BT", "Jackpot") < ratio_BT)
        weight_BT = self.scale * overlap_BT * ratio_BT.clamp(1.0, self.clip)
        metrics = health(delta_BT, mask_BT) | {
            "rollout_corr/jackpot_acceptance": Mean.of(ratio_BT.clamp(max=1.0), mask_BT),
            "rollout_corr/jackpot_overlap": Mean.of(overlap_BT, mask_BT),
            "rollout_corr/rollout_is_ratio_fraction_high": Mean.of(ratio_BT > self.clip, mask_BT),
        }
        return kept(weight_BT, keep_BT, inputs, metrics)

    def _terms(self, inputs: PolicyInputs) -> tuple[Tensor, Tensor, Tensor]:
        """w / scale, Z (0 outside) and the mask they are known on."""
        name = "alpha_BT" if self.scale == 1 and inputs.overlap_BT is None else "overlap_BT"
        overlap_BT = inputs.need(name, f"Jackpot with scale={self.scale}").detach()
        delta_BT, mask_BT = mismatch(self, inputs)
        mask_BT = self.present(overlap_BT, name, mask_BT)
        return delta_BT.exp() / self.scale, inside(overlap_BT, mask_BT), mask_BT
