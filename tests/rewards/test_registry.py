"""Routing, the dry run before training, and the one-call `score`."""

import psutil
import pytest

from sparrow.rewards import registry
from sparrow.rewards.base import RewardRow
from sparrow.rewards.check import RouteCheck, check_routes
from sparrow.rewards.exact import Exact
from sparrow.rewards.math import Math
from sparrow.rewards.numeric import Numeric
from sparrow.rewards.outcome import Outcome
from sparrow.rewards.reasoning_gym import ReasoningGym
from sparrow.rewards.registry import register_reward, registered, route
from sparrow.rewards.score import Sample, Scorer, score, shutdown


def row(data_source, truth="1", index=0):
    return RewardRow(data_source, truth, {"split": "train", "index": index})


@pytest.fixture
def own_table(monkeypatch):
    monkeypatch.setattr(registry, "_ROUTES", dict(registry._ROUTES))


def test_exact_names_win_over_prefixes():
    assert route(row("reasoning_gym/chain_sum")) == ReasoningGym(isolated=False)
    assert route(row("reasoning_gym/countdown")) == ReasoningGym(isolated=True)
    assert route(row("sparrow/math")) == Math()


def test_longer_prefixes_win(own_table):
    register_reward("a/*", Exact())
    register_reward("a/b/*", Numeric())
    assert route(row("a/c")) == Exact()
    assert route(row("a/b/c")) == Numeric()


def test_a_source_that_does_not_route_names_row_source_and_registered():
    with pytest.raises(KeyError) as error:
        route(row("sparrow/mth", index=5))
    message = error.value.args[0]
    assert message.startswith(
        "row {'split': 'train', 'index': 5} of data_source 'sparrow/mth': no reward is registered for this data_source"
    )
    assert "(did you mean 'sparrow/math'?)" in message
    assert all(name in message for name in registered())


def test_registering_twice_is_refused(own_table):
    register_reward("mine", lambda completion, row: 0.5)
    assert score("x", {"data_source": "mine", "reward_model": {"ground_truth": ""}}) == Outcome(0.5, "correct")
    with pytest.raises(ValueError, match="data_source 'mine' is routed already"):
        register_reward("mine", Exact())


def test_a_scorers_own_reward_and_routes():
    with Scorer(reward=Exact("whole")) as scorer:
        assert scorer.score([Sample("1", row("anything"))]) == [Outcome(1.0, "correct")]
    with Scorer(routes={"anything": Exact("whole"), "sparrow/exact": Exact("hash")}) as scorer:
        samples = [
            Sample("1", row("anything")),
            Sample("#### 1", row("sparrow/exact")),
            Sample("2", row("anything"), "length"),
        ]
        outcomes = scorer.score(samples)
        assert [outcome.label for outcome in outcomes] == ["correct", "correct", "truncated"]
        assert scorer.counts == {"correct": 2, "truncated": 1}


def test_dry_run_counts():
    rows = [row("sparrow/exact", index=i) for i in range(3)] + [row("sparrow/numeric", "4")]
    assert check_routes(rows) == RouteCheck(
        rows={"sparrow/exact": 3, "sparrow/numeric": 1}, checked={"sparrow/exact": 3, "sparrow/numeric": 1}, no_gold={}
    )
    assert check_routes(rows, limit_per_source=2).checked == {"sparrow/exact": 2, "sparrow/numeric": 1}


def test_dry_run_finds_a_row_that_does_not_route():
    rows = [row("sparrow/exact", index=i) for i in range(9)] + [row("nowhere", index=9)]
    with pytest.raises(KeyError, match=r"'index': 9.*of data_source 'nowhere'"):
        check_routes(rows, limit_per_source=1)


def test_dry_run_finds_a_gold_answer_that_its_checker_rejects():
    rows = [row("sparrow/numeric", "4"), row("sparrow/numeric", "four", index=1), row("sparrow/multiple_choice", "A")]
    with pytest.raises(ValueError, match=r"1 of 3 gold answers do not score 1 .*'index': 1.*'four': error 0"):
        check_routes(rows)


def test_score_takes_a_mapping_and_isolates():
    fields = {"data_source": "sparrow/math", "reward_model": {"ground_truth": r"\frac{1}{2}"}}
    before = len(psutil.Process().children(recursive=True))
    assert score(r"so \boxed{0.5}", fields) == Outcome(1.0, "correct")
    assert score(r"so \boxed{0.6}", fields) == Outcome(0.0, "wrong")
    assert score(r"so \boxed{0.5}", fields, "length") == Outcome(0.0, "truncated")
    assert len(psutil.Process().children(recursive=True)) == before + 1
    shutdown()
    assert len(psutil.Process().children(recursive=True)) == before


def test_score_of_a_row_that_does_not_route():
    with pytest.raises(KeyError, match="nowhere"):
        score("x", {"data_source": "nowhere", "reward_model": {"ground_truth": "1"}})
