"""The frame of every command: Hydra composes, the configuration is checked, mistakes of the user end in one line."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from sparrow.config.check import ConfigError, check_config, check_overrides
from sparrow.config.folders import check_unused, check_writable
from sparrow.config.quiet import quiet
from sparrow.config_dir import config_dir

USER_ERRORS = (ConfigError, ValueError, KeyError, OSError, FloatingPointError, OverflowError)
"""What a wrong key, value, file or sample, a full disk or another rank's failure raises: shown as one line unless
SPARROW_TRACEBACK is set."""


NO_RUN = ("--cfg", "-c", "--info", "-i", "--multirun", "-m")
"""Options of Hydra that run nothing, or that run in folders of their own."""

Command = Callable[[DictConfig, Path], Path | None]
"""Takes the composed configuration and the run folder; returns the folder it wrote to where that is another one."""


def run_command(name: str, command: Command) -> None:
    """Run a command under Hydra.

    Args:
        name: the primary configuration, without its ending; also the command's name.
        command: what to do. The last line printed, by the first of several processes, is the folder with the result.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    folder = config_dir()
    try:
        if not any(argument in ("--help", "-h", "--hydra-help") for argument in sys.argv):
            composed = check_overrides(folder, name, *split_arguments(sys.argv[1:]))
            check_writable(composed)
            if not any(argument.partition("=")[0] in NO_RUN for argument in sys.argv[1:]):
                check_unused(composed)
    except ConfigError as error:
        sys.exit(f"sparrow-{name}: {error}")

    @hydra.main(version_base="1.3", config_path=str(folder), config_name=name)
    def wrapped(cfg: DictConfig) -> None:
        _guarded(name, command, cfg)

    wrapped()


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Overrides, and the user's own folder of ``--config-dir``; Hydra's other options are left out.

    >>> split_arguments(["seed=1", "--config-dir", "conf", "-m"])
    (['seed=1'], PosixPath('conf'))
    """
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--config-dir", "-cd", type=Path)
    for option in ("--config-name", "-cn", "--config-path", "-cp", "--package", "-p", "--experimental-rerun"):
        flags.add_argument(option)
    known, rest = flags.parse_known_args(arguments)
    return [argument for argument in rest if not argument.startswith("-")], known.config_dir


def _guarded(name: str, command: Command, cfg: DictConfig) -> None:
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    OmegaConf.update(cfg, "paths.run_dir", str(run_dir))  # a relaunched rank is handed the folder, not the time
    try:
        quiet()
        check_config(cfg)
        goes_on = check_unused(cfg, run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        if not goes_on:  # what goes on writes its configuration once the checkpoint has accepted it
            (run_dir / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
        written = command(cfg, run_dir)
    except USER_ERRORS as error:
        if os.environ.get("SPARROW_TRACEBACK"):
            raise
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        sys.exit(f"sparrow-{name}: {text}")
    if all(os.environ.get(rank, "0") == "0" for rank in ("RANK", "LOCAL_RANK", "SLURM_PROCID")):
        print(written or run_dir)
