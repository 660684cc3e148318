"""What passes between the parts of an algorithm: frozen dataclasses of padded tensors.

The flow of one step is `GroupedRewards -> advantages -> PolicyInputs -> Correction -> TokenLoss -> scalar`. Each arrow
is a pure function (or a frozen callable object), so every part is tested alone and replaced alone.

Log-probs are named by the distribution that gave them: `dense_` the policy being trained (current weights, with
gradient), `old_` the same policy under the weights that sampled, `sparse_` the actor while it sampled. Values outside
`mask_BT` are never read, so padding may hold anything, NaN included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mean:
    """A mean kept as total / count, so that micro-batches and ranks add up to the mean of the whole batch.

    Attributes:
        total: sum of the values, 0-dim float64.
        count: number of values, 0-dim float64.
    """

    total: Tensor
    count: Tensor

    @classmethod
    def of(cls, values: Tensor, mask: Tensor) -> Mean:
        """Mean of `values` where `mask`; what lies outside is not read (it may be NaN)."""
        kept = torch.where(mask, values.detach().double(), 0.0)
        return cls(kept.sum(), mask.sum().double())

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean as a number; NaN where nothing was counted."""
        return float(self.total / self.count)


Metrics = dict[str, Mean]


def add_metrics(parts: Iterable[Mapping[str, Mean]]) -> Metrics:
    """Metrics of several micro-batches (or ranks) as those of one batch."""
    total: Metrics = {}
    for part in parts:
        for name, mean in part.items():
            total[name] = total[name] + mean if name in total else mean
    return total


@dataclass(frozen=True)
class GroupedRewards:
    """Rewards of a whole step (all ranks), before samples are spread for training.

    Attributes:
        rewards_B: one number per sample.
        group_B: integer id of the prompt a sample answers; rows of a group need not be neighbours.
        length_B: response tokens of each sample; needed by estimators that weigh by tokens.
        baseline_B: reward of the greedy answer to the same prompt; needed by ReMax.
    """

    rewards_B: Tensor
    group_B: Tensor
    length_B: Tensor | None = None
    baseline_B: Tensor | None = None

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value is not None and value.shape != self.rewards_B.shape:
                raise ValueError(f"{spec.name} has shape {tuple(value.shape)}, rewards_B {tuple(self.rewards_B.shape)}")
        bad = (~torch.isfinite(self.rewards_B)).nonzero().flatten()
        if len(bad):
            row = int(bad[0])
            raise ValueError(f"rewards_B of sample {row} is {self.rewards_B[row].item()}; it must be finite")


@dataclass(frozen=True)
class PolicyInputs:
    """All that corrections and losses read. Everything is [B, T] at the index of the predicted token.

    Attributes:
        dense_logprobs_BT: log-prob of the token under the current weights; carries the gradient.
        old_logprobs_BT: the same under the weights that sampled; no gradient.
        sparse_logprobs_BT: recorded by the sparse actor; NaN where it is missing, never 0.
        advantages_BT: advantage of each token.
        mask_BT: bool, True = response token to train on.
        alpha_BT: measured acceptance (overlap of dense and sparse distribution), or None.
        overlap_BT: sum_v min(p_dense / C, p_sparse) for `corrections.Jackpot` with a scale C other than 1, or None.
        entropy_BT: entropy of the current policy, or None.
        group_B: prompt id of each row, or None.
        noise_BT: uniform numbers in [0, 1) drawn by the caller for the whole batch, so that a split of the batch
            changes nothing; needed by parts that choose tokens at random.
        chosen_BT: bool, tokens that a loss picked over the whole batch (`losses.ChoosingLoss`), or None.
    """

    dense_logprobs_BT: Tensor
    old_logprobs_BT: Tensor
    sparse_logprobs_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor
    alpha_BT: Tensor | None = None
    overlap_BT: Tensor | None = None
    entropy_BT: Tensor | None = None
    group_B: Tensor | None = None
    noise_BT: Tensor | None = None
    chosen_BT: Tensor | None = None

    def __post_init__(self) -> None:
        if self.mask_BT.dtype != torch.bool:
            raise TypeError(f"mask_BT has dtype {self.mask_BT.dtype}; it must be torch.bool")
        if self.mask_BT.ndim != 2:
            raise ValueError(f"mask_BT has shape {tuple(self.mask_BT.shape)}; it must be [B, T]")
        for spec in fields(self):
            value = getattr(self, spec.name)
            shape = self.mask_BT.shape[:1] if spec.name.endswith("_B") else self.mask_BT.shape
            if value is not None and value.shape != shape:
                raise ValueError(f"{spec.name} has shape {tuple(value.shape)}; mask_BT asks for {tuple(shape)}")

    def rows(self, index: slice | Tensor) -> PolicyInputs:
        """The same inputs for some rows: a micro-batch."""
        picked = {s.name: getattr(self, s.name) for s in fields(self) if getattr(self, s.name) is not None}
        return PolicyInputs(**{name: value[index] for name, value in picked.items()})

    def masked(self, keep_BT: Tensor) -> PolicyInputs:
        """The same inputs with the mask narrowed to `keep_BT`."""
        return replace(self, mask_BT=self.mask_BT & keep_BT)

    def need(self, name: str, reader: str) -> Tensor:
        """An optional field that `reader` cannot do without.

        Raises:
            ValueError: the field is None; the message names the field and the reader.
        """
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{reader} needs PolicyInputs.{name}, which is None")
        return value  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Correction:
    """What a correction decided, all of it without gradient.

    Attributes:
        weight_BT: factor on the loss of each token, outside the clip; 0 wherever `keep_BT` is False.
        keep_BT: bool, tokens that still train (a subset of the mask).
        metrics: `rollout_corr/*`, measured over the mask before anything was truncated or dropped.
        old_logprobs_BT: takes the place of the old log-probs in the loss (bypass), or None.
    """

    weight_BT: Tensor
    keep_BT: Tensor
    metrics: Metrics = field(default_factory=dict)
    old_logprobs_BT: Tensor | None = None


@dataclass(frozen=True)
class TokenLoss:
    """A loss before aggregation.

    Attributes:
        loss_BT: loss of each token, with gradient; exactly 0 outside the mask.
        metrics: `actor/*`, means over the mask.
    """

    loss_BT: Tensor
    metrics: Metrics = field(default_factory=dict)
