"""The analysis of control study 1 on made-up runs: numbers by hand, and against scipy and scikit's definitions."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from scipy.stats import mannwhitneyu, spearmanr

from experiments.control_study_1 import analysis
from experiments.control_study_1.arms import MEANS, Run, all_runs, load_budgets
from experiments.control_study_1.budgets import least_pages
from experiments.control_study_1.decisive import decisive_share
from experiments.control_study_1.figures import curves, scatter, surviving
from sparrow.config import build_schedule, check_config
from sparrow.config_dir import config_dir

BUDGETS = {"dense": 0.0, "0.92": 0.3, "0.86": 1.0, "destructive": 12.0}
"""Made-up budgets and their disagreements per trace."""


def made_up(budget: str, seed: int, means: str = "plain", after: float | None = None) -> dict[str, Any]:
    spread = BUDGETS[budget] * (1 + 0.01 * seed)
    row = {
        "critic/score/mean": 0.4,
        "rewards/outcome/correct": 0.4 * math.exp(-spread),
        "tail/alpha/mean": 1 - spread / 208,
        "tail/alpha/p01": 1 - spread / 20,
        "tail/alpha/p05": 0.99,
        "tail/alpha_p05/bin_64_128": 0.999,
        "tail/alpha_p05/bin_128_192": 1 - spread / 40 - 0.001 * seed,
        "tail/disagreements": spread,
        "schedule/kv_fraction_sparse_layers": 1 - spread / 20,
    }
    end = (0.9 if spread < 2 else 0.05) if after is None else after
    return {
        "budget": budget,
        "means": means,
        "seed": seed,
        "pages": None,
        "exact_match_before": 0.43,
        "exact_match_after": end,
        "history": [row, {**row, "tail/disagreements": spread + 0.3}, row, {**row, "tail/disagreements": 99.0}],
    }


RUNS = [made_up(budget, seed) for budget in BUDGETS for seed in range(3)]


def test_predictors_are_read_from_the_first_steps() -> None:
    found = analysis.predictors(made_up("0.86", 0))
    assert found["disagreements"] == pytest.approx(-1.1)
    assert found["mean"] == pytest.approx(1 - 1 / 208)
    assert found["p5 of the least bin"] == pytest.approx(0.975)
    assert found["p5"] == pytest.approx(0.99)


def test_collapse_is_a_loss_beyond_noise() -> None:
    assert analysis.collapsed(made_up("dense", 0, after=0.37))
    assert not analysis.collapsed(made_up("dense", 0, after=0.39))
    assert analysis.gain(made_up("dense", 0, after=0.53)) == pytest.approx(0.1)


def test_a_run_that_stands_still_fails_without_collapsing() -> None:
    still = made_up("dense", 0, after=0.43)
    assert not analysis.collapsed(still)
    assert analysis.failed(still, dense_gain=0.5)
    assert analysis.failed(made_up("dense", 0, after=0.67), dense_gain=0.5)
    assert not analysis.failed(made_up("dense", 0, after=0.69), dense_gain=0.5)


def test_the_report_has_both_outcomes_and_calls_them_by_the_rule() -> None:
    runs = [*RUNS[:-1], made_up("destructive", 2, after=0.43)]  # the last stands still
    budgets = {name: {"start": {"p05_min": 0.9, "disagreements": d, "kv_fraction": 1.0}} for name, d in BUDGETS.items()}
    found = analysis.report(runs, budgets, decisive=1.0, draws=20)
    # .92 and dense are called safe and learn; .86 (exp(-1.1) < .5) is called unsafe and learns in all three seeds.
    assert found["survival_accuracy"] == pytest.approx(8 / 12)
    assert found["survival_accuracy_of_failure"] == pytest.approx(9 / 12)
    assert found["predictors_plain_of_failure"]["disagreements"]["auc"] == 1.0
    assert found["predictors_plain"]["disagreements"]["auc"] < 1.0


@pytest.mark.parametrize("seed", range(4))
def test_auc_and_rank_correlation_against_scipy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, 6, 23).astype(float)  # with ties
    bad = generator.random(23) < 0.4
    u = mannwhitneyu(scores[~bad], scores[bad]).statistic
    assert analysis.auc(scores.tolist(), bad.tolist()) == pytest.approx(u / (bad.sum() * (~bad).sum()))
    other = generator.random(23)
    assert analysis.rank_correlation(scores.tolist(), other.tolist()) == pytest.approx(
        spearmanr(scores, other).statistic
    )


def test_without_both_kinds_there_is_no_auc() -> None:
    assert math.isnan(analysis.auc([1.0, 2.0], [False, False]))
    assert math.isnan(analysis.rank_correlation([1.0, 1.0], [1.0, 2.0]))


def test_threshold_by_hand() -> None:
    assert analysis.threshold([0.1, 0.2, 0.8, 0.9], [True, True, False, False]) == pytest.approx(0.5)
    # One run on the wrong side: the cuts .15 and .5 both make one mistake, and .5 lies in the wider gap.
    assert analysis.threshold([0.1, 0.2, 0.8, 0.9], [True, False, False, False]) == pytest.approx(0.15)
    assert analysis.threshold([0.5, 0.5], [False, False]) == -math.inf
    assert analysis.threshold([0.5, 0.6], [True, True]) == math.inf


def test_held_out_runs_do_not_choose_their_own_threshold() -> None:
    runs = [made_up("dense", 0), made_up("dense", 1), made_up("destructive", 0), made_up("destructive", 1)]
    scores, bad = [0.9, 0.8, 0.1, 0.2], [False, False, True, True]
    assert analysis.held_out_accuracy(runs, scores, bad, lambda run: run["seed"]) == 1.0
    # Without either budget all runs left are of one kind, so that nothing is learned of the other.
    assert analysis.held_out_accuracy(runs, scores, bad, lambda run: run["budget"]) == 0.0
    with pytest.raises(ValueError, match="nothing is held out"):
        analysis.held_out_accuracy(runs[:2], scores[:2], bad[:2], lambda run: run["budget"])


def test_comparison_tells_a_blind_predictor_from_a_seeing_one() -> None:
    found = analysis.compare(RUNS, draws=50)
    assert found["disagreements"]["auc"] == found["mean"]["auc"] == found["p1"]["auc"] == 1.0
    assert found["p5"]["auc"] == 0.5
    assert math.isnan(found["p5"]["rank_correlation"])
    assert found["disagreements"]["accuracy_other_seeds"] == 1.0
    low, high = found["disagreements"]["rank_correlation_interval"]
    assert low <= found["disagreements"]["rank_correlation"] <= high


def test_bootstrap_brackets_a_mean() -> None:
    gains = np.asarray([analysis.gain(run) for run in RUNS])
    low, high = analysis.bootstrap(len(gains), lambda index: float(gains[index].mean()), draws=400)
    assert low < gains.mean() < high
    spread = gains.std() / math.sqrt(len(gains))
    assert high - low == pytest.approx(2 * 1.645 * spread, rel=0.25)


def test_survival_by_hand() -> None:
    # 208 tokens of a mean of .9995 disagree .104 times a trace: nine in ten traces survive if every token decides.
    assert analysis.survival(208 * (1 - 0.9995), 1.0) == pytest.approx(0.901, abs=1e-3)
    assert analysis.survival(184.0, 43 / 8000) == pytest.approx(0.372, abs=1e-3)
    with pytest.raises(ValueError, match=r"decisive=1.2"):
        analysis.survival(1.0, 1.2)


def test_predicted_tau_is_that_of_the_cheapest_budget_that_survives() -> None:
    budgets = {
        "dense": {"p05_min": 1.0, "disagreements": 0.0, "kv_fraction": 1.0},
        "a": {"p05_min": 0.97, "disagreements": 0.5, "kv_fraction": 0.5},
        "b": {"p05_min": 0.80, "disagreements": 1.0, "kv_fraction": 0.3},
    }
    assert analysis.predicted_tau(budgets, decisive=1.0) == 0.97
    assert analysis.predicted_tau(budgets, decisive=0.5) == 0.80
    assert analysis.predicted_tau(budgets, decisive=1.0, least=0.7) == 1.0
    assert math.isnan(analysis.predicted_tau({"b": budgets["b"]}, decisive=1.0))


def test_reward_kept_is_relative_to_dense_and_of_plain_runs() -> None:
    kept = analysis.reward_kept([*RUNS, made_up("0.86", 0, means="steps", after=0.0)])
    assert kept["dense"] == pytest.approx((1.0, 0.1))
    assert kept["0.86"][0] == pytest.approx(np.mean([math.exp(-1 - 0.01 * seed) for seed in range(3)]))


def test_report_and_figures_of_made_up_runs(tmp_path: Path) -> None:
    for index, run in enumerate([*RUNS, *(made_up(name, 0, means="steps") for name in BUDGETS)]):
        (tmp_path / f"{index}.json").write_text(json.dumps(run))
    runs = analysis.load_runs(tmp_path)
    starts = {
        name: {"pages": [1], "start": {"p05_min": 1 - d / 40, "disagreements": d, "kv_fraction": 1 - d / 20}}
        for name, d in BUDGETS.items()
    }
    found = analysis.report(runs, starts, decisive=0.6, draws=20)
    assert found["runs"] == 16
    assert found["predicted_tau"] == pytest.approx(1 - 1 / 40)
    assert found["survival_accuracy"] == 1.0
    assert found["gain"]["destructive/steps"] == pytest.approx([-0.38])
    curves(runs, tmp_path / "curves.png")
    scatter(runs, tmp_path / "predictors.png")
    surviving(runs, 0.6, tmp_path / "survival.png")
    assert all((tmp_path / f"{name}.png").stat().st_size > 5000 for name in ("curves", "predictors", "survival"))


def test_arms(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"run `python -m experiments.control_study_1.budgets` first"):
        load_budgets(tmp_path / "none.json")
    (tmp_path / "budgets.json").write_text(json.dumps({"0.86": {"pages": [1, 2]}, "0.75": {"pages": [1, 1]}}))
    budgets = load_budgets(tmp_path / "budgets.json")
    assert budgets == {"dense": None, "0.86": [1, 2], "0.75": [1, 1]}
    runs = all_runs(budgets)
    assert len({run.name for run in runs}) == len(runs) == 3 * (3 + 2 * (len(MEANS) - 1))
    assert "schedule.pages=[1,2]" in runs[1].overrides(budgets["0.86"])


@pytest.mark.parametrize("means", MEANS)
def test_every_arm_composes(means: str, tmp_path: Path) -> None:
    run = Run("0.86", means, 1)
    for pages in (None, [1, 1, 6, 8, 57]):
        overrides = [*run.overrides(pages), "steps=2", f"paths.run_dir={tmp_path}"]
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            cfg = compose("train", overrides=overrides)
        check_config(cfg)
        assert build_schedule(cfg.schedule).is_dense == (pages is None)
        assert (cfg.seed, cfg.steps, cfg.rollout.oversample) == (1, 2, 2 if means == "best-of-two" else 1)


@pytest.mark.parametrize("first", [1, 2, 7, 8])
def test_bisection_finds_the_first_that_holds(first: int) -> None:
    asked: list[int] = []

    def p5(pages: int) -> float:
        asked.append(pages)
        return 0.95 if pages >= first else 0.3

    assert least_pages(p5, 0.9, 1, 8) == first
    assert len(asked) == 3


def test_share_of_decisive_tokens() -> None:
    assert decisive_share([True, False, False, True], [True, True, False, True]) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="nothing to compare"):
        decisive_share([True], [False])
