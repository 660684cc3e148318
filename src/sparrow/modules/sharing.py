"""A rollout shared out over ranks for its update, and what the update measured brought back.

Ranks sample whole groups, and their completions differ in length. Before the update every rank learns the lengths of
all, and sequences move to where there is least to do. Mini-batches are drawn from the rollout of all ranks, in the
order a single process would have it, so the number of optimizer steps and what each of them sees do not depend on the
number of processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparrow.distributed import assign, exchange_objects, gather_objects, own_rank, sequence_cost, world_size
from sparrow.models.architecture import Architecture
from sparrow.modules.experience import Experience
from sparrow.modules.microbatches import minibatches
from sparrow.modules.scoring import Scores


@dataclass(frozen=True)
class Sharing:
    """Which rank trains on which sequence of a step; sequences are numbered over all ranks, in the order of ranks.

    Attributes:
        home: the rank that sampled each one.
        owner: the rank that trains on each one.
        rank: this one.
    """

    home: tuple[int, ...]
    owner: tuple[int, ...]
    rank: int

    @property
    def held(self) -> list[int]:
        """Sequences that this rank trains on, ascending; its rows during the update."""
        return [index for index, rank in enumerate(self.owner) if rank == self.rank]

    @property
    def sampled(self) -> list[int]:
        """Sequences that this rank has sampled, ascending; its rows before and after the update."""
        return [index for index, rank in enumerate(self.home) if rank == self.rank]

    def steps(self, parts: int, seed: int) -> list[list[int]]:
        """This rank's rows of each mini-batch; on another rank's busy step a list may be empty.

        Args:
            parts: mini-batches.
            seed: of their order.
        """
        place = {index: row for row, index in enumerate(self.held)}
        return [[place[i] for i in part if i in place] for part in minibatches(len(self.owner), parts, seed)]


def share_out(experience: Experience, sizes: Architecture, *, balance: bool) -> Sharing:
    """Decide who trains on what; the same on every rank.

    Args:
        experience: this rank's rollout.
        sizes: of the model, for the work of a sequence.
        balance: move sequences; otherwise they stay where they were sampled.
    """
    everyone: list[list[int]] = gather_objects(experience.length_B.tolist())
    home = [rank for rank, lengths in enumerate(everyone) for _ in lengths]
    costs = [sequence_cost(length, sizes) for lengths in everyone for length in lengths]
    owner = assign(costs, home, world_size()) if balance and world_size() > 1 else home
    return Sharing(tuple(home), tuple(owner), own_rank())


def send_out(experience: Experience, sharing: Sharing) -> Experience:
    """The sequences that this rank trains on, whoever sampled them."""
    if sharing.home == sharing.owner:
        return experience
    pieces = _moved(_take_apart(experience), sharing.home, sharing.owner, sharing.rank, experience.tokens_BT.device)
    return _put_together([pieces[index] for index in sharing.held], experience)


def bring_home(scores: Scores, experience: Experience, sharing: Sharing) -> Scores:
    """Scores of the update's rows as those of the sequences that this rank sampled.

    Args:
        scores: of the rows that this rank trained on.
        experience: what this rank sampled.
        sharing: who had what.
    """
    if sharing.home == sharing.owner:
        return scores
    device, width = experience.tokens_BT.device, experience.tokens_BT.shape[1]
    named = {field.name: getattr(scores, field.name) for field in fields(Scores)}
    own = [{n: None if v is None else v[row].cpu() for n, v in named.items()} for row in range(len(sharing.held))]
    pieces = _moved(own, sharing.owner, sharing.home, sharing.rank, device)
    rows = [pieces[index] for index in sharing.sampled]
    back = {name: None if rows[0][name] is None else _rows([r[name] for r in rows], width, device) for name in named}
    return Scores(**back)  # type: ignore[arg-type]  # log-probs and entropy are never None


def _moved(
    own: Sequence[dict[str, Any]], before: Sequence[int], after: Sequence[int], rank: int, device: torch.device
) -> dict[int, dict[str, Any]]:
    """Pieces by sequence, once each has gone from its rank ``before`` to the one ``after``."""
    places = [index for index, owner in enumerate(before) if owner == rank]
    pieces = dict(zip(places, own, strict=True))
    outgoing: dict[int, dict[int, dict[str, Any]]] = {}
    for index in places:
        if after[index] != rank:
            outgoing.setdefault(after[index], {})[index] = pieces.pop(index)
    sources = sorted({b for b, a in zip(before, after, strict=True) if a == rank and b != rank})
    for received in exchange_objects(outgoing, sources, device).values():
        pieces |= received
    return pieces


def _take_apart(experience: Experience) -> list[dict[str, Any]]:
    """Each sequence by itself, on the host, without padding."""
    pieces: list[dict[str, Any]] = []
    for row, length in enumerate(experience.length_B.tolist()):
        piece: dict[str, Any] = {}
        for field in fields(experience):
            value = getattr(experience, field.name)
            if isinstance(value, Tensor):
                piece[field.name] = (value[row, :length] if field.name.endswith("_BT") else value[row]).cpu().clone()
            elif value is not None:
                piece[field.name] = value[row]
        pieces.append(piece)
    return pieces


def _put_together(pieces: Sequence[dict[str, Any]], like: Experience) -> Experience:
    device, width = like.tokens_BT.device, max(int(piece["length_B"]) for piece in pieces)
    values: dict[str, Any] = {}
    for field in fields(Experience):
        value = getattr(like, field.name)
        if field.name.endswith("_BT"):
            values[field.name] = _rows([piece[field.name] for piece in pieces], width, device)
        elif isinstance(value, Tensor):
            values[field.name] = torch.stack([piece[field.name] for piece in pieces]).to(device)
        elif value is not None:
            values[field.name] = tuple(piece[field.name] for piece in pieces)
    return Experience(**values)


def _rows(values: Sequence[Tensor], width: int, device: torch.device) -> Tensor:
    """Rows of different lengths as [B, T]: cut at ``width``, where only padding is lost, or filled up with zeros."""
    return torch.stack([pad(value[:width], (0, max(0, width - len(value)))) for value in values]).to(device)
