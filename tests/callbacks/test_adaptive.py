"""The controller as a callback: what it feeds the rule, what it moves, what it leaves behind, and that it resumes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparrow.callbacks import AdaptiveBudget, Tail
from sparrow.data import PromptDataModule
from sparrow.modules import DensePolicy, Experience, RolloutSettings, Scores
from sparrow.schedule import ALL_PAGES, BudgetSchedule, load_schedule

START = BudgetSchedule([2, 4, 6], page_size=4, bin_tokens=32, tau=0.9, estimator="exact", provenance="test")
PROMPT, LENGTH = 2, 96
"""Tokens of the prompt and of the whole sequence: bin 0 holds positions 3 .. 28, bin 1 29 .. 60, bin 2 61 .. 95."""


class Policy(DensePolicy):
    """A policy of which only schedule, settings, scores and the step's metrics are used."""

    def __init__(self, schedule: BudgetSchedule = START, alpha: str = "exact") -> None:
        torch.nn.Module.__init__(self)
        self.schedule = schedule
        self.rollout = RolloutSettings(max_new_tokens=LENGTH - PROMPT, alpha=alpha)  # type: ignore[arg-type]
        self.step_metrics = {}


class Data(PromptDataModule):
    """Prompts of two tokens."""

    def __init__(self) -> None:
        self.train_prompts = [SimpleNamespace(token_ids=[1] * PROMPT)]  # type: ignore[list-item]


def trainer(folder: Path, tail: Tail) -> Any:
    return SimpleNamespace(
        callbacks=[tail], datamodule=Data(), is_global_zero=True, default_root_dir=folder, global_step=1
    )


def rollout(below: tuple[float, float, float], prompts: int = 6) -> tuple[Experience, Scores]:
    """Traces of which these shares of each bin's tokens have an alpha of .5, the others of 1."""
    alpha_BT = torch.ones(prompts, LENGTH)
    for (low, high), share in zip(((3, 29), (29, 61), (61, 96)), below, strict=True):
        for row in range(prompts):
            alpha_BT[row, low : low + round(share * (high - low))] = 0.5
    rows = torch.zeros(prompts, dtype=torch.long)
    experience = Experience(
        tokens_BT=torch.zeros(prompts, LENGTH, dtype=torch.long),
        prompt_len_B=rows + PROMPT,
        length_B=rows + LENGTH,
        sparse_logprobs_BT=torch.zeros(prompts, LENGTH),
        rewards_B=torch.zeros(prompts),
        advantages_B=torch.zeros(prompts),
        group_B=torch.arange(prompts),
    )
    return experience, Scores(torch.zeros(prompts, LENGTH), torch.zeros(prompts, LENGTH), alpha_BT=alpha_BT)


def step(run: Any, controller: AdaptiveBudget, tail: Tail, module: Policy, below: tuple[float, float, float]) -> None:
    experience, module.scores = rollout(below)
    module.step_metrics = {}
    for callback in (tail, controller):
        callback.on_train_batch_end(run, module, None, {"experience": experience}, 0)
    run.global_step += 1


def started(folder: Path, schedule: BudgetSchedule = START, **values: Any) -> tuple[Any, AdaptiveBudget, Tail, Policy]:
    tail, module = Tail(schedule, filled=100, bin_tokens=32, num_bins=3), Policy(schedule)
    run, controller = trainer(folder, tail), AdaptiveBudget(**values)
    controller.on_train_start(run, module)
    return run, controller, tail, module


def test_bins_move_apart_and_every_move_is_written(tmp_path: Path) -> None:
    run, controller, tail, module = started(tmp_path)
    step(run, controller, tail, module, (0.0, 0.0, 0.5))
    # Bins 0 and 1 hold and go to half, bin 2 fails and doubles.
    assert module.schedule.table == (1, 2, 12)
    lines = [json.loads(line) for line in (tmp_path / "controller.jsonl").read_text().splitlines()]
    assert [(line["bin"], line["pages"], line["pages_next"], line["reason"]) for line in lines] == [
        (0, 2, 1, "holds"),
        (1, 4, 2, "holds"),
        (2, 6, 12, "fails"),
    ]
    assert lines[2]["share_below"] == pytest.approx(18 / 35)
    assert lines[2]["tokens"] == 6 * 35
    assert (lines[2]["tokens_from"], lines[2]["estimator"], lines[2]["line"]) == (64, "exact", pytest.approx(0.885))
    assert module.step_metrics["controller/moves"] == 3
    assert module.step_metrics["controller/alpha_share_below/bin_2"] == pytest.approx(18 / 35)
    written = load_schedule(tmp_path / "schedule_controlled.yaml")
    assert written.table == (1, 2, 12)
    assert written.provenance["started_from"] == "test"
    assert written.provenance["controller"]["tau"] == 0.9


def test_the_tail_forgets_the_moved_bins_alone(tmp_path: Path) -> None:
    run, controller, tail, module = started(tmp_path, min_pages=2)
    step(run, controller, tail, module, (0.0, 0.0, 0.5))
    assert module.schedule.table == (2, 2, 12)
    assert [row[:2] for row in tail.filled_bins()] == [(0, 32)]
    assert tail.schedule == module.schedule


def test_budgets_end_at_every_page_of_the_longest_sequence(tmp_path: Path) -> None:
    run, controller, tail, module = started(tmp_path)
    for _ in range(8):
        step(run, controller, tail, module, (0.5, 0.5, 0.5))
    # 32, 64 and 96 tokens are 8, 16 and 24 pages of which three are reserved.
    assert module.schedule.table == (5, 13, 21)
    assert [state.settled(1) for state in controller.bins] == [True] * 3
    assert module.step_metrics["controller/settled"] == 3


@pytest.mark.parametrize(
    ("schedule", "table"),
    [
        (BudgetSchedule.constant(3, page_size=4), (3, 3, 3)),
        (BudgetSchedule.dense(page_size=4), (5, 13, 21)),
        (BudgetSchedule([40, 9], page_size=4, bin_tokens=48), (5, 13, 9)),
    ],
    ids=["constant", "dense", "other-bins"],
)
def test_any_schedule_is_spread_over_the_bins_of_the_tail(
    tmp_path: Path, schedule: BudgetSchedule, table: tuple[int, ...]
) -> None:
    _, _, tail, module = started(tmp_path, schedule, tau=0.8, estimator="exact")
    assert module.schedule.table == table
    assert (module.schedule.bin_tokens, module.schedule.tau, module.schedule.estimator) == (32, 0.8, "exact")
    assert tail.schedule == module.schedule


def test_a_resumed_run_makes_the_same_moves(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    run, controller, tail, module = started(tmp_path / "a")
    shares = [(0.0, 0.1, 0.5), (0.1, 0.0, 0.3), (0.04, 0.06, 0.05), (0.06, 0.0, 0.0), (0.0, 0.06, 0.04)]
    for below in shares[:2]:
        step(run, controller, tail, module, below)
    fresh, again = Policy(), AdaptiveBudget()
    resumed = Tail(START, filled=100)
    file = tmp_path / "state.pt"
    torch.save([tail.state_dict(), controller.state_dict()], file)
    saved = torch.load(file, weights_only=False)
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    other = trainer(tmp_path / "b", resumed)
    other.global_step = run.global_step
    again.on_train_start(other, fresh)
    assert fresh.schedule == module.schedule
    for below in shares[2:]:
        step(run, controller, tail, module, below)
        step(other, again, resumed, fresh, below)
        assert fresh.schedule == module.schedule
        assert again.state_dict() == controller.state_dict()
        assert resumed.filled_bins() == tail.filled_bins()
    lines = [(tmp_path / name / "controller.jsonl").read_text().splitlines() for name in "ab"]
    assert lines[1] == [line for line in lines[0] if json.loads(line)["step"] > 2]


def test_another_callback_may_move_the_schedule(tmp_path: Path) -> None:
    run, controller, tail, module = started(tmp_path)
    step(run, controller, tail, module, (0.0, 0.0, 0.5))
    module.schedule = START.replace(pages=[3, 3, 3])
    step(run, controller, tail, module, (0.03, 0.5, 0.5))
    assert module.schedule.table == (3, 6, 6)  # from the new table on, and not from the old one
    module.schedule = module.schedule.replace(pages=[ALL_PAGES] * 3)
    step(run, controller, tail, module, (0.0, 0.0, 0.0))
    assert module.schedule.is_dense


@pytest.mark.parametrize(
    ("schedule", "alpha", "values", "message"),
    [
        (START.replace(tau=None, estimator=None), "exact", {}, r"controller.tau=null: the schedule names no tau"),
        (START.replace(tau=None, estimator=None), "exact", {"tau": 0.9}, r"controller.estimator=None: must be one of"),
        (START, "bounds", {}, r"controller.estimator=exact needs rollout.alpha=exact, not bounds"),
        (START, "off", {"estimator": "bounds"}, r"controller.estimator=bounds needs rollout.alpha=bounds, not off"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, schedule: BudgetSchedule, alpha: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveBudget(**values).on_train_start(trainer(tmp_path, Tail(schedule)), Policy(schedule, alpha))


def test_wrong_values_name_the_key() -> None:
    with pytest.raises(ValueError, match=r"controller.tau=1.5: must be above 0 and at most 1"):
        AdaptiveBudget(tau=1.5)
    with pytest.raises(ValueError, match=r"controller.max_pages=2: must be min_pages=3 or more"):
        AdaptiveBudget(min_pages=3, max_pages=2)


@pytest.mark.slow
def test_two_processes_decide_alike_and_as_one_would(tmp_path: Path) -> None:
    script = Path(__file__).with_name("ddp_adaptive.py")
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(script.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path)]
    both = [subprocess.Popen([*command, str(rank), "2"], env=environment) for rank in range(2)]
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    subprocess.run([*command, "0", "1"], env=environment, check=True)
    tables = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("0_of_2", "1_of_2", "0_of_1")]
    assert tables[0] == tables[1] == tables[2]
    assert len({tuple(table) for table in tables[0]}) > 1
