"""Every command that the README and the documentation show is run, with small numbers, or has a reason why not.

Those of the studies are checked: modules exist, overrides compose.
"""

import csv
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from sparrow.config import check_config, check_overrides
from sparrow.config_dir import config_dir
from sparrow.train import train

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STUDIES = sorted((ROOT / "experiments").glob("*/README.md"))

REASONS = {
    r"make (quickstart|test)": "installs an environment from the package index",
    r"sparrow-prepare .*|wandb sync .*": "needs the network",
    r"sparrow-benchmark suite=(kernels|rollout)-qwen3-1\.7b.*|.* device=cuda.*": "needs a GPU",
    r"(srun|sbatch) .*|.*scripts/torchrun\.sh .*|.*submitit.*": "needs SLURM, several GPUs or several machines",
    r"tensorboard .*": "starts a server",
    r"python -m experiments\.scaling\..*": "a study; tests/experiments/test_scaling.py",
    r"(PYTHONPATH=\. )?sparrow-train (--config-dir=conf )?experiment=quickstart debug=default \S+": "test_documents.py",
    r"sparrow-train experiment=[\w-]+": "test_train.py trains every experiment for two steps",
}
"""A pattern of whole commands, and why or where else they are run."""

SMALL = {
    "train": ("debug=default",),
    "audit": (
        *("audit.prompts=3", "audit.batches=1", "audit.samples=2", "audit.max_new_tokens=70", "audit.filled=50"),
        *("audit.resamples=10", "audit.gradient_tokens=200", "audit.lowest=2"),
    ),
    "calibrate": (
        *("calibration.prompts=3", "calibration.held_out=3", "calibration.max_new_tokens=80", "calibration.filled=50"),
        *("calibration.grid=[8]", "calibration.other_taus=[]", "calibration.resamples=10", "calibration.rounds=1"),
        "calibration.grid_prompts=null",
    ),
    "cost": (),
    "report": (),
    "benchmark kernels": (
        *("suite.tokens=[100]", "suite.pages=[4]", "suite.batch=2", "suite.train_tokens=96", "suite.repeats=3"),
        *("suite.statistics_tokens=16", "suite.hidden=32", "suite.vocab=500", "suite.flush_mib=1", "suite.copy_mib=1"),
    ),
    "benchmark rollout": (
        *("suite.contexts=[64,128]", "suite.generate_contexts=[128]", "suite.batch=2", "suite.steps=4"),
        "suite.repeats=1",
    ),
    "benchmark memory": (),
}
"""Overrides that make a command small, by its name (and suite)."""


def documented(page: Path) -> list[str]:
    """Commands of a page: the lines of its shell blocks, and indented lines that begin with a program of ours."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"^ {4}((?:[A-Z]+=\S+ )?(?:sparrow-|make |python |pip |srun |torchrun ).*)", text, re.M)
    commands = [" ".join(re.sub(r"(^|\s)#.*", "", line).split()) for line in lines]
    return [command for command in commands if command]


COMMANDS = sorted({command for page in PAGES for command in documented(page)})


def reason(command: str) -> str | None:
    return next((why for pattern, why in REASONS.items() if re.fullmatch(pattern, command)), None)


def parts(command: str) -> tuple[str, list[str]]:
    """Name of one of our commands, and its overrides."""
    first, *overrides = shlex.split(command)
    assert first.startswith("sparrow-"), f"{command}: neither one of our commands nor in REASONS"
    return first.removeprefix("sparrow-"), overrides


def composed(name: str, overrides: list[str], folder: Path) -> DictConfig:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose(name, overrides=[*overrides, f"paths.run_dir={folder}"])
    check_config(cfg)
    return cfg


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, in the place of ``outputs/train/.../<time>``."""
    folder = tmp_path_factory.mktemp("trained")
    train(composed("train", ["experiment=quickstart", "debug=default"], folder), folder)
    return folder


RUN = [command for command in COMMANDS if reason(command) is None]
SLOW = re.compile(r"smollm2|controller=|callbacks=|resume=|sparrow-(train|audit|calibrate|evaluate|report)")
"""Real models, and what tests of its own train already."""


@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=pytest.mark.slow) if SLOW.search(command) else command for command in RUN],
)
def test_a_command_runs(command: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "smollm2" in command:
        request.getfixturevalue("smollm2")
    name, overrides = parts(command)
    if name == "report":
        overrides = [re.sub(r"outputs/.*<time>", str(request.getfixturevalue("trained")), word) for word in overrides]
    check_overrides(config_dir(), name, overrides)
    suite = next((word.removeprefix("suite=") for word in overrides if word.startswith("suite=")), "")
    small = SMALL[f"{name} {suite}".strip()]
    written = getattr(importlib.import_module(f"sparrow.{name}"), name)(
        composed(name, [*overrides, *small], tmp_path), tmp_path
    )
    if name == "train":
        with (tmp_path / "metrics.csv").open() as file:
            assert [float(row["training/global_step"]) for row in csv.DictReader(file)] == [1, 2]
    elif name == "report":
        assert (written / "report.html").stat().st_size > 10_000
    elif name != "cost":  # which prints alone
        assert json.loads((tmp_path / "summary.json").read_text())


def test_commands_are_found() -> None:
    assert "sparrow-train experiment=quickstart algorithm=gspo correction=icepop seed=1" in RUN
    assert "sparrow-audit" in RUN
    assert len(RUN) > 10


def test_no_reason_is_left_over() -> None:
    unused = [pattern for pattern in REASONS if not any(re.fullmatch(pattern, command) for command in COMMANDS)]
    assert not unused


def test_make_has_the_targets() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    named = [command.split()[1] for command in COMMANDS if command.startswith("make ")]
    assert named
    assert set(named) <= set(targets)


@pytest.mark.parametrize("page", STUDIES, ids=lambda path: path.parent.name)
def test_commands_of_a_study_exist(page: Path) -> None:
    commands = [part for line in documented(page) for part in line.split(" && ")]
    assert commands
    for command in commands:
        module = re.match(r"python -m (experiments[\w.]+)", command)
        if module:
            assert (ROOT / f"{module[1].replace('.', '/')}.py").is_file(), command
        else:
            name, overrides = parts(command)
            check_overrides(config_dir(), name, [word for word in overrides if not set("<>") & set(word)])
