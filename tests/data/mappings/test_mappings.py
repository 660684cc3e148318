"""Mappings on small files in each data set's own layout: the rows made, and their gold answers by their own reward."""

import base64
import json
import pickle
import zlib

import pyarrow
import pyarrow.parquet
import pytest

from sparrow.data.mappings import MAPPINGS, get_mapping
from sparrow.data.mappings.choice_sets import INSTRUCTION
from sparrow.data.mappings.math_sets import BOXED
from sparrow.data.readers import read_rows
from sparrow.data.sources.files import Files
from sparrow.rewards.base import reward_row
from sparrow.rewards.check import check_routes
from sparrow.rewards.code import Code
from sparrow.rewards.registry import route
from sparrow.rewards.sandbox import Limits
from sparrow.rewards.score import Sample, Scorer


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


# One raw row in the columns that each published set has; the question's column and the gold answer it must give.
RAW = {
    "polaris-53k": ({"problem": "p", "answer": "30", "difficulty": "1/8"}, "30"),
    "deepscaler": ({"problem": "p", "answer": r"-\frac{2}{3}", "solution": "s"}, r"-\frac{2}{3}"),
    "dapo-math-17k": (
        {
            "data_source": "math_dapo",
            "prompt": [{"content": 'p\n\nPut your answer on its own line after "Answer:".', "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
        },
        "34",
    ),
    "dapo-math-17k-processed": ({"prompt": "p", "solution": "34", "data_source": "math_dapo"}, "34"),
    "math": (
        {"problem": "p", "level": "Level 5", "type": "Algebra", "solution": r"$\boxed{1}$ so $\boxed{\frac{1}{2}}$."},
        r"\frac{1}{2}",
    ),
    "math-test": ({"problem": "p", "level": "Level 1", "type": "Algebra", "solution": r"\boxed{7}"}, "7"),
    "math-500": (
        {
            "problem": "p", "solution": "s", "answer": r"\left( 3, \frac{\pi}{2} \right)", "subject": "Precalculus",
            "level": 2, "unique_id": "test/precalculus/807.json",
        },
        r"\left( 3, \frac{\pi}{2} \right)",
    ),
    "gsm8k": ({"question": "p", "answer": "48/2 = <<48/2=24>>24\n#### 1,072"}, "1072"),
    "gsm8k-test": ({"question": "p", "answer": "so\n#### 18"}, "18"),
    "aime-2024": (
        {"id": 60, "problem": "p", "solution": "s", "answer": "025", "url": "u", "year": "2024"},
        "025",
    ),
    "aime-2024-maxwell-jia": ({"ID": "2024-I-1", "Problem": "p", "Solution": "s", "Answer": 204}, "204"),
    "aime-2025": ({"problem_idx": 1, "problem": "p", "answer": 70, "problem_type": ["Number Theory"]}, "70"),
    "aime-2025-opencompass": ({"question": "p", "answer": "70"}, "70"),
    "aime-2026": ({"problem_idx": 1, "problem": "p", "answer": 277}, "277"),
    "amc": ({"id": 0, "problem": "p", "answer": 142.0, "url": "u"}, "142"),
    "amc-23": ({"id": 0, "question": "p", "answer": "27.0", "url": "u"}, "27.0"),
    "amc-22-24": (
        {"year": "2024", "problem": "p", "answer": "14", "url": "https://x/2024_AMC_12A", "solution": "s"},
        "14",
    ),
    "minerva-math": ({"question": "p", "answer": r"1.6"}, "1.6"),
    "mmlu": ({"question": "p", "subject": "abstract_algebra", "choices": ["0", "4", "2", "6"], "answer": 1}, "B"),
    "mmlu-pro": (
        {
            "question_id": 70, "question": "p", "src": "x", "options": [str(n) for n in range(10)],
            "answer": "I", "answer_index": 8,
            "cot_content": "", "category": "business",
        },
        "I",
    ),
}  # fmt: skip


def rows_of(name, raw, folder, count=2):
    path = folder / "raw.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([raw] * count), path)
    return read_rows(path, mapping=get_mapping(name))


@pytest.mark.parametrize("name", RAW)
def test_rows_from_the_published_layout(name, tmp_path):
    raw, gold = RAW[name]
    first, second = rows_of(name, raw, tmp_path)
    assert first.ground_truth == gold
    assert first.prompt[0]["content"].startswith("p")
    if name != "dapo-math-17k":
        assert [first.extra_info["index"], second.extra_info["index"]] == [0, 1]
    route(first)


@pytest.mark.parametrize("name", [name for name in RAW if name not in ("mmlu", "mmlu-pro")])
def test_mathematical_prompts_ask_for_what_the_reward_looks_for(name, tmp_path):
    (row,) = rows_of(name, RAW[name][0], tmp_path, count=1)
    assert row.prompt[0]["content"].endswith(BOXED) or "Answer:" in row.prompt[0]["content"]


def test_every_gold_answer_scores_one_by_its_own_reward(tmp_path):
    rows = [row for name, (raw, _) in RAW.items() for row in rows_of(name, raw, tmp_path, count=1)]
    check = check_routes(rows)
    assert sum(check.checked.values()) == len(rows) == len(RAW)


def test_every_mapping_is_tested():
    assert set(MAPPINGS) == {*RAW, *CODE, "gpqa", "taco", "livecodebench"}


STDIO = json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})
ADD = "print(sum(map(int, input().split())))"
CODE = {
    "taco-verified": {
        "id": 7, "question": "Add.", "solutions": [ADD, "other"], "starter_code": "", "input_output": STDIO,
        "difficulty": "EASY", "source": "codechef", "url": "u",
    },
    "code-r1": {
        "data_source": "code", "ability": "coding",
        "prompt": [{"role": "system", "content": "You think."}, {"role": "user", "content": "A ```python block: add."}],
        "reward_model": {"style": "rule", "ground_truth": STDIO},
        "extra_info": {
            "split": "train", "index": 3, "prompt": "add", "reference": ADD, "dataset": "likaixin/TACO-verified",
        },
    },
    "humaneval-plus": {
        "task_id": "HumanEval/0", "prompt": "def add(a, b):\n    \"\"\"Add.\"\"\"\n", "entry_point": "add",
        "canonical_solution": "    return a + b\n",
        "test": "import numpy as np\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n",
    },
    "mbpp-plus": {
        "task_id": 2, "code": "def add(a, b):\n  return a + b", "prompt": "Write a function to add.",
        "source_file": "f",
        "test_imports": ["import math"], "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
        "test": "inputs = [[1, 2], [2, 2]]\nresults = [3, 4]\nfor i, (inp, exp) in enumerate(zip(inputs, results)):\n"
        "    assert add(*inp) == math.floor(exp)\n",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_programming_sets_route_ask_for_a_block_and_their_references_pass(name, tmp_path):
    rows = rows_of(name, CODE[name], tmp_path, count=2)
    routes = {row.data_source: Code(sandbox="limits", limits=Limits(seconds=30.0)) for row in rows}
    with Scorer(routes=routes, timeout_s=60.0) as scorer:
        check = check_routes(rows, scorer)
        wrong = scorer.score([Sample("```python\ndef add(a, b): return 0\n```", rows[0])])
    source = rows[0].data_source
    assert (check.rows[source], check.checked[source], check.agreeing[source]) == (2, 2, 2)
    assert wrong[0].label == "wrong"
    assert isinstance(route(rows[0]), Code)


def test_a_leetcode_problem_of_code_r1_has_a_functional_check_and_no_reference():
    truth = json.dumps({"functional": "assert Solution().add(1, 2) == 3"})
    info = {"split": "train", "index": 0, "reference": "class Solution: ...", "dataset": "LeetCodeDataset"}
    raw = CODE["code-r1"] | {"reward_model": {"style": "rule", "ground_truth": truth}, "extra_info": info}
    fields = get_mapping("code-r1")(raw, 5)
    assert fields["reward_model"]["ground_truth"] == truth
    assert "reference" not in fields["extra_info"]
    right = "```python\nclass Solution:\n    def add(self, a: int, b: List[int]):\n        return a + b\n```"
    outcome = Code(sandbox="limits")(right, reward_row(fields), "stop")
    assert outcome.label == "correct"


def test_kept_columns():
    raw, _ = RAW["math-500"]
    assert get_mapping("math-500")(raw, 4)["extra_info"] == {
        "split": "test", "index": 4, "subject": "Precalculus", "level": 2, "unique_id": "test/precalculus/807.json",
    }  # fmt: skip


def test_gpqa_orders_choices_by_index_and_follows_the_right_one():
    raw = {"Question": "p", "Correct Answer": "yes", **{f"Incorrect Answer {n}": f"no {n}" for n in (1, 2, 3)}}
    letters = []
    for index in range(40):
        fields = get_mapping("gpqa")(raw, index)
        letter = fields["reward_model"]["ground_truth"]
        assert f"\n{letter}) yes\n" in fields["prompt"][0]["content"]
        assert fields["prompt"][0]["content"].endswith(INSTRUCTION)
        assert fields == get_mapping("gpqa")(raw, index)
        letters.append(letter)
    assert {*letters} == {"A", "B", "C", "D"}


def test_taco_standard_input():
    raw = {
        "question": "Add.",
        "starter_code": "",
        "input_output": json.dumps({"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]}),
    }
    fields = get_mapping("taco")(raw, 0)
    truth = json.loads(fields["reward_model"]["ground_truth"])
    assert truth == {"inputs": ["1 2\n", "3\n4"], "outputs": ["3\n", "7"], "function": ""}
    assert "standard input" in fields["prompt"][0]["content"]


def test_taco_function():
    tests = {"fn_name": "add", "inputs": [[1, 2], ["a", "b"]], "outputs": [[3], ["ab"]]}
    raw = {"question": "Add.", "starter_code": "def add(a, b):", "input_output": json.dumps(tests)}
    fields = get_mapping("taco")(raw, 0)
    truth = json.loads(fields["reward_model"]["ground_truth"])
    assert truth == {"inputs": [["1", "2"], ['"a"', '"b"']], "outputs": ["3", '"ab"'], "function": "add"}
    assert "def add(a, b):" in fields["prompt"][0]["content"]


LIVE = {
    "question_content": "Add.",
    "starter_code": "class Solution:\n    def add(self, a, b):",
    "metadata": '{"func_name": "add"}',
}


def test_live_code_bench():
    public = json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}])
    private = packed([{"input": '"a"\n"b"', "output": '"ab"', "testtype": "functional"}])
    fields = get_mapping("livecodebench")({**LIVE, "public_test_cases": public, "private_test_cases": private}, 3)
    truth = json.loads(fields["reward_model"]["ground_truth"])
    assert truth == {"inputs": [["1", "2"], ['"a"', '"b"']], "outputs": ["3", '"ab"'], "function": "add"}
    plain = {**LIVE, "metadata": "{}", "public_test_cases": public, "private_test_cases": "[]"}
    truth = json.loads(get_mapping("livecodebench")(plain, 3)["reward_model"]["ground_truth"])
    assert truth == {"inputs": ["1\n2"], "outputs": ["3"], "function": ""}


def test_live_code_bench_refuses_a_pickle_that_would_call_something():
    private = base64.b64encode(zlib.compress(pickle.dumps(print))).decode()
    with pytest.raises(ValueError, match=r"private_test_cases holds builtins\.print; allowed: a pickled text"):
        get_mapping("livecodebench")({**LIVE, "public_test_cases": "[]", "private_test_cases": private}, 0)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        (
            "polaris-53k",
            {"problem": "p", "difficulty": "1/8"},
            "field answer is missing; the row has: difficulty, problem",
        ),
        ("polaris-53k", {"problem": "p", "answer": "  "}, "field answer is '  '; allowed: an answer"),
        ("math", {"problem": "p", "solution": "no box"}, r"field solution is 'no box'; allowed: a solution with its"),
        ("gsm8k", {"question": "p", "answer": "42"}, "field answer is '42'; allowed: a solution that ends in '#### "),
        (
            "mmlu",
            {"question": "p", "subject": "s", "choices": ["1"], "answer": 1},
            r"field answer \(the right choice\) is '1' of 1; allowed",
        ),
    ],
)
def test_errors_name_file_row_and_field(name, raw, message, tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_text(json.dumps(raw) + "\n")
    with pytest.raises(ValueError, match=rf"raw\.jsonl:1: {message}"):
        Files(train=[str(path)], mapping=name).train_rows()


GPQA = {"Question": "q", "Correct Answer": "a", "Incorrect Answer 1": "b", "Incorrect Answer 2": "c",
        "Incorrect Answer 3": "d"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("gpqa", GPQA | {"Correct Answer": None}, "field Correct Answer is 'None'"),
        ("gpqa", GPQA | {"Incorrect Answer 2": ["c"]}, "field Incorrect Answer 2 is "),
        ("mmlu", {"question": "q", "subject": "s", "choices": ["a", "b"], "answer": True}, "field answer .* is 'True'"),
        ("taco", {"inputs": ["1"], "outputs": [None]}, "field input_output has the test 'None'"),
        ("taco", {"inputs": [{"a": 1}], "outputs": ["1"]}, "field input_output has the test"),
        ("taco", {"inputs": [["1", ["2"]]], "outputs": ["1"]}, "field input_output has the test"),
        ("taco", {"fn_name": "f", "inputs": ["abc"], "outputs": ["1"]}, "has the arguments 'abc'; allowed: a list"),
        ("code-r1", {"functional": ["assert False"]}, "ground_truth"),
        ("code-r1", {"functional": " "}, "ground_truth"),
        ("code-r1", {"inputs": "12", "outputs": "34"}, "ground_truth"),
        ("code-r1", {"inputs": [1], "outputs": [2]}, "ground_truth"),
    ],
)
def test_values_that_once_passed_for_others_are_errors(tmp_path, name, raw, message):
    if name == "taco":
        raw = {"question": "p", "starter_code": "", "input_output": json.dumps(raw)}
    elif name == "code-r1":
        raw = {
            "prompt": [{"role": "user", "content": "p"}],
            "reward_model": {"ground_truth": json.dumps(raw)},
            "extra_info": {"dataset": "LeetCodeDataset", "reference": "x"},
        }
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=rf"a\.jsonl:1: .*{message}"):
        read_rows(path, mapping=get_mapping(name))
