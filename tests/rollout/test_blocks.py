"""Looking at sequences every few tokens changes nothing that a caller can see, but when rows and pages come free."""

import dataclasses
import math
from itertools import pairwise

import pytest
import torch

from sparrow.kernels import get_page_score
from sparrow.models.families import decoder_weights
from sparrow.rollout import RolloutEngine, graphs
from sparrow.rollout.graphs import addresses, bucket
from sparrow.rollout.options import POLL_EVERY, Pace
from sparrow.schedule import BudgetSchedule
from tests.rollout.test_engine import add_lora

# PEFT 0.21 asks transformers 5.24 for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SPARSE = BudgetSchedule.constant(1, page_size=4)
BINS = BudgetSchedule(pages=[0, 3, 1], bin_tokens=16, page_size=4, first=1, last=2, dense_layers=(1,))
FIELDS = ("logprobs", "topk_ids", "topk_logprobs", "pages_read", "hidden", "page_sets")


def assert_same(got, want):
    assert [c.token_ids for c in got] == [c.token_ids for c in want]
    assert [c.finish_reason for c in got] == [c.finish_reason for c in want]
    for left, right in zip(got, want, strict=True):
        for name in FIELDS:
            a, b = getattr(left, name), getattr(right, name)
            assert (a is None) == (b is None), name
            assert a is None or torch.equal(a, b), name


def both(model, schedule, poll_every, prompts, arguments, **options):
    """Completions and counters of an engine that looks at every token, and of one that does not."""
    results = []
    for every in (1, poll_every):
        engine = RolloutEngine(model, schedule, poll_every=every, **options)
        results.append((engine.generate(prompts, **arguments), engine.last_stats, engine))
    return results


@pytest.mark.parametrize("poll_every", [2, 3, 8, 64])
@pytest.mark.parametrize("schedule", [SPARSE, BINS, BudgetSchedule.dense()], ids=["constant", "bins", "dense"])
def test_blocks_give_the_bits_of_single_steps(make_model, make_prompts, schedule, poll_every):
    arguments = {"n": 3, "max_new_tokens": 23, "temperature": 1.3, "seed": 4, "eos_token_ids": [2, 5]}
    records = {"record": ("topk", "hidden", "page_sets")}
    options = {"topk": 3, "max_batch": 5}
    prompts = make_prompts([1, 30, 7, 17])
    single, blocks = both(make_model("qwen3"), schedule, poll_every, prompts, arguments | records, **options)
    assert_same(blocks[0], single[0])
    reasons = {completion.finish_reason for completion in single[0]}
    assert reasons == {"stop", "length"}
    # Counters are of what the sequences needed, whatever rows ran on until the next look.
    kept = ("response_tokens", "decode_tokens", "tokens_read", "tokens_cached", "tokens_read_sparse", "graphs_captured")
    for name in kept:
        assert getattr(blocks[1], name) == getattr(single[1], name), name
    assert blocks[1].graphs_captured == 0


class Rehearsed:
    """What `CapturedBlock` does with a block, up to the capture."""

    def __init__(self, block, memory):
        self.block = block
        for _ in range(graphs.WARM_UPS):
            block.rehearse()


@pytest.fixture
def rehearsed(monkeypatch):
    """Blocks as graphs would have them, on the CPU: rows and pages in buckets, and kept between calls."""
    monkeypatch.setattr(graphs, "CapturedBlock", Rehearsed)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(Pace, "resolve", lambda pace, *_, **__: (pace.poll_every or 1, pace.graphs is True))


@pytest.mark.parametrize("poll_every", [1, 8])
@pytest.mark.parametrize("schedule", [BINS, BudgetSchedule.dense(page_size=4)], ids=["bins", "dense"])
def test_blocks_in_buckets_give_the_bits_of_single_steps(rehearsed, make_model, make_prompts, schedule, poll_every):
    arguments = {"n": 3, "max_new_tokens": 13, "temperature": 1.3, "seed": 4, "eos_token_ids": [2, 5]}
    arguments |= {"record": ("topk", "hidden", "page_sets")}
    model, prompts, options = make_model("qwen3"), make_prompts([1, 30, 131]), {"topk": 3, "max_batch": 5}
    engine = RolloutEngine(model, schedule, poll_every=poll_every, graphs=True, **options)
    expected = RolloutEngine(model, schedule, **options).generate(prompts, **arguments)
    assert_same(engine.generate(prompts, **arguments), expected)
    assert engine.last_stats.graphs_captured > 0
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(0.9)  # in place: the blocks stay, and see it
    expected = RolloutEngine(model, schedule, **options).generate(prompts, **arguments)
    assert_same(engine.generate(prompts, **arguments), expected)
    assert_same(engine.generate(prompts, **arguments), expected)
    assert engine.last_stats.graphs_captured == 0
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    engine.generate(prompts, **arguments)
    assert engine.last_stats.graphs_captured > 0


@pytest.mark.parametrize("arguments", [{"temperature": 0.0}, {"top_k": 4, "top_p": 0.8}, {"min_p": 0.1}])
def test_blocks_draw_as_they_are_told(make_model, make_prompts, arguments):
    common = {"n": 2, "max_new_tokens": 11, "seed": 1, "eos_token_ids": []}
    single, blocks = both(make_model("llama"), SPARSE, 4, make_prompts([9, 22]), common | arguments)
    assert_same(blocks[0], single[0])


def test_sequences_wait_for_pages_and_none_is_lost(make_model, make_prompts):
    prompts = make_prompts([3 + i % 7 for i in range(20)])
    arguments = {"n": 2, "max_new_tokens": 30, "temperature": 1.3, "seed": 0, "eos_token_ids": [2]}
    options = {"max_batch": 12, "max_cached_tokens": 80, "reserve": 0.0}
    single, blocks = both(make_model("qwen3"), SPARSE, 6, prompts, arguments, **options)
    assert_same(blocks[0], single[0])
    assert blocks[1].paused > 0
    assert blocks[2]._pool.is_idle


def test_an_adapter_takes_part_in_blocks(make_model, make_prompts):
    model, prompts = add_lora(make_model("qwen3")), make_prompts([9, 14])
    arguments = {"max_new_tokens": 12, "seed": 0, "eos_token_ids": [], "record": ("hidden",)}
    found = {}
    for adapter in (True, False):
        single, blocks = both(model, SPARSE, 5, prompts, arguments | {"adapter": adapter})
        assert_same(blocks[0], single[0])
        found[adapter] = single[0]
    assert not torch.equal(found[True][0].hidden, found[False][0].hidden)


def test_a_stop_string_cuts_what_ran_on(make_model, make_prompts):
    class Letters:
        def decode(self, token_ids, *, skip_special_tokens):
            return "".join(chr(ord("A") + token_id) for token_id in token_ids)

    prompts = make_prompts([5, 8, 11])
    arguments = {"n": 4, "max_new_tokens": 20, "seed": 0, "eos_token_ids": []}
    free, _ = both(make_model("qwen3"), SPARSE, 7, prompts, arguments)
    text = Letters().decode(free[0][0].token_ids, skip_special_tokens=False)
    arguments |= {"stop": [text[4:6]], "tokenizer": Letters()}
    single, blocks = both(make_model("qwen3"), SPARSE, 7, prompts, arguments)
    assert_same(blocks[0], single[0])
    assert len(blocks[0][0].token_ids) <= 6
    assert blocks[0][0].finish_reason == "stop"


def test_a_new_schedule_takes_effect_in_the_next_block(make_model, make_prompts):
    prompts, arguments = make_prompts([30]), {"max_new_tokens": 12, "seed": 0, "eos_token_ids": []}
    engine = RolloutEngine(make_model("qwen3"), SPARSE, poll_every=4)
    engine.generate(prompts, **arguments)
    wider = SPARSE.replace(pages=[4])
    engine.set_schedule(wider)
    expected = RolloutEngine(make_model("qwen3"), wider).generate(prompts, **arguments)
    assert_same(engine.generate(prompts, **arguments), expected)


def test_a_nan_names_its_sample_and_token(make_model, make_prompts):
    model = make_model("qwen3")
    arguments = {"max_new_tokens": 12, "seed": 0, "eos_token_ids": []}
    (free,) = RolloutEngine(model, SPARSE).generate([[3, 5, 7]], **arguments)
    # The first token that appears for the first time from the third place on: its embedding is fed one place later.
    place = next(i for i in range(2, 11) if free.token_ids[i] not in [3, 5, 7, *free.token_ids[:i]])
    model.get_input_embeddings().weight.data[free.token_ids[place]] = math.nan
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.nan_to_num(0.0).detach().clone())
    messages = []
    for poll_every in (1, 8):
        with pytest.raises(FloatingPointError, match="prompt 0, sample 0, response token") as caught:
            RolloutEngine(model, SPARSE, poll_every=poll_every).generate([[3, 5, 7]], **arguments)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("pace", "device", "score", "draft_tokens", "expected"),
    [
        (Pace(None, None), "cpu", "mean", 0, (1, False)),
        (Pace(None, None), "cuda", "mean", 0, (POLL_EVERY, True)),
        (Pace(None, None), "cuda", "minmax", 0, (POLL_EVERY, True)),
        (Pace(None, None), "cuda", "streaming", 0, (POLL_EVERY, False)),
        (Pace(None, None), "cuda", "mean", 4, (1, False)),
        (Pace(16, False), "cuda", "mean", 0, (16, False)),
        (Pace(16, None), "cpu", "mean", 0, (16, False)),
        (Pace(1, True), "cuda", "mean", 0, (1, True)),
    ],
)
def test_the_pace_follows_device_and_score(pace, device, score, draft_tokens, expected):
    assert pace.resolve(device, get_page_score(score), draft_tokens) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"poll_every": 0}, "poll_every=0: must be 1 or more"),
        ({"graphs": True}, "graphs=True: the model is on cpu"),
        ({"poll_every": 4, "draft_tokens": 2}, r"draft_tokens=2: .* poll_every must be 1 or None \(it is 4\)"),
        ({"graphs": True, "draft_tokens": 2}, r"graphs False or None \(it is True\)"),
    ],
)
def test_a_pace_that_cannot_be_is_refused(make_model, options, message):
    with pytest.raises(ValueError, match=message):
        RolloutEngine(make_model("qwen3"), SPARSE, **options)


def test_graphs_of_a_score_without_kernels_are_refused():
    with pytest.raises(ValueError, match="page score 'random' runs by its torch formulas"):
        Pace(None, True).resolve("cuda", get_page_score("random"), 0)


def test_a_subclass_of_a_score_with_kernels_has_none_itself():
    class Reversed(type(get_page_score("mean"))):
        name = "reversed"

    assert Pace(None, None).resolve("cuda", Reversed(), 0) == (POLL_EVERY, False)


def test_buckets_are_the_next_powers_of_two():
    assert [bucket(size) for size in (0, 1, 2, 3, 4, 5, 64, 65)] == [1, 1, 2, 4, 4, 8, 64, 128]
    assert [bucket(size, 32) for size in (1, 32, 33)] == [32, 32, 64]


def test_addresses_tell_weights_that_moved(make_model):
    model = make_model("qwen3")
    before = addresses(decoder_weights(model))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # an optimizer step writes in place
    assert addresses(decoder_weights(model)) == before
    for name, parameter in list(model.named_parameters()):
        kept = parameter.data
        parameter.data = parameter.data.clone()
        assert addresses(decoder_weights(model)) != before, name
        parameter.data = kept
    assert addresses(decoder_weights(model)) == before
    eps = dataclasses.replace(decoder_weights(model), eps=0.5)
    assert addresses(eps) != before


# ---- on a GPU: a captured step, an eager one, and a look at every token


def on_gpu(make_model, schedule, prompts, arguments, **options):
    engine = RolloutEngine(make_model("qwen3", **SIZES).cuda().bfloat16(), schedule, **options)
    return engine.generate(prompts, **arguments), engine


SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "max_position_embeddings": 1024}
LONG = BudgetSchedule.constant(4, page_size=16, dense_layers=(0,))


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", [LONG, BudgetSchedule.dense()], ids=["sparse", "dense"])
def test_graphs_give_what_eager_steps_give(make_model, make_prompts, schedule):
    # Growing and shrinking batches: every bucket up to 16, page tables of 32 and of 64 pages.
    prompts = make_prompts([1, 3, 40, 130, 300, 5, 17, 470])
    arguments = {"n": 2, "max_new_tokens": 200, "temperature": 1.3, "seed": 4, "eos_token_ids": [2]}
    arguments |= {"record": ("topk", "hidden", "page_sets")}
    options = {"topk": 3, "max_batch": 16}
    captured, engine = on_gpu(make_model, schedule, prompts, arguments, **options)
    assert engine.last_stats.graphs_captured > 1
    assert engine.last_stats.capture_seconds > 0
    eager, other = on_gpu(make_model, schedule, prompts, arguments, graphs=False, **options)
    assert other.last_stats.graphs_captured == 0
    # Products round by the rows beside them on a GPU: with the same rows the bits are equal, and rows are padded alike
    # only where the bucket is the batch. So tokens may part where two lie within rounding; log-probs stay close before.
    same = sum(a.token_ids == b.token_ids for a, b in zip(captured, eager, strict=True))
    assert same >= 0.75 * len(eager)
    for left, right in zip(captured, eager, strict=True):
        alike = [a == b for a, b in zip(left.token_ids, right.token_ids)]
        length = alike.index(False) if False in alike else len(alike)
        torch.testing.assert_close(left.logprobs[:length], right.logprobs[:length], rtol=0.0, atol=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("poll_every", [1, 8])
def test_a_full_bucket_gives_the_bits_of_eager_steps(make_model, make_prompts, poll_every):
    arguments = {"n": 2, "max_new_tokens": 60, "seed": 4, "eos_token_ids": [], "record": ("hidden", "page_sets")}
    prompts = make_prompts([70, 90, 130, 200])
    options = {"max_batch": 8, "poll_every": poll_every}
    captured, engine = on_gpu(make_model, LONG, prompts, arguments, **options)
    assert engine.last_stats.graphs_captured >= 1
    eager, _ = on_gpu(make_model, LONG, prompts, arguments, graphs=False, **options)
    assert_same(captured, eager)


@pytest.mark.gpu
def test_graphs_are_kept_until_weights_or_cache_move(make_model, make_prompts):
    arguments = {"n": 2, "max_new_tokens": 30, "seed": 4, "eos_token_ids": []}
    prompts = make_prompts([70, 90])
    model = make_model("qwen3", **SIZES).cuda().bfloat16()
    engine = RolloutEngine(model, LONG)
    counts = []
    for _ in range(2):
        engine.generate(prompts, **arguments)
        counts.append(engine.last_stats.graphs_captured)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    changed = engine.generate(prompts, **arguments)
    counts.append(engine.last_stats.graphs_captured)
    assert_same(changed, RolloutEngine(model, LONG).generate(prompts, **arguments))
    engine.set_schedule(LONG.replace(pages=[9]))
    assert_same(
        engine.generate(prompts, **arguments),
        RolloutEngine(model, LONG.replace(pages=[9])).generate(prompts, **arguments),
    )
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    engine.generate(prompts, **arguments)
    counts.append(engine.last_stats.graphs_captured)
    assert counts[0] > 0
    assert counts[1:3] == [0, 0]
    assert counts[3] > 0


@pytest.mark.gpu
def test_a_released_pool_takes_its_graphs_along(make_model, make_prompts):
    arguments = {"max_new_tokens": 40, "seed": 4, "eos_token_ids": []}
    model = make_model("qwen3", **SIZES).cuda().bfloat16()
    engine = RolloutEngine(model, LONG, keep_pool=False, max_cached_tokens=1 << 17)
    sizes = []
    for _ in range(4):
        engine.generate(make_prompts([70]), **arguments)
        torch.cuda.empty_cache()
        sizes.append(torch.cuda.memory_allocated())
    assert max(after - before for before, after in pairwise(sizes)) < 1 << 20
