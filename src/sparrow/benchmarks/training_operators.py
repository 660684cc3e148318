"""The operators of a training pass: block-sparse attention and token statistics, forward and backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sparrow.benchmarks.decode_operators import FIRST, LAST
from sparrow.benchmarks.operator import NO_COUNTERPART, Operator
from sparrow.benchmarks.traffic import TrainingShape, statistics_backward_bytes, statistics_bytes
from sparrow.kernels import block_sparse_attention, select_pages, token_statistics
from sparrow.kernels.block_sparse_attention.reference import (
    block_sparse_attention as reference_block_sparse_attention,
)
from sparrow.kernels.page_bits import pack_lists
from sparrow.kernels.token_statistics.reference import token_statistics as reference_token_statistics
from sparrow.kernels.token_statistics.types import Request


@dataclass
class TrainingInputs:
    """Whole sequences with random states, every row sparse with randomly scored pages.

    Args:
        shape: sizes.
        pages: pages of a row, reserved ones included.
        device: where everything lives.
        dtype: of queries, keys and values.
        seed: of all random numbers.
    """

    shape: TrainingShape
    pages: int
    device: torch.device
    dtype: torch.dtype
    seed: int
    chosen_BKTM: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = self.shape
        generator = torch.Generator(self.device).manual_seed(self.seed)
        draw = partial(torch.randn, generator=generator, device=self.device, dtype=self.dtype)
        sizes = (shape.tokens, shape.head_dim)
        self.query_BHTD = draw(shape.batch, shape.heads, *sizes).requires_grad_()
        self.key_BKTD = draw(shape.batch, shape.kv_heads, *sizes).requires_grad_()
        self.value_BKTD = draw(shape.batch, shape.kv_heads, *sizes).requires_grad_()
        self.upstream_BHTD = draw(shape.batch, shape.heads, *sizes)
        self.prompt_len_B = torch.zeros(shape.batch, dtype=torch.int64, device=self.device)
        self.length_B = torch.full_like(self.prompt_len_B, shape.tokens)
        group = shape.heads // shape.kv_heads
        repeated = [x.detach().repeat_interleave(group, dim=1).requires_grad_() for x in self.states[1:]]
        self.sdpa_states = (self.query_BHTD, *repeated)
        num_pages = -(-shape.tokens // shape.page_size)
        scores_XKN = torch.rand(
            shape.batch * shape.tokens, shape.kv_heads, num_pages, generator=generator, device=self.device
        )
        self.chosen_BKTM = self._choose(scores_XKN)

    def _choose(self, scores_XKN: Tensor) -> Tensor:
        """Page sets of all rows, each row a decode step of its own."""
        shape = self.shape
        cached_X = torch.arange(1, shape.tokens + 1, device=self.device).repeat(shape.batch)
        budget_X = torch.full_like(cached_X, self.pages - FIRST - LAST)
        lists_XKS, _ = select_pages(
            scores_XKN, cached_X, budget_X, page_size=shape.page_size, first=FIRST, last=LAST, max_pages=self.pages
        )
        sets_XKM: Tensor = pack_lists(lists_XKS, scores_XKN.shape[2])
        sets_BTKM: Tensor = torch.unflatten(sets_XKM, 0, (shape.batch, shape.tokens))
        return sets_BTKM.transpose(1, 2).contiguous()

    @property
    def states(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        return self.query_BHTD, self.key_BKTD, self.value_BKTD

    @property
    def scale(self) -> float:
        """What multiplies q . k."""
        return float(self.shape.head_dim**-0.5)

    def attend(self, attention: Callable[..., Tensor]) -> Tensor:
        """Block-sparse attention by an implementation of it."""
        rows = (self.chosen_BKTM, self.prompt_len_B, self.length_B)
        return attention(*self.states, *rows, page_size=self.shape.page_size, scale=self.scale)

    def sdpa(self) -> Tensor:
        """Torch's dense causal attention in its fastest layout: a key and a value per query head, repeated before."""
        query, key, value = self.sdpa_states
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)

    def backward_of(self, forward: Callable[[], Tensor], states: Sequence[Tensor]) -> Callable[[], object]:
        """A call of the backward pass alone; the forward pass runs at the first one, which is never timed."""
        held: list[Tensor] = []

        def backward() -> object:
            if not held:
                held.append(forward())
            return torch.autograd.grad(held[0], states, self.upstream_BHTD, retain_graph=True)

        return backward


def attention_operators(inputs: TrainingInputs) -> list[Operator]:
    """Block-sparse attention, forward and backward, against the reference and torch's dense causal attention."""
    own = partial(inputs.attend, block_sparse_attention)
    reference = partial(inputs.attend, reference_block_sparse_attention)
    calls: tuple[Callable[[], Tensor], ...] = (own, reference, inputs.sdpa)
    states = (inputs.states, inputs.states, inputs.sdpa_states)
    forward = tuple(torch.no_grad()(call) for call in calls)
    backward = tuple(inputs.backward_of(*pair) for pair in zip(calls, states, strict=True))
    sizes = {"forward": inputs.shape.forward(), "backward": inputs.shape.backward()}
    return [
        Operator(f"block_sparse_attention/{name}", passes[0], sizes[name], passes[1], passes[2])
        for name, passes in (("forward", forward), ("backward", backward))
    ]


@dataclass
class StatisticsInputs:
    """Random hidden states of two policies and one head.

    Args:
        tokens: X.
        hidden: E.
        vocab: V.
        device: where everything lives.
        dtype: of states and head.
        seed: of all random numbers.
    """

    tokens: int
    hidden: int
    vocab: int
    device: torch.device
    dtype: torch.dtype
    seed: int
    token_X: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator(self.device).manual_seed(self.seed)
        draw = partial(torch.randn, generator=generator, device=self.device, dtype=self.dtype)
        self.hidden_XE = draw(self.tokens, self.hidden).requires_grad_()
        self.other_hidden_XE = draw(self.tokens, self.hidden)
        self.head_VE = (draw(self.vocab, self.hidden) * self.hidden**-0.5).requires_grad_()
        self.token_X = torch.randint(self.vocab, (self.tokens,), generator=generator, device=self.device)

    def own(self, agreement: bool) -> Tensor:
        """Log-probs, and with ``agreement`` exact alpha, by the operator."""
        other_XE = self.other_hidden_XE if agreement else None
        return token_statistics(self.hidden_XE, self.head_VE, self.token_X, other_hidden_XE=other_XE).logprobs_X

    def reference(self, agreement: bool) -> Tensor:
        """The same from all logits at once."""
        other_XE = self.other_hidden_XE if agreement else None
        request = Request(self.token_X, other_hidden_XE=other_XE)
        return reference_token_statistics(self.hidden_XE, self.head_VE, request).logprobs_X

    def backward_of(self, forward: Callable[[bool], Tensor]) -> Callable[[], object]:
        """A call of the backward pass alone, as above."""
        held: list[Tensor] = []

        def backward() -> object:
            if not held:
                held.append(forward(False).sum())
            return torch.autograd.grad(held[0], (self.hidden_XE, self.head_VE), retain_graph=True)

        return backward


def statistics_operators(inputs: StatisticsInputs) -> list[Operator]:
    """Token statistics: log-probs and entropy, with exact agreement, and backward."""
    sizes = (inputs.tokens, inputs.hidden, inputs.vocab, inputs.head_VE.element_size())
    missing = {"sdpa": NO_COUNTERPART}
    return [
        Operator(
            f"token_statistics/{name}",
            torch.no_grad()(partial(inputs.own, agreement)),
            statistics_bytes(*sizes, policies=1 + agreement),
            torch.no_grad()(partial(inputs.reference, agreement)),
            missing=missing,
        )
        for name, agreement in (("forward", False), ("agreement", True))
    ] + [
        Operator(
            "token_statistics/backward",
            inputs.backward_of(inputs.own),
            statistics_backward_bytes(*sizes),
            inputs.backward_of(inputs.reference),
            missing=missing,
        )
    ]
