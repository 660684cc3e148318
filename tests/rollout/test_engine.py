"""What the engine promises beside parity: stopping, counting, refreshing, adapters, records, progress."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model

from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule

# PEFT 0.21 asks transformers 5.24 for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SPARSE = BudgetSchedule.constant(1, page_size=4)


def add_lora(model, seed=0, **fields):
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    peft_model = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules=targets, **fields)).eval()
    torch.manual_seed(seed)
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.05)
    return peft_model


def tokens(completions):
    return [completion.token_ids for completion in completions]


def test_every_stop_id_ends_a_response_and_is_kept(make_model, make_prompts):
    engine = RolloutEngine(make_model("qwen3"))
    stops = [2, 5, 11]
    completions = engine.generate(
        make_prompts([4] * 6), n=8, max_new_tokens=12, temperature=2.0, seed=0, eos_token_ids=stops
    )
    ends = set()
    for completion in completions:
        assert not set(completion.token_ids[:-1]) & set(stops)
        if completion.token_ids[-1] in stops:
            assert completion.finish_reason == "stop"
            ends.add(completion.token_ids[-1])
        else:
            assert completion.finish_reason == "length"
            assert len(completion.token_ids) == 12
        assert len(completion.logprobs) == len(completion.pages_read) == len(completion.token_ids)
    assert ends == set(stops)


def test_a_single_token_needs_no_decode_step(make_model, make_prompts):
    engine = RolloutEngine(make_model("qwen3"), SPARSE)
    completions = engine.generate(
        make_prompts([4, 30]), n=3, max_new_tokens=1, seed=0, eos_token_ids=[], record=("page_sets", "hidden")
    )
    assert [len(completion.token_ids) for completion in completions] == [1] * 6
    assert completions[0].page_sets.shape[:3] == (2, 2, 0)
    assert engine.last_stats.decode_steps == 0
    assert engine.last_stats.kv_fraction == engine.last_stats.kv_fraction_sparse_layers == 1.0


def test_samples_of_one_prompt_prefill_once(make_model, make_prompts):
    engine = RolloutEngine(make_model("qwen3"), SPARSE, max_batch=3)
    engine.generate(make_prompts([10, 21]), n=8, max_new_tokens=6, seed=0, eos_token_ids=[])
    stats = engine.last_stats
    assert (stats.prompts_prefilled, stats.prompt_tokens, stats.response_tokens) == (2, 31, 2 * 8 * 6)
    assert stats.decode_tokens == 2 * 8 * 5
    assert stats.max_rows == 3
    assert stats.tokens_per_second == stats.response_tokens / stats.seconds


def test_no_prompts_no_completions(make_model):
    assert RolloutEngine(make_model("qwen3")).generate([], max_new_tokens=3, seed=0, eos_token_ids=[]) == []


def test_kv_fraction_by_hand(make_model, make_prompts):
    # Prompt 16, 5 tokens: queries see 17, 18, 19, 20 cached tokens in 5 pages of 4. Budget 1 + 3: one page is skipped.
    engine = RolloutEngine(make_model("qwen3"), SPARSE)
    (completion,) = engine.generate(make_prompts([16]), max_new_tokens=5, seed=0, eos_token_ids=[])
    assert completion.pages_read.tolist() == [0, 4, 4, 4, 4]
    stats = engine.last_stats
    assert stats.tokens_cached_sparse == 2 * 2 * (17 + 18 + 19 + 20)  # 2 sparse layers, 2 KV heads
    assert stats.tokens_read_sparse == 2 * 2 * (13 + 14 + 15 + 16)
    assert stats.kv_fraction_sparse_layers == pytest.approx(58 / 74)
    assert stats.kv_fraction == pytest.approx((58 + 74) / (2 * 74))


def test_weights_are_never_stale(make_model, make_prompts):
    model, prompts = make_model("qwen3"), make_prompts([5, 20])
    arguments = {"n": 2, "max_new_tokens": 20, "seed": 0, "eos_token_ids": [], "record": ("hidden",)}
    engine = RolloutEngine(model, SPARSE)
    cast = RolloutEngine(model, SPARSE, dtype=torch.float64, head_dtype=torch.float64)
    before = engine.generate(prompts, **arguments)
    cast.generate(prompts, **arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    for held, schedule_arguments in ((engine, {}), (cast, {"dtype": torch.float64, "head_dtype": torch.float64})):
        held.refresh()
        after = held.generate(prompts, **arguments)
        fresh = RolloutEngine(model, SPARSE, **schedule_arguments).generate(prompts, **arguments)
        assert tokens(after) == tokens(fresh)
        assert all(torch.equal(left.hidden, right.hidden) for left, right in zip(after, fresh))
        assert not torch.equal(after[0].hidden[0], before[0].hidden[0].to(after[0].hidden.dtype))
    # Also without a refresh, even through .data, which leaves no trace in the version counter.
    model.model.layers[0].mlp.up_proj.weight.data *= 1.1
    after = engine.generate(prompts, **arguments)
    assert tokens(after) == tokens(RolloutEngine(model, SPARSE).generate(prompts, **arguments))


def test_double_precision_agrees_with_single(make_model, make_prompts):
    model, prompts = make_model("llama"), make_prompts([5, 20])
    arguments = {"max_new_tokens": 20, "temperature": 0.0, "seed": 0, "eos_token_ids": []}
    single = RolloutEngine(model).generate(prompts, **arguments)
    double = RolloutEngine(model, dtype=torch.float64, head_dtype=torch.float64).generate(prompts, **arguments)
    assert tokens(single) == tokens(double)
    for left, right in zip(single, double):
        torch.testing.assert_close(left.logprobs, right.logprobs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_the_adapter_is_the_one_of_peft_and_off_is_the_base(family, make_model, make_prompts):
    prompts = make_prompts([5, 18])
    arguments = {"max_new_tokens": 16, "seed": 0, "eos_token_ids": [], "record": ("hidden",)}
    base = RolloutEngine(make_model(family), SPARSE).generate(prompts, **arguments)
    model = add_lora(make_model(family))
    engine = RolloutEngine(model, SPARSE)
    off = engine.generate(prompts, adapter=False, **arguments)
    assert all(torch.equal(left.hidden, right.hidden) for left, right in zip(base, off))
    on = RolloutEngine(model).generate(prompts, adapter=True, **arguments)
    for prompt, completion in zip(prompts, on):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(completion.logprobs, expected, rtol=0, atol=1e-4)
    assert not torch.equal(on[0].hidden[0], off[0].hidden[0])
    # A changed adapter reaches the sampler; switched off it still has no influence.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                parameter.mul_(-1.0)
    changed = engine.generate(prompts, adapter=True, **arguments)
    assert not torch.equal(changed[0].hidden[0], on[0].hidden[0])
    off_again = engine.generate(prompts, adapter=False, **arguments)
    assert all(torch.equal(left.hidden, right.hidden) for left, right in zip(base, off_again))


def test_the_adapter_goes_on_off_and_on_again(make_model, make_prompts):
    model, prompts = add_lora(make_model("qwen3")), make_prompts([5, 18])
    engine = RolloutEngine(model, SPARSE)
    arguments = {"n": 2, "max_new_tokens": 16, "seed": 0, "eos_token_ids": [], "record": ("hidden",)}
    on, off, again = (engine.generate(prompts, adapter=adapter, **arguments) for adapter in (True, False, True))
    base = RolloutEngine(make_model("qwen3"), SPARSE).generate(prompts, **arguments)
    for left, right in ((on, again), (off, base)):
        assert all(torch.equal(a.hidden, b.hidden) for a, b in zip(left, right, strict=True))
    assert not any(torch.equal(a.hidden[0], b.hidden[0]) for a, b in zip(on, off, strict=True))


def model_probe(model):
    """What transformers says to the probe's text."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.arange(16)[None]).logits[0, -1].float(), dim=-1)


def test_the_probe_shows_that_weights_and_adapter_arrived(make_model):
    model = add_lora(make_model("qwen3"))
    engine = RolloutEngine(model, SPARSE, dtype=torch.float64, head_dtype=torch.float64)  # casts: a refresh matters
    first = {adapter: engine.probe(adapter=adapter) for adapter in (False, True)}
    torch.testing.assert_close(first[True], model_probe(model), rtol=0, atol=1e-4)
    with model.disable_adapter():
        torch.testing.assert_close(first[False], model_probe(model), rtol=0, atol=1e-4)
    assert (first[True] - first[False]).abs().max() > 1e-3
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                parameter.mul_(-1.0)
    assert torch.equal(engine.probe(adapter=True), first[True])  # nothing has arrived yet
    engine.refresh()
    torch.testing.assert_close(engine.probe(adapter=True), model_probe(model), rtol=0, atol=1e-4)
    assert (engine.probe(adapter=True) - first[True]).abs().max() > 1e-3
    assert torch.equal(engine.probe(adapter=False), first[False])
    with torch.no_grad():
        model.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight.mul_(1.1)
    engine.refresh()
    for adapter in (False, True):
        fresh = RolloutEngine(model, SPARSE, dtype=torch.float64, head_dtype=torch.float64).probe(adapter=adapter)
        assert torch.equal(engine.probe(adapter=adapter), fresh)
    assert (engine.probe(adapter=False) - first[False]).abs().max() > 1e-3


def test_the_pool_is_kept_or_released(make_model, make_prompts):
    model, prompts = make_model("qwen3"), make_prompts([5, 18])
    arguments = {"max_new_tokens": 12, "seed": 0, "eos_token_ids": []}
    kept, released = RolloutEngine(model, SPARSE), RolloutEngine(model, SPARSE, keep_pool=False)
    for _ in range(2):
        assert tokens(kept.generate(prompts, **arguments)) == tokens(released.generate(prompts, **arguments))
        assert kept._pool is not None
        assert released._pool is None


def test_a_new_schedule_takes_effect_and_keeps_the_cache(make_model, make_prompts):
    model, prompts = make_model("qwen3"), make_prompts([30, 9])
    arguments = {"max_new_tokens": 20, "seed": 0, "eos_token_ids": [], "record": ("hidden",)}
    engine = RolloutEngine(model, SPARSE)
    engine.generate(prompts, **arguments)
    pool = engine._pool
    wider = SPARSE.replace(pages=[4])
    engine.set_schedule(wider)
    assert engine.schedule == wider
    got = engine.generate(prompts, **arguments)
    assert engine._pool is pool
    expected = RolloutEngine(model, wider).generate(prompts, **arguments)
    assert all(torch.equal(left.hidden, right.hidden) for left, right in zip(got, expected))
    other_pages = BudgetSchedule.constant(1, page_size=8, first=2, dense_layers=())
    engine.set_schedule(other_pages)
    got = engine.generate(prompts, **arguments)
    expected = RolloutEngine(model, other_pages).generate(prompts, **arguments)
    assert all(torch.equal(left.hidden, right.hidden) for left, right in zip(got, expected))
    assert engine._pool.page_size == 8


def test_old_cache_content_has_no_influence(make_model, make_prompts):
    model, prompts = make_model("qwen3"), make_prompts([7, 30])
    arguments = {"n": 2, "max_new_tokens": 20, "seed": 0, "eos_token_ids": [], "record": ("hidden",)}
    engine = RolloutEngine(model, SPARSE)
    expected = engine.generate(prompts, **arguments)
    for pages in (*engine._pool.keys, *engine._pool.values, *engine._pool.landmarks):
        if pages is not None:
            pages.fill_(math.nan)
    got = engine.generate(prompts, **arguments)
    assert tokens(got) == tokens(expected)
    assert all(torch.equal(left.hidden, right.hidden) for left, right in zip(got, expected))


def test_a_model_in_another_dtype_gets_a_pool_of_its_own(make_model, make_prompts):
    model, prompts = make_model("qwen3"), make_prompts([7, 30])
    arguments = {"n": 2, "max_new_tokens": 20, "seed": 0, "eos_token_ids": [], "record": ("hidden",)}
    engine = RolloutEngine(model, SPARSE)
    before = engine.generate(prompts, **arguments)
    single = engine._pool
    engine.generate(prompts, **arguments)
    assert engine._pool is single  # kept as long as nothing changes
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        got = engine.generate(prompts, **arguments)
        assert {pages.dtype for pages in (*engine._pool.keys, *engine._pool.values)} == {dtype}
        fresh = RolloutEngine(model, SPARSE).generate(prompts, **arguments)
        assert tokens(got) == tokens(fresh)
        assert all(torch.equal(left.hidden, right.hidden) for left, right in zip(got, fresh, strict=True))
        assert all(completion.hidden.dtype == dtype for completion in got)
    assert engine._pool is not single
    assert not torch.equal(got[0].hidden, before[0].hidden)  # bfloat16 has rounded the weights on the way


def test_progress_is_reported_and_ends_complete(make_model, make_prompts):
    calls = []
    engine = RolloutEngine(make_model("qwen3"), max_batch=4)
    engine.generate(
        make_prompts([5] * 3), n=4, max_new_tokens=8, seed=0, eos_token_ids=[], progress=lambda *a: calls.append(a)
    )
    assert calls[-1] == (12, 12, 96)
    assert all(total == 12 for _, total, _ in calls)
    assert calls == sorted(calls)


def test_an_interrupted_call_leaves_a_usable_engine(make_model, make_prompts):
    engine = RolloutEngine(make_model("qwen3"), max_cached_tokens=200)
    arguments = {"n": 4, "max_new_tokens": 30, "seed": 0, "eos_token_ids": []}
    expected = engine.generate(make_prompts([5]), **arguments)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(make_prompts([5]), progress=interrupt, **arguments)
    assert tokens(engine.generate(make_prompts([5]), **arguments)) == tokens(expected)


def test_no_graph_is_kept_and_gradients_stay_untouched(make_model, make_prompts):
    model = make_model("qwen3")
    engine = RolloutEngine(model, topk=3)
    (completion,) = engine.generate(
        make_prompts([5]), max_new_tokens=4, seed=0, eos_token_ids=[], record=("topk", "hidden")
    )
    tensors = (completion.logprobs, completion.topk_logprobs, completion.hidden)
    assert not any(tensor.requires_grad for tensor in tensors)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_nan_weights_are_reported_with_the_sample(make_model, make_prompts):
    model = make_model("qwen3", tie_word_embeddings=False)
    prompts = make_prompts([5, 6])
    prompts[1][2] = 20  # an id that no other prompt holds
    with torch.no_grad():
        model.model.embed_tokens.weight[20] = math.nan
    with pytest.raises(FloatingPointError, match="prompt 1, sample 0, response token 0"):
        RolloutEngine(model).generate(prompts, max_new_tokens=4, seed=0, eos_token_ids=[])


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
def test_bfloat16_rounds_where_transformers_rounds(family, make_model, make_prompts):
    """The same bf16 parameters and residual, an fp32 head: agreement far above what an autocast forward reaches."""
    model, prompts = make_model(family, initializer_range=0.1), make_prompts([9, 40])
    engine = RolloutEngine(model, dtype=torch.bfloat16)
    completions = engine.generate(prompts, n=4, max_new_tokens=60, seed=0, eos_token_ids=[], record=("hidden",))
    head_VE = model.lm_head.weight.detach().clone()
    narrow = make_model(family, initializer_range=0.1).to(torch.bfloat16)
    alphas = []
    for completion in completions:
        prompt = prompts[completion.prompt_index]
        with torch.no_grad():
            hidden = narrow.model(torch.tensor([prompt + completion.token_ids])).last_hidden_state[0]
        ours = torch.softmax(completion.hidden.float() @ head_VE.T, dim=-1)
        theirs = torch.softmax(hidden[len(prompt) - 1 : -1].float() @ head_VE.T, dim=-1)
        alphas.append(torch.minimum(ours, theirs).sum(dim=-1))
        assert completion.hidden.dtype == torch.bfloat16
        recorded = ours.log().gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(completion.logprobs, recorded, rtol=0, atol=1e-4)
    assert torch.cat(alphas).quantile(0.05) >= 0.99
