"""Measures the tail of each step's rollout, per length bin, for every estimator the step can give."""

from collections.abc import Sequence
from typing import Any

import lightning
import torch
from torch import Tensor

from sparrow.metrics import PooledTail, TailAcceptance
from sparrow.metrics.functional import disagreements
from sparrow.modules import DensePolicy, Experience, Scores
from sparrow.schedule import BudgetSchedule

ESTIMATES = {
    "alpha": "alpha_BT",
    "alpha_top20": "alpha_top20_BT",
    "alpha_low": "alpha_low_BT",
    "alpha_high": "alpha_high_BT",
}
"""Logged name of an estimator to its field in the scores; a tau is only comparable within one of them."""

LOGGED = {"exact": "alpha", "top20": "alpha_top20", "bounds": "alpha_low", None: "alpha"}
"""Estimator of a schedule's tau to the logged name of what it is compared with."""


class Tail(lightning.Callback):
    """Streams alpha into histograms per length bin and pools the last steps.

    Args:
        schedule: gives page size, bins, tau and estimator.
        bin_tokens: width of a length bin; null takes the schedule's, so that metric and schedule bins agree.
        num_bins: number of bins; null takes the schedule's.
        filled: tokens from which a bin is judged.
        window: steps that are pooled.
    """

    def __init__(
        self,
        schedule: BudgetSchedule,
        bin_tokens: int | None = None,
        num_bins: int | None = None,
        filled: int = 1000,
        window: int = 10,
    ) -> None:
        self.schedule = schedule
        for key, value in (("bin_tokens", bin_tokens), ("num_bins", num_bins), ("filled", filled), ("window", window)):
            if value is not None and value < 1:
                raise ValueError(f"tail.{key}={value}: must be 1 or more")
        self.bin_tokens = schedule.bin_tokens if bin_tokens is None else bin_tokens
        self.num_bins = schedule.num_bins if num_bins is None else num_bins
        self.filled = filled
        self.window = window
        self.pooled: dict[str, PooledTail] = {}

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take in the alphas that the module has just measured."""
        assert isinstance(pl_module, DensePolicy)
        assert pl_module.scores is not None
        experience: Experience = batch["experience"]
        for name, field in ESTIMATES.items():
            alpha_BT = getattr(pl_module.scores, field)
            if alpha_BT is not None:
                pl_module.step_metrics |= self._measure(name, alpha_BT, experience)
        pl_module.step_metrics |= self._gap(pl_module.scores, experience)

    def filled_bins(self, name: str = "alpha") -> list[tuple[int, int, float, int]]:
        """Bins that are filled over the window, as (first token, end, p5, tokens)."""
        pooled = self.pooled.get(name)
        if pooled is None:
            return []
        rows = zip(pooled.quantile_bins().tolist(), pooled.count_bins().tolist(), strict=True)
        bins = [(i * self.bin_tokens, (i + 1) * self.bin_tokens, p5, count) for i, (p5, count) in enumerate(rows)]
        return [row for row in bins if row[3] >= self.filled]

    def follow(self, schedule: BudgetSchedule, moved: Sequence[int] | None = None) -> None:
        """Measure against another schedule from now on, in the same bins; what was pooled under the old one goes.

        Args:
            schedule: the new one.
            moved: the bins whose budget changed, the only ones to be forgotten; null forgets all.
        """
        self.schedule = schedule
        if moved is None:
            self.pooled = {}
        for pooled in self.pooled.values():
            pooled.forget(moved or ())

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {name: pooled.state_dict() for name, pooled in self.pooled.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        for name, state in state_dict.items():
            self.pooled[name] = PooledTail(self.window)
            self.pooled[name].load_state_dict(state)

    def _measure(self, name: str, alpha_BT: Tensor, experience: Experience) -> dict[str, float]:
        tail = TailAcceptance(bin_tokens=self.bin_tokens, num_bins=self.num_bins)
        page = self.schedule.page_size
        tail.update(alpha_BT.cpu(), page_end(experience.position_BT, page).cpu(), experience.decoded_BT.cpu())
        pooled = self.pooled.setdefault(name, PooledTail(self.window))
        pooled.append(tail)
        values = tail.compute()
        metrics = {f"tail/{name}/{key}": float(values[key]) for key in ("mean", "p01", "p05", "p10", "min")}
        for i, (p5, count) in enumerate(zip(values["p05_bins"].tolist(), values["count_bins"].tolist(), strict=True)):
            if count:
                metrics[f"tail/{name}_p05/bin_{i * self.bin_tokens}_{(i + 1) * self.bin_tokens}"] = p5
        if self.schedule.tau is not None and name == LOGGED[self.schedule.estimator]:
            metrics["tail/fraction_below"] = float(tail.fraction_below(self.schedule.tau))
            metrics["tail/margin"] = float(values["p05"]) - self.schedule.tau
        if name == "alpha":
            metrics["tail/disagreements"] = float(disagreements(alpha_BT, experience.decoded_BT).mean())
        return metrics

    def _gap(self, scores: Scores, experience: Experience) -> dict[str, float]:
        """The gap of sampled tokens between actor and policy: what a correction weight is made of."""
        mask_BT = experience.mask_BT
        dense_X, sparse_X = scores.logprobs_BT[mask_BT].double(), experience.sparse_logprobs_BT[mask_BT].double()
        probs_X = (dense_X.exp() - sparse_X.exp()).abs()
        weight_X = (dense_X - sparse_X).exp()
        return {
            "training/rollout_probs_diff_mean": float(probs_X.mean()),
            "training/rollout_probs_diff_max": float(probs_X.max()),
            "training/rollout_probs_diff_std": float(probs_X.std()) if len(probs_X) > 1 else 0.0,
            "rollout_corr/weight_error_max": float((weight_X - 1).abs().max()),
            "rollout_corr/weight_p99": float(torch.quantile(weight_X[: 2**24], 0.99)),
            "rollout_corr/weight_p01": float(torch.quantile(weight_X[: 2**24], 0.01)),
        }


def page_end(position_BT: Tensor, page_size: int) -> Tensor:
    """Positions rounded up to whole pages, as a schedule's bins count them."""
    return (position_BT + page_size - 1) // page_size * page_size
