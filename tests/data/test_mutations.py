"""Three hundred and more broken data files: each gives rows, or one error that names file, row and field."""

import base64
import copy
import json
import pickle
import random
import re
import zlib

import pyarrow
import pyarrow.parquet

from sparrow.data.mappings import get_mapping
from sparrow.data.readers import read_rows

COMMON = {
    "data_source": "sparrow/exact",
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "question"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "7"},
    "extra_info": {"split": "train", "index": 3, "level": "5"},
}
CASES = json.dumps([{"input": "1", "output": "1", "testtype": "stdin"}])
PACKED = base64.b64encode(zlib.compress(pickle.dumps(CASES))).decode()
ROWS = {
    None: COMMON,
    "polaris-53k": {"problem": "p", "answer": "30", "difficulty": "1/8"},
    "math": {"problem": "p", "solution": "\\boxed{7}", "level": "Level 5", "type": "Algebra"},
    "gsm8k": {"question": "p", "answer": "so\n#### 18"},
    "dapo-math-17k": COMMON,
    "mmlu": {"question": "p", "subject": "s", "choices": ["0", "4", "2", "6"], "answer": 1},
    "taco-verified": {
        "question": "p", "starter_code": "", "solutions": ["print(1)"],
        "input_output": json.dumps({"inputs": ["1"], "outputs": ["1"]}),
    },
    "livecodebench": {
        "question_content": "p", "starter_code": "", "metadata": "{}", "public_test_cases": CASES,
        "private_test_cases": PACKED,
    },
    "code-r1": {
        **COMMON, "reward_model": {"style": "rule", "ground_truth": json.dumps({"inputs": ["1"], "outputs": ["1"]})},
        "extra_info": {"dataset": "LeetCodeDataset", "reference": "x"},
    },
    "humaneval-plus": {
        "task_id": "a", "prompt": "def f():", "entry_point": "f", "canonical_solution": " pass", "test": "x = 1",
    },
    "mbpp-plus": {
        "task_id": 2, "prompt": "p", "code": "f = int", "test_imports": [], "test_list": ["assert f"], "test": "x = 1",
    },
}  # fmt: skip
VALUES = [
    None, True, 0, -1, 10**30, 1.5, float("nan"), float("inf"), "", "  ", "x", "\ud800", [], [None], [[]], {}, {"a": 1},
    [{"role": "user"}], [{"role": ["user"], "content": "x"}], {"ground_truth": None}, "{", "[1, 2]", "null", "\x00",
    {"style": 3, "ground_truth": "1"}, {"split": [], "index": {}}, [{"role": "user", "content": {"a": "b"}}],
]  # fmt: skip


def spots(value, path=()):
    """Every place in a row, the row itself left out."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from spots(child, (*path, key))


def mutated(row, source):
    """A copy of a row with one change somewhere in it."""
    row = copy.deepcopy(row)
    path = source.choice(list(spots(row)))
    holder = row
    for key in path[:-1]:
        holder = holder[key]
    kind = source.choice(["set", "set", "set", "delete", "rename", "add"])
    if kind == "delete":
        del holder[path[-1]]
    elif kind == "rename" and isinstance(holder, dict):
        holder[f"{path[-1]}s"] = holder.pop(path[-1])
    elif kind == "add" and isinstance(holder, dict):
        holder["surprise"] = source.choice(VALUES)
    else:
        holder[path[-1]] = source.choice(VALUES)
    return row


def broken_line(line, source):
    """A line of JSON with bytes cut, changed or put in."""
    data = bytearray(line.encode())
    place = source.randrange(len(data))
    kind = source.choice(["cut", "byte", "deep", "digits"])
    if kind == "cut":
        return bytes(data[:place])
    if kind == "byte":
        data[place] = source.randrange(256)
        return bytes(data).replace(b"\n", b" ")
    return b"[" * 100_000 if kind == "deep" else b'{"a": ' + b"9" * 5000 + b"}"


def outcome(path, name=None):
    """Rows, or the one error that a broken file may give."""
    try:
        return read_rows(path, mapping=None if name is None else get_mapping(name)), ""
    except ValueError as error:
        return None, str(error)


def check(path, name, place):
    """True if the file gives rows; else its error must name the file, the row and the field."""
    rows, error = outcome(path, name)
    if rows is None:
        assert f"{path.name}:{place}: " in error
        assert re.search(r"(?<!\w)field ['(\w]|not JSON|\(whole row\)", error), error
        return False
    json.dumps([row.to_dict() for row in rows], allow_nan=False).encode()
    return True


def test_mutations_of_jsonl_files(tmp_path):
    source = random.Random(0)
    good = 0
    for number in range(330):
        name = list(ROWS)[number % len(ROWS)]
        lines = [json.dumps(ROWS[name]).encode() for _ in range(3)]
        lines[1] = json.dumps(mutated(ROWS[name], source)).encode()
        path = tmp_path / f"rows_{number}.jsonl"
        path.write_bytes(b"\n".join(lines))
        good += check(path, name, 2)
    assert 20 < good < 250  # some changes are harmless, most are not


def test_broken_lines(tmp_path):
    source = random.Random(1)
    for number in range(60):
        line = json.dumps(COMMON)
        path = tmp_path / f"rows_{number}.jsonl"
        path.write_bytes(line.encode() + b"\n" + broken_line(line, source))
        check(path, None, 2)


def test_mutations_of_parquet_files(tmp_path):
    source = random.Random(2)
    tried = 0
    for number in range(120):
        name = list(ROWS)[number % len(ROWS)]
        path = tmp_path / f"rows_{number}.parquet"
        try:
            table = pyarrow.Table.from_pylist([mutated(ROWS[name], source)])
            pyarrow.parquet.write_table(table, path)
        except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError):
            continue  # parquet itself cannot hold this one
        tried += 1
        check(path, name, 0)
    assert tried > 60


def test_parquet_files_with_bytes_changed(tmp_path):
    source = random.Random(3)
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([COMMON]), path)
    whole = path.read_bytes()
    for _ in range(60):
        data = bytearray(whole)
        place = source.randrange(len(data))
        data[place] ^= 1 << source.randrange(8)
        path.write_bytes(bytes(data[: source.choice([len(data), place])]))
        rows, error = outcome(path)
        assert rows is not None or "rows.parquet" in error, error
