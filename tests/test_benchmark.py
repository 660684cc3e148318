"""``sparrow-benchmark`` as a user runs it, at tiny shapes: what it prints and what it leaves behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from sparrow.benchmarks.memory import MemorySuite
from sparrow.benchmarks.rollout import slope, whole
from sparrow.benchmarks.training_memory import training_memory
from sparrow.config import build, check_config
from sparrow.config_dir import config_dir

SUITES = sorted(path.stem for path in (config_dir() / "suite").glob("*.yaml"))
RATIOS = ("decode_sparse_over_sdpa_dense", "decode_sparse_over_own_dense", "bound", "share_of_bound")


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("benchmark", overrides=list(overrides))
    check_config(cfg.suite)
    return cfg


def command(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "SPARROW_TRACEBACK"}
    arguments = [sys.executable, "-m", "sparrow.benchmark", f"paths.run_dir={folder}", "threads=1", *overrides]
    return subprocess.run(arguments, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False)


def run(folder: Path, *overrides: str) -> tuple[str, dict[str, Any]]:
    """What was printed, and the summary."""
    done = command(folder, *overrides)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str(folder)
    assert json.loads((folder / "provenance.json").read_text())["torch_threads"] == "1"
    return done.stdout, json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_fits_its_class(suite: str) -> None:
    cfg = composed(f"suite={suite}")
    assert cfg.name == suite
    if cfg.suite.get("device") == "cuda":
        cfg.suite.device = "cpu"
    build(cfg.suite)


@pytest.mark.slow
def test_kernels(tmp_path: Path) -> None:
    shape = ["suite.tokens=[100,200]", "suite.pages=[4,6]", "suite.batch=2", "suite.train_tokens=96"]
    small = ["suite.statistics_tokens=16", "suite.hidden=32", "suite.vocab=500", "suite.repeats=3"]
    printed, summary = run(tmp_path / "run", *shape, *small, "suite.flush_mib=1", "suite.copy_mib=1", "suite.layers=2")
    assert "decode, 200 tokens (cpu, float32, medians of up to 3 calls)" in printed
    expected = {*RATIOS, *(f"{key}_t{t}_p{p}" for key in RATIOS for t in (100, 200) for p in (4, 6))}
    expected |= {"copy_gb_per_s_t100", "copy_gb_per_s_t200"}
    expected |= {"block_sparse_forward_over_sdpa_dense", "block_sparse_backward_over_sdpa_dense"}
    assert set(summary) == expected
    assert all(value > 0 for value in summary.values())
    assert [summary[key] for key in RATIOS] == [summary[f"{key}_t200_p4"] for key in RATIOS]  # the longest, the first
    assert summary["bound"] == pytest.approx(400 / (200 / 16 + 32 * 4))
    assert summary["share_of_bound"] == pytest.approx(summary["decode_sparse_over_sdpa_dense"] / summary["bound"])
    details = json.loads((tmp_path / "run" / "kernels.json").read_text())
    assert details["machine"]["torch_threads"] == "1"
    assert details["settings"]["tokens"] == [100, 200]
    rows = {entry["operator"]: entry for entry in details["tables"]["decode, 200 tokens"]}
    assert {"copy", "page_landmarks/append", "page_landmarks/fill", "page_scores", "paged_attention/dense"} < set(rows)
    assert {f"{name}/{p}" for name in ("select_pages", "paged_attention", "sparse_step") for p in (4, 6)} < set(rows)
    assert rows["copy"]["bytes_moved"] == 2 << 20
    assert rows["copy"]["share_of_copy"] == 1.0
    assert rows["page_scores"]["speed_over_sdpa"] is None
    assert rows["page_scores"]["not_measured"] == {"sdpa": "torch's attention has no such operation"}
    assert rows["sparse_step/4"]["not_measured"] == {}


@pytest.mark.slow
def test_rollout(tmp_path: Path) -> None:
    shape = ["suite.contexts=[100,200]", "suite.generate_contexts=[200]", "suite.batch=3", "suite.page_size=4"]
    small = ["suite.dense_layers=[0]", "suite.pages=8", "suite.steps=5", "suite.repeats=2"]
    printed, summary = run(tmp_path / "run", "suite=rollout", "model=tiny", *shape, *small)
    assert "ms per step, tiny, batch 3, 8 pages and 3 reserved" in printed
    steps = {key.removesuffix("_step_s"): value for key, value in summary.items() if key.endswith("_step_s")}
    assert set(steps) == {"sparse", "dense", "empty", "generate_dynamic", "generate_static"}
    assert summary["sparse_over_generate_dynamic"] == pytest.approx(steps["generate_dynamic"] / steps["sparse"])
    assert summary["sparse_over_generate_static"] == pytest.approx(steps["generate_static"] / steps["sparse"])
    assert summary["dense_over_generate_static"] == pytest.approx(steps["generate_static"] / steps["dense"])
    assert summary["sparse_step_over_empty_step"] == pytest.approx(steps["sparse"] / steps["empty"])
    slopes = summary["slope_sparse_s_per_token"] / summary["slope_dense_s_per_token"]
    assert summary["slope_sparse_over_dense"] == pytest.approx(slopes)
    assert summary["context"] == 200
    assert 0 < summary["rollout_sparse_over_dense"] < 10
    assert summary["dense_tokens_equal_to_generate"] == 1.0
    assert (tmp_path / "run" / "steps.png").read_bytes().startswith(b"\x89PNG")
    measured = json.loads((tmp_path / "run" / "rollout.json").read_text())["seconds_per_step"]
    assert {tokens: set(found) for tokens, found in measured.items()} == {
        "100": {"sparse", "dense", "empty"},
        "200": {"sparse", "dense", "empty", "generate_dynamic", "generate_static"},
    }
    assert {len(calls) for found in measured.values() for calls in found.values()} == {2}


MEMORY = ["suite.architecture=qwen3-14b", "suite.strategy=fsdp2", "suite.world_size=32", "suite.sequences=8"]


@pytest.mark.slow
def test_memory(tmp_path: Path) -> None:
    printed, summary = run(tmp_path / "run", "suite=memory", *MEMORY, "suite.responses=32", "suite.device_gb=141")
    assert "qwen3-14b, fsdp2 on 32, 8 x 37000 tokens" in printed
    assert summary["parameters"] == 14_768_307_200
    assert summary["masters"] == 4 * 14_768_307_200 // 32
    assert summary["pages"] == 2 * 40 * 8 * 2313 * 16 * 8 * 128 * 2  # 37000 tokens are 2312.5 pages
    assert summary["landmarks"] == 38 * 8 * 2313 * 8 * 128 * 2
    assert summary["peak_checkpointed"] == max(summary["rollout_peak"], summary["update_peak_checkpointed"])
    fitting = summary["sequences_that_fit"]
    assert f"{fitting} sequences of this length fit into 141 GB" in printed
    base, pool = summary["peak_checkpointed"], (summary["pages"] + summary["landmarks"]) // 8
    assert base + (fitting - 8) * pool <= 141e9 < base + (fitting - 7) * pool


def test_what_does_not_fit_says_zero() -> None:
    suite: MemorySuite = build(composed("suite=memory", *MEMORY, "suite.device_gb=40").suite)
    assert suite._sequences_that_fit(training_memory(suite.setup)) == 0


def test_a_whole_rollout_by_hand() -> None:
    # 0 to 100: (1 + 2) / 2 * 100; 100 to 300: (2 + 5) / 2 * 200.
    at = {300: {"empty": 9.0, "dense": 5.0}, 100: {"empty": 1.0, "dense": 2.0}}
    assert whole(at, "dense") == pytest.approx(150 + 700)


@pytest.mark.parametrize("given", [{"pages": None}, {"schedule": "qwen3-1.7b-0.86"}])
def test_a_rollout_suite_has_one_budget(given: dict[str, Any]) -> None:
    cfg = composed("suite=rollout")
    for key, value in given.items():
        cfg.suite[key] = value
    with pytest.raises(Exception, match=r"suite\.pages=.* and suite\.schedule=.*: must be one of them"):
        build(cfg.suite)


def test_slope_by_hand() -> None:
    assert slope({1000: 0.5, 2000: 0.75, 4000: 1.25}) == pytest.approx(0.25 / 1000)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["suite.device=tpu"], "suite.device='tpu': must be cpu or cuda"),
        (["suite.pages=[2]"], r"suite.pages=\[2\]: must be a list of whole numbers from 3"),
        (["suite.repeats=0"], "suite.repeats=0: must be 1 or more"),
        (["suite=rollout", "suite.contexts=[4000]"], "two or more ascending lengths"),
        (["suite=rollout", "suite.generate_contexts=[4000]"], "the last one among them"),
        (["suite=rollout", "suite.dtype=fp8"], "suite.dtype='fp8': must be float32 or bfloat16"),
    ],
)
def test_wrong_values_are_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(composed(*overrides).suite)


def test_a_mistake_ends_in_one_line(tmp_path: Path) -> None:
    done = command(tmp_path / "run", "suite=kernel")
    assert done.returncode == 1
    assert "sparrow-benchmark: suite=kernel: no such option; did you mean 'kernels'?" in done.stderr
    assert "Traceback" not in done.stderr
