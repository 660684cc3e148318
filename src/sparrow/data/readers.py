"""Rows from files and from the hub, checked one by one, errors naming the file and the row.

Each reader gives rows of the common schema (`sparrow.data.schema`). A file in another layout comes with a mapping
(`sparrow.data.mappings`), which turns one raw row into the common fields.
"""

import json
import logging
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparrow.data.schema import PromptRow

Mapper = Callable[[Mapping[str, Any], int], Mapping[str, Any]]
SUFFIXES = (".parquet", ".jsonl")
MALFORMED = (
    TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, EOFError,
    pickle.UnpicklingError, zlib.error,
)  # fmt: skip
"""What a mapping raises on a value that is not of its layout; such a row is named, and is not a fault of the code."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """Which raw rows are taken, and which of their columns.

    Attributes:
        drop: columns to leave out. Any other column that the schema does not know is an error.
        where: takes only rows whose column contains a text, e.g. {"url": "2023"}.
        distinct: leaves out rows whose messages have come before.
    """

    drop: Sequence[str] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    distinct: bool = False


ALL = Choice()


def read_rows(path: str | Path, *, mapping: Mapper | None = None, choice: Choice = ALL) -> list[PromptRow]:
    """Rows of a parquet or JSONL file, by its suffix.

    Args:
        path: the file.
        mapping: turns a raw row and its index into the common fields; None if they are there already.
        choice: which rows and columns are taken.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the suffix is unknown, the file has no rows, or a row is malformed.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        return read_parquet(path, mapping=mapping, choice=choice)
    if path.suffix == ".jsonl":
        return read_jsonl(path, mapping=mapping, choice=choice)
    raise ValueError(f"{path}: suffix {path.suffix!r} is unknown; allowed: {', '.join(SUFFIXES)}")


def read_parquet(path: str | Path, *, mapping: Mapper | None = None, choice: Choice = ALL) -> list[PromptRow]:
    """Rows of a parquet file; errors say `file:row`, rows counted from 0."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    _check_exists(Path(path))
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a parquet file that can be read ({str(error)[:200]})") from error
    raw = enumerate(_table_rows(table, str(path)))
    return _rows(((f"{path}:{index}", row) for index, row in raw), str(path), mapping, choice)


def read_jsonl(path: str | Path, *, mapping: Mapper | None = None, choice: Choice = ALL) -> list[PromptRow]:
    """Rows of a JSONL file; errors say `file:line`, lines counted from 1. Blank lines are left out."""
    _check_exists(Path(path))
    with open(path, "rb") as lines:
        return _rows(_json_lines(lines, str(path)), str(path), mapping, choice)


def read_hub(
    name: str,
    split: str,
    *,
    config: str | None = None,
    data_files: Sequence[str] | None = None,
    mapping: Mapper | None = None,
    choice: Choice = ALL,
) -> list[PromptRow]:
    """Rows of a data set that `datasets.load_dataset` finds: a hub name or a local folder.

    Args:
        name: hub name or folder.
        split: e.g. "train".
        config: the data set's configuration, if it has several.
        data_files: take only these JSONL files of it; for sets that come with a loading script, which no longer runs.
        mapping: as in `read_rows`.
        choice: as in `read_rows`.

    Raises:
        FileNotFoundError: if the set cannot be had, e.g. without a network.
        ValueError: if it has no such split or configuration, or a row is malformed.
    """
    import datasets

    files = None if data_files is None else {split: [f"hf://datasets/{name}/{file}" for file in data_files]}
    try:
        if files is None:
            loaded = datasets.load_dataset(name, config, split=split)
        else:
            loaded = datasets.load_dataset("json", data_files=files, split=split)
    except (ConnectionError, OSError) as error:
        raise FileNotFoundError(
            f"data set {name!r} cannot be had ({str(error)[:200]}); allowed: a name on the hub while there is a "
            "network, one in the cache, a local folder, or a source of files (sparrow.data.sources.files.Files)"
        ) from error
    except ValueError as error:
        raise ValueError(f"data set {name!r}, configuration {config!r}, split {split!r}: {str(error)[:300]}") from error
    place = f"{name}[{split}]"
    return _rows(((f"{place}:{index}", row) for index, row in enumerate(loaded)), place, mapping, choice)


def _rows(raw: Iterable[tuple[str, Any]], source: str, mapping: Mapper | None, choice: Choice) -> list[PromptRow]:
    rows: list[PromptRow] = []
    read, seen = 0, set[str]()
    for place, fields in raw:
        read += 1
        if not _chosen(fields, choice.where, place):
            continue
        if isinstance(fields, Mapping):
            fields = {name: value for name, value in fields.items() if name not in choice.drop}
        row = PromptRow.from_dict(_mapped(fields, len(rows), place, mapping), place)
        identity = json.dumps(row.prompt)
        if choice.distinct and identity in seen:
            continue
        seen.add(identity)
        rows.append(row)
    if not rows:
        matched = f" of {read} match {dict(choice.where)}" if read else ""
        raise ValueError(f"{source}: no rows{matched}; at least one is needed")
    if len(rows) < read:
        logger.info("%s: %d of %d rows taken by %s", source, len(rows), read, choice)
    return rows


def _chosen(fields: Any, where: Mapping[str, str], place: str) -> bool:
    for name, text in where.items():
        if not isinstance(fields, Mapping) or name not in fields:
            raise ValueError(f"{place}: field {name} is missing, by which rows are chosen ({name} contains {text!r})")
    return all(text in str(fields[name]) for name, text in where.items())


class _Watched(Mapping[str, Any]):
    """A raw row that remembers which field was read last, so that an error can name it."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self.last = "(whole row)"

    def __getitem__(self, name: str) -> Any:
        if name in self._fields:
            self.last = name
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _mapped(fields: Any, index: int, where: str, mapping: Mapper | None) -> Any:
    if mapping is None or not isinstance(fields, Mapping):
        return fields
    watched = _Watched(fields)
    try:
        return mapping(watched, index)
    except KeyError as error:
        present = ", ".join(sorted(map(str, fields)))
        inside = f" in {watched.last}" if isinstance(fields.get(watched.last), Mapping | list) else ""
        raise ValueError(f"{where}: field {error.args[0]} is missing{inside}; the row has: {present}") from error
    except MALFORMED as error:
        text = str(error)
        if not text.startswith("field "):
            value = str(fields.get(watched.last))[:80]
            text = f"field {watched.last} is {value!r}: {type(error).__name__}: {text[:200]}"
        raise ValueError(f"{where}: {text}") from error


def _table_rows(table: Any, path: str) -> Iterator[dict[str, Any]]:
    names = table.column_names
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}: field {name} is there {names.count(name)} times; allowed: once")
    columns = [_values(table.column(name), name, path) for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _values(column: Any, name: str, path: str) -> list[Any]:
    """A column as Python values; not every value has one, such as a date after the year 9999."""
    values, row = [], 0
    try:
        for row, value in enumerate(column):  # noqa: B007 - the error names the row
            values.append(value.as_py())
    except (ValueError, LookupError, ArithmeticError) as error:
        text = f"{type(error).__name__}: {str(error)[:200]}"
        raise ValueError(f"{path}:{row}: field {name} has no value in Python ({text})") from error
    return values


def _json_lines(lines: Iterable[bytes], path: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where, shown = f"{path}:{number}", line.decode(errors="replace").strip()[:80]
        try:
            value = json.loads(line.decode(), object_pairs_hook=_without_repeats)
        except _RepeatedError as error:
            raise ValueError(f"{where}: field {error.args[0]} is there twice in one mapping; allowed: once") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON ({error.msg} at column {error.colno}): {shown!r}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON in UTF-8 ({str(error)[:200]}): {shown!r}") from error
        yield where, value


class _RepeatedError(ValueError):
    """A name that a mapping holds twice."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON allows a name twice, and readers keep the last without a word."""
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        if name in mapping:
            raise _RepeatedError(name)
        mapping[name] = value
    return mapping


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give the path of an existing {' or '.join(SUFFIXES)} file")
