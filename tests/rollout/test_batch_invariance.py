"""A sequence is the same, bit for bit, whatever runs beside it and however it was scheduled."""

import pytest
import torch

from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule

ARGUMENTS = {"max_new_tokens": 20, "temperature": 1.0, "seed": 11, "eos_token_ids": [13], "record": ("hidden",)}


def same(left, right):
    return left.token_ids == right.token_ids and all(
        torch.equal(getattr(left, key), getattr(right, key)) for key in ("logprobs", "hidden", "pages_read")
    )


@pytest.mark.parametrize(("family", "budget"), [("qwen3", 2), ("qwen3", None), ("qwen2", 2), ("tiny", 2)])
def test_alone_equals_in_a_batch(family, budget, make_model, make_prompts):
    model, prompts = make_model(family), make_prompts([1, 7, 16, 40, 8, 3, 23])
    schedule = BudgetSchedule.dense(page_size=4) if budget is None else BudgetSchedule.constant(budget, page_size=4)
    keys = [100 + i for i in range(len(prompts))]
    together = RolloutEngine(model, schedule, max_batch=64).generate(prompts, n=3, prompt_keys=keys, **ARGUMENTS)
    few = RolloutEngine(model, schedule, max_batch=5).generate(prompts, n=3, prompt_keys=keys, **ARGUMENTS)
    assert all(same(left, right) for left, right in zip(together, few))
    alone = RolloutEngine(model, schedule, max_batch=1)
    for index in (0, 3, 5):
        single = alone.generate([prompts[index]], n=2, prompt_keys=[keys[index]], **ARGUMENTS)
        assert all(same(left, right) for left, right in zip(single, together[3 * index : 3 * index + 2]))


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3", {"intermediate_size": 83, "hidden_size": 46, "head_dim": 10}),
        ("llama", {"intermediate_size": 101, "hidden_size": 54, "num_attention_heads": 3, "num_key_value_heads": 3}),
        ("qwen2", {"intermediate_size": 77, "hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 1}),
    ],
    ids=["qwen3", "llama", "qwen2"],
)
def test_sizes_that_fill_no_vectors(family, sizes, make_model, make_prompts):
    """What vectors leave over rounds differently, and so may a product by where it starts: both move with the rows."""
    model = make_model(family, **sizes)
    prompts = make_prompts([1, 7, 16, 40, 8, 3, 23])
    schedule, keys = BudgetSchedule.constant(1, page_size=4), [100 + i for i in range(len(prompts))]
    together = RolloutEngine(model, schedule, max_batch=64).generate(prompts, n=3, prompt_keys=keys, **ARGUMENTS)
    for few in (1, 2, 5, 17):
        found = RolloutEngine(model, schedule, max_batch=few).generate(prompts, n=3, prompt_keys=keys, **ARGUMENTS)
        assert all(same(left, right) for left, right in zip(found, together, strict=True))


def test_two_runs_with_one_seed_are_bit_equal_and_other_seeds_are_not(make_model, make_prompts):
    model, prompts = make_model("qwen3"), make_prompts([5, 9])
    schedule = BudgetSchedule.constant(1, page_size=4)
    arguments = {**ARGUMENTS, "n": 2}
    first = RolloutEngine(model, schedule).generate(prompts, **arguments)
    second = RolloutEngine(model, schedule).generate(prompts, **arguments)
    assert all(same(left, right) for left, right in zip(first, second))
    assert first[0].token_ids != first[1].token_ids  # samples of one prompt differ
    for change in ({"seed": 12}, {"step": 1}, {"prompt_keys": [7, 8]}):
        other = RolloutEngine(model, schedule).generate(prompts, **{**arguments, **change})
        assert [c.token_ids for c in other] != [c.token_ids for c in first]


def test_the_global_random_state_is_neither_used_nor_moved(make_model, make_prompts):
    engine = RolloutEngine(make_model("qwen3"))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = engine.generate(make_prompts([5]), **ARGUMENTS)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(first[0], engine.generate(make_prompts([5]), **ARGUMENTS)[0])


def test_a_small_pool_gives_the_tokens_of_a_large_one(make_model, make_prompts):
    """200 sequences through a cache that holds about six of them: none is lost, none differs."""
    model = make_model("qwen3", num_hidden_layers=3)
    prompts = make_prompts([1 + 5 * i % 23 for i in range(50)])
    schedule = BudgetSchedule.constant(1, page_size=4)
    arguments = {"n": 4, "max_new_tokens": 10, "seed": 2, "eos_token_ids": [3, 13]}
    large = RolloutEngine(model, schedule).generate(prompts, **arguments)
    assert [(c.prompt_index, c.sample_index) for c in large] == [(i, j) for i in range(50) for j in range(4)]
    assert {c.finish_reason for c in large} == {"stop", "length"}
    for reserve in (0.0, 1.0):
        engine = RolloutEngine(model, schedule, max_cached_tokens=120, reserve=reserve)
        small = engine.generate(prompts, **arguments)
        assert [c.token_ids for c in small] == [c.token_ids for c in large]
        assert all(torch.equal(left.logprobs, right.logprobs) for left, right in zip(small, large))
        assert engine.last_stats.prompts_prefilled == 50
        assert engine.last_stats.max_rows < 30
        assert (engine.last_stats.paused > 0) == (reserve == 0.0)
