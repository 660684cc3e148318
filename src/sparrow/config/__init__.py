"""What a composed configuration must satisfy before anything is built, and the frame every command runs in."""

from sparrow.config.build import build, plain_config
from sparrow.config.check import ConfigError, check_config, check_overrides
from sparrow.config.command import run_command
from sparrow.config.schedules import build_schedule
from sparrow.config.values import check_run

__all__ = [
    "ConfigError",
    "build",
    "build_schedule",
    "check_config",
    "check_overrides",
    "check_run",
    "plain_config",
    "run_command",
]
