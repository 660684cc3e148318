"""What a rollout hands back: one record per sampled sequence, and counters of the whole call."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Completion:
    """One sampled response. Token i below is the i-th response token; all tensors are on the CPU.

    Attributes:
        token_ids: response tokens, the stop token included, and the tokens that complete a stop string.
        logprobs: [T] fp32 log-probability of each token under the full softmax at the sampling temperature (greedy: at
            temperature 1), whatever top-k, top-p or min-p did to the choice.
        topk_ids: [T, C] int64 most likely tokens in that distribution, or None.
        topk_logprobs: [T, C] fp32 their log-probabilities, or None.
        pages_read: [T] int64 pages that each KV head of a sparse layer read for the query that predicted token i:
            ``schedule.total_pages(t)`` with t = prompt length + i cached tokens. 0 for token 0, which comes from the
            dense prefill and belongs to no decode step. With ``draft_tokens`` all pages: what was drawn from is dense.
        hidden: [T, E] hidden state after the final norm that predicted each token, or None; the head turns it into the
            very logits that were sampled from.
        page_sets: [L_sparse, K, T - 1, M] int32 bit sets (``sparrow.kernels.page_bits``) of the pages read, or None.
            Entry i belongs to the query at index prompt length + i, which predicted token i + 1. M has room for the
            longest sequence that the call could give; `sparrow.rollout.replay_page_sets` lays them out for training.
        finish_reason: ``stop`` when the last token is a stop token or completes a stop string, else ``length``.
        prompt_index: row in the list of prompts.
        sample_index: 0 .. n - 1.
    """

    token_ids: list[int]
    logprobs: Tensor
    topk_ids: Tensor | None
    topk_logprobs: Tensor | None
    pages_read: Tensor
    hidden: Tensor | None
    page_sets: Tensor | None
    finish_reason: FinishReason
    prompt_index: int
    sample_index: int


@dataclass(frozen=True)
class RolloutStats:
    """Counters of one call of ``generate``.

    Attributes:
        prompts_prefilled: prompts put through the prefill; one per prompt, however many samples it has.
        prompt_tokens: tokens of these prompts.
        response_tokens: sampled tokens.
        decode_steps: forward passes of the decoder over a batch.
        decode_tokens: rows of these passes (padding not counted).
        max_rows: most sequences in one pass.
        paused: times that a sequence sat out a step for want of a free page.
        tokens_read: cached tokens read, summed over decode steps, layers, KV heads and sequences.
        tokens_cached: cached tokens there were to read, summed likewise.
        tokens_read_sparse: ``tokens_read`` over the sparse layers only.
        tokens_cached_sparse: ``tokens_cached`` over the sparse layers only.
        seconds: wall time of the call.
        drafted: tokens that the sparse actor proposed to the dense policy; 0 unless the engine speculates.
        accepted: those of them that the dense policy took over.
        rounds: times that a sequence went through drafting and the dense check; each gives one token more than it
            accepts.
        graphs_captured: decode steps captured as CUDA graphs in this call; 0 once all shapes are known.
        capture_seconds: how long that took, warm-up included.
    """

    prompts_prefilled: int
    prompt_tokens: int
    response_tokens: int
    decode_steps: int
    decode_tokens: int
    max_rows: int
    paused: int
    tokens_read: int
    tokens_cached: int
    tokens_read_sparse: int
    tokens_cached_sparse: int
    seconds: float
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    graphs_captured: int = 0
    capture_seconds: float = 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens; 1 without a draft."""
        return self.accepted / self.drafted if self.drafted else 1.0

    @property
    def accepted_length(self) -> float:
        """Mean tokens accepted per round; 0 without a round."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def kv_fraction(self) -> float:
        """Tokens read / tokens cached over all layers; 1 without a decode step."""
        return self.tokens_read / self.tokens_cached if self.tokens_cached else 1.0

    @property
    def kv_fraction_sparse_layers(self) -> float:
        """The same over sparse layers only; 1 without one."""
        return self.tokens_read_sparse / self.tokens_cached_sparse if self.tokens_cached_sparse else 1.0

    @property
    def tokens_per_second(self) -> float:
        """Response tokens per second of wall time."""
        return self.response_tokens / self.seconds if self.seconds > 0 else 0.0
