"""A thousand rewards, many of them badly behaved: bounded time, right outcomes, nothing left, memory flat."""

import os
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from sparrow.rewards.base import FunctionReward, RewardRow
from sparrow.rewards.pool import RewardPool, Task

COUNT, HUNG, CRASHED, FORKED, EATEN = 1000, 100, 50, 50, 20
WORKERS, TIMEOUT_S = 2, 4.0
MEMORY_MB = 512
ROW = RewardRow("test", "1", {"index": 0})


def texts():
    """The kinds spread over the whole list; the rest score their own number."""
    kinds = ["hang"] * HUNG + ["crash"] * CRASHED + ["fork"] * FORKED + ["eat"] * EATEN
    step = COUNT // len(kinds)
    listed = [str(number) for number in range(COUNT)]
    for place, kind in enumerate(kinds):
        number = (place * 7 % len(kinds)) * step
        listed[number] = f"fork {number}" if kind == "fork" else kind
    return listed


def resident_mb():
    """Memory of this process and of all below it."""
    own = psutil.Process()
    found = 0
    for process in (own, *own.children(recursive=True)):
        try:
            found += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found / 2**20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_rewards_with_320_faulty_or_forking_ones(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    from pool_rewards import behave

    listed = texts()
    kinds = Counter(text.split()[0] if not text.isdigit() else "number" for text in listed)
    assert kinds == {"number": 780, "hang": HUNG, "crash": CRASHED, "fork": FORKED, "eat": EATEN}
    tasks = [Task(FunctionReward(behave, isolated=True), text, ROW, "stop") for text in listed]
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    files = len(os.listdir("/proc/self/fd"))
    memory, outcomes = [], []
    start = time.monotonic()
    with RewardPool(workers=WORKERS, timeout_s=TIMEOUT_S, memory_mb=MEMORY_MB) as pool:
        for part in range(0, COUNT, 100):
            outcomes += pool.run(tasks[part : part + 100])
            memory.append(resident_mb())
        processes = len(psutil.Process().children(recursive=True)) - len(before)
    seconds = time.monotonic() - start
    bound = TIMEOUT_S * HUNG / WORKERS * 1.2
    print(f"{seconds:.1f} s of {bound:.1f} s allowed; memory in MiB {[round(value) for value in memory]}")
    for text, outcome in zip(listed, outcomes, strict=True):
        label = {"hang": "timeout", "crash": "error", "eat": "error"}.get(text, "correct")
        score = float(text.split()[-1]) if label == "correct" else 0.0
        assert (outcome.label, outcome.score) == (label if score or label != "correct" else "wrong", score), text
    assert processes <= WORKERS + 1
    assert {process.pid for process in psutil.Process().children(recursive=True)} == before
    assert len(os.listdir("/proc/self/fd")) == files
    assert max(memory) < memory[0] + 64
    assert seconds < bound
