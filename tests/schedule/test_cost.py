"""The cost model against numbers worked by hand, a step-by-step count and the study's figures."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from sparrow.schedule import BudgetSchedule, published_schedule
from sparrow.schedule.cost import GPU_INTENSITY, MODEL_SHAPES, Cost, ModelShape, attention_bound, rollout_cost

SMALL = ModelShape(parameters=100, layers=3, heads=4, kv_heads=2, head_dim=5)
"""20 elements of keys and values per token and layer, 60 in all; r = 2."""

FIXED = {"samples": 2, "prompt_len": 3, "response_len": 6, "intensity": 10.0}
"""Steps at t = 4, 5, 6, 7, 8, 9 (39 in all): 2, 3, 3, 4, 4, 5 pages of 2 tokens."""


def test_bytes_dense() -> None:
    # Elements read per sample: 60 * 39 = 2340. compute = 2 (2*100*6 + 2*2*2340); memory = 2 (100*6 + 2*2340).
    expected = Cost(compute=21120, memory=10560, total=126720)
    assert rollout_cost(SMALL, **FIXED, schedule=None) == expected
    assert rollout_cost(SMALL, **FIXED, schedule=BudgetSchedule.dense(page_size=2)) == expected
    all_layers = BudgetSchedule.constant(0, page_size=2, dense_layers=(0, 1, 2, 3))
    assert rollout_cost(SMALL, **FIXED, schedule=all_layers) == expected
    large = BudgetSchedule.constant(3, page_size=2, first=1, last=1)
    assert rollout_cost(SMALL, **FIXED, schedule=large) == expected  # 5 pages are all there are


def test_bytes_constant_budget() -> None:
    # 1 + 2 reserved pages: left out 0, 0, 0, 1, 1, 2 of them, so read 4, 5, 6, 5, 6, 5 = 31 tokens and score the
    # 4 + 4 + 5 = 13 pages of the last three steps. One dense layer: 20*39 + 40*31 = 2020 elements, 20*13 = 260 of
    # landmarks. compute = 2 (1200 + 4*2020 + 2*260); memory = 2 (600 + 2 (2020 + 260)).
    schedule = BudgetSchedule.constant(1, page_size=2, first=1, last=1, dense_layers=(0,))
    assert rollout_cost(SMALL, **FIXED, schedule=schedule) == Cost(compute=19600, memory=10320, total=122800)


def test_bytes_two_bins() -> None:
    # Bins of 6 tokens: pages(t) = 0, 2, 2, 2, 2, 2, totals 2, 4, 4, 4, 4, 4, so only the last step leaves a page out:
    # read 37 tokens, score 5 pages. 20*39 + 40*37 = 2260 elements, 100 of landmarks.
    schedule = BudgetSchedule([0, 2], page_size=2, bin_tokens=6, first=1, last=1, dense_layers=(0,))
    assert rollout_cost(SMALL, **FIXED, schedule=schedule) == Cost(compute=20880, memory=10640, total=127280)


def test_paper_dense() -> None:
    # compute = 2*100*2*6 + 2 (2*3 + 6) 6*2*60; memory = 2*3*6*60 + 2*36*60.
    expected = Cost(compute=19680, memory=6480, total=84480)
    assert rollout_cost(SMALL, **FIXED, schedule=None, convention="paper") == expected


def test_paper_constant_budget() -> None:
    # B = 2 pages = 4 tokens. core: 2400 + 2*2*2*60*4*6 = 13920 and 2*2*60*4*6 = 5760 bytes.
    # score: 2*2*3*60*6 + 2*2*60*36/4 = 4320 + 2160 and 2*3*60*6 + 2*60*36/4 = 2160 + 1080 bytes.
    schedule = BudgetSchedule.constant(0, page_size=2, first=1, last=1)
    expected = Cost(compute=20400, memory=9000, total=110400)
    assert rollout_cost(SMALL, **FIXED, schedule=schedule, convention="paper") == expected


def test_paper_two_bins() -> None:
    # B = 4, 8, 8, 8, 8, 8 tokens = 44, also where the cache is shorter (5 tokens at the second step).
    # core: 2400 + 4*120*44 = 23520 and 2*120*44 = 10560 bytes; score as above.
    schedule = BudgetSchedule([0, 2], page_size=2, bin_tokens=6, first=1, last=1)
    expected = Cost(compute=30000, memory=13800, total=168000)
    assert rollout_cost(SMALL, **FIXED, schedule=schedule, convention="paper") == expected


@pytest.mark.parametrize(
    ("schedule", "prompt_len", "response_len"),
    [
        (published_schedule("qwen3-1.7b-0.86"), 100, 9000),
        (published_schedule("qwen3-4b-0.75"), 1983, 3),
        (BudgetSchedule([3, 1, 5], page_size=7, bin_tokens=20, first=0, last=1, dense_layers=()), 0, 200),
        (BudgetSchedule([2, 2**30], page_size=4, bin_tokens=64, dense_layers=(1,)), 11, 300),
    ],
    ids=["published", "short", "odd", "partly-dense"],
)
def test_bytes_equals_a_count_step_by_step(schedule: BudgetSchedule, prompt_len: int, response_len: int) -> None:
    shape = ModelShape(parameters=12345, layers=5, heads=12, kv_heads=4, head_dim=80)
    samples, compute, memory = 3, 0, 0
    for cached in range(prompt_len + 1, prompt_len + response_len + 1):
        pages, total, page = schedule.num_pages(cached), schedule.total_pages(cached), schedule.page_size
        memory += 2 * shape.parameters
        compute += 2 * shape.parameters * samples
        for layer in range(shape.layers):
            sparse = layer not in schedule.dense_layers and total < pages
            tokens = (total - 1) * page + (cached - (pages - 1) * page) if sparse else cached
            landmarks = pages if sparse else 0
            memory += samples * shape.kv_heads * shape.head_dim * 2 * (2 * tokens + landmarks)
            compute += samples * shape.head_dim * (4 * shape.heads * tokens + 2 * shape.kv_heads * landmarks)
    cost = rollout_cost(
        shape, samples=samples, prompt_len=prompt_len, response_len=response_len, schedule=schedule, intensity=7
    )
    assert cost == Cost(compute, memory, compute + 7 * memory)


@pytest.mark.parametrize(("samples", "whole", "last_step"), [(16, 2.9, 3.9), (64, 3.4, 4.4)])
def test_gains_of_a_perfect_engine(samples: int, whole: float, last_step: float) -> None:
    """Bytes alone, 0 to 32K tokens and one step at 32K, under the study's schedule."""

    def gain(prompt_len: int, response_len: int) -> float:
        dense, sparse = (
            rollout_cost(
                MODEL_SHAPES["qwen3-1.7b"],
                samples=samples,
                prompt_len=prompt_len,
                response_len=response_len,
                schedule=schedule,
                intensity=GPU_INTENSITY["h200"],
            )
            for schedule in (None, published_schedule("qwen3-1.7b-0.86"))
        )
        return dense.memory / sparse.memory

    assert round(gain(0, 32_768), 1) == whole
    assert round(gain(32_767, 1), 1) == last_step


@pytest.mark.parametrize(("cached", "milliseconds"), [(16_000, 1.7), (24_000, 2.0), (32_000, 2.3)])
def test_roofline_of_one_step(cached: int, milliseconds: float) -> None:
    """Batch of 16, 64 pages of 16 tokens, at the 4.8 TB/s of an H200 (the reference figures keep one digit)."""
    cost = rollout_cost(
        MODEL_SHAPES["qwen3-1.7b"],
        samples=16,
        prompt_len=cached - 1,
        response_len=1,
        schedule=BudgetSchedule.constant(61),
        intensity=0,
    )
    assert cost.total == cost.compute
    assert cost.memory / 4.8e12 * 1000 == pytest.approx(milliseconds, abs=0.1)


def test_attention_bound() -> None:
    schedule = published_schedule("qwen3-1.7b-0.86")
    assert attention_bound(2000, schedule) == 4000 / (125 + 32 * 64)
    assert [round(attention_bound(t, schedule), 1) for t in (2000, 16_000, 38_000)] == [1.8, 3.9, 7.2]
    assert attention_bound(32 * 16, schedule) == 1.0
    assert attention_bound(32 * 16 + 1, schedule) == 1026 / (513 / 16 + 32 * 32)  # a page saved, the landmarks read
    assert attention_bound(100, BudgetSchedule.constant(3, page_size=4)) == 200 / (25 + 8 * 6)
    assert attention_bound(10**6, BudgetSchedule.dense()) == 1.0


@pytest.mark.parametrize(
    ("name", "hidden", "intermediate", "tied"),
    [
        ("qwen3-0.6b", 1024, 3072, True),
        ("qwen3-1.7b", 2048, 6144, True),
        ("qwen3-4b", 2560, 9728, True),
        ("qwen3-8b", 4096, 12288, False),
        ("qwen3-14b", 5120, 17408, False),
        ("qwen3-32b", 5120, 25600, False),
    ],
)
def test_model_shapes_count_the_architecture(name: str, hidden: int, intermediate: int, tied: bool) -> None:
    shape = MODEL_SHAPES[name]
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    assert model.num_parameters() == shape.parameters


def test_intensities_are_the_data_sheets() -> None:
    assert {name: round(value) for name, value in GPU_INTENSITY.items()} == {
        "a100": 153,
        "h100": 295,
        "h200": 206,
        "b200": 281,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "samples=0: must be 1 or more"),
        ({"prompt_len": -1}, "prompt_len=-1: must be 0 or more"),
        ({"response_len": 0}, "response_len=0: must be 1 or more"),
        ({"intensity": -1.0}, "intensity=-1.0: must be 0 or more operations per byte"),
        ({"intensity": float("nan")}, "intensity=nan: must be 0 or more"),
        ({"convention": "flops"}, "convention='flops': must be 'bytes' or 'paper'"),
    ],
)
def test_wrong_values_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollout_cost(SMALL, **{**FIXED, "schedule": None, **change})  # type: ignore[arg-type]


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="layers=0: must be above 0"):
        ModelShape(100, layers=0, heads=4, kv_heads=2, head_dim=5)
    with pytest.raises(ValueError, match="heads=9 is not a multiple of kv_heads=2"):
        ModelShape(100, layers=1, heads=9, kv_heads=2, head_dim=5)
