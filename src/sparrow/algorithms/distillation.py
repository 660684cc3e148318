"""How far the sparse actor is from the dense policy, token by token: the divergences that an adapter is distilled with.

The actor is the one that learns (policy), the dense policy the target; the target and the head take no gradient. The
same objects measure a policy against its reference (`sparrow.modules.reference`); its head then takes one. The
formulas are those of `sparrow.algorithms.divergences`; here they meet hidden states, in chunks: the logits of both
sides exist for one chunk of tokens at a time, and their gradient is taken while they do, so nothing is made twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from sparrow.algorithms import divergences
from sparrow.ranges import Count, Share

CHUNK_LOGITS = 2**22
"""Logits of one side that exist at a time: 16 MiB in fp32, and a few times that with what is made of them."""

Kind = Literal["forward_kl", "reverse_kl", "total_variation"]
Estimate = Literal["k2", "k3", "k3_straight_through"]
KINDS = ("forward_kl", "reverse_kl", "total_variation")
ESTIMATES = ("k2", "k3", "k3_straight_through")


@dataclass(frozen=True)
class TokenPair:
    """Both sides of X sampled tokens.

    Attributes:
        policy_logprobs_X: log-prob of the sampled token under the sparse actor, with gradient.
        target_logprobs_X: the same under the dense policy, without.
        policy_hidden_XE: final hidden states of the actor, with gradient.
        target_hidden_XE: those of the dense policy, or None where the divergence does not read them.
        head_VE: LM head of the actor; takes no gradient.
        target_head_VE: LM head that the dense policy had with these hidden states; the same tensor as a rule.
        temperature: divides the logits of both sides.
        threshold: the 1 - alpha above which the worst share of the whole batch lies; None where none is asked for.
        train_head: the policy's head takes a gradient too: the policy is the one that trains, not an adapter on it.
    """

    policy_logprobs_X: Tensor
    target_logprobs_X: Tensor
    policy_hidden_XE: Tensor
    target_hidden_XE: Tensor | None
    head_VE: Tensor
    target_head_VE: Tensor
    temperature: float = 1.0
    threshold: float | None = None
    train_head: bool = False


class Distillation(ABC):
    """A divergence by configuration.

    Attributes:
        needs_hidden: whether it reads the whole distribution, so that the dense hidden states must be kept.
        share: the worst share of tokens that it needs the threshold of, or None.
    """

    needs_hidden: bool = False
    share: float | None = None

    @abstractmethod
    def __call__(self, pair: TokenPair) -> Tensor:
        """The divergence of each token, [X], with gradient towards the policy."""


@dataclass(frozen=True)
class SampledToken(Distillation):
    """From the sampled token alone: no second head product.

    Args:
        estimate: ``k3`` (the study's release), ``k2`` or ``k3_straight_through``; see `divergences.sampled`.

    Raises:
        ValueError: an unknown estimate.
    """

    estimate: Estimate = "k3"

    def __post_init__(self) -> None:
        _one_of("divergence.estimate", self.estimate, ESTIMATES)

    def __call__(self, pair: TokenPair) -> Tensor:
        """[X], see the class."""
        every_X = torch.ones_like(pair.policy_logprobs_X, dtype=torch.bool)
        estimate: Callable[[Tensor, Tensor, Tensor], Tensor] = getattr(divergences, self.estimate)
        return estimate(pair.policy_logprobs_X, pair.target_logprobs_X, every_X)


@dataclass(frozen=True)
class OverVocabulary(Distillation):
    """Over the whole vocabulary, or over the target's ``top_k`` tokens and one bucket for the rest.

    Args:
        kind: ``forward_kl`` = KL(dense || sparse), ``reverse_kl`` = KL(sparse || dense), or
            ``total_variation`` = 1 - alpha.
        top_k: candidates; null for all of the vocabulary. The result is then a lower bound of the exact one.

    Raises:
        ValueError: an unknown kind, or ``top_k`` below 1.
    """

    kind: Kind = "forward_kl"
    top_k: Count | None = None
    needs_hidden = True

    def __post_init__(self) -> None:
        _one_of("divergence.kind", self.kind, KINDS)
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"divergence.top_k={self.top_k}: must be 1 or more, or null")

    def __call__(self, pair: TokenPair) -> Tensor:
        """[X], see the class."""
        return over_chunks(pair, partial(self._of, temperature=pair.temperature))

    def _of(self, policy_XV: Tensor, target_XV: Tensor, temperature: float) -> Tensor:
        exact: Callable[[Tensor, Tensor, float], Tensor] = getattr(divergences, self.kind)
        if self.top_k is None:
            return exact(policy_XV, target_XV, temperature)
        cut: Callable[[Tensor, Tensor], Tensor] = getattr(divergences, f"{self.kind}_top_k")
        policy_XV, target_XV = (torch.log_softmax(side / temperature, -1) for side in (policy_XV, target_XV))
        ids_XC = target_XV.topk(min(self.top_k, target_XV.shape[-1]), -1).indices
        return cut(policy_XV.gather(-1, ids_XC), target_XV.gather(-1, ids_XC))


@dataclass(frozen=True)
class WorstShare(Distillation):
    """Conditional value at risk of x = 1 - alpha: its mean over the worst ``share`` of the batch's tokens.

    With t the (1 - share) quantile of x over the whole batch, a token gives t + max(x - t, 0) / share, whose mean is
    the CVaR (Rockafellar and Uryasev, 2000); only tokens beyond t get a gradient.

    Args:
        share: share of tokens, above 0 and at most 1; at 1 this is the total variation.

    Raises:
        ValueError: ``share`` out of range, or a pair without threshold or dense hidden states.
    """

    share: Share = 0.05
    needs_hidden = True

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"divergence.share={self.share}: must be above 0 and at most 1")

    def __call__(self, pair: TokenPair) -> Tensor:
        """[X], see the class."""
        if pair.threshold is None:
            raise ValueError("WorstShare needs TokenPair.threshold, which is None")
        distance_X = over_chunks(pair, partial(_total_variation, temperature=pair.temperature))
        return pair.threshold + (distance_X - pair.threshold).clamp(min=0) / self.share


def over_chunks(pair: TokenPair, of: Callable[[Tensor, Tensor], Tensor], chunk_tokens: int | None = None) -> Tensor:
    """A function of both sides' logits [X, V] to [X], a chunk of tokens at a time.

    Args:
        pair: both sides.
        of: treats every token by itself.
        chunk_tokens: tokens of a chunk; None: so many that a side holds :data:`CHUNK_LOGITS` logits.

    Raises:
        ValueError: no dense hidden states, or shapes that differ.
    """
    target_XE = pair.target_hidden_XE
    if target_XE is None or target_XE.shape != pair.policy_hidden_XE.shape:
        shape = None if target_XE is None else tuple(target_XE.shape)
        raise ValueError(f"target_hidden_XE is {shape}; policy_hidden_XE asks for {tuple(pair.policy_hidden_XE.shape)}")
    chunk = chunk_tokens or max(1, CHUNK_LOGITS // pair.head_VE.shape[0])
    if pair.train_head:
        return _with_head(pair, target_XE.detach(), of, chunk)
    heads = pair.head_VE.detach(), pair.target_head_VE.detach()
    value_X: Tensor = _PerToken.apply(pair.policy_hidden_XE, target_XE.detach(), heads, of, chunk)  # type: ignore[no-untyped-call]
    return value_X


def _with_head(pair: TokenPair, target_XE: Tensor, of: Callable[[Tensor, Tensor], Tensor], chunk: int) -> Tensor:
    """The same with a gradient for the head: a token's share is known only in backward, so logits are made twice."""
    target_head_VE = pair.target_head_VE.detach()

    def part(policy_XE: Tensor, head_VE: Tensor, other_XE: Tensor) -> Tensor:
        return of(_logits(policy_XE, head_VE), _logits(other_XE, target_head_VE))

    starts = range(0, max(len(target_XE), 1), chunk)
    cuts = [slice(start, start + chunk) for start in starts]
    values = [
        checkpoint(part, pair.policy_hidden_XE[rows], pair.head_VE, target_XE[rows], use_reentrant=False)
        for rows in cuts
    ]
    return torch.cat(cast(list[Tensor], values))


class _PerToken(torch.autograd.Function):
    """A function of two sets of logits, token by token, whose gradient is taken while the logits exist."""

    @staticmethod
    def forward(
        ctx: Any,
        policy_XE: Tensor,
        target_XE: Tensor,
        heads: tuple[Tensor, Tensor],
        of: Callable[[Tensor, Tensor], Tensor],
        chunk: int,
    ) -> Tensor:
        needed = ctx.needs_input_grad[0]
        values, gradients = [], []
        for start in range(0, max(len(policy_XE), 1), chunk):
            rows = slice(start, start + chunk)
            with torch.enable_grad():
                hidden_XE = policy_XE[rows].detach().requires_grad_(needed)
                value_X = of(_logits(hidden_XE, heads[0]), _logits(target_XE[rows], heads[1]))
                if needed:
                    gradients.append(torch.autograd.grad(value_X.sum(), hidden_XE)[0])
            values.append(value_X.detach())
        ctx.save_for_backward(*([torch.cat(gradients)] if needed else []))
        return torch.cat(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_X: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_XE,) = ctx.saved_tensors
        return (gradient_XE * grad_X.unsqueeze(1)).to(gradient_XE.dtype), None, None, None, None


def _logits(hidden_XE: Tensor, head_VE: Tensor) -> Tensor:
    dtype = torch.promote_types(hidden_XE.dtype, torch.float32)
    return hidden_XE.to(dtype) @ head_VE.to(dtype).T


def _total_variation(policy_XV: Tensor, target_XV: Tensor, temperature: float) -> Tensor:
    return divergences.total_variation(policy_XV, target_XV, temperature)


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{key}={value!r}: must be one of {', '.join(allowed)}")
