"""The lossless mode: samples, log-probs and hidden states of the dense policy, whatever the drafts are worth."""

from collections import Counter

import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy.stats import chisquare

from sparrow.rollout import RolloutEngine
from sparrow.rollout.scheduler import Scheduler
from sparrow.schedule import BudgetSchedule

# PEFT 0.21 asks transformers 5.24 for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SPARSE = BudgetSchedule.constant(0, page_size=4, dense_layers=())
"""Page 0 and the last two in every layer: drafts are often wrong."""

LENGTHS = [1, 3, 4, 5, 15, 16, 17, 33]


def lossless(model, schedule=SPARSE, draft_tokens=3, **options):
    return RolloutEngine(model, schedule, draft_tokens=draft_tokens, **options)


def dense(model, **options):
    return RolloutEngine(model, BudgetSchedule.dense(page_size=4), **options)


def dense_logprobs(model, prompt, response, temperature=1.0):
    """Log-probabilities of every next token by one transformers forward, [T, V]."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float() / temperature, dim=-1)


@pytest.mark.parametrize("draft_tokens", [1, 2, 5])
@pytest.mark.parametrize("family", ["qwen3", "llama", "tiny"])
def test_greedy_is_dense_greedy(family, draft_tokens, make_model, make_prompts):
    model, prompts = make_model(family), make_prompts(LENGTHS)
    arguments = {"max_new_tokens": 40, "temperature": 0.0, "seed": 0, "eos_token_ids": [14], "record": ("hidden",)}
    expected = dense(model).generate(prompts, **arguments)
    engine = lossless(model, draft_tokens=draft_tokens)
    got = engine.generate(prompts, **arguments)
    for left, right in zip(got, expected, strict=True):
        assert left.token_ids == right.token_ids
        assert left.finish_reason == right.finish_reason
        # Not only the tokens: the dense pass over a draft computes what plain dense decoding computes, bit for bit.
        assert torch.equal(left.hidden, right.hidden)
        assert torch.equal(left.logprobs, right.logprobs)
        assert torch.equal(left.pages_read, right.pages_read)
    assert 0 < engine.last_stats.accepted < engine.last_stats.drafted


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_records_are_those_of_the_dense_policy(temperature, make_model, make_prompts):
    model, prompts = make_model("qwen2"), make_prompts(LENGTHS)
    engine = lossless(model, topk=4)
    completions = engine.generate(
        prompts,
        n=3,
        max_new_tokens=21,
        temperature=temperature,
        seed=5,
        eos_token_ids=[13],
        record=("topk", "hidden"),
    )
    for completion in completions:
        prompt = prompts[completion.prompt_index]
        expected = dense_logprobs(model, prompt, completion.token_ids, temperature)
        own = expected.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(completion.logprobs, own, rtol=0, atol=1e-4)
        torch.testing.assert_close(completion.topk_logprobs, expected.topk(4).values, rtol=0, atol=1e-4)
        again = torch.log_softmax(completion.hidden @ model.lm_head.weight.detach().T / temperature, dim=-1)
        torch.testing.assert_close(again, expected, rtol=0, atol=1e-4)
        cached = len(prompt) + torch.arange(1, len(completion.token_ids))
        assert completion.pages_read.tolist() == [0, *(-(-cached // 4)).tolist()]
        assert (completion.finish_reason == "stop") == (completion.token_ids[-1] == 13)
        assert 13 not in completion.token_ids[:-1]


def sequence_chisquare(model, engine, prompt, samples, seed, top_p=1.0, temperature=1.0):
    """P-value of the pairs of second and third tokens after a given first, against the dense policy's pairs."""
    vocab = model.config.vocab_size
    completions = engine.generate(
        [prompt], n=samples, max_new_tokens=3, top_p=top_p, seed=seed, eos_token_ids=[], temperature=temperature
    )
    first = Counter(c.token_ids[0] for c in completions).most_common(1)[0][0]
    counts = Counter(tuple(c.token_ids[1:]) for c in completions if c.token_ids[0] == first)
    second = nucleus(dense_logprobs(model, prompt, [first, 0], temperature)[1].exp(), top_p)
    third = [nucleus(dense_logprobs(model, prompt, [first, v, 0], temperature)[2].exp(), top_p) for v in range(vocab)]
    total = sum(counts.values())
    expected = {(v, w): float(second[v] * third[v][w]) * total for v in range(vocab) for w in range(vocab)}
    assert all(expected[pair] > 0 for pair in counts)
    # Rare pairs together, so that every cell expects at least 5.
    common = [pair for pair, count in expected.items() if count >= 5]
    observed = [counts[pair] for pair in common]
    wanted = [expected[pair] for pair in common]
    rest = total - sum(wanted)
    if rest > 1e-6 * total:
        observed, wanted = [*observed, total - sum(observed)], [*wanted, rest]
    scale = total / sum(wanted)
    return chisquare(observed, [count * scale for count in wanted]).pvalue, len(common)


def nucleus(probs_V, top_p):
    """The smallest set of likely tokens that reaches ``top_p``, renormalised."""
    if top_p == 1.0:
        return probs_V.double()
    values, order = probs_V.double().sort(descending=True)
    kept = values.cumsum(0) - values < top_p
    return torch.zeros_like(probs_V, dtype=torch.float64).scatter_(0, order[kept], values[kept] / values[kept].sum())


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("draft_tokens", [1, 2])
def test_samples_follow_the_dense_policy(draft_tokens, top_p, make_model, make_prompts):
    """Two layers, 7 tokens, drafts that are wrong half of the time; with 2 drafts both come from one round."""
    model = make_model("llama", num_hidden_layers=2, vocab_size=7, initializer_range=0.4)
    (prompt,) = make_prompts([21], vocab=7)
    engine = lossless(model, draft_tokens=draft_tokens, max_batch=512)
    p_value, cells = sequence_chisquare(model, engine, prompt, 6000, seed=1, top_p=top_p)
    assert p_value > 1e-3
    assert cells >= (8 if top_p == 1.0 else 3)
    assert 0.2 < engine.last_stats.acceptance_rate < 0.9
    # The test has teeth: the drafter itself, with the same counts, is far from the dense policy.
    actor = RolloutEngine(model, SPARSE, max_batch=512)
    if top_p == 1.0:
        assert sequence_chisquare(model, actor, prompt, 6000, seed=1)[0] < 1e-9


def test_the_tiny_policy_keeps_its_distribution(make_model):
    model = make_model("tiny")
    prompt = [3, 10, 4, 10, 5, 10, 8, 10, 6, 10, 7, 13]
    engine = lossless(model, draft_tokens=2, max_batch=512)
    p_value, cells = sequence_chisquare(model, engine, prompt * 2, 3000, seed=2, temperature=2.0)
    assert p_value > 1e-3
    assert cells >= 5
    assert engine.last_stats.acceptance_rate < 1.0


def same(left, right):
    return left.token_ids == right.token_ids and all(
        torch.equal(getattr(left, key), getattr(right, key)) for key in ("logprobs", "hidden", "pages_read")
    )


@pytest.mark.parametrize("family", ["qwen3", "tiny"])
def test_alone_equals_in_a_batch_and_in_a_small_pool(family, make_model, make_prompts):
    model, prompts = make_model(family), make_prompts([1, 7, 16, 40, 8, 3, 23])
    arguments = {"n": 3, "max_new_tokens": 20, "seed": 11, "eos_token_ids": [13], "record": ("hidden",)}
    keys = [100 + i for i in range(len(prompts))]
    together = lossless(model).generate(prompts, prompt_keys=keys, **arguments)
    again = lossless(model, max_batch=5).generate(prompts, prompt_keys=keys, **arguments)
    assert all(same(left, right) for left, right in zip(together, again, strict=True))
    alone = lossless(model, max_batch=1)
    for index in (0, 3, 5):
        single = alone.generate([prompts[index]], prompt_keys=[keys[index]], **arguments)
        assert all(same(left, right) for left, right in zip(single, together[3 * index : 3 * index + 3], strict=True))
    small = lossless(model, max_cached_tokens=80, reserve=0.0)
    paused = small.generate(prompts, prompt_keys=keys, **arguments)
    assert all(same(left, right) for left, right in zip(together, paused, strict=True))
    assert small.last_stats.paused > 0
    assert small._pool.is_idle
    others = lossless(model).generate(prompts, prompt_keys=keys, **{**arguments, "seed": 12})
    assert [c.token_ids for c in others] != [c.token_ids for c in together]


def test_two_hundred_sequences_in_a_small_pool(make_model, make_prompts):
    model = make_model("qwen3", num_hidden_layers=2)
    prompts = make_prompts([1 + 5 * i % 23 for i in range(50)])
    arguments = {"n": 4, "max_new_tokens": 10, "seed": 2, "eos_token_ids": [3, 13]}
    large = lossless(model).generate(prompts, **arguments)
    assert [(c.prompt_index, c.sample_index) for c in large] == [(i, j) for i in range(50) for j in range(4)]
    engine = lossless(model, max_cached_tokens=120, reserve=0.0)
    small = engine.generate(prompts, **arguments)
    assert [c.token_ids for c in small] == [c.token_ids for c in large]
    assert engine.last_stats.paused > 0
    assert engine.last_stats.prompts_prefilled == 50
    assert engine._pool.is_idle


def test_a_round_by_hand(make_model, make_prompts):
    """A dense drafter is always right: k + 1 tokens a round, until the length leaves less room."""
    engine = RolloutEngine(make_model("qwen3"), BudgetSchedule.dense(page_size=4), draft_tokens=3)
    (completion,) = engine.generate(make_prompts([6]), max_new_tokens=12, seed=0, eos_token_ids=[])
    stats = engine.last_stats
    # 1 token from the prefill, then 4, 4 and, with 3 left, 2 drafts and one more.
    assert len(completion.token_ids) == stats.response_tokens == 12
    assert (stats.drafted, stats.accepted, stats.rounds) == (8, 8, 3)
    assert (stats.acceptance_rate, stats.accepted_length) == (1.0, 8 / 3)
    assert stats.decode_steps == 3 + 3 + 2 + 3
    assert stats.decode_tokens == 8 + 11  # a row per draft, a row per token fed
    # Queries of the drafts see 7..9, 11..13, 15 and 16 cached tokens, those of the checks one more in each round.
    seen = [7, 8, 9, 11, 12, 13, 15, 16, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]
    assert stats.tokens_cached == stats.tokens_read == 4 * 2 * sum(seen)
    assert stats.tokens_per_second == 12 / stats.seconds


def test_plain_decoding_drafts_nothing(make_model, make_prompts):
    engine = RolloutEngine(make_model("qwen3"), SPARSE)
    engine.generate(make_prompts([6]), max_new_tokens=5, seed=0, eos_token_ids=[])
    stats = engine.last_stats
    assert (stats.drafted, stats.accepted, stats.rounds) == (0, 0, 0)
    assert (stats.acceptance_rate, stats.accepted_length) == (1.0, 0.0)


@pytest.mark.parametrize("page_score", ["mean", "minmax"])
def test_the_cache_is_the_dense_policys(page_score, make_model, make_prompts, monkeypatch):
    """Keys, values and landmarks of every full page at the end of a call, against a dense prefill of the same text.

    Rejected drafts leave keys and landmarks behind, and pages that are given back: none of it may stay.
    """
    model = make_model("qwen3")
    schedule = BudgetSchedule.constant(1, page_size=4, dense_layers=(0,))
    (prompt,) = make_prompts([18])
    held, finish = [], Scheduler.finish

    def watched(scheduler, slots):
        for slot in slots:
            held.extend(scheduler.page_table[slot, : -(-int(scheduler.cached[slot]) // 4)].tolist())
        finish(scheduler, slots)

    monkeypatch.setattr(Scheduler, "finish", watched)
    engine = lossless(model, schedule, draft_tokens=5, page_score=page_score)
    (completion,) = engine.generate([prompt], max_new_tokens=40, seed=0, eos_token_ids=[])
    assert engine.last_stats.accepted < engine.last_stats.drafted - 10
    text = prompt + completion.token_ids[:-1]  # the last token is never fed
    fresh = RolloutEngine(model, schedule, page_score=page_score)
    fresh.generate([text], max_new_tokens=1, seed=0, eos_token_ids=[])
    full = len(text) // 4
    for name in ("keys", "values", "landmarks"):
        for own, expected in zip(getattr(engine._pool, name), getattr(fresh._pool, name), strict=True):
            if own is not None:  # a fresh pool hands pages out in order
                torch.testing.assert_close(own[held[:full]], expected[:full], rtol=0, atol=1e-4)


def test_the_adapter_drafts_and_the_base_decides(make_model, make_prompts):
    prompts = make_prompts([5, 18])
    arguments = {"n": 2, "max_new_tokens": 20, "seed": 0, "eos_token_ids": [], "record": ("hidden",)}
    base = lossless(make_model("qwen3")).generate(prompts, temperature=0.0, **arguments)
    targets = ["q_proj", "v_proj", "up_proj"]
    model = get_peft_model(make_model("qwen3"), LoraConfig(r=4, lora_alpha=12, target_modules=targets)).eval()
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.2)
    engine = lossless(model)
    off = engine.generate(prompts, temperature=0.0, adapter=False, **arguments)
    rate = engine.last_stats.acceptance_rate
    on = engine.generate(prompts, temperature=0.0, adapter=True, **arguments)
    assert all(same(left, right) for left, right in zip(off, base, strict=True))
    assert all(same(left, right) for left, right in zip(on, base, strict=True))
    assert engine.last_stats.acceptance_rate != rate  # but it did draft


def test_page_sets_are_refused(make_model, make_prompts):
    engine = lossless(make_model("qwen3"))
    with pytest.raises(ValueError, match="record holds 'page_sets' with draft_tokens=3"):
        engine.generate(make_prompts([4]), max_new_tokens=4, seed=0, eos_token_ids=[], record=("page_sets",))
    with pytest.raises(ValueError, match="draft_tokens=-1: must be 0 or more"):
        RolloutEngine(make_model("qwen3"), draft_tokens=-1)


def test_nan_drafts_are_reported_with_the_sample(make_model, make_prompts):
    model = get_peft_model(make_model("qwen3"), LoraConfig(r=4, target_modules=["up_proj"])).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(torch.nan)
    for temperature in (0.0, 1.0):
        with pytest.raises(FloatingPointError, match="prompt 0, sample 0, response token 1"):
            lossless(model).generate(
                make_prompts([5]), max_new_tokens=4, seed=0, temperature=temperature, eos_token_ids=[], adapter=True
            )
