"""Continuous batching without a model: nothing is lost, nothing deadlocks, prompts are prefilled once."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow.rollout.pool import PagePool
from sparrow.rollout.request import Request, pages_needed
from sparrow.rollout.sampler import SamplingParams
from sparrow.rollout.scheduler import Scheduler


def make_pool(pages, page_size):
    return PagePool(
        pages,
        layers=0,
        sparse_layers=[],
        kv_heads=1,
        page_size=page_size,
        head_dim=1,
        width=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def make_scheduler(pool, lengths, **changes):
    arguments = {"samples": 1, "max_new_tokens": 5, "max_batch": 8, "reserve": 0.5, "prefill_tokens": 100}
    return Scheduler(pool, [[0] * length for length in lengths], **{**arguments, **changes})


def simulate(scheduler, pool, lengths, samples, max_new_tokens, rng, draft=0):
    """Runs all sequences to random lengths; returns the order of prefills.

    With ``draft`` each step plans up to so many tokens more, and takes a random number of them back.
    """
    drawn, target, prefilled = {}, {}, []

    def end(slots):
        ended = [
            slot for slot in slots if drawn[int(scheduler.sequence[slot])] == target[int(scheduler.sequence[slot])]
        ]
        scheduler.finish(ended)

    rounds = 0
    while scheduler.unfinished:
        rounds += 1
        assert rounds < 5000
        progress = False
        while admission := scheduler.admit():
            progress = True
            prefilled += [group.prompt_index for group in admission.prompts]
            for slot, group in zip(admission.slots, admission.groups):
                sequence = int(scheduler.sequence[slot])
                assert sequence not in drawn
                assert sequence // samples == group.prompt_index
                assert scheduler.cached[slot] == lengths[group.prompt_index]
                drawn[sequence], target[sequence] = 1, rng.randint(1, max_new_tokens)
            end(admission.slots)
        length_B = np.array([lengths[max(0, int(sequence)) // samples] for sequence in scheduler.sequence])
        extra_B = np.clip(length_B + max_new_tokens - scheduler.cached - 2, 0, draft)
        slots = scheduler.plan(extra_B + 1 if draft else None)
        assert progress or slots.size
        occupied = [slot for slot in range(len(scheduler.sequence)) if scheduler.sequence[slot] >= 0]
        own = []
        for slot in occupied:
            length = lengths[int(scheduler.sequence[slot]) // samples]
            pages = -(-int(scheduler.cached[slot]) // pool.page_size)
            own += scheduler.page_table[slot, length // pool.page_size : pages].tolist()
        assert len(own) == len(set(own)), "two sequences write to one page"
        accepted_B = np.array([rng.randint(0, int(extra_B[slot])) for slot in slots])
        for slot, accepted in zip(slots.tolist(), accepted_B.tolist()):
            sequence = int(scheduler.sequence[slot])
            assert scheduler.cached[slot] == length_B[slot] + drawn[sequence] + extra_B[slot]
            drawn[sequence] = min(drawn[sequence] + accepted + 1, target[sequence])
        scheduler.rewind(slots, scheduler.cached[slots] - extra_B[slots] + accepted_B)
        end(slots.tolist())
    assert drawn == target
    assert sorted(drawn) == list(range(len(lengths) * samples))
    return prefilled


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_every_sequence_completes_in_the_smallest_possible_pool(seed):
    rng = random.Random(seed)
    samples, max_new_tokens, page_size = rng.randint(1, 5), rng.randint(1, 20), rng.choice([1, 3, 4])
    lengths = [rng.randint(1, 15) for _ in range(rng.randint(1, 7))]
    request = Request(
        [[0] * n for n in lengths], [], samples, max_new_tokens, SamplingParams(), 0, 0, frozenset(), False, frozenset()
    )
    least = max(pages_needed(length, request, page_size) for length in lengths)
    pool = make_pool(least + rng.choice([0, 0, 1, 5, 50]), page_size)
    scheduler = make_scheduler(
        pool,
        lengths,
        samples=samples,
        max_new_tokens=max_new_tokens,
        max_batch=rng.randint(1, 9),
        reserve=rng.choice([0.0, 0.5, 1.0]),
        prefill_tokens=rng.choice([1, 20, 1000]),
    )
    prefilled = simulate(scheduler, pool, lengths, samples, max_new_tokens, rng, draft=rng.choice([0, 0, 1, 4, 9]))
    assert prefilled == list(range(len(lengths)))
    assert pool.is_idle
    if scheduler.reserve == 1.0:
        assert scheduler.paused == 0


def test_samples_share_full_pages_and_own_the_partial_one():
    pool = make_pool(20, 4)
    scheduler = make_scheduler(pool, [10], samples=3)
    admission = scheduler.admit()
    tables = scheduler.page_table[admission.slots, :3]
    assert (tables[:, :2] == tables[0, :2]).all()
    assert len(set(tables[:, 2].tolist())) == 3
    assert [pool.holders(page) for page in tables[0, :2].tolist()] == [3, 3]
    # The last sample took the original over; the others have copies of it.
    assert admission.copies == [(int(tables[2, 2]), int(tables[0, 2])), (int(tables[2, 2]), int(tables[1, 2]))]
    assert pool.num_free == 20 - 2 - 3
    assert len(admission.prompts) == 1


def test_a_group_split_by_the_batch_is_still_prefilled_once():
    pool = make_pool(40, 4)
    scheduler = make_scheduler(pool, [6, 6], samples=3, max_batch=2)
    first = scheduler.admit()
    assert (len(first.prompts), len(first.slots)) == (1, 2)
    assert scheduler.admit() is None
    scheduler.plan()
    scheduler.finish([first.slots[0]])
    second = scheduler.admit()
    assert (second.prompts, second.slots) == ([], [first.slots[0]])
    assert second.groups[0] is first.groups[0]


def test_the_oldest_sequence_is_never_refused_a_page():
    # Pages of 1 token. Two sequences of prompt 2, up to 6 cached tokens each: 12 pages would hold both, 8 are there.
    pool = make_pool(8, 1)
    scheduler = make_scheduler(pool, [2, 2], max_batch=2, reserve=0.0)
    older, younger = scheduler.admit().slots
    ran = [scheduler.plan().tolist() for _ in range(4)]
    # 4 free pages, all of which the older one may need: the younger gets none until it ends.
    assert ran == [[older]] * 4
    assert scheduler.paused == 4
    scheduler.finish([older])
    assert [scheduler.plan().tolist() for _ in range(4)] == [[younger]] * 4


@pytest.mark.parametrize(("reserve", "admitted"), [(0.0, 8), (0.5, 4), (1.0, 2)])
def test_reserve_limits_how_many_start(reserve, admitted):
    # Each sequence: 1 page for its prompt, 4 more at its greatest length; 13 pages.
    scheduler = make_scheduler(make_pool(13, 1), [1] * 8, reserve=reserve)
    assert len(scheduler.admit().slots) == admitted


def test_rejected_tokens_give_their_pages_back():
    # Pages of 4. Prompt 6 in 2 pages; 9 further tokens are planned, to 15 in 4 pages, and 4 of them stay: 10 in 3.
    pool = make_pool(10, 4)
    scheduler = make_scheduler(pool, [6], max_new_tokens=20)
    (slot,) = scheduler.admit().slots
    tokens = np.zeros(8, dtype=np.int64)
    tokens[slot] = 9
    assert scheduler.plan(tokens).tolist() == [slot]
    assert (scheduler.cached[slot], pool.num_free) == (15, 6)
    pages = scheduler.page_table[slot, :4].tolist()
    assert len(set(pages)) == 4
    scheduler.rewind(np.array([slot]), np.array([10]))
    assert (scheduler.cached[slot], pool.num_free) == (10, 7)
    assert [pool.holders(page) for page in pages] == [1, 1, 1, 0]
    assert scheduler.plan().tolist() == [slot]
    assert scheduler.page_table[slot, :3].tolist() == pages[:3]
    scheduler.finish([slot])
    assert pool.is_idle


def test_several_pages_are_granted_together_or_not_at_all():
    # Pages of 1 token. Each holds 2 and may come to hold 6; of the 4 free pages the older one gets 3, and then the
    # younger one's 2 would leave it without its last.
    pool = make_pool(8, 1)
    scheduler = make_scheduler(pool, [2, 2], max_batch=2, reserve=0.0)
    older, younger = scheduler.admit().slots
    tokens = np.zeros(2, dtype=np.int64)
    tokens[[older, younger]] = 3, 2
    assert scheduler.plan(tokens).tolist() == [older]
    assert (scheduler.cached[older], scheduler.cached[younger], pool.num_free, scheduler.paused) == (5, 2, 1, 1)
