"""The parity ladder: engine against transformers, sparse-with-every-page against dense, prefill against decode."""

import pytest
import torch

from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule

MODELS = ["qwen3", "qwen2", "llama", "tiny"]
LENGTHS = [1, 3, 4, 5, 15, 16, 17, 33]


def full_logprobs(model, prompt, response, temperature):
    """Log-probabilities of the response by one transformers forward."""
    token_ids = torch.tensor([prompt + response])
    with torch.no_grad():
        logits = model(input_ids=token_ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, dim=-1).gather(1, token_ids[0, len(prompt) :, None])[:, 0]


@pytest.mark.parametrize("family", MODELS)
def test_greedy_is_transformers_greedy(family, make_model, make_prompts):
    model, prompts = make_model(family), make_prompts(LENGTHS)
    engine = RolloutEngine(model, BudgetSchedule.dense(page_size=4))
    completions = engine.generate(prompts, max_new_tokens=40, temperature=0.0, seed=0, eos_token_ids=[14])
    for prompt, completion in zip(prompts, completions):
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=14,
            pad_token_id=15,
        )[0, len(prompt) :].tolist()
        assert completion.token_ids == expected
        assert completion.finish_reason == ("stop" if expected[-1] == 14 else "length")
        logprobs = full_logprobs(model, prompt, expected, 1.0)
        torch.testing.assert_close(completion.logprobs, logprobs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("family", MODELS)
def test_logprobs_are_those_of_a_full_forward(family, temperature, make_model, make_prompts):
    model, prompts = make_model(family), make_prompts(LENGTHS)
    engine = RolloutEngine(model, page_score="mean", topk=5)
    completions = engine.generate(
        prompts, n=2, max_new_tokens=24, temperature=temperature, seed=3, eos_token_ids=[], record=("topk",)
    )
    for completion in completions:
        prompt = prompts[completion.prompt_index]
        expected = full_logprobs(model, prompt, completion.token_ids, temperature)
        torch.testing.assert_close(completion.logprobs, expected, rtol=0, atol=1e-4)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 : -1]
        best = torch.log_softmax(logits / temperature, dim=-1).topk(5, dim=-1)
        torch.testing.assert_close(completion.topk_logprobs, best.values, rtol=0, atol=1e-4)
        # Ids may swap only where two candidates are as good as equal.
        spread = (best.values[:, :-1] - best.values[:, 1:]).min(dim=-1).values > 1e-3
        assert torch.equal(completion.topk_ids[:, 0][spread], best.indices[:, 0][spread])


@pytest.mark.parametrize("family", MODELS)
def test_hidden_states_give_the_logprobs_through_the_head(family, make_model, make_prompts):
    model = make_model(family)
    engine = RolloutEngine(model, BudgetSchedule.constant(1, page_size=4))
    completions = engine.generate(
        make_prompts([9, 30]), max_new_tokens=20, temperature=0.7, seed=1, eos_token_ids=[], record=["hidden"]
    )
    for completion in completions:
        logits = completion.hidden @ model.lm_head.weight.detach().T / 0.7
        again = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(completion.logprobs, again, rtol=0, atol=1e-5)


@pytest.mark.parametrize("page_score", ["mean", "minmax", "random"])
def test_a_budget_of_every_page_is_dense_bit_for_bit(page_score, make_model, make_prompts):
    model, prompts = make_model("qwen3"), make_prompts([2, 11, 40])
    results = []
    for schedule in (
        BudgetSchedule.dense(page_size=4),
        BudgetSchedule.constant(1000, page_size=4),
        BudgetSchedule.constant(15, page_size=4),  # 18 pages hold the longest sequence, 40 + 32 - 1 tokens, just so
        BudgetSchedule.constant(0, page_size=4, dense_layers=(0, 1, 2, 3)),
    ):
        engine = RolloutEngine(model, schedule, page_score=page_score)
        results.append(engine.generate(prompts, max_new_tokens=32, seed=5, eos_token_ids=[], record=("hidden",)))
        assert engine.last_stats.kv_fraction == 1.0 or schedule.dense_layers == (0, 1, 2, 3)
    for other in results[1:]:
        for dense, sparse in zip(results[0], other):
            assert dense.token_ids == sparse.token_ids
            assert torch.equal(dense.logprobs, sparse.logprobs)
            assert torch.equal(dense.hidden, sparse.hidden)


@pytest.mark.parametrize("page_score", ["mean", "minmax", "random"])
def test_an_identity_list_is_dense_bit_for_bit(page_score, make_model, make_prompts):
    """A short sequence beside a long sparse one goes through the selection, which lists all of its pages."""
    model = make_model("llama")
    short, long = make_prompts([5, 90])
    dense = RolloutEngine(model, BudgetSchedule.dense(page_size=4), page_score=page_score)
    sparse = RolloutEngine(model, BudgetSchedule.constant(6, page_size=4), page_score=page_score)
    arguments = {"max_new_tokens": 30, "seed": 5, "eos_token_ids": [], "record": ("hidden",)}
    expected = dense.generate([short, long], **arguments)
    got = sparse.generate([short, long], **arguments)
    assert torch.equal(got[0].hidden, expected[0].hidden)
    assert got[0].token_ids == expected[0].token_ids
    assert not torch.equal(got[1].hidden[1:], expected[1].hidden[1:])
    assert torch.equal(got[1].hidden[0], expected[1].hidden[0])  # the prompt is dense in both


@pytest.mark.parametrize("family", MODELS)
def test_prefill_equals_decode(family, make_model, make_prompts):
    """A text read at once and the same text decoded token by token give the same distributions."""
    model = make_model(family)
    engine = RolloutEngine(model, BudgetSchedule.dense(page_size=4))
    (start,) = make_prompts([6])
    (decoded,) = engine.generate(
        [start], max_new_tokens=30, temperature=1.0, seed=0, eos_token_ids=[], record=("hidden",)
    )
    prefixes = [start + decoded.token_ids[:i] for i in range(30)]
    prefilled = engine.generate(
        prefixes, max_new_tokens=1, temperature=1.0, seed=0, eos_token_ids=[], record=("hidden",)
    )
    hidden = torch.cat([completion.hidden for completion in prefilled])
    torch.testing.assert_close(hidden, decoded.hidden, rtol=0, atol=2e-5)
