"""Every refusal names what was wrong, the value, and what is allowed."""

import pytest

from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule

DEFAULTS = {"max_new_tokens": 4, "seed": 0, "eos_token_ids": [1]}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompts": [[1], []]}, ValueError, "prompt 1 is empty: must hold at least 1 token"),
        ({"prompts": [[1] * 300]}, ValueError, "prompt 0 has 300 tokens: the model's context of 256 has no room left"),
        ({"prompts": [[1] * 256]}, ValueError, "prompt 0 has 256 tokens: the model's context of 256"),
        (
            {"prompts": [[1], [1] * 200], "max_new_tokens": 57},
            ValueError,
            "prompt 1 has 200 tokens and max_new_tokens=57: 257 tokens exceed the model's context of 256",
        ),
        ({"prompts": [[1, 29]]}, ValueError, "prompt 0 holds token id 29: must be from 0 to 28"),
        ({"prompts": [[1], [2, -1]]}, ValueError, "prompt 1 holds token id -1: must be from 0 to 28"),
        ({"prompts": [[1], [2]], "prompt_keys": [1]}, ValueError, "1 prompt_keys for 2 prompts"),
        ({"prompts": [[1], [2]], "prompt_keys": [7, 7]}, ValueError, r"prompt_keys\[1\]=7 repeats prompt_keys\[0\]"),
        ({"prompts": [[1]], "prompt_keys": ["a"]}, ValueError, r"prompt_keys\[0\]='a': must be a whole number"),
        ({"prompts": [[1]], "prompt_keys": [2**63]}, ValueError, r"prompt_keys\[0\]=9223372036854775808: must be"),
        ({"n": 0}, ValueError, "n=0: must be a whole number, 1 or more"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens=0: must be a whole number, 1 or more"),
        ({"max_new_tokens": 2.5}, ValueError, "max_new_tokens=2.5"),
        ({"temperature": -1.0}, ValueError, "temperature=-1.0"),
        ({"eos_token_ids": [29]}, ValueError, "eos_token_ids holds 29: must be token ids from 0 to 28"),
        ({"adapter": True}, ValueError, "adapter=True, but the model has no LoRA adapter"),
        ({"record": ("logits",)}, KeyError, "record holds 'logits': must be some of topk, hidden, page_sets"),
        ({"record": ("topk",)}, ValueError, "record holds 'topk', but the engine was made with topk=0"),
    ],
)
def test_bad_requests(arguments, error, message, make_model):
    engine = RolloutEngine(make_model("qwen3"))
    with pytest.raises(error, match=message):
        engine.generate(**{**DEFAULTS, "prompts": [[1, 2]], **arguments})


def test_the_whole_context_can_be_used(make_model):
    engine = RolloutEngine(make_model("qwen3", max_position_embeddings=24))
    (completion,) = engine.generate([[1] * 20], max_new_tokens=4, seed=0, eos_token_ids=[])
    assert len(completion.token_ids) == 4


def test_a_sequence_that_can_never_fit_is_refused_with_the_numbers(make_model):
    schedule = BudgetSchedule.dense(page_size=4)
    model = make_model("qwen3")
    # 14 + 8 - 1 = 21 tokens to cache: 6 pages; one more when two samples need their own copy of a partial page.
    arguments = {"max_new_tokens": 8, "seed": 0, "eos_token_ids": []}
    engine = RolloutEngine(model, schedule, max_cached_tokens=24)
    assert len(engine.generate([[1] * 14], **arguments)[0].token_ids) == 8
    with pytest.raises(
        ValueError, match="prompt 1 has 14 tokens and max_new_tokens=8: it can come to need 7 pages of 4"
    ):
        engine.generate([[1], [1] * 14], n=2, **arguments)
    with pytest.raises(ValueError, match="but the cache holds 5; raise max_cached_tokens to at least 24"):
        RolloutEngine(model, schedule, max_cached_tokens=23).generate([[1] * 14], **arguments)
    assert len(engine.generate([[1] * 12], n=2, **arguments)) == 2  # no partial page, no copy


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_batch": 0}, ValueError, "max_batch=0"),
        ({"topk": -1}, ValueError, "topk=-1"),
        ({"topk": 30}, ValueError, "topk=30: must be at most the vocabulary, 29"),
        ({"max_cached_tokens": 0}, ValueError, "max_cached_tokens=0"),
        ({"reserve": 1.5}, ValueError, "reserve=1.5: must be from 0 to 1"),
        ({"prefill_tokens": 0}, ValueError, "prefill_tokens=0"),
        ({"page_score": "best"}, KeyError, "unknown page score 'best', allowed: mean, minmax, random"),
    ],
)
def test_bad_engines(arguments, error, message, make_model):
    with pytest.raises(error, match=message):
        RolloutEngine(make_model("qwen3"), **arguments)
