"""Rows from files and from the hub, checked one by one, errors naming the file and the row.

Each reader gives rows of the common schema (`sparrow.data.schema`). A file in another layout comes with a mapping
(`sparrow.data.mappings`), which turns one raw row into the common fields.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sparrow.data.schema import PromptRow

Mapper = Callable[[Mapping[str, Any], int], Mapping[str, Any]]
SUFFIXES = (".parquet", ".jsonl")


def read_rows(path: str | Path, *, mapping: Mapper | None = None, drop: Iterable[str] = ()) -> list[PromptRow]:
    """Rows of a parquet or JSONL file, by its suffix.

    Args:
        path: the file.
        mapping: turns a raw row and its index into the common fields; None if they are there already.
        drop: raw columns to leave out. Any other column that the schema does not know is an error.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the suffix is unknown, the file has no rows, or a row is malformed.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        return read_parquet(path, mapping=mapping, drop=drop)
    if path.suffix == ".jsonl":
        return read_jsonl(path, mapping=mapping, drop=drop)
    raise ValueError(f"{path}: suffix {path.suffix!r} is unknown; allowed: {', '.join(SUFFIXES)}")


def read_parquet(path: str | Path, *, mapping: Mapper | None = None, drop: Iterable[str] = ()) -> list[PromptRow]:
    """Rows of a parquet file; errors say `file:row`, rows counted from 0."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    _check_exists(Path(path))
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a parquet file ({error})") from error
    raw = enumerate(table.to_pylist())
    return _rows(((f"{path}:{index}", row) for index, row in raw), str(path), mapping, drop)


def read_jsonl(path: str | Path, *, mapping: Mapper | None = None, drop: Iterable[str] = ()) -> list[PromptRow]:
    """Rows of a JSONL file; errors say `file:line`, lines counted from 1. Blank lines are left out."""
    _check_exists(Path(path))
    with open(path, encoding="utf-8") as lines:
        return _rows(_json_lines(lines, str(path)), str(path), mapping, drop)


def read_hub(
    name: str,
    split: str,
    *,
    config: str | None = None,
    mapping: Mapper | None = None,
    drop: Iterable[str] = (),
) -> list[PromptRow]:
    """Rows of a data set that `datasets.load_dataset` finds: a hub name or a local folder.

    Args:
        name: hub name or folder.
        split: e.g. "train".
        config: the data set's configuration, if it has several.
        mapping: as in `read_rows`.
        drop: as in `read_rows`.
    """
    import datasets

    loaded = datasets.load_dataset(name, config, split=split)
    place = f"{name}[{split}]"
    return _rows(((f"{place}:{index}", row) for index, row in enumerate(loaded)), place, mapping, drop)


def _rows(raw: Iterable[tuple[str, Any]], source: str, mapping: Mapper | None, drop: Iterable[str]) -> list[PromptRow]:
    dropped = frozenset(drop)
    rows = []
    for index, (where, fields) in enumerate(raw):
        if isinstance(fields, Mapping):
            fields = {name: value for name, value in fields.items() if name not in dropped}
        rows.append(PromptRow.from_dict(_mapped(fields, index, where, mapping), where))
    if not rows:
        raise ValueError(f"{source}: no rows; at least one is needed")
    return rows


def _mapped(fields: Any, index: int, where: str, mapping: Mapper | None) -> Any:
    if mapping is None:
        return fields
    try:
        return mapping(fields, index)
    except KeyError as error:
        present = ", ".join(sorted(map(str, fields)))
        raise ValueError(f"{where}: field {error.args[0]} is missing; the row has: {present}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _json_lines(lines: Iterable[str], path: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                yield where, json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where}: not JSON ({error.msg} at column {error.colno}): {line[:80]!r}") from error


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give the path of an existing {' or '.join(SUFFIXES)} file")
