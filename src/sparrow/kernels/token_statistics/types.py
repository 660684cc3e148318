"""What `token_statistics` is asked for and what it returns."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

TOP20 = 20
"""Ids kept per side by the study's estimator of the acceptance rate."""


@dataclass(frozen=True)
class Request:
    """The arguments of `token_statistics` that need no gradient; shapes as documented there."""

    token_X: Tensor
    temperature: float = 1.0
    topk: int = 0
    other_hidden_XE: Tensor | None = None
    candidate_ids_XC: Tensor | None = None
    candidate_logprobs_XC: Tensor | None = None

    def rows(self, rows: slice) -> Self:
        """The same request for some of the tokens."""

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[rows]

        return replace(
            self,
            token_X=self.token_X[rows],
            other_hidden_XE=cut(self.other_hidden_XE),
            candidate_ids_XC=cut(self.candidate_ids_XC),
            candidate_logprobs_XC=cut(self.candidate_logprobs_XC),
        )


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of X tokens under softmax(hidden @ head.T / temperature); None where not asked for."""

    logprobs_X: Tensor
    """Log-probability of each token. Differentiable."""
    entropy_X: Tensor
    """Entropy in nats. Differentiable."""
    logsumexp_X: Tensor
    """Log-sum-exp of logits / temperature."""
    topk_ids: Tensor | None = None
    """[X, min(topk, V)] int64, best first; which of equal logits comes first is not defined."""
    topk_logprobs: Tensor | None = None
    """[X, min(topk, V)]."""
    alpha_X: Tensor | None = None
    """Exact acceptance rate: sum over v of min(p, q), q from `other_hidden_XE` through the same head."""
    alpha_low_X: Tensor | None = None
    """Lower bound of the acceptance rate: the sum over the candidates only."""
    alpha_high_X: Tensor | None = None
    """Upper bound: the lower one plus the smaller of the two masses outside the candidates."""
    alpha_top20_X: Tensor | None = None
    """The study's estimator: min(p, q) summed over the ids that are among the 20 best of both sides."""

    @classmethod
    def concatenate(cls, parts: list[Self]) -> Self:
        """Joins the statistics of consecutive tokens."""

        def join(name: str) -> Tensor | None:
            tensors = [getattr(part, name) for part in parts]
            return None if tensors[0] is None else torch.cat(tensors)

        return cls(**{name: join(name) for name in cls.__dataclass_fields__})  # type: ignore[arg-type]


def overlap_top20(ids_XC: Tensor, logprobs_XC: Tensor, other_ids_XC: Tensor, other_logprobs_XC: Tensor) -> Tensor:
    """Sum of min(p, q) over the ids in both lists, [X]."""
    same_XCC = ids_XC.unsqueeze(2) == other_ids_XC.unsqueeze(1)
    smaller_XCC = torch.minimum(logprobs_XC.unsqueeze(2), other_logprobs_XC.unsqueeze(1)).exp()
    return torch.where(same_XCC, smaller_XCC, 0).sum(dim=(1, 2))


def bounds(logprobs_XC: Tensor, other_logprobs_XC: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of the acceptance rate from both sides' log-probs at the same ids, ([X], [X])."""
    p_XC, q_XC = logprobs_XC.exp(), other_logprobs_XC.exp()
    low_X = torch.minimum(p_XC, q_XC).sum(dim=1)
    outside_X = torch.minimum(1 - p_XC.sum(dim=1), 1 - q_XC.sum(dim=1)).clamp(min=0)
    return low_X, low_X + outside_X
