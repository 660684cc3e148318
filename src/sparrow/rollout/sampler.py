"""Drawing the next token: the filters, a counter-based random number, and an inverse CDF.

The random number of a token depends on (run seed, step, prompt key, sample, position) and on nothing else, so a
sequence is the same alone and in any batch, a rerun repeats it, and two samples of a group are never accidental
duplicates. It has 53 bits; the CDF is summed in float64 and inverted by a strict comparison, so a token of
probability zero is never drawn.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the increment of splitmix64
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # its two multipliers
CDF_BLOCK = 256
"""Tokens of a block of the inverse CDF."""


@dataclass(frozen=True)
class SamplingParams:
    """How a token is chosen. Order: temperature, top-k, top-p, min-p.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keep this many most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens that reaches this probability; 1 keeps all.
        min_p: drop tokens below this share of the most likely one's probability; 0 keeps all.

    Raises:
        ValueError: a value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature}: must be a finite number, 0 (greedy) or above")
        if self.top_k < 0 or self.top_k != int(self.top_k):
            raise ValueError(f"top_k={self.top_k}: must be a whole number, 0 (all tokens) or above")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p={self.top_p}: must be above 0 and at most 1")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p={self.min_p}: must be from 0 to 1")

    @property
    def filters(self) -> bool:
        """Whether any token can be ruled out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def scaled(self, logits_BV: Tensor) -> Tensor:
        """Logits at the temperature; at temperature 1 for greedy."""
        return logits_BV if self.temperature in (0.0, 1.0) else logits_BV / self.temperature


@dataclass(frozen=True)
class Sampled:
    """Tokens [B] int64, their log-probabilities [B] fp32, and the C most likely ids and log-probabilities, if asked."""

    token_B: Tensor
    logprob_B: Tensor
    topk_ids_BC: Tensor | None
    topk_logprobs_BC: Tensor | None


def stream_of(seed: int, step: int, prompt_key: int, sample: int) -> int:
    """The 64-bit state that a sequence's random numbers start from, as a signed integer."""
    state = 0
    for part in (seed, step, prompt_key, sample):
        state = _mix((state + _GOLDEN + part) & _MASK64)
    return _signed(state)


def substream_of(stream_B: NDArray[np.int64], purpose: int) -> NDArray[np.int64]:
    """Streams for another purpose than drawing the token itself: the hash goes one part further.

    Args:
        stream_B: [B] from :func:`stream_of`.
        purpose: whole number above 0, one per purpose.
    """
    return np.array([_signed(_mix((stream + _GOLDEN + purpose) & _MASK64)) for stream in stream_B.tolist()], np.int64)


def uniforms(stream_B: Tensor, position_B: Tensor) -> Tensor:
    """Random numbers of tokens.

    Args:
        stream_B: [B] int64 from :func:`stream_of`.
        position_B: [B] int64 index of the token to draw in its sequence.

    Returns:
        [B] float64 in [0, 1), multiples of 2^-53: the splitmix64 output for counter ``position``.
    """
    state_B = stream_B + (position_B + 1) * _signed(_GOLDEN)  # int64 arithmetic wraps around, as the hash wants
    state_B = (state_B ^ _shift(state_B, 30)) * _signed(_MIX1)
    state_B = (state_B ^ _shift(state_B, 27)) * _signed(_MIX2)
    state_B = state_B ^ _shift(state_B, 31)
    return _shift(state_B, 11).double() * 2.0**-53


def sample(logits_BV: Tensor, uniform_B: Tensor, params: SamplingParams, topk: int = 0) -> Sampled:
    """Draw one token per row.

    Args:
        logits_BV: [B, V] fp32; -inf rules a token out.
        uniform_B: [B] float64 in [0, 1).
        params: how to choose.
        topk: C, candidates to record of the distribution before top-k, top-p and min-p.
    """
    greedy = params.temperature == 0.0
    scaled_BV = params.scaled(logits_BV)
    logprobs_BV = torch.log_softmax(scaled_BV, dim=-1)
    if greedy:
        token_B = logits_BV.argmax(dim=-1)
    else:
        # Not logprobs.exp(): an elementwise loop rounds the last elements of a tensor differently on some CPUs, a
        # softmax treats each row by itself.
        probs_BV = torch.softmax(scaled_BV, dim=-1)
        token_B = invert_cdf(filter_probs(probs_BV, params) if params.filters else probs_BV, uniform_B)
    logprob_B = logprobs_BV.gather(1, token_B.unsqueeze(1)).squeeze(1)
    if topk == 0:
        return Sampled(token_B, logprob_B, None, None)
    best = logprobs_BV.topk(topk, dim=-1)
    return Sampled(token_B, logprob_B, best.indices, best.values)


def distribution(logits_BV: Tensor, params: SamplingParams) -> Tensor:
    """[B, V] probabilities that :func:`sample` draws by, normalised; for greedy all of it is on the best token."""
    if params.temperature == 0.0:
        best_B1 = logits_BV.argmax(dim=-1, keepdim=True)
        one_B1 = logits_BV.gather(1, best_B1) * 0 + 1  # NaN stays NaN
        return torch.zeros_like(logits_BV).scatter_(1, best_B1, one_B1)
    probs_BV = torch.softmax(params.scaled(logits_BV), dim=-1)
    if not params.filters:
        return probs_BV
    kept_BV = filter_probs(probs_BV, params)
    return kept_BV / kept_BV.sum(dim=-1, keepdim=True)


def filter_probs(probs_BV: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities with the tokens that top-k, top-p and min-p rule out set to zero, not renormalised.

    Each filter sees what the one before it left, renormalised. Of equally likely tokens the lower id is kept.
    """
    sorted_BV, order_BV = probs_BV.double().sort(dim=-1, descending=True, stable=True)
    if 0 < params.top_k < sorted_BV.shape[1]:
        sorted_BV[:, params.top_k :] = 0.0
    if params.top_p < 1.0:
        before_BV = sorted_BV.cumsum(dim=-1) - sorted_BV
        # The first token always stays: nothing comes before it.
        sorted_BV = sorted_BV.masked_fill(before_BV >= params.top_p * sorted_BV.sum(dim=-1, keepdim=True), 0.0)
    if params.min_p > 0.0:
        sorted_BV = sorted_BV.masked_fill(sorted_BV < params.min_p * sorted_BV[:, :1], 0.0)
    return torch.zeros_like(sorted_BV).scatter_(1, order_BV, sorted_BV)


def invert_cdf(probs_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds ``uniform`` times the total.

    Sums are float64 and run in two levels (blocks of 256 tokens, then inside one block), so a large vocabulary
    costs one pass. Strictness makes a token of probability zero impossible: its cumulative value equals its
    predecessor's.

    Args:
        probs_BV: [B, V], not negative, not necessarily normalised.
        uniform_B: [B] float64 in [0, 1).

    Returns:
        [B] int64.
    """
    vocab = probs_BV.shape[1]
    if vocab <= CDF_BLOCK:
        ends_BV = probs_BV.cumsum(dim=-1, dtype=torch.float64)
        return _first_above(ends_BV, uniform_B.unsqueeze(1) * ends_BV[:, -1:], probs_BV).squeeze(1)
    width = CDF_BLOCK
    blocks_BNX = F.pad(probs_BV, (0, -vocab % width)).view(len(probs_BV), -1, width)
    sums_BN = blocks_BNX.sum(dim=-1, dtype=torch.float64)
    ends_BN = sums_BN.cumsum(dim=-1)
    target_B1 = uniform_B.unsqueeze(1) * ends_BN[:, -1:]
    block_B1 = _first_above(ends_BN, target_B1, sums_BN)
    rest_B1 = target_B1 - F.pad(ends_BN[:, :-1], (1, 0)).gather(1, block_B1)
    inside_BX = blocks_BNX.gather(1, block_B1.unsqueeze(2).expand(-1, 1, width)).squeeze(1)
    offset_B1 = _first_above(inside_BX.cumsum(dim=-1, dtype=torch.float64), rest_B1, inside_BX)
    return (block_B1 * width + offset_B1).squeeze(1)


def _first_above(cumulative_BX: Tensor, target_B1: Tensor, mass_BX: Tensor) -> Tensor:
    """[B, 1] first entry with mass whose cumulative value exceeds the target, else the last entry with mass.

    The second case is rounding: the inner sums of a block may end just below the block's total in the outer sums.
    """
    count = cumulative_BX.shape[1]
    index_X = torch.arange(count, device=cumulative_BX.device)
    has_mass_BX = mass_BX > 0
    above_BX = (cumulative_BX > target_B1) & has_mass_BX
    first_B1 = torch.where(above_BX, index_X, count).amin(dim=-1, keepdim=True)
    last_B1 = torch.where(has_mass_BX, index_X, 0).amax(dim=-1, keepdim=True)
    return torch.minimum(first_B1, last_B1)


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * _MIX1) & _MASK64
    state = ((state ^ (state >> 27)) * _MIX2) & _MASK64
    return state ^ (state >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
