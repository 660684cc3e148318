"""The command on the packaged policy: a schedule that loads again, holds on other prompts, and names its origin."""

import json

import pytest
from hydra import compose, initialize_config_dir

from sparrow.calibrate import calibrate
from sparrow.config import check_config
from sparrow.config_dir import config_dir
from sparrow.schedule import load_schedule

SMALL = (
    "calibration.prompts=8", "calibration.held_out=6", "calibration.max_new_tokens=150", "calibration.filled=150",
    "calibration.grid=[1,6,12]", "calibration.other_taus=[0.5]", "calibration.resamples=100", "calibration.rounds=1",
    "calibration.max_batch=16", "calibration.grid_prompts=4",
)  # fmt: skip


def composed(run_dir, *overrides):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("calibrate", overrides=[*SMALL, *overrides, f"paths.run_dir={run_dir}"])
    check_config(cfg)
    return cfg


def test_a_schedule_is_found_checked_and_loads(tmp_path, capsys):
    swept = ("calibration.sweep.page_sizes=[2,8]", "calibration.sweep.tokens=[32,48]")
    calibrate(composed(tmp_path, *swept), tmp_path)
    schedule = load_schedule(tmp_path / "schedule.yaml")
    summary = json.loads((tmp_path / "summary.json").read_text())
    found = json.loads((tmp_path / "calibration.json").read_text())
    assert (schedule.tau, schedule.estimator, schedule.bin_tokens, schedule.page_size) == (0.95, "exact", 64, 4)
    assert list(schedule.table) == sorted(schedule.table)
    assert schedule.provenance["model"] == "tiny"
    assert schedule.provenance["prompts"] == [f"sparrow/running_sum:train:{index}" for index in range(8)]
    assert summary["holds"] == 1.0
    assert summary["tail_p05_min"] >= 0.95
    assert summary["floor_exact"] == pytest.approx(1.0, abs=1e-4)
    assert summary["teacher_forcing_gap"] < 1e-3
    assert summary["predicted_speedup"] > 1.0
    assert summary["stopped_heldout"] == 0.0
    # The next smaller budget was tried and fails, wherever it is not monotony that sets the bin.
    last = {}
    for trial in found["trials"]:
        if trial["bin"] in last:
            assert last[trial["bin"]]["holds"] is False
            assert last[trial["bin"]]["low"] < 0.95
        last[trial["bin"]] = trial
    assert [trial["low"] >= 0.95 for trial in last.values()] == [True] * len(last)
    assert {point["page_size"] for point in found["sweep"]} == {2, 8}
    assert set(found["proposed"]) == {"0.5", "0.95"}
    assert all((tmp_path / name).is_file() for name in ("tail_budgets.png", "schedules.png", "page_sizes.png"))
    assert "on the front" in capsys.readouterr().out
    again = tmp_path / "again"
    again.mkdir()
    calibrate(composed(again, f"traces={tmp_path / 'traces_0.pt'}", "calibration.sweep.page_sizes=[]"), again)
    assert json.loads((again / "calibration.json").read_text())["trials"] == found["trials"]


def test_an_estimator_that_cannot_read_tau_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sparrow.calibration.agreement.TOP", 1)  # on 16 tokens, the best 20 would be all of them
    narrow = ("calibration.estimator=top20", "calibration.temperature=3.0", "calibration.suppress_eos=true")
    with pytest.raises(ValueError, match=r"tau=0.95 of estimator 'top20' is out of reach: dense against dense"):
        calibrate(composed(tmp_path, *narrow), tmp_path)


def test_too_few_prompts_and_bad_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="calibration.prompts=8, but the data set has 5"):
        calibrate(composed(tmp_path, "data.source.count=5"), tmp_path)
    with pytest.raises(ValueError, match=r"calibration.grid=\[6, 1\]: must be page counts"):
        calibrate(composed(tmp_path, "calibration.grid=[6,1]"), tmp_path)
    with pytest.raises(ValueError, match="gpu='x': must be one of"):
        calibrate(composed(tmp_path, "gpu=x"), tmp_path)
