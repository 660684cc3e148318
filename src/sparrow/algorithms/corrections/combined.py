"""Corrections made of others: several at once, and one whose weights are brought to mean 1 over the batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparrow.algorithms.corrections.plain import Bypass
from sparrow.algorithms.corrections.rule import Rule, kept
from sparrow.algorithms.types import Correction, Mean, Metrics, PolicyInputs


def _name(rule: Rule) -> str:
    """TokenTIS -> token_tis, IcePop -> ice_pop."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(rule).__name__).lower()


@dataclass(frozen=True)
class Chain(Rule):
    """Weights multiplied, masks combined with AND; every rule judges the original mask, so the order does not matter.

    `Chain([TokenTIS(), GeometricMask()])` is sequence-masked token TIS (NeMo-RL, OpenRLHF `seq-mask-tis`). The share
    that each rule drops is logged as `rollout_corr/<rule>_masked_fraction`.

    Attributes:
        rules: the parts. `missing` of the chain is not read: each part has its own.

    Raises:
        ValueError: no rule, or more than one that answers for the gap: importance weights, `Bypass`.
    """

    rules: Sequence[Rule]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rules", tuple(self.rules))
        if not self.rules:
            raise ValueError("Chain.rules is empty; give at least one rule, or use NoCorrection")
        object.__setattr__(self, "needs", frozenset().union(*(rule.needs for rule in self.rules)))
        weights = [type(rule).__name__ for rule in self.rules if rule.importance or isinstance(rule, Bypass)]
        if len(weights) > 1:
            raise ValueError(
                f"Chain.rules: {' and '.join(weights)} both answer for the gap between actor and policy (under Bypass "
                "the loss's own ratio does), so it would be corrected twice; allowed: one of them, and any masks"
            )
        object.__setattr__(self, "importance", any(rule.importance for rule in self.rules))

    @property
    def needs_totals(self) -> bool:
        return any(rule.needs_totals for rule in self.rules)

    def statistics(self, inputs: PolicyInputs) -> Tensor:
        """Those of the parts, one after the other."""
        return torch.cat([rule.statistics(inputs) for rule in self.rules])

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        weight_BT = torch.ones_like(inputs.dense_logprobs_BT)
        keep_BT, old_BT = inputs.mask_BT, None
        metrics: Metrics = {}
        for rule, share in zip(self.rules, self._shares(inputs, totals), strict=True):
            part = rule(inputs, share)
            weight_BT, keep_BT = weight_BT * part.weight_BT, keep_BT & part.keep_BT
            old_BT = part.old_logprobs_BT if part.old_logprobs_BT is not None else old_BT
            dropped = {f"rollout_corr/{_name(rule)}_masked_fraction": Mean.of(~part.keep_BT, inputs.mask_BT)}
            metrics |= part.metrics | dropped
        both = kept(weight_BT, keep_BT, inputs, metrics)
        return Correction(both.weight_BT, both.keep_BT, both.metrics, old_BT)

    def _shares(self, inputs: PolicyInputs, totals: Tensor | None) -> Sequence[Tensor | None]:
        if totals is None:
            return [None] * len(self.rules)
        return torch.split(totals, [len(rule.statistics(inputs)) for rule in self.rules])


@dataclass(frozen=True)
class BatchNormalized(Rule):
    """w / mean(w) over the kept tokens of the batch (verl `rollout_is_batch_normalize`, slime `tis_batch_normalize`).

    The mean is that of the weights as the inner rule leaves them: after truncation.

    Attributes:
        rule: the rule whose weights are normalised; it must not itself need totals.
    """

    rule: Rule

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule.needs_totals:
            raise ValueError(f"BatchNormalized cannot wrap {type(self.rule).__name__}, which needs totals of its own")
        object.__setattr__(self, "needs", self.rule.needs)
        object.__setattr__(self, "importance", self.rule.importance)

    @property
    def needs_totals(self) -> bool:
        return True

    @torch.no_grad()
    def statistics(self, inputs: PolicyInputs) -> Tensor:
        """Sum of weights and number of kept tokens."""
        return self._sums(self.rule(inputs))

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        inner = self.rule(inputs)
        weight, tokens = (self._sums(inner) if totals is None else totals).unbind()
        mean = (weight / tokens.clamp(min=1)).to(inner.weight_BT.dtype)
        metrics = inner.metrics | {"rollout_corr/batch_mean_weight": Mean.of(inner.weight_BT, inner.keep_BT)}
        scaled_BT = torch.where(mean > 0, inner.weight_BT / mean, inner.weight_BT)
        return Correction(scaled_BT, inner.keep_BT, metrics, inner.old_logprobs_BT)

    @staticmethod
    def _sums(inner: Correction) -> Tensor:
        return torch.stack([inner.weight_BT.double().sum(), inner.keep_BT.sum().double()])
