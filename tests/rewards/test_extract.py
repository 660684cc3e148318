"""Finding the answer in a completion, worked by hand."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.rewards.extract import FINDERS, GOLD_FORMS, find_answer, last_boxed
from sparrow.rewards.math import find_math_answer
from sparrow.rewards.numeric import parse_number

CASES = [
    ("tag", "<answer>1</answer> no, <answer> 2 </answer>", "2"),
    ("first_tag", "<answer>1</answer> no, <answer>2</answer>", "1"),
    ("tag", "<answer>1 <answer>2</answer>", "2"),
    ("tag", "<answer>1</answer> <answer>unclosed", "1"),
    ("tag", "</answer>1<answer>", None),
    ("tag", "<answer></answer>", ""),
    ("boxed", r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    ("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    ("boxed", r"\boxed{a\}b}", r"a\}b"),
    ("boxed", r"\fbox{x}", "x"),
    ("boxed", r"\boxed 7.", "7"),
    ("boxed", r"\boxed{1} and \boxed{2", None),
    ("boxed", r"no box", None),
    ("boxed", r"\boxed", None),
    ("hash", "5+5=10\n#### 10\n", "10"),
    ("hash", "#### 1\n#### 2 apples\nmore", "2 apples"),
    ("hash", "no mark", None),
    ("hash", "####", None),
    ("line", "The answer is 5.\nSo the final answer is: 7", "7"),
    ("line", "**Answer:** $x^2$", "$x^2$"),
    ("line", "Answer:\n", None),
    ("line", "nothing", None),
    ("number", "from 3 to 1,234.5 apples.", "1,234.5"),
    ("number", "it is -3/4.", "-3/4"),
    ("number", "none", None),
    ("whole", "  all of it \n", "all of it"),
    ("whole", "   ", None),
]


@pytest.mark.parametrize(("finder", "text", "answer"), CASES)
def test_finders(finder, text, answer):
    assert find_answer(text, finder) == answer


@pytest.mark.parametrize("finder", [name for name in FINDERS if name != "number"])
def test_thinking_is_cut_off(finder):
    right, wrong = GOLD_FORMS[finder].format("right"), GOLD_FORMS[finder].format("wrong")
    assert find_answer(f"<think>{wrong}</think>\n{right}", finder) == "right"
    assert find_answer(f"{wrong}</think>{right}", finder) == "right"  # the prompt opened it
    assert find_answer(f"<think>{wrong}</think>", finder) is None
    assert find_answer(f"<think>{right}", finder) is None  # never closed


def test_unknown_finder():
    with pytest.raises(ValueError, match="answer finder 'box' is unknown; allowed: tag, first_tag, boxed, hash"):
        find_answer("", "box")


@given(st.text(alphabet="ab{}\\1 ", max_size=30))
def test_boxed_content_has_balanced_braces(text):
    content = last_boxed(f"\\boxed{{{text}}}")
    if content is not None:
        plain = content.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
        assert plain.count("{") == plain.count("}")


@given(st.text(max_size=60), st.sampled_from(sorted(FINDERS)))
def test_no_text_breaks_a_finder(text, finder):
    found = find_answer(text, finder)
    assert found is None or isinstance(found, str)


@pytest.mark.parametrize("filler", ["\n", " ", "*", "$", ":", "9", "\\boxed{", "<answer>", "answer: ", "####"])
@pytest.mark.parametrize("start", ["answer:", "The answer is ", "\\boxed{", "#### ", "<answer>"])
def test_no_long_text_takes_long(start, filler):
    """A policy that fails repeats itself; such text once took the third power of its length."""
    before = time.process_time()
    for end in ("", "x", "}", "</answer>", "$x}"):
        text = start + filler * 10_000 + end
        for find in (*FINDERS.values(), find_math_answer, parse_number):
            find(text)
    assert time.process_time() - before < 5.0
