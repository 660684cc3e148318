"""Who trains on what: sequences shared out over ranks so that none waits long for another."""

import heapq
from collections.abc import Sequence

from sparrow.models.architecture import Architecture

TOLERANCE = 1.05
"""Sequences stay where they were sampled if the busiest rank then has at most so many times the work that the best
sharing-out found would leave it."""


def sequence_cost(length: int, sizes: Architecture) -> float:
    """Work of one sequence in a training pass, in tokens of a short one.

    Per token a layer multiplies each of its parameters once, and under causal attention scores and weighs T / 2 earlier
    tokens, H D numbers each: 2 W + 2 H D T operations for W parameters. So the cost is T (1 + T H D / W).

    Args:
        length: T, prompt and response.
        sizes: of the model.
    """
    return length * (1 + length * sizes.heads * sizes.head_dim / sizes.layer_parameters)


def assign(costs: Sequence[float], home: Sequence[int], ranks: int) -> list[int]:
    """The rank that trains on each sequence.

    Longest first, each goes to the rank with the least work so far (at most 4/3 of the best possible, Graham 1969; of
    equal ranks its own), unless leaving all at home is nearly as good.

    Args:
        costs: work of each sequence, over all ranks.
        home: the rank that sampled it.
        ranks: how many there are.

    >>> assign([9, 1, 5, 5], [0, 0, 1, 1], 2)  # at home: 10 and 10
    [0, 0, 1, 1]
    >>> assign([9, 8, 2, 1], [0, 0, 1, 1], 2)  # at home: 17 and 3
    [0, 1, 1, 0]
    """
    loads = [(0.0, rank) for rank in range(ranks)]
    heapq.heapify(loads)
    found = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, rank = _take(loads, home[index])
        found[index] = rank
        heapq.heappush(loads, (load + costs[index], rank))
    stay = _busiest(costs, home, ranks) <= TOLERANCE * _busiest(costs, found, ranks)
    covered = len(set(home)) == ranks
    return list(home) if stay and covered else found


def _take(loads: list[tuple[float, int]], home: int) -> tuple[float, int]:
    """The least loaded rank, ``home`` if it is one of those."""
    least = loads[0][0]
    if (least, home) in loads:
        loads.remove((least, home))
        heapq.heapify(loads)
        return least, home
    return heapq.heappop(loads)


def _busiest(costs: Sequence[float], owner: Sequence[int], ranks: int) -> float:
    work = [0.0] * ranks
    for cost, rank in zip(costs, owner, strict=True):
        work[rank] += cost
    return max(work)
