"""The scorer with shaping by length, and rewards that a user names in a configuration."""

import pytest
from omegaconf import OmegaConf

from sparrow.config import build
from sparrow.rewards import Outcome, Sample, Scorer, check_routes
from sparrow.rewards.combine import Combined
from sparrow.rewards.exact import Exact
from sparrow.rewards.format import ThinkAnswerFormat
from sparrow.rewards.shaping import SoftOverlong

ROW = {
    "data_source": "mine",
    "prompt": [{"role": "user", "content": "Answer in <answer>."}],
    "reward_model": {"ground_truth": "7"},
}
RIGHT = "<answer>7</answer>"


def longer_is_better(completion, row, factor=1.0):
    """A user's function."""
    return factor * len(completion)


@pytest.mark.parametrize(
    ("tokens", "score"), [(10, 1.0), (80, 1.0), (90, 0.5), (100, 0.0), (120, 0.0)], ids=lambda value: str(value)
)
def test_dapos_penalty_is_added_to_the_score_and_the_label_stays(tokens, score):
    scorer = Scorer(reward=Exact(), shaping=[SoftOverlong(max_tokens=100, buffer_tokens=20)])
    (outcome,) = scorer.score([Sample(RIGHT, ROW, num_tokens=tokens)])
    assert (outcome.score, outcome.label) == (pytest.approx(score), "correct")
    (cut,) = scorer.score([Sample(RIGHT, ROW, "length", 100)])
    assert (cut.score, cut.label) == (-1.0, "truncated")
    assert scorer.counts == {"correct": 1, "truncated": 1}


def test_shaping_needs_the_length():
    scorer = Scorer(reward=Exact(), shaping=[SoftOverlong(max_tokens=100, buffer_tokens=20)])
    with pytest.raises(ValueError, match="num_tokens is None; allowed with shaping: the length in tokens"):
        scorer.score([Sample(RIGHT, ROW)])


def test_the_dry_run_is_not_shaped():
    scorer = Scorer(reward=Exact(), shaping=[SoftOverlong(max_tokens=100, buffer_tokens=20)])
    assert check_routes([ROW], scorer).checked == {"mine": 1}


def test_a_prompt_that_does_not_ask_for_the_form_is_found():
    silent = ROW | {"prompt": [{"role": "user", "content": "What is it?"}]}
    with pytest.raises(ValueError, match="1 of 2 prompts do not ask for .*Exact looks for one of <answer>"):
        check_routes([ROW, silent], Scorer(reward=Exact()))


@pytest.mark.parametrize(
    ("reward", "score"),
    [
        ({"_target_": "sparrow.rewards.exact.Exact", "finder": "whole"}, 0.0),
        ({"_target_": f"{__name__}.longer_is_better", "_partial_": True, "factor": 2.0}, 2.0 * len(RIGHT)),
    ],
)
def test_user_rewards_by_target(reward, score, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    scorer = build(OmegaConf.create({"_target_": "sparrow.rewards.Scorer", "reward": reward}))
    (outcome,) = scorer.score([Sample(RIGHT, ROW)])
    assert isinstance(outcome, Outcome)
    assert outcome.score == score


def _this_module():
    import types

    module = types.ModuleType(__name__)
    module.longer_is_better = longer_is_better
    return module


def test_a_row_that_lacks_what_its_checker_reads_is_named():
    row = {"data_source": "sparrow/running_sum", "reward_model": {"ground_truth": "21"}, "extra_info": {"index": 4}}
    with pytest.raises(
        ValueError, match=r"row \{'index': 4\} of .*: RunningSumReward finds no gold answer .*'numbers'"
    ):
        check_routes([row])
    row = {"data_source": "code", "reward_model": {"ground_truth": {"inputs": ["1"]}}}
    with pytest.raises(ValueError, match="of data_source 'code': ground_truth"):
        check_routes([row])


@pytest.mark.parametrize("limit", [0, -1])
def test_a_dry_run_of_no_rows_is_refused(limit):
    with pytest.raises(ValueError, match=f"limit_per_source={limit} is not allowed"):
        check_routes([ROW], Scorer(reward=Exact()), limit_per_source=limit)


def test_the_dry_run_of_a_weighted_sum_asks_its_main_part():
    both = Combined([Exact(), ThinkAnswerFormat()], [0.9, 0.1])
    assert check_routes([ROW], Scorer(reward=both)).checked == {"mine": 1}
    empty = ROW | {"reward_model": {"ground_truth": ""}}
    with pytest.raises(ValueError, match="ground_truth '' is not allowed"):
        check_routes([empty], Scorer(reward=both))
