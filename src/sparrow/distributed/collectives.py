"""What ranks tell each other besides gradients. Every function here does nothing on a single process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


class RankFailed(ChildProcessError):
    """Another rank has failed; the message holds its number and its error."""


def world_size() -> int:
    """Number of processes of the run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def own_rank() -> int:
    """This process among them, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def gather_objects(own: Any) -> list[Any]:
    """What every rank passed in, in the order of ranks; all ranks must call it."""
    if world_size() == 1:
        return [own]
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, own)
    return found


def max_over_ranks(value: int, device: torch.device) -> int:
    """The greatest value that a rank passed in; all ranks must call it."""
    if world_size() == 1:
        return value
    found = torch.tensor(value, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return int(found)


def exchange_objects(outgoing: Mapping[int, Any], sources: Sequence[int], device: torch.device) -> dict[int, Any]:
    """Hand an object to each of some ranks, and take those that others have for this one.

    All ranks go through the pairs (source, target) in one order, so blocking transfers cannot wait in a circle.

    Args:
        outgoing: by target rank; not this one.
        sources: ranks that have something for this one.
        device: where the backend moves data.

    Returns:
        The objects received, by source.
    """
    rank = own_rank()
    received: dict[int, Any] = {}
    for source in range(world_size()):
        if source == rank:
            for target in sorted(outgoing):
                dist.send_object_list([outgoing[target]], dst=target, device=device)
        elif source in sources:
            box: list[Any] = [None]
            dist.recv_object_list(box, src=source, device=device)
            received[source] = box[0]
    return received


@contextmanager
def failing_together() -> Iterator[None]:
    """If one rank raises inside, all do when they leave: the failing one its own error, the others that rank's.

    Nothing inside may be a collective: a rank that has failed would not take part in it.

    Raises:
        RankFailed: on the ranks that did not fail themselves.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
        failure = error
    told = gather_objects(None if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for rank, text in enumerate(told):
        if text is not None:
            raise RankFailed(f"rank {rank} failed, so all {len(told)} ranks end: {text}")
