"""Layouts of programming data sets, each turned into the tests that `sparrow.rewards.code` runs.

The ground truth is {"inputs", "outputs", "function"}: standard input and output as texts if `function` is empty, else
the arguments and result of that function as JSON texts, one test after the other; or {"functional"}, source that
raises unless the program is right. `extra_info.reference` holds a solution where the set has one that passes.
"""

import base64
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparrow.data.mappings.fields import Raw, text_of
from sparrow.rewards.base import RewardRow
from sparrow.rewards.code import read_tests

STANDARD_INPUT = (
    "\n\nRead the input from standard input and write the answer to standard output. "
    "Put your Python program in one ```python block."
)
FUNCTION = "\n\nComplete this Python code, and put all of it in one ```python block:\n```python\n{}\n```"
PASSES = "\n\nPut your Python code in one ```python block. It must pass tests like this one:\n```python\n{}\n```"


def taco(raw: Raw, index: int) -> dict[str, Any]:
    """BAAI/TACO: `input_output` is JSON with inputs, outputs and perhaps `fn_name`."""
    return _taco("BAAI/TACO", raw, index)


def taco_verified(raw: Raw, index: int) -> dict[str, Any]:
    """likaixin/TACO-verified: TACO's columns; its `solutions` have been run on the tests."""
    fields = _taco("likaixin/TACO-verified", raw, index)
    solutions = raw.get("solutions") or []
    solutions = json.loads(solutions) if isinstance(solutions, str) else solutions
    return _with_reference(fields, solutions[0] if solutions else None)


def code_r1(raw: Raw, index: int) -> dict[str, Any]:
    """ganler/code-r1-12k, and files of the same layout: in the common schema, the tests as JSON text.

    The reference of a TACO problem is a whole program; that of a LeetCode problem is not, and is left out.
    """
    truth = json.loads(raw["reward_model"]["ground_truth"])
    unknown = set(truth) - {"functional", "inputs", "outputs"}
    if unknown or not truth:
        raise ValueError(
            f"field reward_model.ground_truth holds {sorted(truth)}; allowed: functional, or inputs, outputs"
        )
    info = raw["extra_info"]
    read_tests(RewardRow("code", truth))
    fields = {
        "data_source": "code",
        "prompt": [{"role": message["role"], "content": message["content"]} for message in raw["prompt"]],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
        "extra_info": {"split": "train", "index": index, "dataset": info["dataset"]},
    }
    return _with_reference(fields, info["reference"] if info["dataset"] == "likaixin/TACO-verified" else None)


def live_code_bench(raw: Raw, index: int) -> dict[str, Any]:
    """livecodebench/code_generation_lite: public tests as JSON, private ones packed, the function in the metadata."""
    tests = json.loads(raw["public_test_cases"]) + _private_tests(raw["private_test_cases"])
    function = json.loads(raw["metadata"]).get("func_name") or ""
    inputs: list[Any] = [test["input"] for test in tests]
    if function:
        inputs = [text.split("\n") for text in inputs]
    outputs = [test["output"] for test in tests]
    name, question, starter = (
        "livecodebench/code_generation_lite",
        text_of(raw, "question_content"),
        raw["starter_code"],
    )
    fields = _fields(name, question, starter, inputs, outputs, function, "test", index)
    for column in ("question_id", "contest_date", "difficulty", "platform"):
        if column in raw:
            fields["extra_info"][column] = str(raw[column])
    return fields


def human_eval_plus(raw: Raw, index: int) -> dict[str, Any]:
    """evalplus/humanevalplus: a stub to complete, and a `check` function over the extended inputs."""
    stub, entry = text_of(raw, "prompt"), text_of(raw, "entry_point")
    check = f"{text_of(raw, 'test')}\n\ncheck({entry})\n"
    content = FUNCTION.format(stub.strip()).lstrip()
    fields = _checked("evalplus/humanevalplus", content, check, index, raw["task_id"])
    return _with_reference(fields, stub + text_of(raw, "canonical_solution"))


def mbpp_plus(raw: Raw, index: int) -> dict[str, Any]:
    """evalplus/mbppplus: a sentence, example assertions that name the function, and a program of all assertions."""
    tests = raw["test_list"]
    if isinstance(tests, str) or not tests or not all(isinstance(test, str) for test in tests):
        raise ValueError(f"field test_list is {str(tests)[:80]!r}; allowed: a list of assertions that is not empty")
    check = "\n".join([*(raw["test_imports"] or ()), text_of(raw, "test")])
    content = text_of(raw, "prompt").strip() + PASSES.format(tests[0])
    fields = _checked("evalplus/mbppplus", content, check, index, raw["task_id"])
    return _with_reference(fields, text_of(raw, "code"))


def _taco(name: str, raw: Raw, index: int) -> dict[str, Any]:
    tests = json.loads(raw["input_output"])
    if not isinstance(tests, dict) or not all(isinstance(tests.get(key), list) for key in ("inputs", "outputs")):
        raise ValueError(
            f"field input_output is {str(raw['input_output'])[:80]!r}; allowed: JSON with inputs and outputs"
        )
    function = tests.get("fn_name") or ""
    if function:
        inputs: Sequence[Any] = [_arguments(arguments) for arguments in tests["inputs"]]
        outputs = [json.dumps(_unwrapped(output)) for output in tests["outputs"]]
    else:
        inputs, outputs = _texts(tests["inputs"]), _texts(tests["outputs"])
    starter = raw.get("starter_code")
    return _fields(name, text_of(raw, "question"), starter, inputs, outputs, function, "train", index)


def _private_tests(packed: str) -> list[dict[str, str]]:
    """JSON, or JSON in a pickle in zlib in base64; the pickle may hold nothing but a text."""
    try:
        tests: list[dict[str, str]] = json.loads(packed)
    except json.JSONDecodeError:
        data = zlib.decompress(base64.b64decode(packed))
        tests = json.loads(_TextUnpickler(io.BytesIO(data)).load())
    return tests


class _TextUnpickler(pickle.Unpickler):
    """Refuses everything that would import or call something."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"field private_test_cases holds {module}.{name}; allowed: a pickled text")


def _fields(
    data_source: str,
    question: str,
    starter: str | None,
    inputs: Sequence[Any],
    outputs: Sequence[str],
    function: str,
    split: str,
    index: int,
) -> dict[str, Any]:
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} test inputs with {len(outputs)} outputs; allowed: 1 or more, as many of both")
    texts = [*outputs, *([item for items in inputs for item in items] if function else inputs)]
    if not all(isinstance(text, str) for text in (*texts, function, starter or "")):
        raise ValueError("a test, the function or the starter code is not text; allowed: text")
    ask = FUNCTION.format(starter) if function and starter else STANDARD_INPUT
    if function and not starter:
        ask = f"\n\nWrite a Python function `{function}`. Put your code in one ```python block."
    truth = {"inputs": list(inputs), "outputs": list(outputs), "function": function}
    return _row(data_source, question.strip() + ask, truth, split, index)


def _checked(data_source: str, content: str, check: str, index: int, task: Any) -> dict[str, Any]:
    fields = _row(data_source, content, {"functional": check}, "test", index)
    fields["extra_info"]["task_id"] = str(task)
    return fields


def _row(data_source: str, content: str, truth: Mapping[str, Any], split: str, index: int) -> dict[str, Any]:
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": content}],
        "ability": "code",
        # One text: test lists of several kinds do not fit one parquet column.
        "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
        "extra_info": {"split": split, "index": index},
    }


def _with_reference(fields: dict[str, Any], reference: Any) -> dict[str, Any]:
    if reference is not None:
        if not isinstance(reference, str) or not reference.strip():
            raise ValueError(
                f"field solutions (the reference) is {str(reference)[:80]!r}; allowed: a program, or nothing"
            )
        fields["extra_info"]["reference"] = reference
    return fields


def _texts(values: Sequence[Any]) -> list[str]:
    """TACO holds some tests as lists of lines."""
    lines = [value if isinstance(value, list) else [value] for value in values]
    for line in (line for group in lines for line in group):
        if not isinstance(line, str | int | float):
            raise ValueError(f"field input_output has the test {str(line)[:80]!r}; allowed: texts, or lists of lines")
    return ["\n".join(map(str, group)) for group in lines]


def _arguments(values: Any) -> list[str]:
    if not isinstance(values, list):
        raise ValueError(f"field input_output has the arguments {str(values)[:80]!r}; allowed: a list of them")
    return [json.dumps(value) for value in values]


def _unwrapped(output: Any) -> Any:
    """TACO wraps the result of a function in a list of one."""
    return output[0] if isinstance(output, list) and len(output) == 1 else output


CODE_SETS: dict[str, Callable[[Raw, int], dict[str, Any]]] = {
    "taco": taco,
    "taco-verified": taco_verified,
    "code-r1": code_r1,
    "livecodebench": live_code_bench,
    "humaneval-plus": human_eval_plus,
    "mbpp-plus": mbpp_plus,
}
"""Name of a layout to its mapping."""
