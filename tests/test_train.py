"""The command as a user runs it: experiments train, a seed fixes the bits, mistakes end in one line."""

import csv
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from sparrow.config import check_config
from sparrow.config_dir import config_dir
from sparrow.schedule import load_schedule
from sparrow.train import main, train

LEARNING = ("reward=running-sum-steps", "rollout.temperature=2.0", "optimizer.lr=1e-3")
"""Two small steps that do change the weights: partial credit, and samples that differ."""

SLOW = re.compile("smollm2|distill|warmup")
"""Real models, and what a test of its own trains longer."""

EXPERIMENTS = sorted(path.stem for path in (config_dir() / "experiment").glob("*.yaml"))


def composed(run_dir: Path, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", overrides=[*overrides, f"paths.run_dir={run_dir}", "~callbacks.progress"])
    check_config(cfg)
    return cfg


def run(run_dir: Path, *overrides: str) -> list[dict[str, str]]:
    run_dir.mkdir(parents=True)
    train(composed(run_dir, *overrides), run_dir)
    with (run_dir / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=pytest.mark.slow) if SLOW.search(name) else name for name in EXPERIMENTS],
)
def test_every_experiment_trains_two_steps(experiment: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "smollm2" in experiment:
        request.getfixturevalue("smollm2")
    whole = ["rollout.max_new_tokens=220"] if experiment == "warmup" else []  # a trace is given as a whole
    rows = run(tmp_path / "run", f"experiment={experiment}", "debug=default", *whole)
    assert [float(row["training/global_step"]) for row in rows] == [1, 2]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["floor_alpha_p05"] > 0.999
    assert summary["floor_weight_error_max"] < 1e-4
    if experiment == "warmup":  # there is no rollout in it
        assert summary["kv_fraction_sparse_layers"] is None
    else:
        assert 0 < summary["kv_fraction_sparse_layers"] <= 1
    load_schedule(tmp_path / "run" / "schedule.yaml")
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["torch"].startswith("2.")
    assert {"reward.png", "tail.png", "tail_bins.png", "timing.png"} <= {p.name for p in (tmp_path / "run").iterdir()}


def test_a_distilled_run_leaves_base_adapter_and_the_tail_of_both(tmp_path: Path) -> None:
    # One prompt a step, so that the second phase begins after the first of the two steps.
    switch = (
        "callbacks=distill-phases",
        "callbacks.phase_switch.after_examples=1",
        "callbacks.phase_switch.schedule.scale=0.0",
    )
    own = ("distill.schedule=null", "distill.policy_loss=true", "distill.every=1")  # the rollout's, on every step
    rows = run(tmp_path / "run", "experiment=distill-quickstart", "debug=default", *own, *switch, *LEARNING)
    assert [float(row["schedule/phase"]) for row in rows] == [1, 2]
    assert float(rows[1]["schedule/kv_fraction_sparse_layers"]) < float(rows[0]["schedule/kv_fraction_sparse_layers"])
    assert all(float(row["distill/logprob_gap_max"]) < 1e-4 for row in rows)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0 < summary["tail_p05_min_adapter_off"] < 1
    assert 0 < summary["tail_p05_min_adapter_on"] < 1
    assert summary["distill_cost_ratio"] > 0
    assert summary["distill_cost_ratio_all_steps"] > 0
    assert {"adapter_tail.png", "adapter_tail.json", "adapter_schedule.yaml", "schedule_phase_2.yaml"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    # Cut at 24 tokens no trace reaches the last bin, so nothing falls to .80, and the fewest pages are the result.
    assert load_schedule(tmp_path / "run" / "adapter_schedule.yaml").table == (8, 8, 12, 20, 24)
    export = tmp_path / "run" / "export"
    names = load_file(export / "adapter" / "adapter_model.safetensors")
    assert names
    assert all("lora_" in name for name in names)
    assert not any("lora" in name or "base_layer" in name for name in load_file(export / "base" / "model.safetensors"))


def test_dapo_with_a_reference_and_a_stale_actor(tmp_path: Path) -> None:
    overrides = ("algorithm=dapo", "reference=frozen", "rollout.oversample=2", "rollout.refresh_every=2", *LEARNING[1:])
    rows = run(tmp_path / "run", "experiment=quickstart", "debug=default", *overrides)
    assert [float(row["off_policy/staleness"]) for row in rows] == [0, 1]
    assert [float(row["training/filter_groups/tries"]) for row in rows] == [4, 4]
    assert float(rows[0]["actor/kl_loss"]) == 0
    for row in rows:  # cut at 24 tokens none is right, and the overlong penalty alone is left of the reward
        assert -1 <= float(row["critic/score_sampled/mean"]) < 0
        assert float(row["critic/score_sampled/mean"]) <= float(row["critic/score/mean"]) <= 0


def test_remax_and_a_reference_in_the_reward(tmp_path: Path) -> None:
    overrides = ("algorithm=remax", "reference=frozen", "reference.into=reward", "reference.estimator=k1", *LEARNING)
    rows = run(tmp_path / "run", "experiment=quickstart", "debug=default", *overrides)
    assert float(rows[0]["actor/reward_kl_penalty"]) == 0
    assert float(rows[1]["actor/reward_kl_penalty"]) != 0
    assert float(rows[0]["critic/rewards/mean"]) == float(rows[0]["critic/score/mean"])
    assert float(rows[1]["critic/rewards/mean"]) != float(rows[1]["critic/score/mean"])


@pytest.mark.slow
def test_reinforcement_learning_starts_from_what_the_warmup_exports(tmp_path: Path) -> None:
    run(tmp_path / "warmup", "experiment=warmup", "debug=default", "rollout.max_new_tokens=220", "optimizer.lr=1e-3")
    base = tmp_path / "warmup" / "export" / "base"
    rows = run(tmp_path / "run", "experiment=quickstart", "debug=default", f"model.name_or_path={base}")
    plain = run(tmp_path / "plain", "experiment=quickstart", "debug=default")
    assert float(rows[0]["actor/entropy"]) != float(plain[0]["actor/entropy"])


def test_dense_rollouts_are_on_policy(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", "experiment=quickstart-dense", "debug=default")
    for row in rows:
        assert float(row["rollout_corr/weight_error_max"]) < 1e-4
        assert float(row["tail/alpha/min"]) > 0.9999
        assert float(row["schedule/kv_fraction"]) == 1.0


def test_one_seed_fixes_every_bit(tmp_path: Path) -> None:
    timed = ("timing_s/", "perf/")
    first, second, other = (
        run(tmp_path / name, "experiment=quickstart", "debug=default", f"seed={seed}", *LEARNING)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    kept = [[{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows] for rows in (first, second)]
    assert kept[0] == kept[1]
    assert [row["critic/score/mean"] for row in other] != [row["critic/score/mean"] for row in first]
    weights = [(tmp_path / name / "export" / "base" / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


def test_the_export_is_a_plain_transformers_folder(tmp_path: Path) -> None:
    run(tmp_path / "run", "experiment=quickstart", "debug=default", *LEARNING)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "export" / "base")
    packaged = AutoModelForCausalLM.from_pretrained(config_dir().parent / "src" / "sparrow" / "models" / "tiny")
    moved = [(a - b).abs().max().item() for a, b in zip(exported.parameters(), packaged.parameters(), strict=True)]
    assert 0 < max(moved) < 0.01
    assert all(math.isfinite(value) for value in moved)
    assert torch.isfinite(exported(torch.tensor([[1, 2, 3]])).logits).all()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.smaples=3"], "sparrow-train: unknown key 'rollout.smaples': did you mean 'samples'?"),
        (["schedule=qwen3-1.7b-0.87"], "schedule=qwen3-1.7b-0.87: no such option; did you mean"),
        (["model.name_or_path=/nowhere"], "model '/nowhere' does not exist"),
        (["seed=abc"], "sparrow-train: seed='abc': must be int, not str"),
        (["loss.clip_low=-1"], "sparrow-train: loss.clip_low=-1: must be from 0 to 1"),
        (["+trainer.gradient_clip_val=1.0"], "trainer.gradient_clip_val=1.0: must be null"),
        (["trainer.enable_progress_bar=false"], "trainer.enable_progress_bar=False: Trainer was configured with"),
        (["debug=default", "+trainer.limit_train_batches=0.001"], "trainer.limit_train_batches=0.001: You requested"),
    ],
)
def test_a_mistake_ends_in_one_line(
    overrides: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARROW_TRACEBACK", raising=False)
    monkeypatch.setattr(sys, "argv", ["sparrow-train", "experiment=quickstart", "logger=csv", *overrides])
    with pytest.raises(SystemExit) as ended:
        main()
    assert message in str(ended.value)
    assert str(ended.value).startswith("sparrow-train: ")
    assert "\n" not in str(ended.value)


def test_a_folder_that_holds_a_run_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    before = {"config.yaml": "seed: 7\n", "metrics.csv": "step\n1\n"}
    for name, text in before.items():
        (run_dir / name).write_text(text)
    arguments = ["experiment=quickstart", "debug=default", f"paths.run_dir={run_dir}"]
    monkeypatch.delenv("SPARROW_TRACEBACK", raising=False)

    def refusal(*overrides: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sparrow-train", *arguments, *overrides])
        with pytest.raises(SystemExit) as ended:
            main()
        assert {path.name: path.read_text() for path in run_dir.iterdir() if path.is_file()} == before
        return str(ended.value)

    assert refusal() == (
        f"sparrow-train: paths.run_dir={run_dir}: holds a run already (metrics.csv), which is not overwritten; "
        "allowed: another folder, or resume=auto to go on with it"
    )
    assert not (run_dir / ".hydra").exists()
    assert refusal("resume=auto", "update.minibatches=0").endswith("update.minibatches=0: must be 1 or more")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["threads=0"], r"threads=0: must be a whole number, 1 or more"),
        (["steps=-2"], r"steps=-2: must be a whole number, 1 or more"),
        (["seed=-1"], r"seed=-1: must be a whole number, 0 or more"),
        (["held_out=no"], r"held_out=no: must be true or false"),
        (["tail.bin_tokens=0"], r"tail.bin_tokens=0: must be 1 or more"),
        (["+callbacks.mine=3"], r"3 cannot be built: must be a mapping with a _target_"),
        (["optimizer.lr=inf"], r"optimizer.lr=inf: must be a finite number"),
        (["schedule.dense_layers=[0,99]"], r"schedule.dense_layers: 99 is not a layer of this model, which has 0 to 3"),
        (["schedule.page_size=0"], r"page_size=0: must be a whole number from 1"),
        (["rollout.top_p=0.9"], r"rollout.top_p=0.9: training allows only 1.0"),
        (["rollout.max_new_tokens=500"], r"context"),
        (["optimizer.betas=0.9"], r"optimizer.betas=0.9: must be two numbers, each 0 or more and below 1"),
        (["+trainer.limit_train_batches=0"], r"trainer.limit_train_batches=0: must be a whole number, 1 or more"),
        (["advantage=rloo", "rollout.samples=1"], r"rollout.samples=1 with advantage=rloo: .* must be 2 or more"),
        (["+data.source.seed=-1"], r"data.source.seed=-1 is not for training"),
        (["data.prompts_per_step=2000"], r"data.prompts_per_step=2000, but the set has only 1024 prompts"),
        (["reward.workers=0"], r"reward.workers=0 is not allowed; it must be 1 or more"),
        (["rollout.graphs=true"], r"rollout.graphs=True: the model is on cpu"),
        (["rollout.alpha=bounds", "rollout.top_k_recorded=9999"], r"rollout.top_k_recorded=9999: must be at most"),
        (["update.minibatches=1000"], r"update.minibatches=1000: must be from 1 to the 4 sequences"),
    ],
)
def test_wrong_values_name_the_key(overrides: list[str], message: str, tmp_path: Path) -> None:
    cfg = composed(tmp_path, "experiment=quickstart", "debug=default", *overrides)
    with pytest.raises(ValueError, match=message):
        train(cfg, tmp_path)


def test_a_row_that_no_reward_judges_is_found_before_training(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    row = {
        "data_source": "nobody/knows",
        "prompt": [{"role": "user", "content": "3+9="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "21"},
        "extra_info": {"index": 7},
    }
    data.write_text("".join(json.dumps(row) + "\n" for _ in range(4)))
    source = f"data.source={{_target_: sparrow.data.sources.files.Files, train: ['{data}'], validation: ['{data}']}}"
    cfg = composed(tmp_path, "experiment=quickstart", "debug=default", "~data.source", f"+{source}")
    with pytest.raises(KeyError, match=r"nobody/knows"):
        train(cfg, tmp_path)


def test_a_constant_budget_has_one_bin(tmp_path: Path) -> None:
    constant = ("schedule=constant", "schedule.page_size=4", "schedule.pages=16", "schedule.dense_layers=[0]")
    rows = run(tmp_path / "run", "experiment=quickstart", "debug=default", *constant)
    assert [float(row["schedule/pages/bin_0"]) for row in rows] == [16, 16]
    assert any(key.startswith("tail/alpha_p05/bin_0_") for key in rows[0])
