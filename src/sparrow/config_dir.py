"""Where the configuration tree lives: at the repository's root when installed editable, inside the wheel otherwise."""

from pathlib import Path


def config_dir() -> Path:
    """The folder that holds ``train.yaml`` and the groups.

    Raises:
        FileNotFoundError: neither place has it, which means that the installation is broken.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package.parents[1] / "configs", package / "configs"):
        if (candidate / "train.yaml").is_file():
            return candidate
    raise FileNotFoundError(f"no configs/train.yaml in {package.parents[1]} nor in {package}: reinstall sparrow")
