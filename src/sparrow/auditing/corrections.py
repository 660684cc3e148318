"""What each correction would keep of these sequences: tokens, sequences, sample size, and the norm of the gradient."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparrow.algorithms import PolicyInputs
from sparrow.algorithms.aggregation import count, token_mean
from sparrow.algorithms.corrections import NoCorrection, Rule
from sparrow.algorithms.losses import ppo_clip
from sparrow.algorithms.objective import policy_objective
from sparrow.auditing.measurement import Measured
from sparrow.kernels import token_statistics
from sparrow.modules.passes import dense_pass, head_weight, hidden_states, predicting
from sparrow.modules.scoring import scatter

DECILES = 10


@dataclass(frozen=True)
class Share:
    """Rejected share of a part of the tokens.

    Attributes:
        name: the part.
        rejected: share of its tokens that do not train.
        tokens: how many it holds.
    """

    name: str
    rejected: float
    tokens: int


@dataclass(frozen=True)
class Effect:
    """What one correction does.

    Attributes:
        rejected: share of tokens that do not train.
        rejected_sequences: share of sequences that lose every token.
        mean_weight: mean weight of the tokens that train.
        effective: effective share of tokens, (sum w)^2 / (n sum w^2) over all response tokens.
        by_length: rejected share per decile of response length, shortest first; fewer parts with fewer sequences.
        by_outcome: rejected share of correct and of other sequences; empty where nothing was judged.
        gradient_kept: norm of the corrected gradient over that of the uncorrected one; NaN where not measured.
    """

    rejected: float
    rejected_sequences: float
    mean_weight: float
    effective: float
    by_length: tuple[Share, ...]
    by_outcome: tuple[Share, ...]
    gradient_kept: float = math.nan


def policy_inputs(measured: Measured, advantages_B: Tensor, seed: int) -> PolicyInputs:
    """What corrections read, with the current weights as those that sampled (learning rate 0)."""
    mask_BT = measured.experience.mask_BT
    noise_BT = torch.rand(mask_BT.shape, generator=torch.Generator().manual_seed(seed))
    return PolicyInputs(
        dense_logprobs_BT=measured.dense_logprobs_BT,
        old_logprobs_BT=measured.dense_logprobs_BT,
        sparse_logprobs_BT=measured.experience.sparse_logprobs_BT,
        advantages_BT=advantages_B[:, None].expand(mask_BT.shape).contiguous(),
        mask_BT=mask_BT,
        alpha_BT=measured.alphas["exact"],
        entropy_BT=measured.entropy_BT,
        group_B=measured.experience.group_B,
        noise_BT=noise_BT,
    )


def effect_of(rule: Rule, inputs: PolicyInputs, correct_B: Tensor | None) -> Effect:
    """Weights and masks of one rule on all sequences at once.

    Args:
        rule: the correction.
        inputs: of all sequences.
        correct_B: bool, which sequences are right; None where nothing was judged.
    """
    decided, mask_BT = rule(inputs), inputs.mask_BT
    weight_X = decided.weight_BT[mask_BT].double()
    kept_BT = decided.keep_BT & mask_BT
    length_B, kept_B = mask_BT.sum(-1), kept_BT.sum(-1)
    outcome = [] if correct_B is None else [("correct", correct_B), ("not correct", ~correct_B)]
    order = torch.argsort(length_B, stable=True)
    parts = [part for part in torch.tensor_split(order, min(DECILES, len(order))) if len(part)]
    names = [f"{int(length_B[part[0]])} to {int(length_B[part[-1]])} tokens" for part in parts]
    squares = float((weight_X**2).sum())
    return Effect(
        rejected=1 - float(kept_B.sum() / length_B.sum()),
        rejected_sequences=float((kept_B == 0)[length_B > 0].double().mean()),
        mean_weight=float(decided.weight_BT[kept_BT].double().mean()) if bool(kept_BT.any()) else math.nan,
        effective=float(weight_X.sum()) ** 2 / (len(weight_X) * squares) if squares else 0.0,
        by_length=tuple(_share(name, part, length_B, kept_B) for name, part in zip(names, parts, strict=True)),
        by_outcome=tuple(
            _share(name, chosen_B.nonzero()[:, 0], length_B, kept_B) for name, chosen_B in outcome if chosen_B.any()
        ),
    )


def gradients_kept(
    model: nn.Module,
    measured: Measured,
    inputs: PolicyInputs,
    rules: Mapping[str, Rule],
    tokens: int,
    temperature: float,
) -> dict[str, float]:
    """Norm of the policy gradient under each rule over that without one, on the first sequences of ``tokens`` tokens.

    One forward serves all rules; each has its own backward through the whole model. NaN where the uncorrected gradient
    is zero.
    """
    rows = _rows_within(measured.experience.length_B.tolist(), tokens, inputs.advantages_BT[:, 0].tolist())
    if not rows:
        return dict.fromkeys(rules, math.nan)
    part = measured.experience.select(rows).to(head_weight(model).device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with dense_pass(model):
        hidden_XE = predicting(hidden_states(model, part.tokens_BT), part.mask_BT)
        found = token_statistics(hidden_XE, head_weight(model), part.tokens_BT[part.mask_BT], temperature=temperature)
        logprobs_BT = scatter(found.logprobs_X, part.mask_BT)
        assert logprobs_BT is not None
        chosen = _cut(inputs.rows(torch.tensor(rows)), logprobs_BT)
        norms = {
            name: _norm(chosen, rule, parameters) for name, rule in {"": NoCorrection(missing="mask"), **rules}.items()
        }
    return {name: norms[name] / norms[""] if norms[""] else math.nan for name in rules}


def _norm(inputs: PolicyInputs, rule: Rule, parameters: Sequence[Tensor]) -> float:
    assert inputs.group_B is not None
    objective = policy_objective(
        inputs,
        loss=ppo_clip,
        correction=rule,
        aggregate=token_mean,
        counts=count(inputs.mask_BT, inputs.group_B),
    )
    gradients = torch.autograd.grad(objective.loss, parameters, retain_graph=True, allow_unused=True)
    return float(torch.nn.utils.get_total_norm([g for g in gradients if g is not None]))


def _cut(inputs: PolicyInputs, logprobs_BT: Tensor) -> PolicyInputs:
    """The rows at the width and on the device of the log-probs just computed, which take the place of old ones too."""
    width = logprobs_BT.shape[1]
    fields = {name: value for name, value in vars(inputs).items() if isinstance(value, Tensor)}
    moved = {
        name: (value[:, :width] if name.endswith("_BT") else value).to(logprobs_BT.device)
        for name, value in fields.items()
    }
    return PolicyInputs(**{**moved, "dense_logprobs_BT": logprobs_BT, "old_logprobs_BT": logprobs_BT.detach()})


def _rows_within(lengths: Sequence[int], tokens: int, advantages: Sequence[float]) -> list[int]:
    """The first sequences with an advantage whose padded tokens fit."""
    rows: list[int] = []
    for row, length in enumerate(lengths):
        widest = max([length, *(lengths[taken] for taken in rows)])
        if advantages[row] and widest * (len(rows) + 1) <= tokens:
            rows.append(row)
    return rows


def _share(name: str, rows: Tensor, length_B: Tensor, kept_B: Tensor) -> Share:
    tokens = int(length_B[rows].sum())
    return Share(name, 1 - int(kept_B[rows].sum()) / tokens if tokens else math.nan, tokens)
