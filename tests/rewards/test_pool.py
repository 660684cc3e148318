"""The reward pool: bounded time whatever rewards do, order kept, every outcome counted, nothing left behind."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from sparrow.rewards.base import FunctionReward, RewardRow
from sparrow.rewards.pool import RewardPool, Task
from sparrow.rewards.score import Sample, Scorer

HERE = str(Path(__file__).parent)
ROW = RewardRow("test", "1", {"index": 0})


@pytest.fixture
def tasks(monkeypatch):
    """Makes tasks of the badly behaved reward, importable by workers."""
    monkeypatch.syspath_prepend(HERE)
    from pool_rewards import behave

    return lambda *texts: [Task(FunctionReward(behave, isolated=True), text, ROW, "stop") for text in texts]


def processes():
    """Ids of this process's descendants, zombies included."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_sixty_rewards_with_hanging_crashing_and_raising_ones(tasks):
    before = processes()
    texts = [str(number) for number in range(60)]
    for place in (0, 11, 22, 33, 44, 55):
        texts[place] = "hang"
    for place in (1, 31, 59):
        texts[place] = "crash"
    for place in (2, 32, 58):
        texts[place] = "raise"
    with RewardPool(workers=2, timeout_s=0.5) as pool:
        start = time.monotonic()
        outcomes = pool.run(tasks(*texts))
        seconds = time.monotonic() - start
        assert pool.restarts == 9
        assert len(processes() - before) <= 2
    assert Counter(outcome.label for outcome in outcomes) == {"correct": 48, "timeout": 6, "error": 6}
    assert [outcome.score for outcome in outcomes] == [float(text) if text.isdigit() else 0.0 for text in texts]
    assert outcomes[1].detail == "the worker process died (exit code 3)"
    assert outcomes[2].detail == "RuntimeError: as told"
    # 6 time-outs of 0.5 s over 2 workers are 1.5 s; the rest is 11 starts of an interpreter.
    assert seconds < 1.5 + 11 * 4
    assert processes() == before


@pytest.mark.parametrize(
    ("text", "label", "detail"),
    [
        ("spin", "timeout", "not done after 1 s"),
        ("child", "timeout", "not done after 1 s"),
        ("exit", "error", "SystemExit: 4"),
        ("hog", "error", "MemoryError: "),
        ("bad", "error", "ValueError: outcome score nan is not allowed; it must be finite"),
        ("not a number", "error", "ValueError: could not convert string to float: 'not a number'"),
        ("print", "correct", ""),
        ("fork 6", "correct", ""),
    ],
)
def test_each_kind_of_misbehaviour_is_one_samples_outcome(tasks, text, label, detail):
    before = processes()
    with RewardPool(workers=1, timeout_s=1.0) as pool:
        first, bad, last = pool.run(tasks("5", text, "7"))
    assert (first.score, last.score) == (5.0, 7.0)
    assert (bad.label, bad.detail) == (label, detail)
    assert processes() == before


def test_the_clock_starts_with_the_task_not_with_the_queue(tasks):
    with RewardPool(workers=1, timeout_s=1.0) as pool:
        outcomes = pool.run(tasks(*["sleep 0.4"] * 6))
    assert [outcome.label for outcome in outcomes] == ["correct"] * 6


def test_workers_are_kept_and_recycled(tasks):
    with RewardPool(workers=1, timeout_s=5.0, tasks_per_worker=3) as pool:
        pids = [outcome.score for outcome in pool.run(tasks(*["pid"] * 4)) + pool.run(tasks(*["pid"] * 3))]
        assert pool.restarts == 2
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


def test_a_worker_killed_while_idle_is_replaced(tasks):
    with RewardPool(workers=1, timeout_s=5.0) as pool:
        (first,) = pool.run(tasks("pid"))
        psutil.Process(int(first.score)).kill()
        psutil.Process(int(first.score)).wait()
        (second,) = pool.run(tasks("pid"))
    assert second.label == "correct"
    assert second.score != first.score


def test_a_reward_that_cannot_be_pickled_is_named():
    with RewardPool(workers=1) as pool, pytest.raises(TypeError, match=r"runs in another process, but .* importable"):
        pool.run([Task(FunctionReward(lambda completion, row: 1.0), "x", ROW, "stop")])


def test_a_reward_that_a_worker_cannot_import_is_an_error_that_says_so(tasks, monkeypatch):
    (task,) = tasks("1")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != HERE])
    with RewardPool(workers=1) as pool:
        (outcome,) = pool.run([task])
    assert outcome.label == "error"
    assert "No module named 'pool_rewards'" in outcome.detail
    assert "importable module" in outcome.detail


def test_no_tasks_start_no_worker():
    before = processes()
    with RewardPool(workers=2) as pool:
        assert pool.run([]) == []
        assert processes() == before


@pytest.mark.parametrize("name", ["workers", "timeout_s", "memory_mb", "tasks_per_worker"])
def test_numbers_that_are_not_positive(name):
    with pytest.raises(ValueError, match=f"{name}=0 is not allowed; it must be above 0"):
        RewardPool(**{name: 0})


def test_workers_end_with_a_parent_that_is_killed(tasks, tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {HERE!r})\n"
        "from pool_rewards import behave\n"
        "from sparrow.rewards.base import FunctionReward, RewardRow\n"
        "from sparrow.rewards.pool import RewardPool, Task\n"
        "row, reward = RewardRow('t', '1'), FunctionReward(behave, isolated=True)\n"
        "pool = RewardPool(workers=2, timeout_s=600)\n"
        "pool.run([Task(reward, 'pid', row, 'stop')])\n"
        "print('ready', flush=True)\n"
        "pool.run([Task(reward, 'hang', row, 'stop')])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "ready\n"
    time.sleep(0.3)
    workers = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, left = psutil.wait_procs(workers, timeout=10)
    assert len(workers) == 1
    assert left == []


def test_a_thousand_rewards_leave_no_process_and_no_file_open(tasks):
    before, files = processes(), len(os.listdir("/proc/self/fd"))
    with RewardPool(workers=2, timeout_s=5.0) as pool:
        outcomes = pool.run(tasks(*map(str, range(1000))))
    assert [outcome.score for outcome in outcomes] == list(range(1000))
    assert processes() == before
    assert len(os.listdir("/proc/self/fd")) == files


def test_scorer_runs_only_isolated_rewards_in_workers(tasks):
    isolated = tasks("pid")[0].reward
    inline = FunctionReward(isolated.function)
    with Scorer(routes={"here": inline, "there": isolated}, workers=1) as scorer:
        samples = [
            Sample("pid", {"data_source": name, "reward_model": {"ground_truth": "1"}}) for name in ("here", "there")
        ]
        here, there = scorer.score(samples)
        assert scorer.counts == {"correct": 2}
    assert here.score == os.getpid()
    assert there.score != os.getpid()


def test_a_forked_process_that_comes_back_does_not_answer(tasks):
    """Its answer would pass for that of the next task."""
    texts = [text for number in range(8) for text in (f"return_twice {number}", "raise_twice", str(100 + number))]
    with RewardPool(workers=1, timeout_s=30.0) as pool:
        outcomes = pool.run(tasks(*texts))
    expected = [score for number in range(8) for score in (float(number), 0.0, 100.0 + number)]
    assert [outcome.score for outcome in outcomes] == expected
    assert pool.restarts == 0


def test_numbers_and_details_of_other_kinds_travel(tasks):
    with RewardPool(workers=1, timeout_s=30.0) as pool:
        (outcome,) = pool.run(tasks("foreign"))
    assert (outcome.score, outcome.label, outcome.detail) == (0.5, "correct", "['no text']")


def test_an_unknown_finish_reason_is_refused_before_a_worker_sees_it(tasks):
    (task,) = tasks("1")
    with Scorer(reward=task.reward) as scorer, pytest.raises(ValueError, match="finish_reason 'eos' is unknown"):
        scorer.score([Sample("1", ROW, "eos")])
