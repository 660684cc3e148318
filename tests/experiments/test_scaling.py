"""The model of a step on many devices, on numbers worked by hand."""

import random
from dataclasses import replace

import pytest

from experiments.scaling.model import (
    Job,
    Network,
    Phases,
    communication_seconds,
    decode_steps,
    draw_lengths,
    ring_seconds,
    simulate,
)
from experiments.scaling.study import roofline_phases, scale
from sparrow.schedule import BudgetSchedule

NETWORK = Network(per_node=8, inside=100e9, between=10e9, latency_s=1e-5)
PHASES = Phases(decode_step_s=0.01, decode_row_s=0.001, train_token_s=1e-4, fixed_s=0.5, source="made up")
JOB = Job(
    prompts=4,
    samples=2,
    max_batch=2,
    median=100.0,
    sigma=0.0,
    limit=1000,
    parameters=10**9,
    layers=10,
    sharded=False,
    micro_batch_tokens=100,
)


def test_a_ring_sends_all_but_its_own_share() -> None:
    # 8 ranks inside a node: 7 hops of 1 GB / 8 at 100 GB/s, 7 x (1.25 ms + 0.01 ms).
    assert ring_seconds(1e9, 8, NETWORK) == pytest.approx(7 * (1.25e-3 + 1e-5))
    # 16 ranks on two nodes: 15 hops of 62.5 MB at 10 GB/s.
    assert ring_seconds(1e9, 16, NETWORK) == pytest.approx(15 * (6.25e-3 + 1e-5))
    assert ring_seconds(1e9, 1, NETWORK) == 0.0


def test_ddp_sums_once_and_fsdp2_gathers_for_every_pass() -> None:
    # 4 GB of gradients over 4 ranks: 3 hops of 1 GB at 100 GB/s, there and back.
    assert communication_seconds(JOB, 4, 3, NETWORK) == pytest.approx(2 * 3 * (0.01 + 1e-5))
    # Weights 2 GB: 3 hops of 0.5 GB = 15 ms, and 10 x 3 latencies; gradients twice the bytes.
    low, full = 0.015 + 30e-5, 0.03 + 30e-5
    sharded = replace(JOB, sharded=True)
    assert communication_seconds(sharded, 4, 3, NETWORK) == pytest.approx(low + 3 * (2 * low + full))


def test_decode_steps_with_fewer_places_than_sequences() -> None:
    # Two places: 5 | 3, then 4 after the 3 (7), then 2 after the 5 (7).
    assert decode_steps([5, 3, 4, 2], 2) == 7
    assert decode_steps([5, 3, 4, 2], 4) == 5
    assert decode_steps([5, 3, 4, 2], 1) == 14


def test_lengths_are_log_normal_and_cut() -> None:
    assert draw_lengths(JOB, 3, random.Random(0)) == [100, 100, 100]
    drawn = sorted(draw_lengths(replace(JOB, sigma=0.5), 20001, random.Random(0)))
    assert drawn[10000] == pytest.approx(100, rel=0.02)
    assert drawn[16828] == pytest.approx(100 * 2.71828**0.5, rel=0.03)  # one standard deviation above: 84.13 %
    assert max(draw_lengths(replace(JOB, sigma=3.0), 1000, random.Random(0))) == 1000


def test_a_step_of_equal_lengths_by_hand() -> None:
    # 2 ranks, 4 completions of 100 tokens each, two at a time: 200 decode steps and 400 rows.
    step = simulate(JOB, PHASES, NETWORK, 2, lambda length: 2.0 * length, seed=0)
    assert step.generation == pytest.approx(200 * 0.01 + 400 * 0.001)
    assert step.update == pytest.approx(400 * 2 * 1e-4)
    assert step.communication == pytest.approx(2 * (4e9 / 2 / 100e9 + 1e-5))
    assert (step.rollout_idle, step.update_idle) == (0.0, 0.0)
    assert step.seconds == pytest.approx(2.4 + 0.08 + step.communication + 0.5)
    with pytest.raises(ValueError, match="must be a multiple of 3 ranks"):
        simulate(JOB, PHASES, NETWORK, 3, float, seed=0)


def test_balance_shortens_the_update_and_leaves_the_rollout() -> None:
    job = replace(JOB, prompts=16, samples=8, sigma=1.0)
    moved, stayed = (simulate(replace(job, balance=b), PHASES, NETWORK, 8, float, seed=1) for b in (True, False))
    assert moved.generation == stayed.generation
    assert moved.update < stayed.update
    assert moved.update_idle < 0.06 < stayed.update_idle


def test_without_a_network_and_a_tail_scaling_is_perfect_but_for_the_fixed_part() -> None:
    free = replace(NETWORK, inside=1e30, between=1e30, latency_s=0.0)
    phases = replace(PHASES, decode_step_s=0.0, fixed_s=0.0)
    rows = scale(JOB, phases, free, (1, 2, 4), float, weak=False, seeds=1)
    assert [row["efficiency"] for row in rows] == pytest.approx([1.0, 1.0, 1.0])
    assert [row["prompts"] for row in rows] == [4, 4, 4]
    weak = scale(JOB, phases, free, (1, 2, 4), float, weak=True, seeds=1)
    assert [row["efficiency"] for row in weak] == pytest.approx([1.0, 1.0, 1.0])
    assert [row["prompts"] for row in weak] == [4, 8, 16]


def test_phases_from_a_roofline_by_hand() -> None:
    # Qwen3-1.7B: 1,720,574,976 weights of 2 bytes read at half of 4.8 TB/s; 6 operations a weight at half of 989e12.
    phases = roofline_phases("qwen3-1.7b", "h200", BudgetSchedule.dense(), length=1000, efficiency=0.5)
    assert phases.decode_step_s == pytest.approx(2 * 1_720_574_976 / 2.4e12)
    assert phases.train_token_s == pytest.approx(6 * 1_720_574_976 / 494.5e12)
    # Dense, from 1 to 1000 tokens: 500.5 on average, 28 layers x 2 x 8 heads x 128 numbers of 2 bytes a token.
    assert phases.decode_row_s == pytest.approx(500.5 * 28 * 2 * 8 * 128 * 2 / 2.4e12, rel=1e-3)
