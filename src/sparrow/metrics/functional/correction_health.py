"""How far sampling and training disagree about the tokens that were sampled, before any truncation or masking.

Delta = old - sparse (log-probs), w = exp(Delta). Everything is computed from sums, extremes and a histogram over
tokens plus three numbers per sequence, so shards merge exactly. Keys are spelled as in verl, so that curves can be
laid over each other. Statistics taken after truncation hide the tail they are there to show.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparrow.metrics.functional.quantiles import histogram, histogram_quantile, log_ratio_centres, log_ratio_edges

LIMIT = 20.0
"""Log-ratios of a sequence are clamped to +-20 before they are squared and averaged (as in verl)."""

TERMS = ("count", "delta", "k3", "w", "w2", "high", "low", "d", "d2", "p", "q", "p2", "q2", "pq")
"""Order of the sums over tokens: p = exp(old), q = exp(sparse), d = |p - q|."""

MEANINGLESS_SHARE = 0.1
"""Below this share of effective sequences, a sequence-level weight says next to nothing."""


@dataclass(frozen=True)
class HealthState:
    """What is kept of a set of tokens; sets merge by `merge`.

    Attributes:
        sums: float64 [len(TERMS)].
        extremes: float64 [3]: largest Delta, largest -Delta, largest |p - q|.
        counts: histogram of Delta, int64 [grid].
        rows: float64 [sequences, 4]: tokens, sum of Delta, mean old log-prob, mean sparse log-prob.
    """

    sums: Tensor
    extremes: Tensor
    counts: Tensor
    rows: Tensor

    def merge(self, other: HealthState) -> HealthState:
        """The state of both sets together."""
        return HealthState(
            self.sums + other.sums,
            torch.maximum(self.extremes, other.extremes),
            self.counts + other.counts,
            torch.cat([self.rows, other.rows]),
        )


def empty_health(device: torch.device | str = "cpu") -> HealthState:
    """The state of no tokens."""
    return HealthState(
        torch.zeros(len(TERMS), dtype=torch.float64, device=device),
        torch.full((3,), -torch.inf, dtype=torch.float64, device=device),
        torch.zeros(len(log_ratio_edges()), dtype=torch.int64, device=device),
        torch.zeros(0, 4, dtype=torch.float64, device=device),
    )


def health_state(
    old_logprobs_BT: Tensor, sparse_logprobs_BT: Tensor, mask_BT: Tensor, *, low: float = 0.5, high: float = 2.0
) -> HealthState:
    """Sums, extremes, histogram and per-sequence numbers of some rows.

    Args:
        old_logprobs_BT: of the dense policy under the weights that sampled.
        sparse_logprobs_BT: recorded while sampling; tokens without one (NaN) are left out.
        mask_BT: bool; what lies outside is not read.
        low: w below it counts in `rollout_is_ratio_fraction_low`.
        high: w above it counts in `rollout_is_ratio_fraction_high`.
    """
    mask_BT = mask_BT & torch.isfinite(sparse_logprobs_BT)
    old, sparse = old_logprobs_BT[mask_BT].double(), sparse_logprobs_BT[mask_BT].double()
    if not len(old):
        return empty_health(mask_BT.device)
    delta = (old - sparse).clamp(-LIMIT, LIMIT)
    w, p, q = delta.exp(), old.exp(), sparse.exp()
    d = (p - q).abs()
    terms = (torch.ones_like(w), delta, torch.expm1(delta) - delta, w, w * w, w > high, w < low)
    more = (d, d * d, p, q, p * p, q * q, p * q)
    sums = torch.stack([term.double().sum() for term in terms + more])
    extremes = torch.stack([delta.max(), -delta.min(), d.max()])
    counts = histogram(delta, log_ratio_edges())[0]
    return HealthState(sums, extremes, counts, _rows(old_logprobs_BT, sparse_logprobs_BT, mask_BT))


def _rows(old_BT: Tensor, sparse_BT: Tensor, mask_BT: Tensor) -> Tensor:
    old_B = torch.where(mask_BT, old_BT.double(), 0.0).sum(-1)
    sparse_B = torch.where(mask_BT, sparse_BT.double(), 0.0).sum(-1)
    length_B = mask_BT.sum(-1).double()
    tokens_B = length_B.clamp(min=1)
    rows = torch.stack([length_B, old_B - sparse_B, old_B / tokens_B, sparse_B / tokens_B], -1)
    return rows[length_B > 0]


def health_metrics(state: HealthState) -> dict[str, Tensor]:
    """`rollout_corr/*` and `training/rollout_probs_diff_*`, `training/rollout_actor_probs_pearson_corr`.

    Token level: kl = mean(-Delta), k3_kl = mean(w - 1 - Delta), chi2_token = mean(w^2) - 1, mean, std, min, max of w,
    its quantiles p01 .. p99, effective share of samples (mean w)^2 / mean(w^2), shares above `high` and below `low`.
    Sequence level: chi2_seq, effective share of exp(sum Delta), perplexities. All 0-dim float64; NaN when there was
    no token.
    """
    sums = dict(zip(TERMS, state.sums.unbind(), strict=True))
    n = sums["count"]
    mean = {name: total / n for name, total in sums.items()}
    result = {
        "rollout_corr/kl": -mean["delta"],
        "rollout_corr/k3_kl": mean["k3"],
        "rollout_corr/chi2_token": mean["w2"] - 1,
        "rollout_corr/rollout_is_mean": mean["w"],
        "rollout_corr/rollout_is_std": _std(mean["w2"], mean["w"]),
        "rollout_corr/rollout_is_eff_sample_size": mean["w"] ** 2 / mean["w2"],
        "rollout_corr/rollout_is_ratio_fraction_high": mean["high"],
        "rollout_corr/rollout_is_ratio_fraction_low": mean["low"],
        "rollout_corr/rollout_is_max": torch.where(n > 0, state.extremes[0].exp(), torch.nan),
        "rollout_corr/rollout_is_min": torch.where(n > 0, (-state.extremes[1]).exp(), torch.nan),
        "training/rollout_probs_diff_mean": mean["d"],
        "training/rollout_probs_diff_max": torch.where(n > 0, state.extremes[2], torch.nan),
        "training/rollout_probs_diff_std": _std(mean["d2"], mean["d"]),
        "training/rollout_actor_probs_pearson_corr": _pearson(mean),
    }
    for percent in (1, 5, 50, 95, 99):
        quantile = histogram_quantile(state.counts, percent / 100, log_ratio_centres())
        result[f"rollout_corr/rollout_is_p{percent:02d}"] = quantile.exp()
    return result | _sequence_metrics(state.rows)


def sequence_weight_warning(metrics: dict[str, Tensor]) -> str | None:
    """A sentence when exp(sum Delta) no longer tells sequences apart by more than chance, else None."""
    share = float(metrics["rollout_corr/rollout_is_seq_eff_sample_size"])
    if not share < MEANINGLESS_SHARE:
        return None
    return (
        f"sequence-level importance weights have an effective share of {share:.3f} of the sequences "
        f"(below {MEANINGLESS_SHARE}): at this length they are meaningless; use a token-level or geometric correction"
    )


def _std(square: Tensor, mean: Tensor) -> Tensor:
    return (square - mean**2).clamp(min=0.0).sqrt()


def _pearson(mean: dict[str, Tensor]) -> Tensor:
    spread = _std(mean["p2"], mean["p"]) * _std(mean["q2"], mean["q"])
    return torch.where(spread > 0, (mean["pq"] - mean["p"] * mean["q"]) / spread, torch.nan)


def _sequence_metrics(rows: Tensor) -> dict[str, Tensor]:
    _, total, old, sparse = rows.unbind(-1)
    gap = sparse - old
    number = torch.full((), float(len(rows)), dtype=torch.float64, device=rows.device)
    log_share = 2 * torch.logsumexp(total, 0) - torch.logsumexp(2 * total, 0) - number.log()
    squared = (2 * total.clamp(-LIMIT, LIMIT)).exp()
    empty = torch.full((), torch.nan, dtype=torch.float64, device=rows.device)
    return {
        "rollout_corr/chi2_seq": squared.mean() - 1,
        "rollout_corr/rollout_is_seq_eff_sample_size": log_share.exp(),
        "rollout_corr/rollout_is_seq_log_max": total.max() if len(rows) else empty,
        "rollout_corr/rollout_is_seq_log_min": total.min() if len(rows) else empty,
        "rollout_corr/training_ppl": (-old).exp().mean(),
        "rollout_corr/rollout_ppl": (-sparse).exp().mean(),
        "rollout_corr/log_ppl_diff": gap.mean(),
        "rollout_corr/log_ppl_abs_diff": gap.abs().mean(),
        "rollout_corr/log_ppl_diff_max": gap.max() if len(rows) else empty,
        "rollout_corr/log_ppl_diff_min": gap.min() if len(rows) else empty,
        "rollout_corr/ppl_ratio": gap.exp().mean(),
    }
