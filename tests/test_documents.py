"""The documentation holds: every how-to example runs, the site builds, links lead somewhere, named keys exist."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "experiments").glob("*/README.md"), *ROOT.glob("*.md")])
BLOCK = re.compile(r'^```(?:python|yaml) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"sparrow-train (?:--config-dir=conf )?experiment=quickstart debug=default (\S+)")
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(#[^)]*)?\)")
STUDIES = sorted((ROOT / "experiments").glob("*/README.md"))
SECTIONS = ("Question", "Command", "Verdict")


def write_examples(folder: Path) -> list[str]:
    """Put the files of the how-to page into a folder, parts of one file one after another; returns the overrides."""
    text = (ROOT / "docs" / "how_to.md").read_text(encoding="utf-8")
    for name, block in BLOCK.findall(text):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(block)
    return COMMAND.findall(text)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "sparrow.train", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_all_examples_of_the_how_to_page_train_together(tmp_path: Path) -> None:
    overrides = write_examples(tmp_path)
    assert sorted(override.split("=")[0] for override in overrides) == [
        "correction",
        "loss",
        "reward",
        "rollout.page_score",
        "schedule",
    ]
    done = run(
        tmp_path,
        f"--config-dir={tmp_path / 'conf'}",
        "experiment=quickstart",
        "debug=default",
        "held_out=false",
        f"paths.run_dir={tmp_path / 'run'}",
        *overrides,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["tau"]) == (2, 0.9)
    config = (tmp_path / "run" / "config.yaml").read_text()
    for part in ("parts.RecentMean", "parts.soft_reinforce", "parts.Tempered", "parts.ends_well"):
        assert part in config


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor.removeprefix("#") in anchors(target), f"{page.name}: {link}{anchor}"


def anchors(page: Path) -> set[str]:
    """The names that headings of a page get."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", STUDIES, ids=lambda path: path.parent.name)
def test_a_study_says_what_it_asks_and_what_it_found(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in SECTIONS if not re.search(rf"^\*\*{name}", text, re.MULTILINE)]
    assert not missing
    assert f"`{page.parent.name}`" in (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")


def test_keys_of_the_report_page_are_logged() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    with (ROOT / "experiments" / "quickstart" / "runs" / "half_0" / "metrics.csv").open() as file:
        recorded = set(next(csv.reader(file)))
    page = (ROOT / "docs" / "wandb_report.md").read_text(encoding="utf-8")
    keys = set(re.findall(r"`\^?([a-z_]+/[^` ]*)`", page.partition("## Panels")[2]))
    assert len(keys) > 30
    for key in keys:
        stem = re.split(r"\.\*", key)[0]
        assert any(name.startswith(stem) for name in recorded) or stem in source or templated(stem), key


def templated(key: str) -> bool:
    """Keys whose last part or estimator the source fills in."""
    of_parts = "distill/(divergence|pg_loss|grad_norm)|val/|controller/"
    return bool(re.fullmatch(rf"tail/alpha_(low|high|top20)/p05|{of_parts}", key))


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    reference = (tmp_path / "site" / "reference.html").read_text(encoding="utf-8")
    assert "TailAcceptance" in reference
    assert "eos_token_ids" in reference
