"""Turns, medians and what cannot run."""

import time

import pytest
import torch

from sparrow.benchmarks.timing import Clock, InTurn, Timing, interleave, rotated

CPU = torch.device("cpu")


def test_timing_summarises_its_calls() -> None:
    timing = Timing((3.0, 1.0, 2.0, 10.0))
    assert (timing.median, timing.fastest, timing.slowest) == (2.5, 1.0, 10.0)


def test_rotated_starts_elsewhere_each_turn() -> None:
    assert [rotated(["a", "b", "c"], turn) for turn in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    assert rotated([], 3) == []


def test_candidates_run_in_turns() -> None:
    called: list[str] = []
    measured = interleave(
        {name: lambda name=name: called.append(name) for name in "ab"}, Clock(CPU, 1), repeats=3, warmup=2
    )
    assert "".join(called) == "aabb" + "ab" + "ba" + "ab"
    assert {name: len(timing.seconds) for name, timing in measured.timings.items()} == {"a": 3, "b": 3}


def test_a_slow_candidate_sits_out_the_last_rounds() -> None:
    called: list[str] = []

    def slow() -> None:
        called.append("s")
        time.sleep(0.01)

    candidates = {"fast": lambda: called.append("f"), "slow": slow}
    measured = interleave(candidates, Clock(CPU, 1), repeats=20, warmup=1, budget_s=0.05)
    assert {name: len(timing.seconds) for name, timing in measured.timings.items()}["fast"] == 20
    assert 3 <= len(measured.timings["slow"].seconds) <= 5
    assert called[-10:] == ["f"] * 10


def test_calls_in_turn_give_the_time_of_one() -> None:
    called: list[int] = []

    def call(index: int) -> None:
        called.append(index)
        time.sleep(0.01)

    in_turn = InTurn(tuple(lambda index=index: call(index) for index in range(4)))
    measured = interleave({"layers": in_turn}, Clock(CPU, 1), repeats=5, warmup=1, budget_s=0.15)
    # Each round visits the last one first, untimed. A round takes 0.04 s, so the budget holds three; one has warmed up.
    assert called == [3, 0, 1, 2, 3] * 4
    assert all(0.01 <= seconds < 0.03 for seconds in measured.timings["layers"].seconds)


def test_a_budget_leaves_three_rounds() -> None:
    measured = interleave({"slow": lambda: time.sleep(0.02)}, Clock(CPU, 1), repeats=9, warmup=1, budget_s=0.001)
    assert len(measured.timings["slow"].seconds) == 3


def test_what_runs_out_of_memory_is_left_out_with_its_reason() -> None:
    def greedy() -> None:
        raise torch.OutOfMemoryError("tried to allocate 7 TiB\nand more lines")

    measured = interleave({"greedy": greedy, "modest": lambda: None}, Clock(CPU, 1), repeats=2, warmup=1)
    assert set(measured.timings) == {"modest"}
    assert measured.failures == {"greedy": "out of memory: tried to allocate 7 TiB"}


def test_other_errors_are_errors() -> None:
    def broken() -> None:
        raise RuntimeError("broken kernel")

    with pytest.raises(RuntimeError, match="broken kernel"):
        interleave({"broken": broken}, Clock(CPU, 1), repeats=1, warmup=1)


def test_clock_tells_seconds() -> None:
    assert 0.02 <= Clock(CPU, 1).time(lambda: time.sleep(0.02)) < 2.0
