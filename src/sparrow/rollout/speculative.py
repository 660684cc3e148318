"""A lossless rollout: the sparse actor drafts a few tokens, and one dense forward accepts or corrects them.

A round of a sequence with c tokens cached and token x to feed: the drafter decodes x and its own draws with the
schedule's pages, which gives d1 .. dk. Then the dense policy runs over x, d1 .. dk at once, one row each, and writes
their keys and values over those of the drafter; so what stays in the cache is the dense policy's alone. The rule of
`sparrow.rollout.verification` gives 1 to k + 1 tokens, and the scheduler takes back what was rejected.

Rows are computed as in plain decoding, so tokens are accepted against the very distributions that a dense rollout
draws from, bit for bit on CPU. A token's random numbers depend on (seed, step, prompt, sample, position) only; one
number is used for the draft, one for its acceptance, one for the token that takes its place. A position whose draft
was dropped behind a rejection uses them later for the first time that counts: nothing before it depended on them.
How many tokens are drafted depends on the sequence alone (near its greatest length fewer), never on its neighbours.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparrow.rollout.completion import RolloutStats
from sparrow.rollout.decoder import Decoder
from sparrow.rollout.loop import Rollout, to_host
from sparrow.rollout.sampler import Sampled, distribution, invert_cdf, substream_of, uniforms
from sparrow.rollout.scheduler import IntArray
from sparrow.rollout.verification import accepted_length, residual

DRAFT, ACCEPT = 1, 2
"""Purposes of random numbers; the token after the accepted ones uses the stream that plain decoding uses."""


@dataclass(frozen=True)
class Draft:
    """What the drafter proposes to B sequences, up to X tokens each.

    Attributes:
        count_B: tokens of each draft.
        token_BX: the tokens; 0 behind the end of a draft.
        prob_BX: q of each of them.
        rows: per place, the sequences whose drafts reach it, ascending.
        probs: per place, [B', V] the whole of q for these sequences, and padding.
    """

    count_B: IntArray
    token_BX: IntArray
    prob_BX: NDArray[np.float64]
    rows: list[IntArray]
    probs: list[Tensor]


class SpeculativeRollout(Rollout):
    """One call that samples from the dense policy, with drafts of the sparse actor.

    Args:
        *arguments: see :class:`Rollout`; the decoder is the dense policy's, without adapter.
        drafter: the actor's forward pass.
        draft_tokens: most tokens of a draft.
        **options: see :class:`Rollout`.
    """

    def __init__(self, *arguments: Any, drafter: Decoder, draft_tokens: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.drafter, self.draft_tokens = drafter, draft_tokens
        self._count = np.zeros_like(self._limit)  # per slot: tokens that this round drafts
        self._drafted = self._accepted = self._rounds = 0

    def _plan(self) -> IntArray:
        # Of the places left, one is the last token's, and the one before it is fed to draw that from.
        self._count = np.clip(self._limit - self.scheduler.cached - 2, 0, self.draft_tokens)
        return self.scheduler.plan(self._count + 1)

    def _decode(self, slots: IntArray) -> None:
        """A round: draft, check, keep, and take back what was rejected."""
        start_B = self.scheduler.cached[slots] - self._count[slots] - 1
        draft = self._draft(slots, start_B)
        fed_BX = np.concatenate((self._token[slots, None], draft.token_BX), axis=1)
        row_X, place_X, first_B = _flat(draft.count_B + 1)
        cached_X = start_B[row_X] + place_X + 1
        rows = self._rows_of(slots[row_X], fed_BX[row_X, place_X], cached_X, sparse=False)
        hidden_XE = self._step(self.decoder, rows, row_X.size)
        logits_XV = self.decoder.logits(hidden_XE)
        dense_XV = distribution(logits_XV, self.request.sampling)
        accepted_B = self._accept(slots, start_B, draft, dense_XV, first_B)
        next_B = self._next(slots, start_B, draft, dense_XV, first_B, accepted_B)
        given_BX = np.concatenate((draft.token_BX, np.zeros((slots.size, 1), dtype=np.int64)), axis=1)
        given_BX[np.arange(slots.size), accepted_B] = next_B
        self._token[slots] = next_B
        del dense_XV
        draft.probs.clear()  # as many distributions as there are rows: free them before the next ones are made
        ended_B = self._keep(slots, start_B, given_BX, first_B, accepted_B, hidden_XE, logits_XV)
        self.scheduler.rewind(slots[~ended_B], (start_B + accepted_B + 1)[~ended_B])
        self._finish(slots[ended_B])
        self._rounds += slots.size
        self._drafted += int(draft.count_B.sum())
        self._accepted += int(accepted_B.sum())

    def _draft(self, slots: IntArray, start_B: IntArray) -> Draft:
        """Let the actor go ahead, one decode step per place."""
        count_B = self._count[slots]
        shape = (slots.size, int(count_B.max()))
        draft = Draft(count_B, np.zeros(shape, dtype=np.int64), np.zeros(shape), [], [])
        token_B, stream_B = self._token[slots], substream_of(self._stream[slots], DRAFT)
        for place in range(shape[1]):
            rows = np.flatnonzero(count_B > place)
            index = start_B[rows] + place + 1  # of the token to draw in its sequence
            batch = self._rows_of(slots[rows], token_B[rows], index)
            hidden_BE = self._step(self.drafter, batch, rows.size)
            probs_BV = distribution(self.drafter.logits(hidden_BE), self.request.sampling)
            drawn_B = invert_cdf(probs_BV, self._uniforms(stream_B[rows], index, len(probs_BV)))
            prob_B = probs_BV.gather(1, drawn_B.unsqueeze(1))[: rows.size, 0].double().cpu()
            self._refuse_nan(slots[rows], index, prob_B)
            token_B[rows] = draft.token_BX[rows, place] = drawn_B[: rows.size].cpu().numpy()
            draft.prob_BX[rows, place] = prob_B.numpy()
            draft.rows.append(rows)
            draft.probs.append(probs_BV)
        return draft

    def _accept(
        self, slots: IntArray, start_B: IntArray, draft: Draft, dense_XV: Tensor, first_B: IntArray
    ) -> IntArray:
        """How many tokens of each draft the dense policy accepts."""
        row_X, place_X, _ = _flat(draft.count_B)
        picked = self._to_device(np.stack((first_B[row_X] + place_X, draft.token_BX[row_X, place_X])))
        dense_BX = np.zeros_like(draft.prob_BX)
        dense_BX[row_X, place_X] = dense_XV[picked[0], picked[1]].double().cpu().numpy()
        stream_B = torch.from_numpy(substream_of(self._stream[slots], ACCEPT))
        index_BX = torch.from_numpy(start_B[:, None] + 1 + np.arange(draft.token_BX.shape[1]))
        accepted_B = accepted_length(
            torch.from_numpy(dense_BX),
            torch.from_numpy(draft.prob_BX),
            uniforms(stream_B.unsqueeze(1), index_BX),
            torch.from_numpy(draft.count_B),
        )
        return accepted_B.numpy()

    def _next(
        self,
        slots: IntArray,
        start_B: IntArray,
        draft: Draft,
        dense_XV: Tensor,
        first_B: IntArray,
        accepted_B: IntArray,
    ) -> IntArray:
        """The token after the accepted ones: in place of the rejected one, or one more."""
        last = np.zeros(self.decoder.padded_rows(slots.size), dtype=np.int64)
        last[: slots.size] = first_B + accepted_B
        probs_BV = dense_XV[self._to_device(last)]
        for place, (rows, draft_BV) in enumerate(zip(draft.rows, draft.probs)):
            rejected = np.flatnonzero((accepted_B == place) & (draft.count_B > place))
            if rejected.size:
                own = self._to_device(np.searchsorted(rows, rejected))
                here = self._to_device(rejected)
                probs_BV[here] = residual(probs_BV[here], draft_BV[own])
        uniform_B = self._uniforms(self._stream[slots], start_B + accepted_B + 1, len(probs_BV))
        return invert_cdf(probs_BV, uniform_B)[: slots.size].cpu().numpy()

    def _keep(
        self,
        slots: IntArray,
        start_B: IntArray,
        given_BX: IntArray,
        first_B: IntArray,
        accepted_B: IntArray,
        hidden_XE: Tensor,
        logits_XV: Tensor,
    ) -> NDArray[np.bool_]:
        """Keep what was drawn, of each sequence up to its end; whether it has ended."""
        row_X, place_X, start_X = _flat(accepted_B + 1)
        token_X, index_X = given_BX[row_X, place_X], start_B[row_X] + place_X + 1
        ends_X = self._ends(slots[row_X], index_X, token_X)
        before_X: IntArray = np.cumsum(ends_X) - ends_X
        kept_X: NDArray[np.bool_] = before_X == before_X[start_X][row_X]
        row_X, index_X, picked_X = row_X[kept_X], index_X[kept_X], (first_B[row_X] + place_X)[kept_X]
        drawn = self._drawn(self._to_device(token_X[kept_X]), logits_XV, self._to_device(picked_X))
        fields = to_host(self.draw.kept(drawn, hidden_XE[self._to_device(picked_X)], None), row_X.size)
        self._refuse_nan(slots[row_X], index_X, fields["logprob"])
        self.trace.add(self.scheduler.sequence[slots[row_X]], fields)
        self._tokens += row_X.size
        return np.logical_or.reduceat(ends_X, start_X)

    def _drawn(self, token_X: Tensor, logits_XV: Tensor, picked_X: Tensor) -> Sampled:
        """The dense policy's log-probabilities of the tokens, drawn from some rows of the dense pass."""
        logprobs_XV = torch.log_softmax(self.request.sampling.scaled(logits_XV[picked_X]), dim=-1)
        logprob_X = logprobs_XV.gather(1, token_X.unsqueeze(1)).squeeze(1)
        if self.topk == 0:
            return Sampled(token_X, logprob_X, None, None)
        best = logprobs_XV.topk(self.topk, dim=-1)
        return Sampled(token_X, logprob_X, best.indices, best.values)

    def _pages_read(self, cached: IntArray) -> IntArray:
        return self._pages(cached)[0]

    def _stats(self, seconds: float) -> RolloutStats:
        stats = super()._stats(seconds)
        return replace(stats, drafted=self._drafted, accepted=self._accepted, rounds=self._rounds)


def _flat(lengths_B: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Rows of ragged lists laid end to end: the list and the place in it per entry, and each list's first entry."""
    first_B = np.cumsum(lengths_B) - lengths_B
    row_X = np.repeat(np.arange(lengths_B.size), lengths_B)
    return row_X, np.arange(row_X.size) - first_B[row_X], first_B
