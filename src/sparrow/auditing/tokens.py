"""Tokens in context: those on which actor and policy agree least, and a whole sequence for the heat map."""

from dataclasses import dataclass

import torch

from sparrow.auditing.measurement import Measured
from sparrow.evaluation.reading import Decoder


@dataclass(frozen=True)
class Shown:
    """One token as it is shown.

    Attributes:
        row: its sequence.
        position: its index, which is the number of cached tokens of the query that predicted it.
        text: of the token.
        before: text before it.
        after: text after it.
        alpha: exact agreement.
        entropy: of the dense policy, nats.
        dense: likeliest tokens of the dense policy with their probabilities.
        sparse: those of the actor.
    """

    row: int
    position: int
    text: str
    before: str
    after: str
    alpha: float
    entropy: float
    dense: tuple[tuple[str, float], ...]
    sparse: tuple[tuple[str, float], ...]


def lowest_tokens(measured: Measured, tokenizer: Decoder, number: int, context: int) -> list[Shown]:
    """The decoded tokens of least exact alpha, least first."""
    alpha_BT = measured.alphas["exact"].masked_fill(~measured.experience.decoded_BT, torch.inf)
    number = min(number, int(measured.experience.decoded_BT.sum()))
    flat = alpha_BT.flatten().topk(number, largest=False).indices.tolist()
    width = alpha_BT.shape[1]
    return [show(measured, tokenizer, place // width, place % width, context) for place in flat]


def show(measured: Measured, tokenizer: Decoder, row: int, position: int, context: int) -> Shown:
    """One token with its context."""
    experience = measured.experience
    ids = experience.tokens_BT[row, : int(experience.length_B[row])].tolist()
    sides = (
        (measured.dense_ids, measured.dense_top),
        (measured.sparse_ids, measured.sparse_top),
    )
    dense, sparse = (
        tuple(
            (_text(tokenizer, [token]), float(logprob))
            for token, logprob in zip(tokens[row, position].tolist(), top[row, position].exp().tolist(), strict=True)
        )
        for tokens, top in sides
    )
    return Shown(
        row,
        position,
        _text(tokenizer, [ids[position]]),
        _text(tokenizer, ids[max(0, position - context) : position]),
        _text(tokenizer, ids[position + 1 : position + 1 + context // 2]),
        float(measured.alphas["exact"][row, position]),
        float(measured.entropy_BT[row, position]),
        dense,
        sparse,
    )


def most_disagreeing(measured: Measured) -> int:
    """The sequence with the largest sum of 1 - alpha."""
    gap_BT = torch.where(measured.experience.decoded_BT, 1 - measured.alphas["exact"], 0.0)
    return int(gap_BT.sum(-1).argmax())


def _text(tokenizer: Decoder, token_ids: list[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=False)
