"""Checkpoint files that are whole or absent, whenever the process is killed and whatever is wrong with the disk.

Lightning's own writer goes through a file in the system's temporary folder, and moving that to another disk copies it:
a kill meanwhile leaves half a checkpoint under its final name. Here the temporary file lies beside the final one.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

PARTIAL = ".partial"
"""Ending of a file that is still being written; nothing reads such a file."""


class WholeFiles(TorchCheckpointIO):
    """Writes beside the final name, waits until the data are on the disk, then renames."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write one checkpoint; afterwards the path holds all of it, or what it held before.

        Raises:
            OSError: the disk is full or the folder cannot be written; the message names the path, and no part of the
                file is left behind.
        """
        target = Path(path)
        partial = target.with_name(target.name + PARTIAL)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except (OSError, RuntimeError) as error:  # torch reports a failed write of its zip file as a RuntimeError
            with suppress(OSError):  # there may be nothing to remove, nor a folder
                partial.unlink()
            raise _named(error, target) from error
        sync_folder(target.parent)


def _named(error: OSError | RuntimeError, target: Path) -> OSError:
    cause = error if isinstance(error, OSError) else _cause(error)
    return OSError(f"checkpoint {target}: could not be written, {cause.strerror if cause else error}")


def _cause(error: BaseException) -> OSError | None:
    """The operating system's error behind another one: torch raises its own while the first one is handled."""
    behind = error.__cause__ or error.__context__
    return behind if behind is None or isinstance(behind, OSError) else _cause(behind)


def sync_folder(folder: Path) -> None:
    """A rename is safe from a power cut only once its folder is on the disk as well."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
