"""The command on the packaged policy: floors, tails, corrections and page; a starved actor is found out."""

import json

import pytest
from hydra import compose, initialize_config_dir

from sparrow.audit import audit
from sparrow.config import check_config
from sparrow.config_dir import config_dir

SMALL = (
    "audit.prompts=6", "audit.batches=2", "audit.samples=2", "audit.max_new_tokens=150", "audit.filled=200",
    "audit.resamples=50", "audit.gradient_tokens=600", "audit.lowest=4",
)  # fmt: skip


def composed(run_dir, *overrides):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("audit", overrides=[*SMALL, *overrides, f"paths.run_dir={run_dir}"])
    check_config(cfg)
    return cfg


def test_the_packaged_policy(tmp_path, capsys):
    audit(composed(tmp_path), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    found = json.loads((tmp_path / "audit.json").read_text())
    assert summary["floor_exact_p05_min"] >= 0.999
    assert summary["floor_weight_error_max"] < 1e-3
    for name in ("alpha", "floor"):
        assert (
            summary[f"{name}_bounds_p05"]
            <= summary[f"{name}_exact_p05"] + 6e-4
            <= summary[f"{name}_bounds_high_p05"] + 2e-3
        )
    assert found["threshold"] == {"tau": 0.95, "estimator": "exact", "source": "the schedule"}
    assert found["readings"]["exact"]["tokens"]["all tokens"] == 24 * 149
    assert summary["none/rejected"] == 0
    assert summary["none/gradient_kept"] == pytest.approx(1.0)
    assert len(found["effects"]) == 12
    assert [share["name"] for share in found["effects"]["token-mis"]["by_outcome"]] == ["not correct"]  # cut short
    assert len(found["lowest"]) == 4
    html = (tmp_path / "audit.html").read_text()
    assert html.count("data:image/png;base64,") == 4
    assert html.count("title='position") == 149
    assert f"Verdict: {found['verdict']['word']}" in capsys.readouterr().out


def test_a_starved_actor_will_collapse(tmp_path):
    starved = ("schedule.pages=[0]", "schedule.bin_tokens=64", "audit.judge=false", "audit.gradient_tokens=0")
    audit(composed(tmp_path, *starved), tmp_path)
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["verdict"]["word"] == "will collapse"
    assert found["readings"]["exact"]["bins"]["all tokens"]["p05"]["value"] < 0.5
    assert json.loads((tmp_path / "summary.json").read_text())["correct"] is None
    assert found["beta"]["tokens"] > 100


def test_too_few_prompts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="audit.prompts=6 x audit.batches=2: the data set has only 5"):
        audit(composed(tmp_path, "data.source.count=5"), tmp_path)
