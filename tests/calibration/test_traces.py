"""Sampling without an end, repetition by hand, and sequences that come back from a file."""

import pytest
import torch

from sparrow.calibration.traces import EndlessEngine, Trace, load_traces, repetition, sample_traces, save_traces
from sparrow.data import Prompt, PromptRow
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule


@pytest.fixture
def prompts():
    row = PromptRow("x", [{"role": "user", "content": "x"}], {"ground_truth": "x"})
    return [Prompt(row, [1, 2, 3, 4, 5], 11), Prompt(row, [6, 7, 8], 12)]


def test_repetition():
    assert repetition([1, 2, 3, 4], 2) == 0.0
    assert repetition([5, 5, 5, 5], 1) == 0.75
    assert repetition([1, 2, 3, 9, 1, 2, 3], 3) == pytest.approx(1 / 5)
    assert repetition([1, 2], 3) == 0.0


def test_an_endless_engine_never_draws_the_end_and_records_plain_states(model, prompts, schedule):
    arguments = {"samples": 3, "max_new_tokens": 50, "temperature": 1.0, "seed": 0, "eos_token_ids": (7, 9, 30)}
    stopping = sample_traces(RolloutEngine(model, schedule), prompts, **arguments)
    assert any(trace.stopped for trace in stopping)
    engine = EndlessEngine(model, schedule)
    engine.never = (7, 9, 30)
    endless = sample_traces(engine, prompts, **arguments, record=("hidden",))
    assert {len(trace.response) for trace in endless} == {50}
    assert not any(trace.stopped for trace in endless)
    assert not {7, 9, 30} & {token for trace in endless for token in trace.response}
    assert [trace.prompt for trace in endless] == [0, 0, 0, 1, 1, 1]
    assert endless[3].prompt_len == 3
    logits_XV = endless[0].hidden_XE @ model.get_output_embeddings().weight.T
    assert bool(torch.isfinite(logits_XV).all())
    assert float(logits_XV.softmax(-1)[:, [7, 9, 30]].detach().sum(-1).max()) > 1e-3


def test_pages_read_are_the_schedules(model, prompts):
    schedule = BudgetSchedule.constant(1, page_size=4, dense_layers=(0,))
    engine = EndlessEngine(model, schedule)
    (trace, _) = sample_traces(engine, prompts, samples=1, max_new_tokens=30, temperature=1.0, seed=0, eos_token_ids=())
    assert trace.pages_read.tolist() == [schedule.total_pages(5 + index) for index in range(1, 30)]


def test_traces_come_back_and_other_prompts_are_refused(tmp_path, prompts):
    traces = [Trace(1, 3, torch.tensor([6, 7, 8, 1, 2]), True, torch.tensor([2]))]
    save_traces(tmp_path / "traces.pt", traces)
    (found,) = load_traces(tmp_path / "traces.pt", prompts)
    assert (found.prompt, found.prompt_len, found.response, found.stopped) == (1, 3, [1, 2], True)
    with pytest.raises(ValueError, match="trace of prompt 1 answers another prompt"):
        load_traces(tmp_path / "traces.pt", prompts[::-1])
    with pytest.raises(FileNotFoundError, match="nothing.pt does not exist"):
        load_traces(tmp_path / "nothing.pt", prompts)
