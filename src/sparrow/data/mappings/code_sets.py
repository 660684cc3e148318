"""Layouts of programming data sets, each turned into the tests that `sparrow.rewards.code` runs.

The ground truth is {"inputs", "outputs", "function"}: standard input and output as texts if `function` is empty, else
the arguments and result of that function as JSON texts, one test after the other.
"""

import base64
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

STANDARD_INPUT = (
    "\n\nRead the input from standard input and write the answer to standard output. "
    "Put your Python program in one ```python block."
)
FUNCTION = "\n\nComplete this Python code, and put all of it in one ```python block:\n```python\n{}\n```"

Raw = Mapping[str, Any]


def taco(raw: Raw, index: int) -> dict[str, Any]:
    """BAAI/TACO: `input_output` is JSON with inputs, outputs and perhaps `fn_name`."""
    tests = json.loads(raw["input_output"])
    function = tests.get("fn_name") or ""
    inputs: Sequence[Any] = _texts(tests["inputs"])
    outputs = _texts(tests["outputs"])
    if function:
        inputs = [[json.dumps(argument) for argument in arguments] for arguments in tests["inputs"]]
        outputs = [json.dumps(_unwrapped(output)) for output in tests["outputs"]]
    starter = raw.get("starter_code")
    return _fields("BAAI/TACO", raw["question"], starter, inputs, outputs, function, "train", index)


def live_code_bench(raw: Raw, index: int) -> dict[str, Any]:
    """livecodebench/code_generation_lite: public tests as JSON, private ones packed, the function in the metadata."""
    tests = json.loads(raw["public_test_cases"]) + _private_tests(raw["private_test_cases"])
    function = json.loads(raw["metadata"]).get("func_name") or ""
    inputs: list[Any] = [test["input"] for test in tests]
    if function:
        inputs = [text.split("\n") for text in inputs]
    outputs = [test["output"] for test in tests]
    name, starter = "livecodebench/code_generation_lite", raw["starter_code"]
    return _fields(name, raw["question_content"], starter, inputs, outputs, function, "test", index)


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
        raise ValueError(f"private_test_cases hold {module}.{name}; allowed: a pickled text")


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
    ask = FUNCTION.format(starter) if function and starter else STANDARD_INPUT
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": question.strip() + ask}],
        "ability": "code",
        "reward_model": {
            "style": "rule",
            # One text: test lists of several kinds do not fit one parquet column.
            "ground_truth": json.dumps({"inputs": list(inputs), "outputs": list(outputs), "function": function}),
        },
        "extra_info": {"split": split, "index": index},
    }


def _texts(values: Sequence[Any]) -> list[str]:
    """TACO holds some tests as lists of lines."""
    return ["\n".join(map(str, value)) if isinstance(value, list) else str(value) for value in values]


def _unwrapped(output: Any) -> Any:
    """TACO wraps the result of a function in a list of one."""
    return output[0] if isinstance(output, list) and len(output) == 1 else output


CODE_SETS: dict[str, Callable[[Raw, int], dict[str, Any]]] = {"taco": taco, "livecodebench": live_code_bench}
"""Name of a layout to its mapping."""
