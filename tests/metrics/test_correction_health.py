"""Every number of the health of a correction, against its definition written out over the unpadded tokens."""

import math

import pytest
import torch

from sparrow.metrics import CorrectionHealth
from sparrow.metrics.functional import health_metrics, health_state, sequence_weight_warning
from sparrow.metrics.functional.correction_health import empty_health


def pair(lengths=(9, 4, 1, 6), seed=0, spread=0.5):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(-1)
    old = -torch.rand(mask.shape, generator=generator, dtype=torch.float64) * 3 - 0.01
    sparse = old * torch.exp(spread * torch.randn(mask.shape, generator=generator, dtype=torch.float64))
    return torch.where(mask, old, math.nan), torch.where(mask, sparse, math.nan), mask


def by_definition(old, sparse, mask):
    delta, p, q = (old - sparse)[mask], old[mask].exp(), sparse[mask].exp()
    w, d = delta.exp(), (p - q).abs()
    rows = [(o[m], s[m]) for o, s, m in zip(old, sparse, mask, strict=True)]
    total = torch.stack([(o - s).sum() for o, s in rows])
    gap = torch.stack([(s - o).mean() for o, s in rows])
    sequence = total.exp()
    return {
        "rollout_corr/kl": (-delta).mean(),
        "rollout_corr/k3_kl": (w - 1 - delta).mean(),
        "rollout_corr/chi2_token": (w**2).mean() - 1,
        "rollout_corr/chi2_seq": (sequence**2).mean() - 1,
        "rollout_corr/rollout_is_mean": w.mean(),
        "rollout_corr/rollout_is_std": w.std(correction=0),
        "rollout_corr/rollout_is_min": w.min(),
        "rollout_corr/rollout_is_max": w.max(),
        "rollout_corr/rollout_is_eff_sample_size": 1 / ((w / w.mean()) ** 2).mean(),
        "rollout_corr/rollout_is_seq_eff_sample_size": 1 / ((sequence / sequence.mean()) ** 2).mean(),
        "rollout_corr/rollout_is_seq_log_max": total.max(),
        "rollout_corr/rollout_is_seq_log_min": total.min(),
        "rollout_corr/rollout_is_ratio_fraction_high": (w > 2).double().mean(),
        "rollout_corr/rollout_is_ratio_fraction_low": (w < 0.5).double().mean(),
        "rollout_corr/training_ppl": torch.stack([(-o.mean()).exp() for o, _ in rows]).mean(),
        "rollout_corr/rollout_ppl": torch.stack([(-s.mean()).exp() for _, s in rows]).mean(),
        "rollout_corr/log_ppl_diff": gap.mean(),
        "rollout_corr/log_ppl_abs_diff": gap.abs().mean(),
        "rollout_corr/log_ppl_diff_max": gap.max(),
        "rollout_corr/log_ppl_diff_min": gap.min(),
        "rollout_corr/ppl_ratio": gap.exp().mean(),
        "training/rollout_probs_diff_mean": d.mean(),
        "training/rollout_probs_diff_max": d.max(),
        "training/rollout_probs_diff_std": d.std(correction=0),
        "training/rollout_actor_probs_pearson_corr": torch.corrcoef(torch.stack([p, q]))[0, 1],
    }


def test_every_number_against_its_definition():
    old, sparse, mask = pair()
    result = health_metrics(health_state(old, sparse, mask))
    expected = by_definition(old, sparse, mask)
    w = (old - sparse)[mask].exp()
    for percent in (1, 5, 50, 95, 99):
        name = f"rollout_corr/rollout_is_p{percent:02d}"
        quantile = torch.quantile((old - sparse)[mask], percent / 100).exp()
        assert result.pop(name).item() == pytest.approx(quantile.item(), rel=0.005), name
    assert w.max() > 2 > 0.5 > w.min()
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        assert result[name].item() == pytest.approx(value.item(), rel=1e-9, abs=1e-12), name


def test_by_hand():
    # p = .6, .2 and q = .3, .4: w = 2, .5
    old, sparse = torch.tensor([[0.6, 0.2]]).double().log(), torch.tensor([[0.3, 0.4]]).double().log()
    result = health_metrics(health_state(old, sparse, torch.ones(1, 2, dtype=torch.bool), low=0.6, high=1.9))
    assert result["rollout_corr/rollout_is_mean"].item() == pytest.approx(1.25)
    assert result["rollout_corr/chi2_token"].item() == pytest.approx((4 + 0.25) / 2 - 1)
    assert result["rollout_corr/kl"].item() == pytest.approx(0.0, abs=1e-12)
    assert result["rollout_corr/k3_kl"].item() == pytest.approx(0.25)
    assert result["rollout_corr/rollout_is_ratio_fraction_high"].item() == 0.5
    assert result["rollout_corr/rollout_is_ratio_fraction_low"].item() == 0.5
    assert result["rollout_corr/rollout_is_eff_sample_size"].item() == pytest.approx(1.25**2 / 2.125)
    assert result["training/rollout_probs_diff_mean"].item() == pytest.approx(0.25)
    assert result["training/rollout_probs_diff_max"].item() == pytest.approx(0.3)


def test_padding_and_empty_rows_change_nothing():
    old, sparse, mask = pair()
    wide = [torch.nn.functional.pad(t, (0, 5, 0, 2), value=math.nan) for t in (old, sparse)]
    wide_mask = torch.nn.functional.pad(mask, (0, 5, 0, 2))
    torch.testing.assert_close(
        health_metrics(health_state(*wide, wide_mask)), health_metrics(health_state(old, sparse, mask))
    )


def test_a_missing_log_prob_is_left_out():
    old, sparse, mask = pair()
    hole = sparse.clone()
    hole[1, 2] = math.nan
    without = mask.clone()
    without[1, 2] = False
    torch.testing.assert_close(
        health_metrics(health_state(old, hole, mask)), health_metrics(health_state(old, sparse, without))
    )


def test_shards_merge_to_the_whole():
    old, sparse, mask = pair()
    whole, merged = CorrectionHealth(), CorrectionHealth()
    whole.update(old, sparse, mask)
    for row in range(4):
        merged.update(old[row : row + 1], sparse[row : row + 1], mask[row : row + 1])
    torch.testing.assert_close(merged.compute(), whole.compute())
    state = empty_health()
    for row in range(4):
        state = state.merge(health_state(old[row : row + 1], sparse[row : row + 1], mask[row : row + 1]))
    torch.testing.assert_close(health_metrics(state), whole.compute())


def test_ranks_with_nothing_merge_too():
    old, sparse, mask = pair()
    left, right, empty = CorrectionHealth(), CorrectionHealth(), CorrectionHealth()
    left.update(old[:3], sparse[:3], mask[:3])
    right.update(old[3:], sparse[3:], mask[3:])
    empty.update(old, sparse, torch.zeros_like(mask))
    left.merge_state(right)
    left.merge_state(empty)
    whole = CorrectionHealth()
    whole.update(old, sparse, mask)
    torch.testing.assert_close(left.compute(), whole.compute())


def test_no_token_reads_nan():
    health = CorrectionHealth()
    health.update(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    assert all(math.isnan(value.item()) for value in health.compute().values())


def test_on_policy_everything_is_at_rest():
    old, _, mask = pair()
    result = health_metrics(health_state(old, old, mask))
    for name in ("kl", "k3_kl", "chi2_token", "chi2_seq", "rollout_is_std", "log_ppl_abs_diff"):
        assert result[f"rollout_corr/{name}"].item() == 0.0, name
    for name in ("rollout_is_mean", "rollout_is_eff_sample_size", "rollout_is_seq_eff_sample_size", "ppl_ratio"):
        assert result[f"rollout_corr/{name}"].item() == pytest.approx(1.0), name
    assert result["training/rollout_actor_probs_pearson_corr"].item() == pytest.approx(1.0)


def test_warning_when_sequence_weights_mean_nothing():
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(64, 5000, generator=generator)
    sparse = old + 0.2 * torch.randn(old.shape, generator=generator)
    mask = torch.ones_like(old, dtype=torch.bool)
    result = health_metrics(health_state(old, sparse, mask))
    assert all(math.isfinite(value.item()) for value in result.values())
    assert "effective share of" in sequence_weight_warning(result)
    short = health_metrics(health_state(old[:, :3], sparse[:, :3], mask[:, :3]))
    assert sequence_weight_warning(short) is None


def test_bounds_are_checked():
    with pytest.raises(ValueError, match=r"low=2\.0, high=1\.0"):
        CorrectionHealth(low=2.0, high=1.0)
