"""Which checkpoint a run continues from."""

import re
import zipfile
from pathlib import Path

STEP = re.compile(r"step_(\d+)(-v\d+)?\.ckpt")


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the latest RL step in a run folder or its ``checkpoints``, or None.

    A file that was not written to its end is no candidate, so a run that was killed while it saved falls back to the
    checkpoint before.
    """
    found = [
        (int(match[1]), path.stat().st_mtime_ns, path)
        for place in (folder, folder / "checkpoints")
        for path in (place.iterdir() if place.is_dir() else ())
        if (match := STEP.fullmatch(path.name)) and is_whole(path)
    ]
    return max(found)[2] if found else None


def is_whole(path: Path) -> bool:
    """Whether a checkpoint was written to its end: a zip file with its directory, or shards with their index."""
    if path.is_dir():
        return (path / ".metadata").is_file() and (path / "meta.pt").is_file()
    return zipfile.is_zipfile(path)


def resume_path(resume: str | None, run_dir: Path) -> Path | None:
    """What ``resume=`` means.

    Args:
        resume: None: start anew; ``auto``: the newest checkpoint of this run's folder, or anew if it has none; else a
            checkpoint, or a run folder, whose newest one is taken.
        run_dir: the folder of this run.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: the file is no complete checkpoint; or ``auto``, and the folder holds a finished run without one.
    """
    if resume is None:
        return None
    if resume == "auto":
        newest = newest_checkpoint(run_dir)
        if newest is None and (run_dir / "summary.json").is_file():
            raise ValueError(
                f"resume=auto: {run_dir} holds a finished run and no checkpoint to go on from, and starting anew would "
                "overwrite it; allowed: another paths.run_dir"
            )
        return newest
    path = Path(str(resume))
    if not path.exists():
        raise FileNotFoundError(f"resume={resume}: there is no such file; must be a checkpoint, a run folder or auto")
    if path.is_dir() and not is_whole(path):
        newest = newest_checkpoint(path)
        if newest is None:
            raise FileNotFoundError(f"resume={resume}: the folder holds no checkpoint named step_<number>.ckpt")
        return newest
    if not is_whole(path):
        raise ValueError(f"resume={resume}: no complete checkpoint; its writing may have been cut off")
    return path
