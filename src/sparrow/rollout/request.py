"""What is asked of the engine, checked before anything runs. A refusal names the sample, the value and the limit."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparrow.rollout.sampler import SamplingParams

RECORDS = ("topk", "hidden", "page_sets")
"""What can be recorded beside tokens and log-probabilities."""


@dataclass(frozen=True)
class Request:
    """Arguments of one ``generate`` call; ``stop`` are strings that end a response."""

    prompts: Sequence[Sequence[int]]
    prompt_keys: Sequence[int]
    samples: int
    max_new_tokens: int
    sampling: SamplingParams
    seed: int
    step: int
    eos_token_ids: frozenset[int]
    adapter: bool
    record: frozenset[str]
    stop: tuple[str, ...] = ()

    @property
    def sequences(self) -> int:
        """Sequences to draw."""
        return len(self.prompts) * self.samples

    @property
    def max_tokens(self) -> int:
        """Greatest length of a sequence, prompt included."""
        return max((len(token_ids) for token_ids in self.prompts), default=0) + self.max_new_tokens


@dataclass(frozen=True)
class Limits:
    """What the engine can do. ``pool_pages`` is None when the pool grows with the request.

    ``draft_tokens`` is 0 unless the engine speculates; ``reads_text`` is whether there is a tokenizer.
    """

    vocab: int
    context: int
    page_size: int
    pool_pages: int | None
    topk: int
    has_adapter: bool
    draft_tokens: int
    reads_text: bool


def check_request(request: Request, limits: Limits) -> None:
    """Refuse what cannot be done.

    Raises:
        ValueError: an argument out of range, an empty or too long prompt, a token id outside the vocabulary, keys that
            are repeated or do not match the prompts, stop strings that are empty or that nothing could read, or a
            sequence that can never fit in the cache.
        KeyError: an unknown record.
    """
    for key, value in (("n", request.samples), ("max_new_tokens", request.max_new_tokens)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{key}={value!r}: must be a whole number, 1 or more")
    _check_records(request, limits)
    _check_stop(request, limits)
    _check_keys(request)
    for index, token_ids in enumerate(request.prompts):
        _check_prompt(index, token_ids, request, limits)
    outside = sorted(i for i in request.eos_token_ids if not 0 <= i < limits.vocab)
    if outside:
        raise ValueError(f"eos_token_ids holds {outside[0]}: must be token ids from 0 to {limits.vocab - 1}")
    if request.adapter and not limits.has_adapter:
        raise ValueError("adapter=True, but the model has no LoRA adapter: add one, or pass adapter=False")


def _check_records(request: Request, limits: Limits) -> None:
    for name in sorted(request.record):
        if name not in RECORDS:
            raise KeyError(f"record holds {name!r}: must be some of {', '.join(RECORDS)}")
    if "topk" in request.record and limits.topk < 1:
        raise ValueError(f"record holds 'topk', but the engine was made with topk={limits.topk}: must be 1 or more")
    if "page_sets" in request.record and limits.draft_tokens:
        raise ValueError(
            f"record holds 'page_sets' with draft_tokens={limits.draft_tokens}: a lossless rollout samples from the "
            "dense policy, which reads every page; record page sets with draft_tokens=0"
        )


def _check_stop(request: Request, limits: Limits) -> None:
    for string in request.stop:
        if not isinstance(string, str) or not string:
            raise ValueError(f"stop holds {string!r}: must be texts of at least 1 character")
    if request.stop and not limits.reads_text:
        raise ValueError("stop strings need a tokenizer: give tokenizer= to generate or to the engine")


def _check_keys(request: Request) -> None:
    keys, prompts = request.prompt_keys, request.prompts
    if len(keys) != len(prompts):
        raise ValueError(f"{len(keys)} prompt_keys for {len(prompts)} prompts: must be one each")
    first: dict[int, int] = {}
    for index, key in enumerate(keys):
        if isinstance(key, bool) or not isinstance(key, int) or not -(2**63) <= key < 2**63:
            raise ValueError(f"prompt_keys[{index}]={key!r}: must be a whole number of 64 bits, -2^63 to 2^63 - 1")
        if key in first:
            raise ValueError(
                f"prompt_keys[{index}]={key} repeats prompt_keys[{first[key]}]: equal keys draw equal random numbers, "
                "so each prompt of a call needs its own"
            )
        first[key] = index


def _check_prompt(index: int, token_ids: Sequence[int], request: Request, limits: Limits) -> None:
    length, new = len(token_ids), request.max_new_tokens
    if length == 0:
        raise ValueError(f"prompt {index} is empty: must hold at least 1 token")
    if length >= limits.context:
        raise ValueError(
            f"prompt {index} has {length} tokens: the model's context of {limits.context} has no room left; "
            "data.max_prompt_tokens leaves such prompts out of a run"
        )
    if length + new > limits.context:
        raise ValueError(
            f"prompt {index} has {length} tokens and max_new_tokens={new}: {length + new} tokens exceed the model's "
            f"context of {limits.context}; fewer new tokens (rollout.max_new_tokens) or shorter prompts "
            "(data.max_prompt_tokens) fit"
        )
    low, high = min(token_ids), max(token_ids)
    if low < 0 or high >= limits.vocab:
        bad = low if low < 0 else high
        raise ValueError(f"prompt {index} holds token id {bad}: must be from 0 to {limits.vocab - 1}")
    needed = pages_needed(length, request, limits.page_size)
    if limits.pool_pages is not None and needed > limits.pool_pages:
        raise ValueError(
            f"prompt {index} has {length} tokens and max_new_tokens={new}: it can come to need {needed} pages of "
            f"{limits.page_size} tokens, but the cache holds {limits.pool_pages}; raise max_cached_tokens to at least "
            f"{needed * limits.page_size}"
        )


def pages_needed(prompt_length: int, request: Request, page_size: int) -> int:
    """Pages without which a prompt's samples could not even run one at a time.

    The last token is drawn but never cached. With several samples the prompt's partly filled page exists once more.
    """
    most = -(-(prompt_length + request.max_new_tokens - 1) // page_size)
    return most + (1 if request.samples > 1 and prompt_length % page_size else 0)


def most_pages(request: Request, page_size: int) -> int:
    """Pages that the longest sequence of the request can need."""
    return max((pages_needed(len(token_ids), request, page_size) for token_ids in request.prompts), default=1)
