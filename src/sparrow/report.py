"""``sparrow-report``: one self-contained page of a run, offline."""

from pathlib import Path

from omegaconf import DictConfig

from sparrow.config import run_command
from sparrow.config.check import ConfigError
from sparrow.reporting import read_run, run_page


def report(cfg: DictConfig, run_dir: Path) -> Path:
    """Draw the run folder that ``run=`` names, write ``report.html`` there, and return that folder.

    Raises:
        ConfigError: ``run`` is not given.
        FileNotFoundError: it is no run folder.
    """
    if cfg.run is None:
        raise ConfigError("run=null: must be the folder of a training run, the last line that sparrow-train printed")
    folder = Path(str(cfg.run))
    page = folder / "report.html"
    page.write_text(run_page(read_run(folder)), encoding="utf-8")
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB")
    return folder


def main() -> None:
    """Entry point of ``sparrow-report`` and ``python -m sparrow.report``."""
    run_command("report", report)


if __name__ == "__main__":
    main()
