"""The documentation holds: every how-to example runs, the site builds, links lead somewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
BLOCK = re.compile(r'^```(?:python|yaml) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"sparrow-train (?:--config-dir=conf )?experiment=quickstart debug=default (\S+)")
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")


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


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    reference = (tmp_path / "site" / "reference.html").read_text(encoding="utf-8")
    assert "TailAcceptance" in reference
    assert "eos_token_ids" in reference
