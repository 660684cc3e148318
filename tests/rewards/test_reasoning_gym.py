"""reasoning-gym rewards: the entry survives its text form, and each task's own scorer judges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.data.sources.reasoning_gym import ReasoningGymSource
from sparrow.rewards.base import RewardRow, reward_row
from sparrow.rewards.judge import judge
from sparrow.rewards.reasoning_gym import ReasoningGym
from sparrow.rewards.score import Sample, Scorer
from sparrow.rewards.tagged_json import dumps, loads

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.integers())
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


def typed(value):
    """The value with the types of its containers, which == does not compare."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, dict):
        return dict, [(typed(key), typed(item)) for key, item in value.items()]
    return type(value), value


@given(VALUES)
def test_tagged_json_goes_round(value):
    assert typed(loads(dumps(value))) == typed(value)


@pytest.mark.parametrize("key", ["__tuple__", "__dict__"])
def test_tags_used_as_keys_go_round(key):
    assert loads(dumps({key: [1], "other": (2,)})) == {key: [1], "other": (2,)}


def test_tagged_json_names_what_it_cannot_hold():
    with pytest.raises(TypeError, match=r"value\.a\[1\] is a set; allowed: None, bool, number"):
        dumps({"a": [1, {2}]})


TASKS = ["chain_sum", "gcd", "spell_backward", "countdown", "spiral_matrix", "letter_counting", "number_sorting"]


@pytest.mark.parametrize("task", TASKS)
def test_gold_scores_one_and_a_wrong_answer_less(task):
    (row,) = ReasoningGymSource({task: {}}, count=1, validation_count=1).train_rows()
    compact = reward_row(row)
    reward = ReasoningGym()
    gold = judge(reward, reward.gold_completion(compact), compact, "stop")
    assert (gold.score, gold.label) == (1.0, "correct")
    wrong = judge(reward, "<answer>surely not this</answer>", compact, "stop")
    assert wrong.label == "wrong"
    assert wrong.score < 1.0
    assert judge(reward, row.ground_truth, compact, "stop").label == "unparsable"
    assert judge(reward, reward.gold_completion(compact), compact, "length").label == "truncated"


def test_a_tasks_own_partial_score_is_kept():
    (row,) = ReasoningGymSource({"countdown": {}}, count=1, validation_count=1).train_rows()
    partial = judge(ReasoningGym(), "<answer>1 + 1</answer>", reward_row(row), "stop")
    assert (partial.score, partial.label) == (0.05, "wrong")  # the package's score of an expression that misses


def test_a_row_that_lacks_its_entry():
    result = judge(
        ReasoningGym(), "<answer>1</answer>", RewardRow("reasoning_gym/gcd", "1", {"dataset": "gcd"}), "stop"
    )
    assert result.label == "error"
    assert "extra_info lacks config, entry; needed: dataset, config, entry" in result.detail


def test_an_answer_that_hangs_a_scorer_is_a_time_out():
    (row,) = ReasoningGymSource({"countdown": {}}, count=1, validation_count=1).train_rows()
    with Scorer(workers=1, timeout_s=2.0) as scorer:
        gold = ReasoningGym().gold_completion(reward_row(row))
        samples = [Sample("<answer>9**9**9**9</answer>", row), Sample(gold, row)]
        assert [outcome.label for outcome in scorer.score(samples)] == ["timeout", "correct"]
