"""The early warning as a callback: what it reads, which checkpoint it tags, what it does, and that it resumes."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from sparrow.callbacks import Health, HealthyCheckpoint, Tail
from sparrow.metrics import PooledTail, TailAcceptance
from sparrow.modules import DensePolicy
from sparrow.schedule import BudgetSchedule

SCHEDULE = BudgetSchedule([8, 12], page_size=4, bin_tokens=8, tau=0.9, estimator="exact", provenance="test")

GOOD = {
    "tail/fraction_below": 0.01,
    "response_length/mean": 200.0,
    "actor/entropy": 0.5,
    "actor/grad_norm": 1.0,
    "rollout_corr/chi2_token": 0.01,
}
BAD = {**GOOD, "rollout_corr/chi2_token": 3.0}


class Policy(DensePolicy):
    """A policy of which only the schedule and the step's metrics are used."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.schedule = SCHEDULE
        self.step_metrics = {}

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


class Ranks:
    """Two ranks of which the other one always measures these values more."""

    def __init__(self, more: float = 0.0) -> None:
        self.more = more

    def reduce(self, values: torch.Tensor, reduce_op: str) -> torch.Tensor:
        assert reduce_op == "mean"
        return values + self.more / 2


def trainer(folder: Path, tail: Tail, more: float = 0.0) -> Any:
    return SimpleNamespace(
        callbacks=[tail],
        checkpoint_callbacks=[ModelCheckpoint(dirpath=folder)],
        strategy=Ranks(more),
        global_step=0,
        is_global_zero=True,
        default_root_dir=folder,
        should_stop=False,
    )


def started(folder: Path, more: float = 0.0, **values: Any) -> tuple[Any, Health, Policy]:
    run, health, module = trainer(folder, Tail(SCHEDULE, filled=5, window=1), more), Health(**values), Policy()
    health.on_train_start(run, module)
    return run, health, module


def step(run: Any, health: Health, module: Policy, metrics: dict[str, float], alpha: float | None = None) -> None:
    run.global_step += 1
    module.step_metrics = dict(metrics)
    if alpha is not None:
        measured = TailAcceptance(bin_tokens=8, num_bins=2)
        measured.update(torch.full((10,), alpha), torch.zeros(10, dtype=torch.long))
        run.callbacks[0].pooled.setdefault("alpha", PooledTail(1)).append(measured)
    health.on_train_batch_end(run, module, None, None, 0)


def save(run: Any) -> str:
    """A checkpoint of the step just done, as a checkpoint callback leaves it."""
    path = Path(run.default_root_dir) / f"step_{run.global_step}.ckpt"
    path.write_text("weights")
    run.checkpoint_callbacks[0].best_model_path = str(path)
    return str(path)


def test_the_last_healthy_checkpoint_is_tagged(tmp_path: Path) -> None:
    run, health, module = started(tmp_path, patience=2)
    kept = ""
    for number, metrics in enumerate((GOOD, GOOD, GOOD, BAD), 1):
        step(run, health, module, metrics)
        if number in (2, 4):
            kept = save(run) if number == 2 else kept
            save(run)
    with pytest.warns(UserWarning, match=r"step 5: 2 suspect steps in a row \(chi2\); last healthy: step 3, .*step_2"):
        step(run, health, module, BAD)
    step(run, health, module, BAD)
    report = json.loads((tmp_path / "health.json").read_text())
    assert report["last_healthy_step"] == 3
    assert report["last_healthy_checkpoint"] == {"step": 2, "path": kept}
    assert report["warnings"] == [{"step": 5, "beyond": {"chi2": 3.0}}]
    assert os.readlink(tmp_path / "last_healthy.ckpt") == "step_2.ckpt"
    assert module.step_metrics["health/streak"] == 3
    assert module.step_metrics["health/warning"] == 1


def test_a_checkpoint_that_is_gone_is_not_tagged(tmp_path: Path) -> None:
    run, health, module = started(tmp_path)
    step(run, health, module, GOOD)
    first = save(run)
    step(run, health, module, GOOD)
    second = save(run)
    health.on_train_end(run, module)
    assert health.healthy_checkpoint == (2, second)
    Path(second).unlink()
    assert health.healthy_checkpoint == (1, first)


def test_p5_is_judged_against_tau(tmp_path: Path) -> None:
    run, health, module = started(tmp_path)
    step(run, health, module, GOOD, alpha=0.88)  # tau .9 less .03
    assert module.step_metrics["health/suspect"] == 0
    step(run, health, module, GOOD, alpha=0.86)
    assert module.step_metrics["health/suspect"] == 1
    assert module.step_metrics["health/p05"] == pytest.approx(0.86, abs=5e-4)


def test_ranks_decide_by_their_mean(tmp_path: Path) -> None:
    run, health, module = started(tmp_path, more=1.2)  # chi2 of .01 here and 1.21 there: .61 in the mean
    step(run, health, module, GOOD)
    assert module.step_metrics["health/chi2"] == pytest.approx(0.61)
    assert module.step_metrics["health/suspect"] == 2  # and the share below tau


@pytest.mark.filterwarnings("ignore:RL step")
def test_actions(tmp_path: Path) -> None:
    for action, stops, dense in (("warn", False, False), ("stop", True, False), ("dense", False, True)):
        run, health, module = started(tmp_path, action=action, patience=1)
        step(run, health, module, BAD)
        assert run.should_stop == stops
        assert module.schedule.is_dense == dense
        if dense:
            assert (module.schedule.page_size, module.schedule.bin_tokens, module.schedule.num_bins) == (4, 8, 2)
            assert run.callbacks[0].schedule == module.schedule


@pytest.mark.filterwarnings("ignore:RL step")
def test_a_resumed_run_stays_dense_and_remembers(tmp_path: Path) -> None:
    run, health, module = started(tmp_path, action="dense", patience=1)
    step(run, health, module, GOOD)
    kept = save(run)
    step(run, health, module, BAD)
    again, fresh = Health(action="dense", patience=1), Policy()
    again.load_state_dict(json.loads(json.dumps(health.state_dict())))
    other = trainer(tmp_path, Tail(SCHEDULE))
    other.global_step = 2
    again.on_train_start(other, fresh)
    assert fresh.schedule == module.schedule
    assert again.healthy_checkpoint == health.healthy_checkpoint == (1, kept)
    for of in ((run, health, module), (other, again, fresh)):
        step(*of, BAD)
    assert again.state_dict() == health.state_dict()


def test_its_own_checkpoints_are_of_healthy_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, health, module = started(tmp_path)
    saver = HealthyCheckpoint(dirpath=tmp_path)
    saved: list[int] = []
    monkeypatch.setattr(ModelCheckpoint, "on_train_batch_end", lambda *_: saved.append(run.global_step))
    run.callbacks.append(health)
    for metrics in (GOOD, BAD, BAD, GOOD):
        step(run, health, module, metrics)
        saver.on_train_batch_end(run, module, None, None, 0)
    assert saved == [1, 4]
    run.callbacks.remove(health)
    with pytest.raises(ValueError, match="needs callbacks.health beside it"):
        saver.on_train_batch_end(run, module, None, None, 0)


def test_wrong_values_name_the_key() -> None:
    with pytest.raises(ValueError, match=r"health.action='panic': must be warn, stop or dense"):
        Health(action="panic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"health.below_tau=-0.1: must be 0 or more"):
        Health(below_tau=-0.1)
