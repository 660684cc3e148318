"""A step's numbers over all ranks: what is logged is of the whole step, not of the first process."""

from collections.abc import Mapping

from sparrow.distributed import gather_objects, world_size

SUMS = ("perf/rollout_tokens_per_s", "perf/throughput")
"""Speeds of ranks that work at the same time."""


def over_ranks(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a step as one process with the whole step would have them; all ranks must call it.

    A greatest or least value is that of any rank, a time that of the slowest rank, a speed the sum. Everything else is
    a mean over samples or tokens, or the same on all ranks already, and becomes the mean over ranks.
    """
    if world_size() == 1:
        return dict(metrics)
    everyone: list[Mapping[str, float]] = gather_objects(dict(metrics))
    names = dict.fromkeys(name for found in everyone for name in found)
    return {name: combine(name, [found[name] for found in everyone if name in found]) for name in names}


def combine(name: str, values: list[float]) -> float:
    """One metric from those of the ranks that have it.

    >>> combine("response_length/max", [3.0, 7.0]), combine("perf/throughput", [3.0, 7.0])
    (7.0, 10.0)
    >>> combine("critic/score/mean", [0.25, 0.75])
    0.5
    """
    if name in SUMS:
        return sum(values)
    if name.endswith(("/max", "_max")) or name.startswith("timing_s/"):
        return max(values)
    if name.endswith(("/min", "_min")):
        return min(values)
    return sum(values) / len(values)
