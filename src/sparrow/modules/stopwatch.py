"""Seconds spent in the parts of an RL step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up wall time by name; waits for the device at both ends of a part, since its work runs behind."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str, device: torch.device) -> Iterator[None]:
        """Time what runs inside, and add it to ``seconds[name]``."""
        started = self._now(device)
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now(device) - started

    def _now(self, device: torch.device) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()
