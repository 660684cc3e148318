"""What a run leaves behind: ``summary.json``, ``provenance.json``, the schedule, plots, and a table on the terminal."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
from rich.console import Console
from rich.table import Table

from sparrow.callbacks.adapter_tail import AdapterTail
from sparrow.callbacks.comparison import Comparison, compare
from sparrow.callbacks.held_out import HeldOut
from sparrow.callbacks.plots import plot_run
from sparrow.callbacks.provenance import provenance
from sparrow.callbacks.rollout import Rollout
from sparrow.callbacks.step_log import StepLog
from sparrow.callbacks.tail import Tail
from sparrow.data import PromptDataModule
from sparrow.distributed import gathered
from sparrow.modules import DensePolicy


class Summary(lightning.Callback):
    """Writes the run's results on the first process when training ends.

    Args:
        run_dir: the run folder.
        rollout: gives the engine's settings and the seed.
        tail: gives p5 per bin.
        step_log: gives the history.
        held_out: gives exact match before and after, or None.
        started: ``time.perf_counter()`` at the start of the command.
    """

    def __init__(
        self, run_dir: Path, rollout: Rollout, tail: Tail, step_log: StepLog, held_out: HeldOut | None, started: float
    ) -> None:
        self.run_dir = run_dir
        self.rollout = rollout
        self.tail = tail
        self.step_log = step_log
        self.held_out = held_out
        self.started = started

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Store what the run was made of before it does anything."""
        assert isinstance(pl_module, DensePolicy)
        if trainer.is_global_zero:
            pl_module.schedule.to_yaml(self.run_dir / "schedule.yaml")
            (self.run_dir / "provenance.json").write_text(json.dumps(provenance(), indent=1) + "\n")

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the results of a run that was ended after its last step: resumed, it has no step left to end with."""
        if trainer.strategy.broadcast(self._written()):
            return
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, HeldOut | AdapterTail):
                callback.on_train_end(trainer, pl_module)
        self.on_train_end(trainer, pl_module)

    def _written(self) -> bool:
        """Whether there is a summary of all steps that were made; an earlier one may lie there, or half of one."""
        try:
            return bool(json.loads((self.run_dir / "summary.json").read_text())["steps"] == len(self.step_log.history))
        except (FileNotFoundError, ValueError):
            return False

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Measure sparse against dense once more and write everything."""
        assert isinstance(pl_module, DensePolicy)
        data = trainer.datamodule  # type: ignore[attr-defined]  # set by fit(datamodule=...), missing in the stubs
        assert isinstance(data, PromptDataModule)
        with gathered(pl_module.model):  # a collective, where weights are sharded
            if not trainer.is_global_zero:
                return
            prompts = data.train_prompts[: data.prompts_per_step]
            comparison = compare(pl_module, prompts, self.rollout.eos_token_ids, self.rollout.seed)
        summary = self._collect(pl_module, comparison)
        (self.run_dir / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        plot_run(self.run_dir, self.step_log.history, self.tail, pl_module.schedule)
        show(summary, self.tail, comparison)

    def _collect(self, module: DensePolicy, comparison: Comparison) -> dict[str, Any]:
        history = self.step_log.history
        last = history[-10:]
        bins = self.tail.filled_bins()
        summary: dict[str, Any] = {
            "steps": len(history),
            "tau": module.schedule.tau,
            "tail_p05_min": min((p5 for *_, p5, _ in bins), default=math.nan),
            "kv_fraction": _mean(last, "schedule/kv_fraction"),
            "kv_fraction_sparse_layers": _mean(last, "schedule/kv_fraction_sparse_layers"),
            "rollout_speedup": comparison.speedup,
            "rollout_tokens_per_s_sparse": comparison.sparse_tokens_per_s,
            "rollout_tokens_per_s_dense": comparison.dense_tokens_per_s,
            "floor_alpha_p05": comparison.floor_alpha_p05,
            "floor_weight_error_max": comparison.floor_weight_error_max,
            "reward_first": _mean(history[:10], "critic/score/mean"),
            "reward_last": _mean(last, "critic/score/mean"),
            "wall_s": time.perf_counter() - self.started,
        }
        if self.held_out is not None:
            summary |= {"exact_match_before": self.held_out.before, "exact_match_after": self.held_out.after}
        for key in ("distill/cost_ratio", "distill/logprob_gap_max"):
            if any(key in row for row in history):
                summary[key.replace("/", "_")] = _mean(last, key)
        summary |= distill_cost(last) | module.results
        summary |= {f"tail_p05_bin_{low}_{high}": p5 for low, high, p5, _ in bins}
        return {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in summary.items()}


def distill_cost(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """``distill_cost_ratio_all_steps``: the sparse pass over the dense one, steps that skip the adapter included."""
    sparse = sum(row.get("timing_s/sparse_pass", 0.0) for row in history)
    dense = sum(row[key] for row in history for key in ("timing_s/dense_pass", "timing_s/old_logprobs") if key in row)
    return {"distill_cost_ratio_all_steps": sparse / dense} if sparse and dense else {}


def show(summary: dict[str, Any], tail: Tail, comparison: Comparison) -> None:
    """Print the results as a table."""
    table = Table(title="Result", show_header=False)
    table.add_column("what", max_width=60)
    table.add_column("value", justify="right")
    if "exact_match_before" in summary:
        table.add_row("held-out exact match, before", _number(summary["exact_match_before"]))
        table.add_row("held-out exact match, after", _number(summary["exact_match_after"]))
    for low, high, p5, count in tail.filled_bins():
        span = f"{low} tokens on" if high == tail.num_bins * tail.bin_tokens else f"{low} to {high} tokens"
        table.add_row(f"p5 of alpha, {span} ({count} tokens seen)", _number(p5))
    tau = "none" if summary["tau"] is None else _number(summary["tau"])
    table.add_row("least p5 of a filled bin / tau", f"{_number(summary['tail_p05_min'])} / {tau}")
    table.add_row("share of the KV cache read, all layers", _number(summary["kv_fraction"]))
    table.add_row("share of the KV cache read, sparse layers", _number(summary["kv_fraction_sparse_layers"]))
    table.add_row("rollout tokens/s, sparse", f"{comparison.sparse_tokens_per_s:.0f}")
    table.add_row("rollout tokens/s, dense", f"{comparison.dense_tokens_per_s:.0f}")
    table.add_row("sparse over dense", f"{comparison.speedup:.2f}x")
    table.add_row("floor: p5 of alpha, dense engine against dense trainer", f"{comparison.floor_alpha_p05:.5f}")
    table.add_row("floor: largest correction weight error", f"{comparison.floor_weight_error_max:.1e}")
    table.add_row("wall time", f"{summary['wall_s']:.0f} s")
    Console().print(table)
    if comparison.speedup < 1.2:
        print(
            "At a few hundred tokens attention is a small part of a step; `sparrow-benchmark` measures long contexts."
        )


def _mean(rows: list[dict[str, float]], key: str) -> float:
    values = [row[key] for row in rows if key in row]
    return sum(values) / len(values) if values else math.nan


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"
