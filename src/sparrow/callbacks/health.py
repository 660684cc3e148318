"""Watches a run for signs of collapse, remembers where it was still healthy, and acts if asked to.

The signals are those of `sparrow.tail.health`, each averaged over ranks so that all of them decide alike.
"""

import json
import os
from pathlib import Path
from typing import Any, Literal

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from sparrow.callbacks.tail import LOGGED, Tail
from sparrow.modules import DensePolicy
from sparrow.schedule import ALL_PAGES
from sparrow.tail.health import HealthLimits, HealthMonitor

Action = Literal["warn", "stop", "dense"]

SOURCES = {
    "share_below": "tail/fraction_below",
    "response_length": "response_length/mean",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "chi2": "rollout_corr/chi2_token",
}
"""Signal to the key of the step's metrics it is read from."""

REPORT = "health.json"
"""In the run folder: where the run was last healthy, and every warning so far."""

LINK = "last_healthy.ckpt"
"""In the run folder: a link to the last checkpoint that was written while the run was healthy."""


class Health(lightning.Callback):
    """Warns of a collapse and tags the last healthy checkpoint.

    The last healthy checkpoint is the newest of those that the run's ``ModelCheckpoint`` callbacks wrote up to the last
    step on which nothing was suspect. Where they write none, or too rarely,
    `HealthyCheckpoint` keeps one of the last step on which nothing was suspect.

    Args:
        action: on a warning: ``warn`` says so, ``stop`` ends the run after the step, ``dense`` lets the actor read
            everything from the next step on.
        p05: see `HealthLimits`; null takes the schedule's tau less ``below_tau``, if it has one.
        below_tau: how far p5 may lie below tau; a controller lets it lie a little below.

    The other arguments are those of `HealthLimits`.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self,
        action: Action = "warn",
        p05: float | None = None,
        below_tau: float = 0.03,
        share_below: float | None = 0.05,
        length_slope: float | None = 0.02,
        entropy_rise: float | None = 0.1,
        entropy_fall: float | None = 0.2,
        grad_norm: float | None = 10.0,
        chi2: float | None = 0.5,
        window: int = 10,
        patience: int = 3,
    ) -> None:
        if action not in ("warn", "stop", "dense"):
            raise ValueError(f"health.action={action!r}: must be warn, stop or dense")
        if below_tau < 0:
            raise ValueError(f"health.below_tau={below_tau}: must be 0 or more")
        self.action, self.below_tau = action, below_tau
        self.limits: dict[str, Any] = {
            "p05": p05,
            "share_below": share_below,
            "length_slope": length_slope,
            "entropy_rise": entropy_rise,
            "entropy_fall": entropy_fall,
            "grad_norm": grad_norm,
            "chi2": chi2,
            "window": window,
            "patience": patience,
        }
        self.monitor = HealthMonitor(HealthLimits(**self.limits))
        self.warnings: list[dict[str, Any]] = []
        self.checkpoints: list[tuple[int, str]] = []
        self.fallen = False

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Set the limit of p5 by tau unless one is given; stay dense where a checkpoint says so."""
        assert isinstance(pl_module, DensePolicy)
        tau = pl_module.schedule.tau
        if self.limits["p05"] is None and tau is not None:
            self.monitor.limits = HealthLimits(**{**self.limits, "p05": tau - self.below_tau})
        if self.fallen:
            self._fall_back(trainer, pl_module, resumed=True)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Judge the step, tag, and act on a new warning."""
        assert isinstance(pl_module, DensePolicy)
        self._find_checkpoints(trainer, trainer.global_step - 1)
        warned = self.monitor.warning
        measured = self._measured(trainer, pl_module)
        signals, suspect = self.monitor.observe(trainer.global_step, measured)
        new = self.monitor.warning and not warned
        if new:
            self.warnings.append({"step": trainer.global_step, "beyond": {name: signals[name] for name in suspect}})
        if trainer.is_global_zero:
            self._report(Path(trainer.default_root_dir))
        if new:
            self._act(trainer, pl_module, suspect)
        pl_module.step_metrics |= {f"health/{name}": value for name, value in signals.items()}
        pl_module.step_metrics |= {
            "health/suspect": float(len(suspect)),
            "health/streak": float(self.monitor.streak),
            "health/warning": float(self.monitor.warning),
            "health/last_healthy_step": float(self.monitor.last_healthy),
        }

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Take in the checkpoint of the last step."""
        self._find_checkpoints(trainer, trainer.global_step)
        if trainer.is_global_zero:
            self._report(Path(trainer.default_root_dir))

    @property
    def healthy_checkpoint(self) -> tuple[int, str] | None:
        """Step and path of the last checkpoint written up to the last healthy step and still there."""
        healthy = [
            (step, path) for step, path in self.checkpoints if step <= self.monitor.last_healthy and Path(path).exists()
        ]
        return max(healthy, default=None)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "monitor": self.monitor.state_dict(),
            "warnings": list(self.warnings),
            "checkpoints": list(self.checkpoints),
            "fallen": self.fallen,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.monitor.load_state_dict(state_dict["monitor"])
        self.warnings, self.fallen = list(state_dict["warnings"]), state_dict["fallen"]
        self.checkpoints = [(step, path) for step, path in state_dict["checkpoints"]]

    def _measured(self, trainer: lightning.Trainer, module: DensePolicy) -> dict[str, float]:
        metrics = module.step_metrics
        local = {signal: metrics[key] for signal, key in SOURCES.items() if key in metrics}
        names = sorted(local)
        values = torch.tensor([local[name] for name in names], dtype=torch.float64, device=module.device)
        means: Any = trainer.strategy.reduce(values, reduce_op="mean")
        measured = dict(zip(names, means.tolist(), strict=True))
        bins = _tail(trainer).filled_bins(LOGGED[module.schedule.estimator])
        if bins:  # from histograms that were merged over ranks
            measured["p05"] = min(p5 for *_, p5, _ in bins)
        return measured

    def _find_checkpoints(self, trainer: lightning.Trainer, step: int) -> None:
        """Note what was written at ``step``: a checkpoint callback comes after this one, so its file is seen later."""
        known = {path for _, path in self.checkpoints}
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.best_model_path not in {"", *known}:
                self.checkpoints.append((step, callback.best_model_path))

    def _act(self, trainer: lightning.Trainer, module: DensePolicy, suspect: list[str]) -> None:
        found = self.healthy_checkpoint
        where = f"step {self.monitor.last_healthy}" + (f", checkpoint {found[1]}" if found else "")
        rank_zero_warn(
            f"RL step {trainer.global_step}: {self.monitor.streak} suspect steps in a row ({', '.join(suspect)}); "
            f"last healthy: {where}"
        )
        if self.action == "stop":
            trainer.should_stop = True
        elif self.action == "dense" and not self.fallen:
            self._fall_back(trainer, module)

    def _fall_back(self, trainer: lightning.Trainer, module: DensePolicy, resumed: bool = False) -> None:
        self.fallen = True
        schedule = module.schedule
        module.schedule = schedule.replace(pages=[ALL_PAGES] * schedule.num_bins, provenance="fallen back to dense")
        tail = _tail(trainer)
        if resumed:
            tail.schedule = module.schedule  # what it pooled comes from its own state
        else:
            tail.follow(module.schedule)
            rank_zero_only(print)("the actor reads everything from the next step on")

    def _report(self, folder: Path) -> None:
        found = self.healthy_checkpoint
        report = {
            "last_healthy_step": self.monitor.last_healthy,
            "last_healthy_checkpoint": found and {"step": found[0], "path": found[1]},
            "warnings": self.warnings,
        }
        (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")
        if found:
            link = folder / LINK
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(found[1], folder))


class HealthyCheckpoint(ModelCheckpoint):
    """A checkpoint of the last step on which `Health` saw nothing suspect: written while the run is healthy, only then.

    Takes the arguments of ``ModelCheckpoint``; with ``save_top_k: 1`` each replaces the one before.
    """

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is time and the step was healthy."""
        callbacks: list[lightning.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # missing in the stubs
        health = next((callback for callback in callbacks if isinstance(callback, Health)), None)
        if health is None:
            raise ValueError("callbacks.healthy_checkpoint needs callbacks.health beside it")
        if health.monitor.streak == 0:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)


def _tail(trainer: lightning.Trainer) -> Tail:
    callbacks: list[lightning.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # missing in the stubs
    return next(callback for callback in callbacks if isinstance(callback, Tail))
