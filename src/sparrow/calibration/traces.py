"""Sequences sampled by the actor, and how much of them repeats itself."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparrow.data import Prompt
from sparrow.rollout import Completion, RolloutEngine


@dataclass(frozen=True)
class Trace:
    """One sampled sequence.

    Attributes:
        prompt: index of its prompt; traces of one prompt share it.
        prompt_len: tokens of the prompt.
        tokens_T: int64 ids of prompt and response.
        stopped: whether it ended by itself.
        pages_read: pages read for each response token but the first, int64, or None.
        hidden_XE: the actor's recorded states that predicted the response, or None.
    """

    prompt: int
    prompt_len: int
    tokens_T: Tensor
    stopped: bool
    pages_read: Tensor | None = None
    hidden_XE: Tensor | None = None

    @property
    def response(self) -> list[int]:
        """Sampled token ids."""
        ids: list[int] = self.tokens_T[self.prompt_len :].tolist()
        return ids


class EndlessEngine(RolloutEngine):
    """An engine that never draws some tokens: their logits are -inf in the draw, and nowhere else.

    Recorded hidden states are the model's own, so agreement is measured on the full distributions.

    Attributes:
        never: token ids without a chance.
    """

    never: Collection[int] = ()

    @property
    def context(self) -> int:
        """Longest sequence of the model, in tokens."""
        return self._weights.max_positions

    def make_decoder(self, *arguments: Any, **options: Any) -> Any:
        """The decoder of one call, its logits barred."""
        decoder: Any = super().make_decoder(*arguments, **options)
        plain, barred = decoder.logits, sorted(self.never)

        def logits(hidden_BE: Tensor) -> Tensor:
            logits_BV: Tensor = plain(hidden_BE)
            logits_BV[:, barred] = -torch.inf
            return logits_BV

        decoder.logits = logits
        return decoder


def sample_traces(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    *,
    samples: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    eos_token_ids: Sequence[int],
    step: int = 0,
    record: Collection[str] = (),
    **options: Any,
) -> list[Trace]:
    """Sample from the engine's actor, as :meth:`RolloutEngine.generate` does; an :class:`EndlessEngine` never stops.

    Args:
        engine: decodes under its schedule.
        prompts: what to answer.
        samples: sequences per prompt.
        max_new_tokens: longest response.
        temperature: of sampling.
        seed: of sampling.
        eos_token_ids: ids that end a response.
        step: makes calls draw other numbers.
        record: what to keep.
        options: further ones of ``generate``.
    """
    barred = set(engine.never) if isinstance(engine, EndlessEngine) else set()
    completions = engine.generate(
        [prompt.token_ids for prompt in prompts],
        n=samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        step=step,
        prompt_keys=[prompt.key for prompt in prompts],
        eos_token_ids=[token for token in eos_token_ids if token not in barred],
        record=record,
        **options,
    )
    return [_trace(completion, prompts[completion.prompt_index]) for completion in completions]


def repetition(token_ids: Sequence[int], ngram: int) -> float:
    """Share of tokens that end an n-gram which occurred before in the same response; 0 for a response without one.

    >>> repetition([1, 2, 3, 1, 2, 3, 1], ngram=2)
    0.5
    """
    seen: set[tuple[int, ...]] = set()
    repeated, total = 0, len(token_ids) - ngram + 1
    for start in range(max(total, 0)):
        found = tuple(token_ids[start : start + ngram])
        repeated += found in seen
        seen.add(found)
    return repeated / total if total > 0 else 0.0


def mean_repetition(traces: Sequence[Trace], ngram: int) -> float:
    """Mean of :func:`repetition` over traces."""
    return sum(repetition(trace.response, ngram) for trace in traces) / len(traces)


def save_traces(path: Path, traces: Sequence[Trace]) -> None:
    """Keep sequences (without hidden states), so that a stopped calibration need not sample them again."""
    rows = [(trace.prompt, trace.prompt_len, trace.tokens_T, trace.stopped, trace.pages_read) for trace in traces]
    torch.save(rows, path)


def load_traces(path: Path, prompts: Sequence[Prompt]) -> list[Trace]:
    """Sequences that :func:`save_traces` kept.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: they answer other prompts than these.
    """
    if not path.is_file():
        raise FileNotFoundError(f"traces {path} does not exist: give a file that an earlier calibration wrote, or null")
    traces = [Trace(*row) for row in torch.load(path, weights_only=True)]
    for trace in traces:
        held = trace.tokens_T[: trace.prompt_len].tolist()
        if trace.prompt >= len(prompts) or held != prompts[trace.prompt].token_ids:
            raise ValueError(f"{path}: trace of prompt {trace.prompt} answers another prompt than this run's; use null")
    return traces


def _trace(completion: Completion, prompt: Prompt) -> Trace:
    return Trace(
        completion.prompt_index,
        len(prompt.token_ids),
        torch.tensor([*prompt.token_ids, *completion.token_ids]),
        completion.finish_reason == "stop",
        completion.pages_read[1:],
        completion.hidden,
    )
