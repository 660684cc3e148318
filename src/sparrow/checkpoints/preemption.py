"""A checkpoint of the last step, whether the run has come to its end or SIGTERM or SIGUSR1 ends it after a step.

Lightning answers SIGTERM by an exception after the step, without a checkpoint, and tells other ranks by a collective
inside the signal handler, which may meet another collective. Here a handler only notes the signal; after each step the
ranks agree on whether any of them has had one.
"""

import signal
from pathlib import Path
from types import FrameType
from typing import Any

import lightning
import torch
import torch.distributed as dist

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Preempted(SystemExit):
    """The run was told to end and has saved a checkpoint; the exit status is 128 + the signal's number."""

    def __init__(self, signum: int, path: Path) -> None:
        super().__init__(128 + signum)
        self.path = path


class Preemption(lightning.Callback):
    """Saves ``step_<RL step>.ckpt`` at the end of training, and where a signal ends a run, after the step it came in.

    At the end it saves only where the run keeps checkpoints at all, and only what no other callback has saved.

    A step is finished first, so whoever sends the signal must leave time for it (SLURM: ``--signal=SIGUSR1@600``).

    Args:
        checkpoints: folder of the run's checkpoints.
    """

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self.received = 0
        self._before: dict[int, Any] = {}

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Take the signals over; comes after Lightning has registered its own handlers."""
        self.received = 0
        for signum in SIGNALS:
            self._before[signum] = signal.signal(signum, self._note)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save and leave, on all ranks, if one has had a signal.

        Raises:
            Preempted: the checkpoint is on the disk.
        """
        signum = _greatest(self.received, pl_module.device)
        if not signum:
            return
        path = self.checkpoints / f"step_{trainer.global_step}.ckpt"
        if not path.exists():
            trainer.save_checkpoint(path, weights_only=False)
        trainer.print(f"{signal.Signals(signum).name}: saved {path}; resume={path} goes on from there")
        raise Preempted(signum, path)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Leave the last step behind, so that more ``steps`` can go on from it."""
        path = self.checkpoints / f"step_{trainer.global_step}.ckpt"
        if trainer.checkpoint_callback is not None and not path.exists():
            trainer.save_checkpoint(path, weights_only=False)

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Give the signals back where the run ends early."""
        self._give_back()

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Give the signals back."""
        self._give_back()

    def _give_back(self) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before = {}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.received = signum


def _greatest(value: int, device: torch.device) -> int:
    """The greatest over all ranks; the same everywhere, so that all leave after the same step."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    found = torch.tensor(value, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return int(found)
