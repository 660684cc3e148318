"""Loaders of prompts that resume exactly, inside an epoch and at its end.

Lightning saves the state of a train dataloader that has `state_dict`, but not of a sampler, and stock loaders restart
or lose their permutation. `PromptLoader` needs no hidden state: the order follows from seed and epoch, each rank takes
its slice of every global batch, and the position is the count of batches handed out. The state is the same on every
rank, so the copy that rank 0 writes serves all. Use it with `Trainer(use_distributed_sampler=False)`.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch

from sparrow.data.schema import Prompt

logger = logging.getLogger(__name__)

Batch = dict[str, list[Prompt]]


class PromptLoader:
    """Shuffled training batches, the same for the same seed on any number of ranks.

    Args:
        prompts: the whole set, equal on every rank.
        prompts_per_step: prompts of one global batch, over all ranks.
        seed: of the order.
        rank: this process, from 0.
        world_size: number of processes.

    Raises:
        ValueError: if the numbers do not fit; names them.
    """

    def __init__(
        self, prompts: Sequence[Prompt], prompts_per_step: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        _check_sizes(prompts_per_step, rank, world_size)
        if len(prompts) < prompts_per_step:
            raise ValueError(f"data.prompts_per_step={prompts_per_step}, but the set has only {len(prompts)} prompts")
        self.prompts = prompts
        self.prompts_per_step = prompts_per_step
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.position = 0
        self._resuming = False
        self._fingerprint = _fingerprint(prompts)
        if self.dropped and rank == 0:
            logger.info(
                "each epoch leaves out %d of %d prompts (another draw each time): they do not fill a step of %d",
                self.dropped, len(prompts), prompts_per_step,
            )  # fmt: skip

    @property
    def dropped(self) -> int:
        """Prompts left out of each epoch because they do not fill a step."""
        return len(self.prompts) % self.prompts_per_step

    @property
    def sampler(self) -> Self:
        """The loader itself: Lightning calls `loader.sampler.set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose order comes next; another epoch than the current one starts at its first batch."""
        if epoch != self.epoch:
            self.epoch, self.position, self._resuming = epoch, 0, False

    def order(self, epoch: int) -> list[int]:
        """The permutation of the whole set in an epoch, the same on every rank."""
        generator = torch.Generator().manual_seed(_order_seed(self.seed, epoch))
        return torch.randperm(len(self.prompts), generator=generator).tolist()

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self.prompts) // self.prompts_per_step

    def __iter__(self) -> Iterator[Batch]:
        """This rank's batches, from the restored position if a state was loaded, else from the first."""
        if not self._resuming:
            self.position = 0
        self._resuming = False
        order = self.order(self.epoch)
        while self.position < len(self):
            chosen = _rank_slice(order, self.position, self.prompts_per_step, self.rank, self.world_size)
            # Counted before it is handed out: a checkpoint written during the step then resumes after it.
            self.position += 1
            yield {"prompts": [self.prompts[index] for index in chosen]}

    def state_dict(self) -> dict[str, Any]:
        """Seed, epoch, batches handed out, and what they depend on."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "world_size": self.world_size,
            "prompts_per_step": self.prompts_per_step,
            "num_prompts": len(self.prompts),
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where the state was taken; its seed and epoch replace this loader's.

        Raises:
            ValueError: if world size, batch size or prompts differ from the saved ones; names both.
        """
        layout = {name: value for name, value in self.state_dict().items() if name not in ("seed", "epoch", "position")}
        refuse_other_layout(state, layout)
        self.seed, self.epoch, self.position = state["seed"], state["epoch"], state["position"]
        self._resuming = self.position < len(self)


class EvaluationLoader:
    """Every prompt once, in order; the same number of batches on every rank.

    The last global batch may be smaller; it is spread evenly, so on more ranks than prompts left a rank's last batch
    can be empty.

    Args:
        prompts: the whole set, equal on every rank.
        prompts_per_step: prompts of one global batch, over all ranks.
        rank: this process, from 0.
        world_size: number of processes.
    """

    def __init__(self, prompts: Sequence[Prompt], prompts_per_step: int, rank: int = 0, world_size: int = 1) -> None:
        _check_sizes(prompts_per_step, rank, world_size)
        self.prompts = prompts
        self.prompts_per_step = prompts_per_step
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        """Batches, the same on every rank."""
        return -(-len(self.prompts) // self.prompts_per_step)

    def __iter__(self) -> Iterator[Batch]:
        """This rank's batches."""
        for start in range(0, len(self.prompts), self.prompts_per_step):
            batch = self.prompts[start : start + self.prompts_per_step]
            first, last = (len(batch) * rank // self.world_size for rank in (self.rank, self.rank + 1))
            yield {"prompts": list(batch[first:last])}


def refuse_other_layout(saved: Mapping[str, Any], layout: Mapping[str, Any]) -> None:
    """Checks that what decides the order is as it was.

    Args:
        saved: the state of a checkpoint.
        layout: the present values of what must be equal.

    Raises:
        ValueError: if one differs; names both values.
    """
    for name, value in layout.items():
        if saved[name] != value:
            raise ValueError(
                f"cannot resume exactly: {name} was {saved[name]} when the checkpoint was written and is {value} now; "
                "allowed: the same value"
            )


def _rank_slice(order: Sequence[int], position: int, size: int, rank: int, world_size: int) -> Sequence[int]:
    share = size // world_size
    start = position * size + rank * share
    return order[start : start + share]


def _order_seed(seed: int, epoch: int) -> int:
    """Hashed, so that seed 1 in epoch 0 is not seed 0 in epoch 1."""
    digest = hashlib.blake2b(f"prompts/{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _fingerprint(prompts: Sequence[Prompt]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        digest.update(prompt.key.to_bytes(8, "big"))
    return digest.hexdigest()


def _check_sizes(prompts_per_step: int, rank: int, world_size: int) -> None:
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} of world_size={world_size} is not allowed; allowed: 0 <= rank < world_size")
    if prompts_per_step < 1 or prompts_per_step % world_size:
        raise ValueError(
            f"data.prompts_per_step={prompts_per_step} is not allowed with world_size={world_size}; "
            "allowed: a positive multiple of it"
        )
