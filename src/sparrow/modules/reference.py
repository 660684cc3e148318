"""The reference policy: what it is, how far the policy is from it token by token, and where that counts.

The distance is always KL(policy || reference), estimated as `estimator` says. In the loss it is a penalty on every
token of the current policy. In the reward it is the distance of the policy that sampled, summed over a completion and
taken off its reward before any advantage is computed.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sparrow.algorithms import divergences
from sparrow.algorithms.distillation import OverVocabulary, SampledToken, TokenPair
from sparrow.kernels import token_statistics
from sparrow.models.adapter import has_adapter
from sparrow.modules.experience import Experience
from sparrow.modules.passes import dense_pass, head_weight, hidden_states, predicting
from sparrow.modules.snapshot import Snapshot

Kind = Literal["none", "frozen", "adapter_off"]
Estimator = Literal["k1", "k2", "k3", "k3_straight_through", "exact", "top_k"]
KINDS = ("none", "frozen", "adapter_off")
ESTIMATORS = ("k1", "k2", "k3", "k3_straight_through", "exact", "top_k")


@dataclass(frozen=True)
class ReferenceSettings:
    """Which reference, and what the distance to it does.

    Attributes:
        kind: ``none``; ``frozen``, a copy of the weights that the run began with; ``adapter_off``, the model without
            its adapter, against the sparse actor that samples with it.
        estimator: of KL(policy || reference): ``k1``, ``k2``, ``k3`` or ``k3_straight_through`` of the sampled token,
            ``exact`` over the vocabulary, or ``top_k``: the reference's most likely tokens and one bucket for the rest.
        coefficient: factor of the distance.
        into: ``loss``, or ``reward``.
        top_k: candidates of ``estimator=top_k``.

    Raises:
        ValueError: a value is out of range, or the combination does nothing; the message names the key.
    """

    kind: Kind = "none"
    estimator: Estimator = "k3"
    coefficient: float = 1e-3
    into: Literal["loss", "reward"] = "loss"
    top_k: int = 20

    def __post_init__(self) -> None:
        for key, allowed in (("kind", KINDS), ("estimator", ESTIMATORS), ("into", ("loss", "reward"))):
            if getattr(self, key) not in allowed:
                raise ValueError(f"reference.{key}={getattr(self, key)!r}: must be one of {', '.join(allowed)}")
        if not 0 <= self.coefficient < torch.inf:
            raise ValueError(f"reference.coefficient={self.coefficient}: must be 0 or more")
        if self.top_k < 1:
            raise ValueError(f"reference.top_k={self.top_k}: must be 1 or more")
        if self.in_loss and self.estimator == "k1":
            raise ValueError(
                "reference.estimator='k1' with reference.into='loss': the mean of its gradient is 0, so it would only "
                "add noise; take k2, k3, k3_straight_through, exact or top_k, or reference.into=reward"
            )
        if self.in_loss and self.kind == "adapter_off":
            raise ValueError(
                "reference.kind='adapter_off' with reference.into='loss': the dense policy is itself the model without "
                "its adapter, so the distance is 0; distill.weight holds the actor to it, reference.into=reward "
                "lowers rewards by it, and kind=frozen is a copy of the first weights"
            )

    @property
    def in_loss(self) -> bool:
        """Whether the loss has the penalty."""
        return self.kind != "none" and self.into == "loss"

    @property
    def in_reward(self) -> bool:
        """Whether the rewards are lowered."""
        return self.kind != "none" and self.into == "reward"

    def distance(self, pair: TokenPair) -> Tensor:
        """KL(policy || reference) of each token, [X], with gradient towards the policy."""
        if self.estimator == "k1":
            every_X = torch.ones_like(pair.policy_logprobs_X, dtype=torch.bool)
            return divergences.k1(pair.policy_logprobs_X, pair.target_logprobs_X, every_X)
        if self.estimator == "exact" or self.estimator == "top_k":
            return OverVocabulary("reverse_kl", self.top_k if self.estimator == "top_k" else None)(pair)
        return SampledToken(self.estimator)(pair)

    @property
    def needs_hidden(self) -> bool:
        """Whether the whole distribution of both sides is read."""
        return self.estimator in ("exact", "top_k")


@dataclass(frozen=True)
class Side:
    """One policy's view of the response tokens of a micro-batch.

    Attributes:
        logprobs_X: log-prob of each sampled token.
        hidden_XE: the states that predicted them.
        head_VE: the head that belongs to them.
    """

    logprobs_X: Tensor
    hidden_XE: Tensor
    head_VE: Tensor


@torch.no_grad()
def dense_side(model: nn.Module, micro: Experience, temperature: float) -> Side:
    """How a model, dense and without its adapter, sees a micro-batch; no gradient."""
    with dense_pass(model):
        hidden_XE = predicting(hidden_states(model, micro.tokens_BT), micro.mask_BT)
    head_VE = head_weight(model)
    found = token_statistics(hidden_XE, head_VE, micro.tokens_BT[micro.mask_BT], temperature=temperature)
    return Side(found.logprobs_X, hidden_XE, head_VE)


class Reference:
    """A reference policy at work.

    Args:
        settings: what it is and does.
        model: the policy as the run begins; a frozen reference copies it.

    Raises:
        ValueError: ``kind=adapter_off`` and the policy has no adapter.

    Attributes:
        settings: as given.
        snapshot: the frozen copy, or None.
    """

    def __init__(self, settings: ReferenceSettings, model: nn.Module) -> None:
        if settings.kind == "adapter_off" and not has_adapter(model):
            raise ValueError(
                "reference.kind='adapter_off': the policy has no adapter; set distill=lora, or reference=frozen"
            )
        self.settings = settings
        self.snapshot = Snapshot(model) if settings.kind == "frozen" else None

    def of_current(self, policy: Side, micro: Experience, temperature: float) -> Tensor:
        """Distance of the policy that trains, [X], with gradient."""
        assert self.snapshot is not None
        return self.settings.distance(_pair(policy, dense_side(self.snapshot.model, micro, temperature), temperature))

    @torch.no_grad()
    def of_actor(self, sampled: nn.Module, micro: Experience, temperature: float) -> Tensor:
        """Distance of the policy that sampled, [X].

        Args:
            sampled: the model with the weights that sampled.
            micro: what it sampled.
            temperature: of both distributions.
        """
        dense = dense_side(sampled, micro, temperature)
        if self.snapshot is None:
            actor = _actor_side(micro, dense, needs_hidden=self.settings.needs_hidden)
            return self.settings.distance(_pair(actor, dense, temperature))
        return self.settings.distance(_pair(dense, dense_side(self.snapshot.model, micro, temperature), temperature))


def _actor_side(micro: Experience, dense: Side, *, needs_hidden: bool) -> Side:
    """What the sparse actor recorded while it sampled; the head is the dense policy's, which has no adapter."""
    if needs_hidden and micro.sparse_hidden is None:
        raise ValueError(
            "reference.estimator reads the actor's whole distribution, which was not recorded: set "
            "rollout.alpha=exact, or an estimator from the sampled token"
        )
    recorded_X = micro.sparse_logprobs_BT[micro.mask_BT]
    hidden_XE = dense.hidden_XE if micro.sparse_hidden is None else torch.cat(micro.sparse_hidden).to(dense.hidden_XE)
    return Side(recorded_X, hidden_XE, dense.head_VE)


def _pair(policy: Side, reference: Side, temperature: float) -> TokenPair:
    """Both sides as what a divergence reads; the policy's head takes a gradient."""
    return TokenPair(
        policy.logprobs_X,
        reference.logprobs_X,
        policy.hidden_XE,
        reference.hidden_XE,
        policy.head_VE,
        reference.head_VE,
        temperature=temperature,
        train_head=True,
    )
