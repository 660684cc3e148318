"""The second phase: when it comes, what it moves, and that a checkpoint remembers it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparrow.callbacks import PhaseSwitch, Tail
from sparrow.metrics import PooledTail, TailAcceptance
from sparrow.modules import DensePolicy
from sparrow.schedule import BudgetSchedule, load_schedule

FIRST = BudgetSchedule([8, 12], page_size=4, bin_tokens=8, tau=0.9, estimator="exact", provenance="test")
SECOND = FIRST.replace(pages=[4, 6], provenance="test, pages x 0.5")


class Policy(DensePolicy):
    """A policy of which only the schedule and the step's metrics are used."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.schedule = FIRST
        self.step_metrics = {}


def trainer(folder: Path, tail: Tail | None, world_size: int = 1) -> Any:
    callbacks = [] if tail is None else [tail]
    return SimpleNamespace(
        print=print,
        callbacks=callbacks,
        world_size=world_size,
        is_global_zero=True,
        default_root_dir=folder,
        global_step=1,
    )


def feed(tail: Tail, alpha: float) -> None:
    """A step whose every token has this alpha."""
    step = TailAcceptance(bin_tokens=tail.bin_tokens, num_bins=tail.num_bins)
    step.update(torch.full((10,), alpha), torch.zeros(10, dtype=torch.long))
    tail.pooled.setdefault("alpha", PooledTail(tail.window)).append(step)


def step(switch: PhaseSwitch, run: Any, module: Policy, prompts: int = 4) -> float:
    switch.on_train_batch_end(run, module, None, {"prompts": [0] * prompts}, 0)
    return module.step_metrics["schedule/phase"]


def test_examples_are_counted_over_all_ranks(tmp_path: Path) -> None:
    tail, module = Tail(FIRST, filled=1), Policy()
    feed(tail, 0.95)
    run = trainer(tmp_path, tail, world_size=2)
    switch = PhaseSwitch({"scale": 0.5}, after_examples=24)
    switch.on_fit_start(run, module)
    # 8 examples a step: the third step completes the 24, and the fourth is the first of the second phase.
    assert [step(switch, run, module) for _ in range(2)] == [1.0, 1.0]
    assert module.schedule == FIRST
    assert step(switch, run, module) == 1.0
    assert module.schedule == SECOND
    assert tail.schedule == SECOND
    assert tail.filled_bins() == []
    assert step(switch, run, module) == 2.0
    assert load_schedule(tmp_path / "schedule_phase_2.yaml") == SECOND


def test_the_tail_must_hold_for_some_steps_in_a_row(tmp_path: Path) -> None:
    tail, module = Tail(FIRST, filled=1, window=1), Policy()
    run = trainer(tmp_path, tail)
    switch = PhaseSwitch({"scale": 0.5}, above=0.95, patience=2)
    switch.on_fit_start(run, module)
    held = []
    for alpha in (0.97, 0.94, 0.97, 0.96):
        feed(tail, alpha)
        step(switch, run, module)
        held.append(module.schedule == FIRST)
    assert held == [True, True, True, False]


def test_no_filled_bin_is_no_room(tmp_path: Path) -> None:
    tail, module = Tail(FIRST, filled=11), Policy()
    run = trainer(tmp_path, tail)
    switch = PhaseSwitch({"scale": 0.5}, above=0.5, patience=1)
    switch.on_fit_start(run, module)
    feed(tail, 1.0)
    step(switch, run, module)
    assert module.schedule == FIRST


def test_a_resumed_run_stays_in_its_phase(tmp_path: Path) -> None:
    tail, module = Tail(FIRST, filled=1), Policy()
    run = trainer(tmp_path, tail)
    switch = PhaseSwitch({"scale": 0.5}, after_examples=4)
    switch.on_fit_start(run, module)
    step(switch, run, module)
    feed(tail, 0.9)
    again, fresh, resumed = PhaseSwitch({"scale": 0.5}, after_examples=4), Policy(), Tail(FIRST, filled=1)
    resumed.load_state_dict(tail.state_dict())
    again.load_state_dict(switch.state_dict())
    again.on_fit_start(trainer(tmp_path, resumed), fresh)
    assert fresh.schedule == SECOND
    assert resumed.schedule == SECOND
    assert resumed.filled_bins() == tail.filled_bins() != []
    assert step(again, run, fresh) == 2.0
    assert again.examples == 8


def test_measurement_needs_a_tail(tmp_path: Path) -> None:
    switch = PhaseSwitch({"scale": 0.5}, above=0.9)
    with pytest.raises(ValueError, match=r"above=0.9: the run measures no tail"):
        switch.on_fit_start(trainer(tmp_path, None), Policy())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "give exactly one of the two"),
        ({"after_examples": 1, "above": 0.9}, "give exactly one of the two"),
        ({"after_examples": 0}, "after_examples=0: must be 1 or more"),
        ({"above": 1.5}, "above=1.5: must be above 0 and at most 1"),
        ({"above": 0.9, "patience": 0}, "patience=0: must be 1 or more"),
    ],
)
def test_wrong_values_name_the_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PhaseSwitch({"scale": 0.5}, **values)
