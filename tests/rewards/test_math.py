"""The math reward: a golden set of accepted and rejected pairs, two checkers, and what makes an error or a time-out."""

import json
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.rewards.base import RewardRow
from sparrow.rewards.canonical import same_answer
from sparrow.rewards.judge import judge
from sparrow.rewards.math import Math, find_math_answer
from sparrow.rewards.pool import RewardPool, Task

GOLDEN = [json.loads(line) for line in Path(__file__).with_name("golden_math.jsonl").read_text().splitlines()]


def judged(completion, gold, finish_reason="stop"):
    return judge(Math(), completion, RewardRow("m", gold, {"index": 1}), finish_reason)


def boxed(answer):
    return f"Thus the answer is \\boxed{{{answer}}}."


def ids(pair):
    return f"{pair['kind']}: {pair['gold']} | {pair['answer']}"


def test_the_golden_set_is_large_and_mixed():
    assert len(GOLDEN) >= 200
    assert Counter(pair["accept"] for pair in GOLDEN)[False] >= 80
    assert len({(pair["gold"], pair["answer"]) for pair in GOLDEN}) == len(GOLDEN)


@pytest.mark.parametrize("pair", GOLDEN, ids=ids)
def test_golden_pairs(pair):
    outcome = judged(boxed(pair["answer"]), pair["gold"])
    assert (outcome.label, outcome.score) == (("correct", 1.0) if pair["accept"] else ("wrong", 0.0))
    # The second checker may abstain, but where it speaks both agree on this set.
    assert same_answer(pair["gold"], pair["answer"]) in (None, pair["accept"])
    assert outcome.detail == ""


@pytest.mark.parametrize("pair", [pair for pair in GOLDEN if pair["accept"]], ids=ids)
def test_every_gold_accepts_itself(pair):
    assert judged(boxed(pair["gold"]), pair["gold"]).label == "correct"


FOUND = [
    (r"First \boxed{1}, then \boxed{2}", "2"),
    (r"\boxed{$7$}", "7"),
    ("The final answer is $x^2$. I hope it is correct.", "x^2"),
    (r"The answer is \(12\).", "12"),
    ("Answer: **17**", "17"),
    ("5+5=10\n#### 10", "10"),
    (r"#### 10 but \boxed{11}", "11"),
    ("The answer is 3\nNo, the answer is 4.", "4"),
    ("I do not know", None),
    ("", None),
    (r"\boxed{}", None),
    (r"<think>\boxed{1}</think> hm", None),
]


@pytest.mark.parametrize(("completion", "answer"), FOUND)
def test_which_text_is_judged(completion, answer):
    assert find_math_answer(completion) == answer


def test_an_earlier_right_answer_does_not_count():
    assert judged(r"\boxed{5} hm, \boxed{6}", "5").label == "wrong"
    assert judged(r"\boxed{5}, no: \boxed{6} or \boxed{5}", "5").label == "correct"


def test_several_gold_answers():
    assert judged(boxed("7"), ["5", "7"]).label == "correct"
    assert judged(boxed("6"), ["5", "7"]).label == "wrong"


def test_order_of_arguments_matters_and_is_right():
    # math-verify accepts a number for an assignment in the gold, so swapped arguments would differ here.
    assert judged(boxed("x=5"), "5").label == "correct"
    assert judged(boxed("1,2"), "1,2,3").label == "wrong"


@pytest.mark.parametrize("completion", ["no answer", r"\boxed{}", "x" * 5000, boxed("1" * 3000)])
def test_unparsable(completion):
    assert judged(completion, "5").label == "unparsable"


@pytest.mark.parametrize("gold", ["", "$$", {"a": 1}])
def test_a_gold_answer_that_cannot_be_parsed_is_an_error(gold):
    outcome = judged(boxed("5"), gold)
    assert outcome.label == "error"
    assert "row {'index': 1} of data_source 'm': ground_truth" in outcome.detail


def test_a_truncated_trace_does_not_score_by_an_earlier_box():
    assert judged(boxed("5"), "5", "length").label == "truncated"


def test_disagreement_of_the_checkers_is_reported(monkeypatch):
    monkeypatch.setattr("sparrow.rewards.math.same_answer", lambda gold, answer: False)
    outcome = judged(boxed("5"), "5")
    assert outcome.label == "correct"
    assert outcome.detail == "checkers disagree: math-verify True, rewriting False on gold '5', answer '5'"


def test_it_works_off_the_main_thread():
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(judged(boxed("0.5"), r"\frac{1}{2}")))
    thread.start()
    thread.join()
    assert [outcome.label for outcome in outcomes] == ["correct"]


def test_an_answer_that_hangs_sympy_is_a_time_out():
    slow = boxed(r"\binom{10^{9}}{5\cdot 10^{8}}")
    tasks = [Task(Math(), text, RewardRow("m", "5"), "stop") for text in (boxed("5"), slow, boxed("6"))]
    with RewardPool(workers=1, timeout_s=2.0) as pool:
        labels = [outcome.label for outcome in pool.run(tasks)]
    assert labels == ["correct", "timeout", "wrong"]


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**4))
def test_the_second_checker_on_fractions(numerator, denominator):
    assert same_answer(f"\\frac{{{numerator}}}{{{denominator}}}", f"{numerator}/{denominator}") is True
    assert same_answer(f"{numerator}/{denominator}", f"{numerator + 1}/{denominator}") is False
