"""What a rollout does when the device has no room: half as many sequences at a time, said aloud, the same samples."""

import warnings
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Room:
    """What a call may take at a time.

    Attributes:
        max_batch: sequences decoded at a time.
        prefill_tokens: tokens of a prefill.
        max_cached_tokens: size of the cache, or None where it follows from the batch.
    """

    max_batch: int
    prefill_tokens: int
    max_cached_tokens: int | None

    def halved(self, sequences: int, longest: int, least_cached: int, told: str) -> "Room":
        """The next try's room after ``torch.OutOfMemoryError``.

        Args:
            sequences: those of the call.
            longest: tokens that one can grow to.
            least_cached: tokens that a cache must hold for one to run.
            told: the error's text.

        Raises:
            torch.OutOfMemoryError: one sequence was too much already.
        """
        tried = min(self.max_batch, sequences)
        if tried == 1:
            raise torch.OutOfMemoryError(f"rollout: no room for a single sequence of {longest} tokens: {told}")
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"rollout: out of memory with {tried} sequences at a time; goes on with {tried // 2} "
            f"(rollout.max_batch={tried // 2} asks for that from the start): {told}",
            stacklevel=3,
        )
        cached = None if self.max_cached_tokens is None else max(self.max_cached_tokens // 2, least_cached)
        return Room(tried // 2, max(1, self.prefill_tokens // 2), cached)
