"""What one rollout leaves for training: token ids end to end, and every number under the name of who made it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from sparrow.rollout import Completion


@dataclass(frozen=True)
class Experience:
    """Sampled sequences of one RL step, left-aligned: prompt, response, padding.

    A per-token value stands at the index of the token it predicts.

    Attributes:
        tokens_BT: int64 ids, padding filled with 0.
        prompt_len_B: prompt tokens; also the index of the first response token.
        length_B: prompt and response tokens.
        sparse_logprobs_BT: log-probs recorded by the sparse actor while sampling, 0 outside the response.
        rewards_B: scalar reward per sequence.
        advantages_B: advantage per sequence, from the rewards of its group.
        group_B: group id; sequences of one prompt share it.
        sparse_hidden: per sequence the actor's final hidden states [response, E], or None where not recorded.
        sparse_topk: per sequence (ids [response, C], log-probs [response, C]), or None where not recorded.
        page_sets: per sequence the recorded page sets, or None where not recorded.
    """

    tokens_BT: Tensor
    prompt_len_B: Tensor
    length_B: Tensor
    sparse_logprobs_BT: Tensor
    rewards_B: Tensor
    advantages_B: Tensor
    group_B: Tensor
    sparse_hidden: tuple[Tensor, ...] | None = None
    sparse_topk: tuple[tuple[Tensor, Tensor], ...] | None = None
    page_sets: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return self.tokens_BT.shape[0]

    @property
    def mask_BT(self) -> Tensor:
        """True at response tokens."""
        index_T = torch.arange(self.tokens_BT.shape[1], device=self.tokens_BT.device)
        return (index_T >= self.prompt_len_B[:, None]) & (index_T < self.length_B[:, None])

    @property
    def decoded_BT(self) -> Tensor:
        """True at response tokens that a sparse step predicted: all but the first, which a dense prefill predicts."""
        index_T = torch.arange(self.tokens_BT.shape[1], device=self.tokens_BT.device)
        return (index_T > self.prompt_len_B[:, None]) & (index_T < self.length_B[:, None])

    @property
    def position_BT(self) -> Tensor:
        """Cached tokens of the query that predicts each token, which is the token's own index."""
        return torch.arange(self.tokens_BT.shape[1], device=self.tokens_BT.device).expand_as(self.tokens_BT)

    def to(self, device: torch.device) -> "Experience":
        """The same on another device; what the actor recorded stays where it is until it is scored."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in held.items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def select(self, rows: Sequence[int]) -> "Experience":
        """The given sequences, padding trimmed to the longest of them."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.tokens_BT.device)
        width = int(self.length_B[index].max()) if len(rows) else 0
        picked: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                picked[field.name] = value[index, :width] if field.name.endswith("_BT") else value[index]
            elif value is not None:
                picked[field.name] = tuple(value[row] for row in rows)
        return replace(self, **picked)


def collect(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Completion],
    rewards: Sequence[float],
    advantages_B: Tensor,
    group_B: Tensor,
) -> Experience:
    """Lay completions out as one padded batch.

    Args:
        prompts: token ids of the prompt of each completion, in the order of ``completions``.
        completions: what the engine returned.
        rewards: one score per completion.
        advantages_B: one advantage per completion.
        group_B: one group id per completion.

    Raises:
        ValueError: lengths disagree, or a recorded log-prob is not finite; the message names the sample. A missing
            log-prob is never replaced by 0, which would claim certainty.
    """
    for index, completion in enumerate(completions):
        if len(completion.token_ids) != len(completion.logprobs):
            raise ValueError(
                f"completion {index}: {len(completion.token_ids)} token ids but {len(completion.logprobs)} log-probs"
            )
        if not bool(torch.isfinite(completion.logprobs).all()):
            raise ValueError(f"completion {index} (prompt {completion.prompt_index}): a sampled log-prob is not finite")
    tokens_BT, prompt_len_B, length_B = _lay_out(prompts, [completion.token_ids for completion in completions])
    logprobs_BT = torch.zeros(tokens_BT.shape)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        logprobs_BT[row, len(prompt) : len(prompt) + len(completion.token_ids)] = completion.logprobs.float()
    return Experience(
        tokens_BT=tokens_BT,
        prompt_len_B=prompt_len_B,
        length_B=length_B,
        sparse_logprobs_BT=logprobs_BT,
        rewards_B=torch.tensor(list(rewards), dtype=torch.float32),
        advantages_B=advantages_B,
        group_B=group_B,
        sparse_hidden=_recorded(completions, "hidden"),
        sparse_topk=_recorded_topk(completions),
        page_sets=_recorded(completions, "page_sets"),
    )


def demonstrate(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Experience:
    """Lay given responses out as one padded batch of advantage 1; no actor sampled them, so its log-probs are NaN.

    Args:
        prompts: token ids.
        responses: token ids, the stop token included.
    """
    tokens_BT, prompt_len_B, length_B = _lay_out(prompts, responses)
    ones_B = torch.ones(len(responses))
    return Experience(
        tokens_BT=tokens_BT,
        prompt_len_B=prompt_len_B,
        length_B=length_B,
        sparse_logprobs_BT=torch.full(tokens_BT.shape, torch.nan),
        rewards_B=ones_B,
        advantages_B=ones_B,
        group_B=torch.arange(len(responses)),
    )


def collect_unjudged(prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> Experience:
    """The same for completions that are measured and not trained on: rewards and advantages 0, grouped by prompt.

    Args:
        prompts: token ids per prompt, which completions name by their index.
        completions: what the engine returned for them.

    Raises:
        ValueError: see :func:`collect`.
    """
    rows = [prompts[completion.prompt_index] for completion in completions]
    group_B = torch.tensor([completion.prompt_index for completion in completions], dtype=torch.long)
    return collect(rows, completions, [0.0] * len(rows), torch.zeros(len(rows)), group_B)


def _lay_out(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B, T], prompt lengths [B] and whole lengths [B]."""
    rows = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    lengths = [len(row) for row in rows]
    tokens_BT = torch.zeros(len(rows), max(lengths), dtype=torch.long)
    for index, row in enumerate(rows):
        tokens_BT[index, : len(row)] = torch.tensor(row)
    return tokens_BT, torch.tensor([len(prompt) for prompt in prompts]), torch.tensor(lengths)


def _recorded(completions: Sequence[Completion], name: str) -> tuple[Any, ...] | None:
    values = tuple(getattr(completion, name) for completion in completions)
    return None if any(value is None for value in values) else values


def _recorded_topk(completions: Sequence[Completion]) -> tuple[tuple[Tensor, Tensor], ...] | None:
    ids, logprobs = _recorded(completions, "topk_ids"), _recorded(completions, "topk_logprobs")
    return None if ids is None or logprobs is None else tuple(zip(ids, logprobs, strict=True))
