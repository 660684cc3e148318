"""Exact, numeric, multiple choice, format, shaping and combination, worked by hand."""

import math
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow.rewards.base import FunctionReward, Reward, RewardRow, as_reward, reward_row
from sparrow.rewards.combine import Combined
from sparrow.rewards.exact import Exact
from sparrow.rewards.format import PatternFormat, ThinkAnswerFormat
from sparrow.rewards.judge import judge
from sparrow.rewards.multiple_choice import MultipleChoice
from sparrow.rewards.numeric import Numeric, parse_number
from sparrow.rewards.outcome import LABELS, Outcome
from sparrow.rewards.packaged import RunningSumReward
from sparrow.rewards.shaping import CosineLength, SoftOverlong


def row(truth, **extra):
    return RewardRow("test", truth, {"index": 3, **extra})


def outcome(reward, text, truth, finish_reason="stop"):
    result = judge(reward, text, row(truth), finish_reason)
    return result.score, result.label


CASES = [
    (Exact(), "<answer>cat</answer>", "cat", (1.0, "correct")),
    (Exact(), "<answer>Cat</answer>", "cat", (0.0, "wrong")),
    (Exact(ignore_case=True), "<answer>Cat</answer>", "cat", (1.0, "correct")),
    (Exact(), "<answer>dog</answer>", ["cat", "dog"], (1.0, "correct")),
    (Exact(), "cat", "cat", (0.0, "unparsable")),
    (Exact("whole"), " 12\n", 12, (1.0, "correct")),
    (Exact("whole"), "12 or 13", "12", (0.0, "wrong")),
    (Numeric(), "<answer>1,234.50</answer>", "1234.5", (1.0, "correct")),
    (Numeric(), "<answer>0.333</answer>", "1/3", (0.0, "wrong")),
    (Numeric(tolerance=0.001), "<answer>0.333</answer>", "1/3", (1.0, "correct")),
    (Numeric(), "<answer>7 or 8</answer>", "7", (0.0, "unparsable")),
    (Numeric(), "<answer>ten</answer>", "10", (0.0, "unparsable")),
    (Numeric("hash"), "so\n#### $18", "18", (1.0, "correct")),
    (Numeric("first_tag"), "<answer>4</answer>\nProblem: 2 + 2 =\nAnswer: <answer>5</answer>", "4", (1.0, "correct")),
    (MultipleChoice(), "<answer>(C)</answer>", "C", (1.0, "correct")),
    (MultipleChoice(), "The answer is B.", "C", (0.0, "wrong")),
    (MultipleChoice(), r"\boxed{\text{D}}", 3, (1.0, "correct")),
    (MultipleChoice(), "The answer is **b**", "B", (1.0, "correct")),
    (MultipleChoice(), "The answer is E", "A", (0.0, "unparsable")),
    (MultipleChoice(), "<answer>Cat</answer>", "C", (0.0, "unparsable")),
    (MultipleChoice("ABCDE"), "<answer>e) none</answer>", "E", (1.0, "correct")),
    (MultipleChoice(), "The answer is a triangle.", "A", (0.0, "unparsable")),
    (MultipleChoice(), "The answer is a.", "A", (1.0, "correct")),
    (MultipleChoice(), "The answer is A because it is.", "A", (1.0, "correct")),
    (MultipleChoice("ABCDEFGHI"), "The answer is I think C", "I", (0.0, "unparsable")),
    (MultipleChoice("ABCDEFGHI"), "Answer: I'd say C", "I", (0.0, "unparsable")),
    (MultipleChoice("ABCDEFGHI"), "The answer is I.", "I", (1.0, "correct")),
    (MultipleChoice(), r"\boxed{\mathrm{D}}", "D", (1.0, "correct")),
    (MultipleChoice(), r"\boxed{\textbf{(C)}}", "C", (1.0, "correct")),
    (Numeric(), r"<answer>-\$5</answer>", "-5", (1.0, "correct")),
    (Numeric(), r"<answer>1.5 \times 10^{-3}</answer>", "0.0015", (1.0, "correct")),
    (ThinkAnswerFormat(), "<think>a</think>\n<answer>b</answer>", "", (1.0, "correct")),
    (ThinkAnswerFormat(), "<think>a</think><answer>b</answer> more", "", (0.0, "wrong")),
    (ThinkAnswerFormat(), "<think>a</think><think>a</think><answer>b</answer>", "", (0.0, "wrong")),
    (ThinkAnswerFormat(), "<think> </think><answer>b</answer>", "", (0.0, "wrong")),
    (ThinkAnswerFormat(), "a</think><answer>b</answer>", "", (0.0, "wrong")),
    (ThinkAnswerFormat(thinking_open=True), "a</think><answer>b</answer>", "", (1.0, "correct")),
    (PatternFormat(r"Answer: \d+"), " Answer: 12\n", "", (1.0, "correct")),
    (PatternFormat(r"Answer: \d+"), "The Answer: 12", "", (0.0, "wrong")),
]


@pytest.mark.parametrize(("reward", "text", "truth", "expected"), CASES)
def test_outcomes(reward, text, truth, expected):
    assert outcome(reward, text, truth) == expected


@pytest.mark.parametrize("reward", [Exact(), Numeric(), MultipleChoice(), ThinkAnswerFormat()])
def test_a_truncated_completion_never_scores_even_if_right(reward):
    gold = reward.gold_completion(row("1" if not isinstance(reward, MultipleChoice) else "A"))
    truth = "A" if isinstance(reward, MultipleChoice) else "1"
    assert outcome(reward, gold, truth) == (1.0, "correct")
    assert outcome(reward, gold, truth, "length") == (0.0, "truncated")


def test_documented_partial_credit_survives_truncation():
    steps = RunningSumReward(mode="steps")
    result = judge(steps, "+3=30;", row("21", numbers=[3, 9]), "length")
    assert (result.score, result.label) == (pytest.approx(1 / 3), "truncated")
    assert judge(RunningSumReward(), "+3=30;+9=21;#21", row("21", numbers=[3, 9]), "length").score == 0.0


@pytest.mark.parametrize(
    ("reward", "truth", "message"),
    [
        (Numeric(), "ten", "ground_truth 'ten' is not a number"),
        (Exact(), {"a": 1}, "ground_truth {'a': 1} is not allowed"),
        (MultipleChoice(), "F", "ground_truth 'F' is not allowed; allowed: one of ABCD"),
        (MultipleChoice(), 4, "ground_truth 4 is not allowed"),
        (MultipleChoice(), True, "ground_truth True is not allowed"),
        (Exact(), "", "ground_truth '' is not allowed; allowed: text that is not empty"),
        (Exact(), " ", "ground_truth ' ' is not allowed"),
        (Exact(), ["a", ""], "ground_truth ['a', ''] is not allowed"),
        (Exact(), [None], "ground_truth [None] is not allowed"),
        (Numeric(), True, "ground_truth True is not allowed"),
    ],
)
def test_a_bad_gold_answer_is_an_error_that_names_the_row(reward, truth, message):
    result = judge(reward, "<answer>1</answer>", row(truth), "stop")
    assert (result.score, result.label) == (0.0, "error")
    assert message in result.detail
    assert "row {'index': 3} of data_source 'test'" in result.detail


NUMBERS = [
    ("42", Fraction(42)), ("-7.", Fraction(-7)), ("+.5", Fraction(1, 2)), ("1,234", Fraction(1234)), ("12,34", None),
    ("2e-3", Fraction(1, 500)), ("3/4", Fraction(3, 4)), ("-3 / 4", Fraction(-3, 4)), ("3/0", None),
    ("$18", Fraction(18)),
    (r"\$18", Fraction(18)), ("50%", Fraction(50)), (r"50\%", Fraction(50)), (r"\frac{1}{3}", Fraction(1, 3)),
    (r"-\dfrac{2}{3}", Fraction(-2, 3)), ("\N{MINUS SIGN}5", Fraction(-5)), ("", None), ("1 2", None), ("x", None),
    ("-$5", Fraction(-5)), (r"\$-5", Fraction(-5)), ("$5-", None), ("10^{-3}", Fraction(1, 1000)), ("10^12", None),
    (r"6.5\times 10^{2}", Fraction(650)), (r"-2 \cdot 10^3", Fraction(-2000)), ("2*10^{1000}", None),
    ("1e9999", None), ("9" * 1001, None), ("nan", None), ("inf", None), ("1_000", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "number"), NUMBERS)
def test_numbers(text, number):
    assert parse_number(text) == number


@given(st.fractions())
def test_every_fraction_is_read_back(number):
    assert parse_number(str(number)) == number


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=4))
def test_every_decimal_is_read_back(number):
    assert parse_number(f"{number:,f}") == Fraction(number)


def test_errors_of_a_reward_are_its_samples_outcome():
    def broken(completion, row):
        raise RuntimeError("no")

    assert judge(FunctionReward(broken), "x", row("1"), "stop") == Outcome(0.0, "error")
    assert judge(FunctionReward(broken), "x", row("1"), "stop").detail == "RuntimeError: no"


@pytest.mark.parametrize(("value", "label"), [(1, "correct"), (0.25, "correct"), (0, "wrong"), (-1.0, "wrong")])
def test_a_function_may_give_a_number(value, label):
    assert judge(as_reward(lambda completion, row: value), "x", row("1"), "stop") == Outcome(float(value), label)


def test_as_reward():
    exact = Exact()
    assert as_reward(exact) is exact
    with pytest.raises(TypeError, match="reward 5 is not allowed"):
        as_reward(5)


def test_unknown_finish_reason():
    with pytest.raises(ValueError, match="finish_reason 'eos' is unknown; allowed: stop, length"):
        judge(Exact(), "x", row("1"), "eos")


def test_outcome_checks_itself():
    with pytest.raises(ValueError, match="outcome label 'good' is unknown; allowed: correct, wrong, unparsable"):
        Outcome(1.0, "good")
    with pytest.raises(ValueError, match="outcome score inf is not allowed"):
        Outcome(math.inf, "correct")
    with pytest.raises(TypeError):
        Outcome("1.0", "correct")
    assert LABELS == ("correct", "wrong", "unparsable", "timeout", "error", "truncated")


def test_reward_row_from_mapping():
    fields = {"data_source": "a", "reward_model": {"ground_truth": "1"}, "extra_info": None}
    assert reward_row(fields) == RewardRow("a", "1", {})
    with pytest.raises(ValueError, match=r"ground_truth is missing; needed: data_source, reward_model.ground_truth"):
        reward_row({"data_source": "a", "reward_model": {}})


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (200, -1.0)]
)
def test_soft_overlong(tokens, penalty):
    shaping = SoftOverlong(max_tokens=100, buffer_tokens=20, factor=2.0)
    assert shaping.penalty(tokens) == pytest.approx(penalty)
    assert shaping(Outcome(1.0, "correct"), tokens) == Outcome(1.0 + 2.0 * shaping.penalty(tokens), "correct")


@pytest.mark.parametrize("buffer", [0, 101])
def test_soft_overlong_bounds(buffer):
    with pytest.raises(ValueError, match=f"buffer_tokens={buffer} is not allowed with max_tokens=100"):
        SoftOverlong(100, buffer)


@pytest.mark.parametrize(
    ("label", "tokens", "score"),
    [("correct", 0, 2.0), ("correct", 50, 1.5), ("wrong", 0, -10.0), ("wrong", 50, -5.0), ("correct", 100, -10.0),
     ("unparsable", 25, -10.0 * (1 + math.cos(math.pi / 4)) / 2)],
)  # fmt: skip
def test_cosine_length(label, tokens, score):
    shaped = CosineLength(max_tokens=100)(Outcome(0.0, label), tokens)
    assert shaped.score == pytest.approx(score)
    assert shaped.label == label


def test_combined_sums_and_takes_the_first_label():
    both = Combined([Exact(), ThinkAnswerFormat()], [1.0, 0.25])
    formatted = "<think>a</think><answer>{}</answer>"
    assert outcome(both, formatted.format("1"), "1") == (1.25, "correct")
    assert outcome(both, formatted.format("2"), "1") == (0.25, "wrong")
    assert outcome(both, "<answer>1</answer>", "1") == (1.0, "correct")
    assert outcome(both, formatted.format("1"), "1", "length") == (0.0, "truncated")


def test_combined_is_isolated_if_a_part_is():
    def function(completion, row):
        return 1.0

    assert not Combined([Exact()], [1.0]).isolated
    assert Combined([Exact(), FunctionReward(function, isolated=True)], [1.0, 1.0]).isolated


def test_combined_truncated_part_by_part():
    both = Combined([RunningSumReward(mode="steps"), Exact("whole")], [1.0, 5.0])
    assert isinstance(both, Reward)
    result = judge(both, "+3=30;", row("+3=30;", numbers=[3, 9]), "length")
    assert (result.score, result.label) == (pytest.approx(1 / 3), "truncated")


def test_combined_needs_a_weight_each():
    with pytest.raises(ValueError, match="1 rewards with 2 weights are not allowed"):
        Combined([Exact()], [1.0, 2.0])


@pytest.mark.parametrize("weights", [[math.nan], [math.inf]])
def test_combined_needs_finite_weights(weights):
    with pytest.raises(ValueError, match="are not allowed; allowed: finite numbers"):
        Combined([Exact()], weights)


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self):
        raise RuntimeError("no text")


class Panic(BaseException):
    """What compiled libraries raise is no `Exception`."""


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (Mute(), "Mute, whose text raises RuntimeError"),
        (Panic("lost"), "Panic: lost"),
        (SystemExit(0), "SystemExit: 0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_reward_raises_is_its_samples_outcome(error, detail):
    def broken(completion, row):
        raise error

    result = judge(FunctionReward(broken), "x", row("1"), "stop")
    assert (result.score, result.label, result.detail) == (0.0, "error", detail)


def test_an_interrupt_and_an_ordered_exit_end_the_run():
    class Preempted(SystemExit):
        """As a run that is told to stop raises."""

    for error in (KeyboardInterrupt, Preempted):

        def broken(completion, row, error=error):
            raise error

        with pytest.raises(error):
            judge(FunctionReward(broken), "x", row("1"), "stop")


class Loose(Exact):
    """A reward that forgets to make an outcome."""

    def __call__(self, completion, row, finish_reason):
        return 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1.0", [1], 1j])
def test_what_is_no_number_is_an_error(value):
    assert judge(FunctionReward(lambda completion, row: value), "x", row("1"), "stop").label == "error"
    assert judge(Loose(), "x", row("1"), "stop").detail == "TypeError: Loose gave '1.0'; allowed: an Outcome"


def test_scores_of_other_libraries_become_plain_numbers():
    for score in (numpy.float32(0.5), torch.tensor(0.5), Fraction(1, 2)):
        assert type(Outcome(score, "correct").score) is float
        assert Outcome(score, "correct", detail=7) == Outcome(0.5, "correct")


def test_a_class_is_no_reward():
    with pytest.raises(TypeError, match="allowed: a Reward, or a function"):
        as_reward(Exact)


def test_pattern_that_is_none():
    with pytest.raises(ValueError, match="is not a regular expression"):
        PatternFormat("(")
