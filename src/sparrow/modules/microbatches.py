"""Splitting a rollout into mini-batches (optimizer steps) and micro-batches (memory)."""

from collections.abc import Sequence

import torch


def minibatches(count: int, parts: int, seed: int) -> list[list[int]]:
    """Split ``count`` sequences into ``parts`` mini-batches in a seeded order; one part keeps the given order.

    Raises:
        ValueError: there are fewer sequences than parts.
    """
    if not 1 <= parts <= count:
        raise ValueError(f"update.minibatches={parts}: must be from 1 to the {count} sequences of a rollout")
    if parts == 1:
        return [list(range(count))]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[part::parts] for part in range(parts)]


def microbatches(lengths: Sequence[int], rows: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group rows of similar length so that each padded micro-batch holds at most ``max_tokens`` tokens.

    A single sequence longer than the limit gets a micro-batch of its own: splitting it would change its attention.

    Args:
        lengths: tokens of every sequence of the rollout.
        rows: the sequences to group.
        max_tokens: padded tokens per micro-batch.

    Returns:
        Lists of rows, longest first, so that the peak of memory comes at the start.
    """
    batches: list[list[int]] = []
    for row in sorted(rows, key=lambda r: (-lengths[r], r)):
        width = lengths[batches[-1][0]] if batches else 0
        if batches and width * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches
