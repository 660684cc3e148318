"""What was sampled, step by step, and its division into sequences at the end.

A decode step yields one row per running sequence. Writing each row to its sequence at once would be Python work per
token; instead whole steps are kept together with the sequence number of each row, and one stable sort at the end
puts the rows of a sequence together in the order they were drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_FOLD = 256


@dataclass(frozen=True)
class Rows:
    """The tokens of one sequence: fields by name, each [T, ...]."""

    sequence: int
    fields: dict[str, Tensor]


class Trace:
    """Rows of named fields, tagged with sequence numbers. Tensors are kept on the CPU."""

    def __init__(self) -> None:
        self._sequences: list[NDArray[np.int64]] = []
        self._fields: dict[str, list[Tensor]] = {}

    def add(self, sequence_B: NDArray[np.int64], fields: dict[str, Tensor]) -> None:
        """Keep the rows of one step; row b belongs to ``sequence_B[b]``. The same fields must come each time."""
        self._sequences.append(sequence_B)
        for name, rows in fields.items():
            kept = self._fields.setdefault(name, [])
            kept.append(rows.cpu())
            if len(kept) % _FOLD == 0:  # few large tensors instead of many small ones
                kept[-_FOLD:] = [torch.cat(kept[-_FOLD:])]

    def sequences(self) -> Iterator[Rows]:
        """The sequences in ascending order, each with its rows in the order they came."""
        if not self._sequences:
            return
        sequence_X = np.concatenate(self._sequences)
        order_X = np.argsort(sequence_X, kind="stable")
        numbers, counts = np.unique(sequence_X, return_counts=True)
        whole = {name: torch.cat(kept) for name, kept in self._fields.items()}
        ends = np.cumsum(counts)
        for number, count, end in zip(numbers.tolist(), counts.tolist(), ends.tolist()):
            index = torch.from_numpy(order_X[end - count : end])
            yield Rows(number, {name: rows[index] for name, rows in whole.items()})
