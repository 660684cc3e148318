"""The parity ladder on a real pretrained model: the engine writes what transformers writes, with the same log-probs."""

import pytest
import torch

from sparrow.models.loading import eos_token_ids, load_policy
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule

QUESTIONS = ["What is the capital of France?", "Count from one to ten.", "Name a bird that nests in roofs, and why."]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [None, BudgetSchedule.constant(1000, page_size=16)], ids=["dense", "all_pages"])
def test_greedy_is_transformers_greedy(smollm2: str, schedule: BudgetSchedule | None) -> None:
    model, tokenizer = load_policy(smollm2)
    stops = eos_token_ids(model, tokenizer)
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True)["input_ids"]
        for q in QUESTIONS
    ]
    completions = RolloutEngine(model, schedule).generate(
        prompts, max_new_tokens=32, temperature=0.0, seed=0, eos_token_ids=stops
    )
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False)
        assert completion.token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_full_forward(smollm2: str, temperature: float) -> None:
    model, tokenizer = load_policy(smollm2)
    prompts = [tokenizer(question)["input_ids"] for question in QUESTIONS]
    completions = RolloutEngine(model).generate(
        prompts, n=2, max_new_tokens=24, temperature=temperature, seed=1, eos_token_ids=eos_token_ids(model, tokenizer)
    )
    for completion in completions:
        prompt = prompts[completion.prompt_index]
        ids = torch.tensor([prompt + completion.token_ids])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1] / temperature
        expected = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        torch.testing.assert_close(completion.logprobs, expected, atol=1e-4, rtol=0)
