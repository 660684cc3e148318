"""Each correction by hand on w = (4, 1/2, 1) and (1/4, 2): three tokens and two, then padding of NaN."""

import math
from dataclasses import replace

import pytest
import torch

from sparrow.algorithms import PolicyInputs
from sparrow.algorithms.corrections import (
    OPSM,
    BatchNormalized,
    Bypass,
    Chain,
    GeometricMask,
    GeometricTIS,
    IcePop,
    Jackpot,
    NoCorrection,
    ProductMask,
    SequenceMIS,
    SequenceReject,
    SequenceTIS,
    TailMask,
    TailWeight,
    TokenMask,
    TokenMIS,
    TokenReject,
    TokenTIS,
    Veto,
)

NAN = math.nan
MASK = torch.tensor([[True, True, True, False], [True, True, False, False], [False] * 4])
RATIO = torch.tensor([[4.0, 0.5, 1.0, NAN], [0.25, 2.0, NAN, NAN], [NAN] * 4], dtype=torch.float64)
SPARSE = torch.where(MASK, -2.0, NAN).double()


def inputs(**change):
    fields = {
        "dense_logprobs_BT": SPARSE + RATIO.log(),
        "old_logprobs_BT": SPARSE + RATIO.log(),
        "sparse_logprobs_BT": SPARSE,
        "advantages_BT": torch.where(MASK, torch.tensor([[1.0], [-1.0], [0.0]]), NAN).double(),
        "mask_BT": MASK,
        "alpha_BT": torch.tensor([[0.4, 0.9, 1.0, NAN], [0.2, 0.5, NAN, NAN], [NAN] * 4], dtype=torch.float64),
        "noise_BT": torch.full((3, 4), 0.4, dtype=torch.float64),
    }
    return PolicyInputs(**(fields | change))


def rows(first, second):
    return torch.tensor([[*first, 0.0], [*second, 0.0, 0.0], [0.0] * 4], dtype=torch.float64)


GEOMETRIC = 2 ** (1 / 3), 0.5 ** (1 / 2)  # (4 * 1/2 * 1)^(1/3), (1/4 * 2)^(1/2)

CASES = {
    "none": (NoCorrection(), (1, 1, 1), (1, 1)),
    "bypass": (Bypass(), (1, 1, 1), (1, 1)),
    "token_tis": (TokenTIS(), (2, 0.5, 1), (0.25, 2)),
    "token_tis_floor": (TokenTIS(cap=3.0, floor=0.5), (3, 0.5, 1), (0.5, 2)),
    "sequence_tis": (SequenceTIS(cap=1.5), (1.5, 1.5, 1.5), (0.5, 0.5)),
    "geometric_tis": (GeometricTIS(), (GEOMETRIC[0],) * 3, (GEOMETRIC[1],) * 2),
    "token_mis": (TokenMIS(), (0, 0.5, 1), (0.25, 2)),
    "sequence_mis": (SequenceMIS(high=1.5), (0, 0, 0), (0.5, 0.5)),
    "icepop": (IcePop(low=0.45, high=3.9), (0, 0.5, 1), (0, 2)),
    "token_mask": (TokenMask(low=0.45, high=2.1), (0, 1, 1), (0, 1)),
    "geometric_mask": (GeometricMask(low=0.8, high=1.3), (1, 1, 1), (0, 0)),
    "product_mask": (ProductMask(low=0.6, high=2.1), (1, 1, 1), (0, 0)),
    # |log 4| = 1.386, |log 2| = .693; halves of squares .961, .240; e^D - 1 - D: 1.614, .193, 0, .636, .307
    "token_k1": (TokenReject(0.7, "k1"), (0, 1, 1), (0, 1)),
    "token_k2": (TokenReject(0.5, "k2"), (0, 1, 1), (0, 1)),
    "token_k3": (TokenReject(0.5, "k3"), (0, 1, 1), (0, 1)),
    "token_k3_loose": (TokenReject(0.7, "k3"), (0, 1, 1), (1, 1)),
    # means of k3: (1.614 + .193) / 3 = .602, (.636 + .307) / 2 = .472
    "sequence_mean_k3": (SequenceReject(0.5), (0, 0, 0), (1, 1)),
    "sequence_sum_k2": (SequenceReject(1.201, "k2", "sum"), (0, 0, 0), (0, 0)),
    "sequence_sum_k2_loose": (SequenceReject(1.202, "k2", "sum"), (1, 1, 1), (1, 1)),
    "sequence_max_k3": (SequenceReject(1.0, "k3", "max"), (0, 0, 0), (1, 1)),
    # mean e^|D|: (4 + 2 + 1) / 3, (4 + 2) / 2
    "error_gate": (SequenceReject(2.5, "exp_abs"), (1, 1, 1), (0, 0)),
    "veto": (Veto(low=0.3), (1, 1, 1), (0, 0)),
    "veto_both_sides": (Veto(low=0.1, high=3.0), (0, 0, 0), (1, 1)),
    # mean(sparse - dense) of row 1: log 2 / 2 = .347, and its advantage is negative
    "opsm": (OPSM(delta=0.34), (1, 1, 1), (0, 0)),
    "opsm_loose": (OPSM(delta=0.35), (1, 1, 1), (1, 1)),
    "tail_mask": (TailMask(threshold=0.5), (0, 1, 1), (0, 1)),
    "tail_weight": (TailWeight(threshold=0.8), (0.5, 1, 1), (0.25, 0.625)),
    # kept when .4 < w; weight Z clip(w, 1, 3)
    "jackpot": (Jackpot(calibrate=False), (0.4 * 3, 0.9, 1.0), (0, 0.5 * 2)),
    # mean acceptance (1 + .5 + 1 + .25 + 1) / 5 over mean Z 3 / 5: Z grows by 3.75 / 3 = 1.25
    "jackpot_calibrated": (Jackpot(), (0.5 * 3, 1.125, 1.25), (0, 0.625 * 2)),
    # (2 + .5 + 1 + .25 + 2) / 5 = 1.15
    "batch_normalized": (BatchNormalized(TokenTIS()), (2 / 1.15, 0.5 / 1.15, 1 / 1.15), (0.25 / 1.15, 2 / 1.15)),
    "chain": (Chain([TokenTIS(), Veto(low=0.3)]), (2, 0.5, 1), (0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_by_hand(name):
    rule, first, second = CASES[name]
    result = rule(inputs())
    torch.testing.assert_close(result.weight_BT, rows(first, second), rtol=0, atol=1e-12)
    dropped = result.keep_BT != MASK
    assert (result.weight_BT[dropped] == 0).all()
    assert not result.weight_BT.requires_grad
    kept_share = 1 - float(result.keep_BT.sum()) / 5
    assert result.metrics["rollout_corr/rollout_rs_masked_fraction"].value == pytest.approx(kept_share)


@pytest.mark.parametrize("name", CASES)
def test_health_is_measured_before_anything_is_cut(name):
    metrics = {key: mean.value for key, mean in CASES[name][0](inputs()).metrics.items()}
    ratios = torch.tensor([4, 0.5, 1, 0.25, 2], dtype=torch.float64)
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(7.75 / 5)
    assert metrics["rollout_corr/kl"] == pytest.approx(-ratios.log().mean().item(), abs=1e-12)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx((ratios - 1 - ratios.log()).mean().item())
    assert metrics["rollout_corr/chi2_token"] == pytest.approx(ratios.square().mean().item() - 1)


def test_shares_of_tokens_and_sequences():
    metrics = {key: mean.value for key, mean in Veto(low=0.3)(inputs()).metrics.items()}
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 0.5  # one of two: the empty row is none
    assert metrics["rollout_corr/veto_token_fraction"] == pytest.approx(1 / 5)
    metrics = {key: mean.value for key, mean in TokenTIS(cap=2.0, floor=0.3)(inputs()).metrics.items()}
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(1 / 5)
    assert metrics["rollout_corr/rollout_is_ratio_fraction_low"] == pytest.approx(1 / 5)


def test_chain_reports_each_part():
    metrics = Chain([TokenMask(low=0.45, high=2.1), GeometricMask(low=0.8, high=1.3)])(inputs()).metrics
    assert metrics["rollout_corr/token_mask_masked_fraction"].value == pytest.approx(2 / 5)
    assert metrics["rollout_corr/geometric_mask_masked_fraction"].value == pytest.approx(2 / 5)
    assert metrics["rollout_corr/rollout_rs_masked_fraction"].value == pytest.approx(3 / 5)


def test_opsm_spares_tokens_without_advantage_and_reads_the_current_policy():
    still = torch.zeros(3, 4, dtype=torch.float64)
    assert OPSM(delta=0.1)(inputs(advantages_BT=still)).keep_BT.equal(MASK)
    near = OPSM(delta=0.1)(inputs(dense_logprobs_BT=SPARSE, advantages_BT=still - 1))
    assert near.keep_BT.equal(MASK)


def test_bypass_puts_sparse_in_the_place_of_old():
    torch.testing.assert_close(Bypass()(inputs()).old_logprobs_BT, SPARSE, equal_nan=True)
    assert Chain([Bypass(), TokenMask()])(inputs()).old_logprobs_BT is not None
    assert TokenTIS()(inputs()).old_logprobs_BT is None


HOLE = SPARSE.clone()
HOLE[1, 1] = NAN


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("none", "chain", "batch_normalized")])
def test_a_missing_log_prob_fails_or_is_masked_but_never_filled(name):
    rule = CASES[name][0]
    with pytest.raises(ValueError, match=r"sparse_logprobs_BT of sample 1 is nan at position 1"):
        rule(inputs(sparse_logprobs_BT=HOLE))
    masked = replace(rule, missing="mask")(inputs(sparse_logprobs_BT=HOLE))
    assert not masked.keep_BT[1, 1]
    assert masked.weight_BT[1, 1] == 0
    assert torch.isfinite(masked.weight_BT).all()
    assert masked.metrics["rollout_corr/rollout_is_mean"].value == pytest.approx(5.75 / 4)


def test_without_correction_a_missing_log_prob_is_only_left_out_of_the_health():
    result = NoCorrection()(inputs(sparse_logprobs_BT=HOLE))
    assert result.keep_BT.equal(MASK)
    assert result.metrics["rollout_corr/rollout_is_mean"].value == pytest.approx(5.75 / 4)


@pytest.mark.parametrize("rule", [TailMask(), TailWeight(), Jackpot()], ids=lambda rule: type(rule).__name__)
def test_rules_that_read_alpha_say_so(rule):
    assert "alpha_BT" in rule.needs
    with pytest.raises(ValueError, match=r"needs PolicyInputs\.alpha_BT"):
        rule(inputs(alpha_BT=None))
    alpha = inputs().alpha_BT.clone()
    alpha[0, 2] = NAN
    with pytest.raises(ValueError, match=r"alpha_BT of sample 0 is nan at position 2"):
        rule(inputs(alpha_BT=alpha))


def test_jackpot_is_unbiased_over_accepted_tokens():
    policy = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    actor = torch.tensor([0.1, 0.5, 0.1, 0.3], dtype=torch.float64)
    score = torch.tensor([1.0, -2.0, 5.0, 0.5], dtype=torch.float64)
    for scale in (1.0, 1.7):
        overlap = torch.minimum(policy / scale, actor).sum()
        one_row = torch.ones(1, 4, dtype=torch.bool)
        decided = Jackpot(scale=scale, clip=100.0, calibrate=False)(
            PolicyInputs(
                policy.log()[None], policy.log()[None], actor.log()[None], torch.zeros(1, 4), one_row,
                overlap_BT=overlap.expand(1, 4), noise_BT=torch.zeros(1, 4),
            )
        )  # fmt: skip
        accepted = actor * (policy / (scale * actor)).clamp(max=1)
        estimate = (accepted * decided.weight_BT[0] * score).sum() / accepted.sum()
        assert estimate.item() == pytest.approx((policy * score).sum().item())


def test_jackpot_with_a_scale_needs_its_own_overlap():
    with pytest.raises(ValueError, match=r"Jackpot with scale=2\.0 needs PolicyInputs\.overlap_BT"):
        Jackpot(scale=2.0)(inputs())


@pytest.mark.parametrize(
    "rule", [BatchNormalized(TokenTIS()), Jackpot(), Chain([Jackpot(), BatchNormalized(TailWeight())])]
)
def test_totals_make_a_split_equal_the_whole(rule, make_inputs):
    whole = make_inputs()
    parts = [whole.rows(slice(start, start + 2)) for start in range(0, 8, 2)]
    assert rule.needs_totals
    totals = torch.stack([rule.statistics(part) for part in parts]).sum(0)
    split = torch.cat([rule(part, totals).weight_BT for part in parts])
    torch.testing.assert_close(split, rule(whole).weight_BT, rtol=1e-12, atol=0)


def test_sequence_weight_of_a_long_trace_stays_finite():
    gap = torch.full((1, 20000), 0.01, dtype=torch.float32)
    mask = torch.ones_like(gap, dtype=torch.bool)
    for sign in (-1, 1):
        result = SequenceTIS()(PolicyInputs(sign * gap, sign * gap, 0 * gap, gap, mask))
        assert torch.isfinite(result.weight_BT).all()
        assert all(math.isfinite(mean.value) for mean in result.metrics.values())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TokenTIS(cap=0.5, floor=1.0), r"floor=1\.0, cap=0\.5"),
        (lambda: IcePop(low=2.0, high=1.0), r"low=2\.0, high=1\.0"),
        (lambda: TokenTIS(missing="fill"), r"missing is 'fill'; allowed: 'raise', 'mask'"),
        (lambda: SequenceReject(measure="k4"), r"measure is 'k4'; allowed: k1, k2, k3, exp_abs"),
        (lambda: SequenceReject(reduce="median"), r"reduce is 'median'; allowed: mean, sum, max"),
        (lambda: TailMask(threshold=1.5), r"threshold=1\.5: must be above 0 and at most 1"),
        (lambda: TokenTIS(cap=-1.0, floor=-2.0), r"cap=-1\.0: must be above 0"),
        (lambda: OPSM(delta=-0.1), r"delta=-0\.1: must be 0 or more"),
        (lambda: Veto(low=0.5, high=0.1), r"low=0\.5, high=0\.1; allowed: 0 <= low < high"),
        (lambda: TokenReject(high=math.nan), r"high=nan: must be 0 or more"),
        (lambda: SequenceReject(measure="exp_abs"), r"high=0\.01 with measure='exp_abs': must be 1 or more"),
        (lambda: Jackpot(clip=0.5), r"clip=0\.5"),
        (lambda: Chain([Bypass(), TokenTIS()]), r"Bypass and TokenTIS both answer for the gap .* corrected twice"),
        (lambda: Chain([IcePop(), SequenceTIS()]), r"IcePop and SequenceTIS both answer for the gap"),
        (lambda: Chain([BatchNormalized(TokenTIS()), Jackpot()]), r"BatchNormalized and Jackpot both"),
        (lambda: Chain([]), r"Chain\.rules is empty"),
        (lambda: BatchNormalized(Jackpot()), r"BatchNormalized cannot wrap Jackpot"),
    ],
)
def test_settings_are_checked_when_the_rule_is_made(build, message):
    with pytest.raises(ValueError, match=message):
        build()
