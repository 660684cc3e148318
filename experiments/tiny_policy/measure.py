"""What a checkpoint can do on held-out rows: whole traces, sampled traces, share of right steps."""

import math
from dataclasses import dataclass

import torch
from transformers import DynamicCache, Qwen3ForCausalLM

from experiments.tiny_policy.policy import CHARACTERS
from sparrow.rewards.running_sum import running_sum_outcome, running_sum_prompt, running_sum_trace

_DIGIT = {character: index for index, character in enumerate(CHARACTERS)}


@dataclass(frozen=True)
class Exactness:
    """Teacher-forced measures over the right traces.

    Attributes:
        greedy: share of rows whose trace is the argmax at every token, so that greedy decoding writes it whole.
        sampled: mean probability of writing the whole right trace at temperature 1.
        entropy: mean entropy of the next token over the traces' tokens, in nats.
    """

    greedy: float
    sampled: float
    entropy: float


def encode(text: str) -> list[int]:
    """Token ids of `text`; they are the positions in `CHARACTERS`."""
    return [_DIGIT[character] for character in text]


def encode_rows(rows: list[dict]) -> tuple[torch.Tensor, int]:
    """Rows of equally many numbers as token ids [B, T] of prompt and right trace, and the prompt's length."""
    numbers = [row["extra_info"]["numbers"] for row in rows]
    prompts = [running_sum_prompt(each) for each in numbers]
    ids = [encode(prompt + running_sum_trace(each)) for prompt, each in zip(prompts, numbers, strict=True)]
    return torch.tensor(ids), len(prompts[0])


@torch.no_grad()
def exactness(model: Qwen3ForCausalLM, rows: list[dict], batch: int = 50) -> Exactness:
    """Greedy and sampled exact match without decoding: a decode is exact just when no token of it errs first."""
    greedy, sampled, entropy = [], [], []
    for start in range(0, len(rows), batch):
        ids_BT, prompt_len = encode_rows(rows[start : start + batch])
        logits_BTV = model(ids_BT[:, :-1]).logits[:, prompt_len - 1 :]
        target_BT = ids_BT[:, prompt_len:]
        logprobs_BTV = logits_BTV.log_softmax(-1)
        greedy += (logits_BTV.argmax(-1) == target_BT).all(-1).tolist()
        sampled += logprobs_BTV.gather(-1, target_BT[..., None]).sum((1, 2)).exp().tolist()
        entropy += (-(logprobs_BTV.exp() * logprobs_BTV).sum(-1)).mean(-1).tolist()
    return Exactness(*(math.fsum(values) / len(values) for values in (greedy, sampled, entropy)))


@torch.no_grad()
def decode(
    model: Qwen3ForCausalLM, rows: list[dict], *, greedy: bool, limit: int, generator: torch.Generator
) -> list[tuple[str, str]]:
    """Decodes one completion a row with a dense cache; returns (text without `$`, finish reason)."""
    ids_BT, prompt_len = encode_rows(rows)
    cache, step_BT, chosen = DynamicCache(config=model.config), ids_BT[:, :prompt_len], []
    for _ in range(limit):
        logits_BV = model(step_BT, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        probs_BV = logits_BV.softmax(-1)
        step_BT = probs_BV.argmax(-1, keepdim=True) if greedy else probs_BV.multinomial(1, generator=generator)
        chosen.append(step_BT)
    return [_finish(ids) for ids in torch.cat(chosen, 1).tolist()]


def step_rewards(rows: list[dict], completions: list[tuple[str, str]]) -> tuple[float, float]:
    """Mean score in mode "answer" and in mode "steps"."""
    scored = [
        [running_sum_outcome(text, row, reason, mode=mode).score for mode in ("answer", "steps")]
        for row, (text, reason) in zip(rows, completions, strict=True)
    ]
    answer, steps = (math.fsum(values) / len(rows) for values in zip(*scored, strict=True))
    return answer, steps


def _finish(ids: list[int]) -> tuple[str, str]:
    text = "".join(CHARACTERS[index] if index < len(CHARACTERS) else "?" for index in ids)
    head, end, _ = text.partition("$")
    return head, "stop" if end else "length"
