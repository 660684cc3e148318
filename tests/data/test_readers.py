"""Readers: every format gives the same rows, and every error names the file and the row."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from sparrow.data.readers import Choice, read_hub, read_jsonl, read_parquet, read_rows


def fields(index, **change):
    return {
        "data_source": "sparrow/exact",
        "prompt": [{"role": "user", "content": f"question {index}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(index)},
        "extra_info": {"split": "train", "index": index},
    } | change


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_parquet_and_jsonl_give_the_same_rows(tmp_path):
    rows = [fields(index) for index in range(3)]
    parquet = read_rows(write_parquet(tmp_path / "train.parquet", rows))
    jsonl = read_rows(write_jsonl(tmp_path / "train.jsonl", rows))
    assert [row.to_dict() for row in parquet] == rows
    assert jsonl == parquet


def test_hub_reader_reads_a_local_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    rows = [fields(index) for index in range(3)]
    write_parquet(tmp_path / "set" / "train.parquet", rows)
    assert [row.to_dict() for row in read_hub(str(tmp_path / "set"), "train")] == rows


def test_hub_errors_name_set_split_and_row(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    write_parquet(tmp_path / "set" / "train.parquet", [fields(0), fields(1, data_source="")])
    with pytest.raises(ValueError, match=r"set\[train\]:1: field data_source is ''"):
        read_hub(str(tmp_path / "set"), "train")


def test_jsonl_errors_name_the_line(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [fields(0), fields(1), fields(2, ability=5)])
    with pytest.raises(ValueError, match=r"a\.jsonl:3: field ability is 5; allowed: text"):
        read_jsonl(path)


def test_blank_lines_are_left_out_but_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(fields(0)) + "\n\n   \n" + json.dumps(fields(1)) + "\n{bad\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:5: not JSON \(.* at column 2\): '{bad"):
        read_jsonl(path)


def test_a_line_that_is_no_mapping(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("[1, 2]\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:1: field \(whole row\) is \[1, 2\]; allowed: a mapping"):
        read_jsonl(path)


def test_parquet_errors_name_the_row(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [fields(0), fields(1, prompt=[{"role": "boss", "content": "x"}])])
    with pytest.raises(ValueError, match=r"a\.parquet:1: field prompt\[0\]\.role is 'boss'; allowed: system, user"):
        read_parquet(path)


def test_a_file_that_is_no_parquet(tmp_path):
    (tmp_path / "a.parquet").write_text("hello")
    with pytest.raises(ValueError, match=r"a\.parquet: not a parquet file"):
        read_parquet(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["gone.parquet", "gone.jsonl"])
def test_missing_file(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=rf"{name}: no such file"):
        read_rows(tmp_path / name)


def test_unknown_suffix(tmp_path):
    with pytest.raises(ValueError, match=r"a\.csv: suffix '\.csv' is unknown; allowed: \.parquet, \.jsonl"):
        read_rows(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.parquet"])
def test_no_rows(tmp_path, name):
    if name.endswith("jsonl"):
        (tmp_path / name).write_text("\n")
    else:
        table = pyarrow.Table.from_pylist([fields(0)])
        pyarrow.parquet.write_table(table.slice(0, 0), tmp_path / name)
    with pytest.raises(ValueError, match=f"{name}: no rows; at least one is needed"):
        read_rows(tmp_path / name)


def test_extra_columns_are_an_error_unless_dropped(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [fields(0, level=3)])
    with pytest.raises(ValueError, match=r"a\.jsonl:1: unknown field 'level'"):
        read_rows(path)
    assert read_rows(path, choice=Choice(drop=("level",)))[0].to_dict() == fields(0)


def test_mapping_gets_row_and_index(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"q": "one"}, {"q": "two"}])

    def mapping(raw, index):
        return fields(index, prompt=[{"role": "user", "content": raw["q"]}])

    rows = read_rows(path, mapping=mapping)
    assert [row.prompt[0]["content"] for row in rows] == ["one", "two"]
    assert [row.extra_info["index"] for row in rows] == [0, 1]


def test_a_field_that_a_mapping_misses_is_named(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"q": "one"}])
    with pytest.raises(ValueError, match=r"a\.jsonl:1: field problem is missing; the row has: q"):
        read_rows(path, mapping=lambda raw, index: raw["problem"])


def test_a_name_twice_in_one_mapping_is_an_error(tmp_path):
    """JSON readers keep the last one without a word: here another gold answer."""
    path = tmp_path / "a.jsonl"
    line = json.dumps(fields(7))
    twice = line.replace('"ground_truth": "7"', '"ground_truth": "7", "ground_truth": "8"')
    path.write_text(f"{line}\n{twice}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:2: field ground_truth is there twice in one mapping"):
        read_jsonl(path)


@pytest.mark.parametrize("depth", [10, 60])
def test_nested_values_are_kept(tmp_path, depth):
    nested = json.loads("[" * depth + "1" + "]" * depth)
    (row,) = read_jsonl(write_jsonl(tmp_path / "a.jsonl", [fields(0, extra_info={"index": 0, "deep": nested})]))
    assert row.extra_info["deep"] == nested
    assert row.to_dict()["extra_info"]["deep"] == nested


@pytest.mark.parametrize("depth", [100, 500, 900, 5000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("name", ["prompt", "reward_model", "extra_info", "ability", "data_source"])
def test_values_nested_too_deeply_are_named(tmp_path, name, opening, depth):
    path = tmp_path / "a.jsonl"
    nested = opening * depth + "1" + {"[": "]"}.get(opening, "}") * depth
    line = json.dumps(fields(0, **{name: "PLACE"}))
    if name == "reward_model":
        nested = f'{{"style": "rule", "ground_truth": {nested}}}'
    path.write_text(line.replace('"PLACE"', nested))
    with pytest.raises(ValueError, match=rf"a\.jsonl:1: (field {name}|not JSON)"):
        read_jsonl(path)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(2**62, pyarrow.timestamp("us")), (2**31 - 1, pyarrow.date32()), (0, pyarrow.timestamp("us", tz="Mars/Olympus"))],
    ids=["time", "date", "zone"],
)
def test_parquet_values_that_python_does_not_have_are_named(tmp_path, value, kind):
    table = pyarrow.Table.from_pylist([fields(0), fields(1)])
    table = table.set_column(2, "ability", pyarrow.array([None, value], type=kind))
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet:1: field ability has no value in Python"):
        read_parquet(tmp_path / "a.parquet")


def test_parquet_text_that_is_not_unicode_is_named(tmp_path):
    table = pyarrow.Table.from_pylist([fields(0)])
    bad = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\x01\0\0\0"), pyarrow.py_buffer(b"\xff")]
    )
    pyarrow.parquet.write_table(table.set_column(2, "ability", bad), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet:0: field ability has no value in Python \(UnicodeDecodeError"):
        read_parquet(tmp_path / "a.parquet")
