"""Numbers per response token from one chunked pass: log-prob, entropy and agreement with the sparse actor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from sparrow.kernels import token_statistics
from sparrow.modules.experience import Experience
from sparrow.modules.passes import head_weight, hidden_states, predicting


@dataclass(frozen=True)
class Scores:
    """Per-token numbers of the dense policy, [B, T] at the index of the predicted token, 0 outside the response.

    Attributes:
        logprobs_BT: log-prob of the sampled token at the run's temperature.
        entropy_BT: entropy of the distribution it was scored under, nats.
        alpha_BT: exact agreement with the actor, or None where the actor's states were not recorded.
        alpha_top20_BT: the study's estimate of it from the top 20 of each side, or None.
        alpha_low_BT: lower bound from the actor's recorded top-k, or None.
        alpha_high_BT: upper bound, or None.
    """

    logprobs_BT: Tensor
    entropy_BT: Tensor
    alpha_BT: Tensor | None = None
    alpha_top20_BT: Tensor | None = None
    alpha_low_BT: Tensor | None = None
    alpha_high_BT: Tensor | None = None

    def select(self, rows: Sequence[int], width: int) -> "Scores":
        """The given sequences, cut to ``width`` positions."""
        index = list(rows)
        return self._each(lambda value_BT: value_BT[index, :width])

    def detach(self) -> "Scores":
        """The same numbers without gradient."""
        return self._each(Tensor.detach)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Scores":
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: value if value is None else change(value) for name, value in held.items()}
        return Scores(**changed)


def score(model: nn.Module, experience: Experience, temperature: float, *, agreement: bool = True) -> Scores:
    """Score the response tokens of a micro-batch under the pass that is active.

    Args:
        model: the policy.
        experience: sequences of the micro-batch.
        temperature: of the distribution, the one the actor sampled at.
        agreement: also measure alpha from whatever the actor recorded.

    Returns:
        Scores; log-probs and entropy carry gradient if it is enabled.
    """
    hidden_XE = predicting(hidden_states(model, experience.tokens_BT), experience.mask_BT)
    return score_states(hidden_XE, head_weight(model), experience, temperature, agreement=agreement)


def score_states(
    hidden_XE: Tensor, head_VE: Tensor, experience: Experience, temperature: float, *, agreement: bool = True
) -> Scores:
    """Score the response tokens of a micro-batch from the states [X, E] that predict them; see :func:`score`."""
    mask_BT = experience.mask_BT
    recorded = _recorded(experience, hidden_XE) if agreement else {}
    statistics = token_statistics(
        hidden_XE, head_VE, experience.tokens_BT[mask_BT], temperature=temperature, **recorded
    )
    names = {"logprobs": "logprobs_X", "entropy": "entropy_X", "alpha": "alpha_X", "alpha_top20": "alpha_top20_X"}
    names |= {"alpha_low": "alpha_low_X", "alpha_high": "alpha_high_X"}
    values = {f"{name}_BT": scatter(getattr(statistics, field), mask_BT) for name, field in names.items()}
    return Scores(**values)  # type: ignore[arg-type]  # log-probs and entropy are never None


def merge(parts: Sequence[tuple[Sequence[int], Scores]], shape: Sequence[int]) -> Scores:
    """Scores of micro-batches, given with the rows they belong to, as those of the whole batch."""
    merged: dict[str, Tensor | None] = {}
    for field in fields(Scores):
        pieces = [(rows, getattr(scores, field.name)) for rows, scores in parts]
        if any(piece is None for _, piece in pieces):
            merged[field.name] = None
            continue
        whole_BT = pieces[0][1].new_zeros(tuple(shape))
        for rows, piece_BT in pieces:
            whole_BT[list(rows), : piece_BT.shape[1]] = piece_BT.detach()
        merged[field.name] = whole_BT
    return Scores(**merged)  # type: ignore[arg-type]


def _recorded(experience: Experience, like: Tensor) -> dict[str, Any]:
    if experience.sparse_hidden is not None:
        return {"other_hidden_XE": torch.cat(experience.sparse_hidden).to(like)}
    if experience.sparse_topk is not None:
        ids, logprobs = zip(*experience.sparse_topk, strict=True)
        return {
            "candidate_ids_XC": torch.cat(ids).to(like.device),
            "candidate_logprobs_XC": torch.cat(logprobs).to(like.device),
        }
    return {}


def scatter(values_X: Tensor | None, mask_BT: Tensor) -> Tensor | None:
    """Values of the masked tokens laid out as [B, T], 0 elsewhere; differentiable."""
    if values_X is None:
        return None
    return values_X.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_X)
