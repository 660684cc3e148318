"""Lightning's strategies of several processes, with checkpoints that are whole or absent and failures told to all."""

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.constants import default_pg_timeout

from sparrow.checkpoints.storage import PARTIAL, sync_folder
from sparrow.distributed.collectives import failing_together

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What a sharded policy may compute in."""

META = "meta.pt"
"""Lightning's file with everything of a sharded checkpoint that is no tensor of model or optimizer."""


class Replicated(DDPStrategy):
    """Every rank holds the whole policy. A checkpoint that the first rank cannot write ends all of them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        """Write on the first rank.

        Raises:
            OSError: it could not be written; on other ranks RankFailed with the same text.
        """
        with failing_together():
            super().save_checkpoint(checkpoint, filepath, storage_options)


class Sharded(ModelParallelStrategy):
    """FSDP2 over all devices of all nodes: each rank holds its share of weights, gradients and optimizer states.

    A checkpoint is a folder with one file per rank. All ranks must see it: on several nodes the run folder lies on a
    shared file system.

    Args:
        compute_dtype: ``float32`` or ``bfloat16``, in which passes and rollouts compute; the masters stay in fp32.
        process_group_backend: null takes the device's.
        timeout: longest wait of a rank for another.

    Raises:
        ValueError: an unknown ``compute_dtype``.
    """

    def __init__(
        self,
        compute_dtype: Literal["float32", "bfloat16"] = "float32",
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        if compute_dtype not in DTYPES:
            raise ValueError(f"trainer.strategy.compute_dtype={compute_dtype!r}: must be {' or '.join(DTYPES)}")
        super().__init__(tensor_parallel_size=1, process_group_backend=process_group_backend, timeout=timeout)
        self.compute_dtype = DTYPES[compute_dtype]

    def setup_environment(self) -> None:
        """Spread over every process; only now is their number known."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        """Write beside the final name and rename when every rank has written its share.

        Raises:
            OSError: one could not write; no part is left behind. On ranks that could, RankFailed with the same text.
        """
        target = Path(self.broadcast(filepath))
        partial = target.with_name(target.name + PARTIAL)
        with failing_together():
            if self.global_rank == 0:
                shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed while it wrote
                _make_folder(partial, target)
        failure: BaseException | None = None
        try:
            super().save_checkpoint(checkpoint, partial, storage_options)
        except (OSError, RuntimeError, CheckpointException) as error:
            failure = error
        with failing_together():
            if failure is not None:
                shutil.rmtree(partial, ignore_errors=True)
                raise OSError(f"checkpoint {target}: could not be written, {_reason(failure)}") from failure
        with failing_together():
            if self.global_rank == 0:
                _finish(partial, target)


def _make_folder(partial: Path, target: Path) -> None:
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise OSError(f"checkpoint {target}: could not be written, {error.strerror}") from error


def _finish(partial: Path, target: Path) -> None:
    """Bring the last file to the disk (the shares are already) and give the folder its name."""
    with (partial / META).open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(partial)
    if target.is_dir():
        shutil.rmtree(target)
    partial.rename(target)
    sync_folder(target.parent)


def _reason(failure: BaseException) -> str:
    """The operating system's words where they are behind the failure."""
    causes = list(getattr(failure, "failures", {}).values())  # per rank, with a traceback
    seen = [cause[0] if isinstance(cause, tuple) else cause for cause in causes] or [failure]
    for cause in seen:
        inner: BaseException | None = cause
        while inner is not None:
            if isinstance(inner, OSError) and inner.strerror:
                return inner.strerror
            inner = inner.__cause__ or inner.__context__
    text = str(seen[0])
    # Between ranks an error loses its cause; torch's writer of zip files reports a short write like this.
    return f"a write was cut short, as on a full disk ({text})" if "inline_container" in text else text
