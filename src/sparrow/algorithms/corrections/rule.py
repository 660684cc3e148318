"""What every correction shares: the log-ratio it reads, missing log-probs, and health before any truncation.

A correction answers for the gap between the actor that sampled and the policy that trains: Delta = old - sparse,
w = exp(Delta). It never reads the current log-probs (`OPSM` says why it does) and carries no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sparrow.algorithms.masked import inside, log_ratio
from sparrow.algorithms.types import Correction, Mean, Metrics, PolicyInputs
from sparrow.ranges import check_fields

Missing = Literal["raise", "mask"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Base of the corrections: a frozen object with settings, called with inputs.

    Attributes:
        missing: what to do with a token whose recorded value is NaN or infinite: "raise" names the sample, "mask"
            takes the token out of training. It is never filled in.
        needs: optional fields of `PolicyInputs` that the rule reads.
        importance: whether its weight is an importance weight for the gap between actor and policy; two of them, or
            one on top of `Bypass`, would correct the gap twice.

    Raises:
        ValueError: a number is out of the range that its annotation states; the message names the field.
    """

    missing: Missing = "raise"
    needs: ClassVar[frozenset[str]] = frozenset()
    importance: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.missing not in ("raise", "mask"):
            raise ValueError(f"missing is {self.missing!r}; allowed: 'raise', 'mask'")
        check_fields(self)

    @property
    def needs_totals(self) -> bool:
        """The rule compares a token with the whole batch.

        Add up `statistics` over micro-batches and ranks and hand the sum in as `totals`; without it the rows of the
        call are taken for the whole batch, and the result depends on how the batch was cut.
        """
        return False

    def statistics(self, inputs: PolicyInputs) -> Tensor:
        """Sums over these rows that add up over micro-batches and ranks; empty unless `needs_totals`."""
        return torch.zeros(0, dtype=torch.float64, device=inputs.mask_BT.device)

    @torch.no_grad()
    def __call__(self, inputs: PolicyInputs, totals: Tensor | None = None) -> Correction:
        """Weight and mask of each token.

        Args:
            inputs: log-probs, mask and what else the rule reads.
            totals: the sum of `statistics` over the whole batch, for rules that need it.
        """
        return self.correct(inputs, totals)

    def correct(self, inputs: PolicyInputs, totals: Tensor | None) -> Correction:
        """The formula of the rule; the one method a new rule writes."""
        raise TypeError(f"{type(self).__name__} does not define correct(inputs, totals)")

    def present(self, values_BT: Tensor, name: str, mask_BT: Tensor) -> Tensor:
        """The mask without tokens whose value is missing.

        Raises:
            ValueError: a value inside the mask is not finite and `missing` is "raise".
        """
        return present(values_BT, name, mask_BT, self.missing)


def present(values_BT: Tensor, name: str, mask_BT: Tensor, missing: Missing) -> Tensor:
    """`mask_BT` without tokens whose value is NaN or infinite; see `Rule.missing`."""
    bad_BT = mask_BT & ~torch.isfinite(values_BT)
    if missing == "raise" and bool(bad_BT.any()):
        row, position = (int(i) for i in bad_BT.nonzero()[0])
        raise ValueError(
            f"{name} of sample {row} is {values_BT[row, position].item()} at position {position} "
            f"({int(bad_BT.sum())} such tokens in all); set missing='mask' to leave such tokens out"
        )
    return mask_BT & ~bad_BT


def mismatch(rule: Rule, inputs: PolicyInputs) -> tuple[Tensor, Tensor]:
    """Delta = old - sparse (0 outside) and the mask it is defined on."""
    mask_BT = rule.present(inputs.sparse_logprobs_BT, "sparse_logprobs_BT", inputs.mask_BT)
    delta_BT = log_ratio(inputs.old_logprobs_BT.detach(), inputs.sparse_logprobs_BT.detach(), mask_BT)
    return delta_BT, mask_BT


def health(delta_BT: Tensor, mask_BT: Tensor) -> Metrics:
    """Size of the mismatch over the mask, before truncation or masking; keys as in verl.

    kl = mean(-Delta), k3_kl = mean(w - 1 - Delta), chi2_token = mean(w^2) - 1.
    """
    delta_BT = delta_BT.double()
    weight_BT = delta_BT.exp()
    return {
        "rollout_corr/kl": Mean.of(-delta_BT, mask_BT),
        "rollout_corr/k3_kl": Mean.of(torch.expm1(delta_BT) - delta_BT, mask_BT),
        "rollout_corr/chi2_token": Mean.of(weight_BT**2 - 1, mask_BT),
        "rollout_corr/rollout_is_mean": Mean.of(weight_BT, mask_BT),
    }


def kept(weight_BT: Tensor, keep_BT: Tensor, inputs: PolicyInputs, metrics: Metrics) -> Correction:
    """A correction with weight 0 outside `keep_BT`, and the share of tokens and sequences it drops."""
    mask_BT = inputs.mask_BT
    rows_B = mask_BT.any(-1)
    metrics = metrics | {
        "rollout_corr/rollout_rs_masked_fraction": Mean.of(~keep_BT, mask_BT),
        "rollout_corr/rollout_rs_seq_masked_fraction": Mean.of(~keep_BT.any(-1), rows_B),
    }
    weight_BT = inside(weight_BT.expand_as(keep_BT), keep_BT).to(inputs.dense_logprobs_BT.dtype)
    return Correction(weight_BT, keep_BT, metrics)
