"""The whole objective: by hand once, then properties for every loss, correction and aggregation.

Padding, the order of rows, fully masked rows and the cut into micro-batches (1 x 8, 2 x 4, 8 x 1) change nothing.
"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow.algorithms import PolicyInputs, add_metrics, aggregation, corrections, losses
from sparrow.algorithms.aggregation import count
from sparrow.algorithms.objective import Penalty, counted, policy_objective

NAMES = "ppo_clip gspo gspo_token cispo reinforce dppo_tv dppo_kl sapo gmpo"
LOSSES = {name: getattr(losses, name) for name in NAMES.split()}
LOSSES |= {"clip_cov": losses.ClipCov(fraction=0.2, low=0.0), "kl_cov": losses.KLCov(fraction=0.2)}
CORRECTIONS = {
    "none": corrections.NoCorrection(),
    "bypass": corrections.Bypass(),
    "token_tis": corrections.TokenTIS(),
    "sequence_tis": corrections.SequenceTIS(),
    "geometric_tis": corrections.GeometricTIS(),
    "token_mis": corrections.TokenMIS(high=1.2),
    "sequence_mis": corrections.SequenceMIS(high=1.5),
    "icepop": corrections.IcePop(low=0.8, high=1.5),
    "token_mask": corrections.TokenMask(low=0.8, high=1.2),
    "geometric_mask": corrections.GeometricMask(low=0.8, high=1.2),
    "product_mask": corrections.ProductMask(),
    "token_reject": corrections.TokenReject(0.02),
    "sequence_reject": corrections.SequenceReject(0.1),
    "veto": corrections.Veto(low=0.6),
    "opsm": corrections.OPSM(delta=0.01),
    "tail_mask": corrections.TailMask(threshold=0.8),
    "tail_weight": corrections.TailWeight(),
    "jackpot": corrections.Jackpot(),
    "normalized": corrections.BatchNormalized(corrections.TokenTIS()),
    "chain": corrections.Chain([corrections.TokenTIS(), corrections.GeometricMask(low=0.8, high=1.2)]),
}
AGGREGATIONS = {
    "token_mean": aggregation.token_mean,
    "sequence_mean_token_mean": aggregation.sequence_mean_token_mean,
    "sequence_mean_token_sum": aggregation.sequence_mean_token_sum,
    "token_sum_constant": partial(aggregation.token_sum_constant, length=11),
    "per_prompt": aggregation.per_prompt,
}


def run(inputs, cuts=None, loss="ppo_clip", correction="token_tis", aggregate="token_mean", denominator="all"):
    """Loss, gradient and metrics of a batch cut into micro-batches."""
    rule, cuts = CORRECTIONS[correction], cuts or [slice(0, len(inputs.mask_BT))]
    dense = inputs.dense_logprobs_BT.detach().requires_grad_()
    inputs = replace(inputs, dense_logprobs_BT=dense)
    parts = [inputs.rows(cut) for cut in cuts]
    if isinstance(LOSSES[loss], losses.ChoosingLoss):
        inputs = replace(inputs, chosen_BT=LOSSES[loss].choose(inputs))
        parts = [inputs.rows(cut) for cut in cuts]
    totals = torch.stack([rule.statistics(part) for part in parts]).sum(0)
    keep = torch.cat([rule(part, totals).keep_BT for part in parts])
    counts = count(counted(inputs.mask_BT, keep, denominator), inputs.group_B)
    total, metrics = torch.zeros((), dtype=dense.dtype), []
    for cut, part in zip(cuts, parts, strict=True):
        result = policy_objective(
            part,
            loss=LOSSES[loss],
            correction=rule,
            aggregate=AGGREGATIONS[aggregate],
            counts=counts.rows(cut),
            denominator=denominator,
            totals=totals,
        )
        result.loss.backward()
        total = total + result.loss.detach()
        metrics.append(result.metrics)
    return total, dense.grad, {name: mean.value for name, mean in add_metrics(metrics).items()}


def assert_same(left, right):
    torch.testing.assert_close(left[0], right[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(left[1], right[1], rtol=1e-9, atol=1e-12)
    assert left[2].keys() == right[2].keys()
    for name, value in left[2].items():
        assert value == pytest.approx(right[2][name], rel=1e-9, abs=1e-12, nan_ok=True), name


def combinations():
    """Every loss with token TIS, every correction with PPO, every aggregation with both denominators."""
    for loss in LOSSES:
        yield pytest.param({"loss": loss, "aggregate": "sequence_mean_token_mean"}, id=loss)
    for correction in CORRECTIONS:
        for denominator in ("all", "kept"):
            yield pytest.param({"correction": correction, "denominator": denominator}, id=f"{correction}-{denominator}")
    for aggregate in AGGREGATIONS:
        for denominator in ("all", "kept"):
            chosen = {"aggregate": aggregate, "correction": "icepop", "denominator": denominator}
            yield pytest.param(chosen, id=f"{aggregate}-{denominator}")


CUTS = {
    "2x4": [slice(0, 4), slice(4, 8)],
    "8x1": [slice(i, i + 1) for i in range(8)],
    "uneven": [slice(0, 1), slice(1, 6), slice(6, 8)],
}


@pytest.mark.parametrize("parts", list(combinations()))
def test_the_cut_into_micro_batches_changes_nothing(parts, make_inputs):
    inputs = make_inputs()
    whole = run(inputs, **parts)
    assert whole[1].abs().sum() > 0
    for cuts in CUTS.values():
        assert_same(run(inputs, cuts, **parts), whole)


@pytest.mark.parametrize("parts", list(combinations()))
def test_padding_changes_nothing(parts, make_inputs):
    plain, padded = make_inputs(), make_inputs(pad=3)
    loss, gradient, metrics = run(padded, **parts)
    assert (gradient[~padded.mask_BT] == 0).all()
    assert_same((loss, gradient[:, :-3], metrics), run(plain, **parts))


@pytest.mark.parametrize("parts", list(combinations()))
def test_fully_masked_rows_add_exactly_nothing(parts, make_inputs):
    with_empty = make_inputs(lengths=(7, 3, 0, 5, 0, 4))
    filled = [0, 1, 3, 5]
    without = with_empty.rows(torch.tensor(filled))
    loss, gradient, metrics = run(with_empty, **parts)
    assert (gradient[[2, 4]] == 0).all()
    assert_same((loss, gradient[filled], metrics), run(without, **parts))


@pytest.mark.parametrize("parts", list(combinations()))
def test_nothing_but_fully_masked_rows_gives_zero(parts, make_inputs):
    loss, gradient, _ = run(make_inputs(lengths=(0, 0)), **parts)
    assert loss == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("parts", list(combinations()))
def test_the_order_of_rows_changes_nothing(parts, make_inputs):
    inputs = make_inputs()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    loss, gradient, metrics = run(inputs.rows(order), **parts)
    back = torch.empty_like(gradient)
    back[order] = gradient
    assert_same((loss, back, metrics), run(inputs, **parts))


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple),
    seed=st.integers(0, 1000),
    loss=st.sampled_from(sorted(LOSSES)),
    correction=st.sampled_from(sorted(CORRECTIONS)),
    aggregate=st.sampled_from(sorted(AGGREGATIONS)),
    denominator=st.sampled_from(["all", "kept"]),
)
def test_any_combination_survives_any_cut(lengths, seed, loss, correction, aggregate, denominator):
    inputs = plain_inputs(lengths, seed)
    parts = {"loss": loss, "correction": correction, "aggregate": aggregate, "denominator": denominator}
    whole = run(inputs, **parts)
    assert torch.isfinite(whole[1]).all()
    assert_same(run(inputs, [slice(i, i + 1) for i in range(len(lengths))], **parts), whole)


def plain_inputs(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    rows, width = len(lengths), max([*lengths, 1])
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(-1)
    old = -torch.rand(rows, width, generator=generator, dtype=torch.float64) - 0.01
    near = [old * (0.5 + torch.rand(rows, width, generator=generator, dtype=torch.float64)) for _ in range(2)]
    noise = torch.rand(rows, width, generator=generator, dtype=torch.float64)
    advantages = (noise[:, :1] - 0.5).expand(rows, width)
    return PolicyInputs(
        near[0], old, near[1], advantages, mask,
        alpha_BT=1 - noise / 2, noise_BT=noise, group_B=torch.arange(rows) // 2,
    )  # fmt: skip


def test_float32_holds_to_one_in_a_million(make_inputs):
    inputs = make_inputs()
    wide = {name: value for name, value in vars(inputs).items() if value is not None and value.dtype == torch.float64}
    single = replace(inputs, **{name: value.float() for name, value in wide.items()})
    whole = run(single)
    for cuts in CUTS.values():
        torch.testing.assert_close(run(single, cuts)[1], whole[1], rtol=0, atol=1e-6)


def test_weight_stands_outside_the_clip_and_penalties_are_not_weighted():
    log = math.log
    dense = torch.tensor([[log(0.75), log(0.4)]], dtype=torch.float64, requires_grad=True)
    inputs = PolicyInputs(
        dense,
        torch.tensor([[log(0.5), log(0.4)]], dtype=torch.float64),
        torch.tensor([[log(0.2), log(0.5)]], dtype=torch.float64),
        torch.ones(1, 2, dtype=torch.float64),
        torch.ones(1, 2, dtype=torch.bool),
    )
    result = policy_objective(
        inputs,
        loss=losses.ppo_clip,
        correction=corrections.TokenTIS(),
        aggregate=aggregation.token_mean,
        counts=count(inputs.mask_BT),
        penalties=[Penalty("kl_loss", 0.1, dense**2)],
    )
    # token 0: ratio 1.5 clipped to 1.28, weight 2.5 capped to 2; token 1: ratio 1, weight .8
    penalty = 0.1 * (log(0.75) ** 2 + log(0.4) ** 2)
    assert result.loss.item() == pytest.approx((-2 * 1.28 - 0.8 + penalty) / 2)
    assert result.metrics["actor/pg_loss"].value == pytest.approx((-2 * 1.28 - 0.8) / 2)
    assert result.metrics["actor/kl_loss"].value == pytest.approx((log(0.75) ** 2 + log(0.4) ** 2) / 2)
    (gradient,) = torch.autograd.grad(result.loss, dense)
    expected = [0.1 * 2 * log(0.75) / 2, (-0.8 + 0.1 * 2 * log(0.4)) / 2]
    torch.testing.assert_close(gradient, torch.tensor([expected], dtype=torch.float64))


def test_bypass_clips_against_the_sparse_actor():
    log = math.log
    fields = [torch.tensor([[log(p)]], dtype=torch.float64) for p in (0.6, 0.6, 0.3)]
    inputs = PolicyInputs(*fields, torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool))
    loss, _, metrics = run(inputs, correction="bypass")
    assert loss.item() == pytest.approx(-1.28)  # the ratio to the actor is 2
    assert metrics["actor/pg_clipfrac"] == 1.0


def test_a_masked_token_with_denominator_all_leaves_other_gradients_alone(make_inputs):
    inputs = make_inputs()
    free = run(inputs, correction="none", loss="ppo_clip")[1]
    masked = run(inputs, correction="token_mask", loss="ppo_clip")[1]
    kept = corrections.TokenMask(low=0.8, high=1.2)(inputs).keep_BT
    assert 0 < kept.sum() < inputs.mask_BT.sum()
    torch.testing.assert_close(masked[kept], free[kept])
    assert (masked[~kept] == 0).all()
    scaled = run(inputs, correction="token_mask", denominator="kept")[1]
    torch.testing.assert_close(scaled[kept], free[kept] * inputs.mask_BT.sum() / kept.sum())


def test_a_dropped_token_is_in_no_sequence_ratio_and_gets_no_penalty():
    log = math.log
    dense = torch.tensor([[log(0.3), log(0.8)]], dtype=torch.float64, requires_grad=True)
    inputs = PolicyInputs(
        dense,
        torch.tensor([[log(0.2), log(0.2)]], dtype=torch.float64),
        torch.tensor([[log(0.2), log(0.9)]], dtype=torch.float64),  # the second token's w is 2/9: dropped
        torch.ones(1, 2, dtype=torch.float64),
        torch.ones(1, 2, dtype=torch.bool),
    )
    result = policy_objective(
        inputs,
        loss=partial(losses.gspo, clip_high=9.0),
        correction=corrections.TokenMask(),
        aggregate=aggregation.token_mean,
        counts=count(inputs.mask_BT),
        penalties=[Penalty("kl_loss", 1.0, dense.exp())],
    )
    assert result.loss.item() == pytest.approx((-1.5 + 0.3) / 2)  # with both tokens the ratio would be sqrt(6)
    assert result.metrics["actor/kl_loss"].value == pytest.approx(0.3)
