"""The running-sum verifier, against values worked by hand."""

import pytest

from sparrow.rewards.outcome import Outcome
from sparrow.rewards.running_sum import (
    running_sum_answer,
    running_sum_outcome,
    running_sum_prompt,
    running_sum_trace,
    share_of_right_steps,
    two_digits,
)

# 3, 3+9 = 12, 12+4 = 16
ROW = {"reward_model": {"ground_truth": "61"}, "extra_info": {"numbers": [3, 9, 4]}}
RIGHT = "+3=30;+9=21;+4=61;#61"


@pytest.mark.parametrize(("total", "digits"), [(0, "00"), (7, "70"), (12, "21"), (99, "99"), (100, "00"), (305, "50")])
def test_digits_are_reversed_modulo_100(total, digits):
    assert two_digits(total) == digits


def test_texts_of_a_row():
    assert running_sum_prompt([3, 9, 4]) == "3+9+4="
    assert running_sum_answer([3, 9, 4]) == "61"
    assert running_sum_trace([3, 9, 4]) == RIGHT + "$"


def test_a_trace_wraps_at_100():
    # twelve nines are 108
    assert running_sum_trace([9] * 12).endswith("+9=09;+9=99;+9=80;#80$")


@pytest.mark.parametrize(
    ("text", "answer", "steps", "label"),
    [
        (RIGHT, 1.0, 1.0, "correct"),
        (RIGHT + "$", 1.0, 1.0, "correct"),
        # a slip in the second step (11 for 12) carries on: only the first step stands
        ("+3=30;+9=11;+4=51;#51$", 0.0, 1 / 4, "wrong"),
        # the slip is mended in the third step
        ("+3=30;+9=11;+4=61;#61$", 1.0, 3 / 4, "correct"),
        # the answer alone is wrong
        ("+3=30;+9=21;+4=61;#16$", 0.0, 3 / 4, "wrong"),
        # a step is left out: the answer is found, but neither it nor the last step stands at its place
        ("+3=30;+9=21;#61$", 1.0, 2 / 4, "correct"),
        # a step too many before the answer
        ("+3=30;+9=21;+4=61;+0=61;#61$", 1.0, 3 / 4, "correct"),
        ("#61$", 1.0, 0.0, "correct"),
        ("+3=30;+9=21;+4=61;61$", 0.0, 3 / 4, "unparsable"),
        ("+3=30;+9=21;+4=61;#6$", 0.0, 3 / 4, "unparsable"),
        ("+3=30;+9=21;+4=61;#61;", 0.0, 3 / 4, "unparsable"),
        ("+3=30;+9=21;+4=61;#61$$", 0.0, 3 / 4, "unparsable"),
        ("#61\n", 0.0, 0.0, "unparsable"),
        ("#٦١", 0.0, 0.0, "unparsable"),
        ("", 0.0, 0.0, "unparsable"),
        ("$", 0.0, 0.0, "unparsable"),
    ],
)
def test_scores_by_hand(text, answer, steps, label):
    assert running_sum_outcome(text, ROW) == Outcome(answer, label)
    assert running_sum_outcome(text, ROW, mode="steps") == Outcome(steps, label)


@pytest.mark.parametrize(("text", "steps"), [("+3=30;+9=2", 1 / 4), ("+3=30;+9=21;", 2 / 4), (RIGHT, 1.0), ("", 0.0)])
def test_truncated_is_its_own_label_and_never_a_right_answer(text, steps):
    assert running_sum_outcome(text, ROW, "length") == Outcome(0.0, "truncated")
    assert running_sum_outcome(text, ROW, "length", mode="steps") == Outcome(steps, "truncated")


def test_the_right_trace_of_many_numbers_scores_one():
    numbers = [(7 * place + 3) % 10 for place in range(42)]
    assert share_of_right_steps(running_sum_trace(numbers), numbers) == 1.0
    assert len(running_sum_trace(numbers)) == 6 * 42 + 4


def test_an_unknown_mode_is_named():
    with pytest.raises(ValueError, match=r"'partial'.*'answer', 'steps'"):
        running_sum_outcome(RIGHT, ROW, mode="partial")
