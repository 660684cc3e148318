"""Loaders: order, slices and exact resumption, as Lightning drives them and by hand."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.data.loader import EvaluationLoader, PromptLoader
from sparrow.data.schema import Prompt, PromptRow


def prompts(count):
    truth = {"style": "rule", "ground_truth": "1"}
    rows = [PromptRow("a", [{"role": "user", "content": str(i)}], truth, "", {"index": i}) for i in range(count)]
    return [Prompt(row, [i], key=i) for i, row in enumerate(rows)]


def ids(batches):
    return [[prompt.key for prompt in batch["prompts"]] for batch in batches]


def epochs(loader, first, last):
    """What Lightning does: set_epoch, then iterate, for each epoch."""
    seen = []
    for epoch in range(first, last):
        loader.sampler.set_epoch(epoch)
        seen += ids(loader)
    return seen


def test_an_epoch_is_a_permutation_less_its_tail():
    loader = PromptLoader(prompts(11), 4, seed=3)
    batches = ids(loader)
    flat = [key for batch in batches for key in batch]
    assert [len(batch) for batch in batches] == [4, 4]
    assert len(loader) == 2
    assert loader.dropped == 3
    assert len(set(flat)) == 8
    assert set(flat) < set(range(11))
    assert flat == loader.order(0)[:8]


def test_order_follows_seed_and_epoch_only():
    first = epochs(PromptLoader(prompts(32), 4, seed=0), 0, 2)
    assert first == epochs(PromptLoader(prompts(32), 4, seed=0), 0, 2)
    assert first[:8] != first[8:]
    assert first != epochs(PromptLoader(prompts(32), 4, seed=1), 0, 2)
    # Epoch 1 of seed 0 is not epoch 0 of seed 1.
    assert first[8:] != epochs(PromptLoader(prompts(32), 4, seed=1), 0, 1)


def test_ranks_share_every_global_batch():
    whole = ids(PromptLoader(prompts(26), 6, seed=5))
    parts = [ids(PromptLoader(prompts(26), 6, seed=5, rank=rank, world_size=3)) for rank in range(3)]
    assert [[key for part in step for key in part] for step in zip(*parts, strict=True)] == whole
    assert {len(part) for part in parts} == {4}


def test_stopping_and_resuming_at_every_batch_is_exact():
    straight = epochs(PromptLoader(prompts(13), 4, seed=7), 0, 3)
    for stop in range(len(straight) + 1):
        loader, seen, state = PromptLoader(prompts(13), 4, seed=7), [], None
        for epoch in range(3):
            loader.set_epoch(epoch)
            for batch in loader:
                if len(seen) == stop:
                    break
                seen += ids([batch])
                state = copy.deepcopy(loader.state_dict())
        resumed = PromptLoader(prompts(13), 4, seed=99)
        first = 0
        if state is not None and stop > 0:
            resumed.load_state_dict(state)
            first = state["epoch"] + (state["position"] == len(resumed))
        else:
            resumed.seed = 7
        assert straight[:stop] + epochs(resumed, first, 3) == straight, stop


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5), st.data())
def test_resume_property(count, share, world_size, epoch, data):
    size = share * world_size
    if count < size:
        count += size
    rank = data.draw(st.integers(0, world_size - 1))
    loader = PromptLoader(prompts(count), size, 11, rank, world_size)
    loader.set_epoch(epoch)
    straight = ids(loader)
    stop = data.draw(st.integers(1, len(straight)))
    loader.set_epoch(epoch)
    batches = iter(loader)
    for _ in range(stop):
        next(batches)
    resumed = PromptLoader(prompts(count), size, 0, rank, world_size)
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(epoch)
    rest = straight[stop:] if stop < len(straight) else straight  # at the end, the same epoch asked again starts anew
    assert ids(resumed) == rest
    resumed.set_epoch(epoch + 1)
    loader.set_epoch(epoch + 1)
    assert ids(resumed) == ids(loader)


def test_state_is_the_same_on_every_rank():
    loaders = [PromptLoader(prompts(12), 4, 1, rank, 2) for rank in range(2)]
    states = []
    for loader in loaders:
        loader.set_epoch(2)
        batches = iter(loader)
        next(batches)
        states.append(loader.state_dict())
    assert states[0] == states[1]
    assert {name: states[0][name] for name in ("seed", "epoch", "position", "world_size")} == {
        "seed": 1, "epoch": 2, "position": 1, "world_size": 2,
    }  # fmt: skip


def test_another_epoch_than_the_resumed_one_starts_at_its_first_batch():
    loader = PromptLoader(prompts(8), 2, seed=0)
    next(iter(loader))
    resumed = PromptLoader(prompts(8), 2, seed=0)
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(1)
    assert len(ids(resumed)) == 4


@pytest.mark.parametrize(
    ("count", "size", "world_size", "message"),
    [
        (12, 4, 2, "world_size was 1 when the checkpoint was written and is 2 now"),
        (12, 6, 1, "prompts_per_step was 4 .* and is 6 now"),
        (16, 4, 1, "num_prompts was 12 .* and is 16 now"),
    ],
)
def test_resume_with_another_layout_is_refused_naming_both(count, size, world_size, message):
    state = PromptLoader(prompts(12), 4, 0).state_dict()
    with pytest.raises(ValueError, match=message):
        PromptLoader(prompts(count), size, 0, 0, world_size).load_state_dict(state)


def test_resume_with_other_prompts_is_refused():
    state = PromptLoader(prompts(12), 4, 0).state_dict()
    with pytest.raises(ValueError, match=r"fingerprint was .* and is .* now"):
        PromptLoader(prompts(12)[::-1], 4, 0).load_state_dict(state)


@pytest.mark.parametrize(
    ("count", "size", "rank", "world_size", "message"),
    [
        (3, 4, 0, 1, "prompts_per_step=4, but the set has only 3 prompts"),
        (8, 3, 0, 2, "prompts_per_step=3 is not allowed with world_size=2; allowed: a positive multiple"),
        (8, 0, 0, 1, "prompts_per_step=0 is not allowed"),
        (8, 4, 2, 2, "rank=2 of world_size=2 is not allowed"),
    ],
)
def test_sizes_that_do_not_fit(count, size, rank, world_size, message):
    with pytest.raises(ValueError, match=message):
        PromptLoader(prompts(count), size, 0, rank, world_size)


def test_the_dropped_tail_is_stated(caplog):
    with caplog.at_level("INFO", logger="sparrow.data.loader"):
        PromptLoader(prompts(11), 4, seed=3)
    assert "leaves out 3 of 11 prompts" in caplog.text


@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 4))
def test_evaluation_covers_every_prompt_once_in_equal_numbers_of_batches(count, share, world_size):
    size = share * world_size
    parts = [ids(EvaluationLoader(prompts(count), size, rank, world_size)) for rank in range(world_size)]
    assert {len(part) for part in parts} == {-(-count // size)}
    assert [key for step in zip(*parts, strict=True) for part in step for key in part] == list(range(count))


def test_last_evaluation_batch_is_spread_evenly():
    parts = [ids(EvaluationLoader(prompts(11), 8, rank, 4))[1] for rank in range(4)]
    assert parts == [[], [8], [9], [10]]
