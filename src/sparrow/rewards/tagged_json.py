"""JSON that keeps what plain JSON loses: tuples, and mappings whose keys are not texts.

Scorers compare such values with `==`, so an entry must come back as it was.
"""

import json
from typing import Any

_TUPLE, _DICT = "__tuple__", "__dict__"


def dumps(value: Any) -> str:
    """The value as JSON text.

    Raises:
        TypeError: if something in it is neither None, a bool, number, text, list, tuple nor dict; names its path.
    """
    return json.dumps(_encoded(value, "value"), ensure_ascii=False, separators=(",", ":"))


def loads(text: str) -> Any:
    """The value that `dumps` was given."""
    return _decoded(json.loads(text))


def _encoded(value: Any, path: str) -> Any:
    if isinstance(value, str):
        return str(value)  # numpy's text type is a str too
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list):
        return [_encoded(item, f"{path}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [_encoded(item, f"{path}[{place}]") for place, item in enumerate(value)]}
    if isinstance(value, dict):
        return _encoded_dict(value, path)
    raise TypeError(f"{path} is a {type(value).__name__}; allowed: None, bool, number, text, list, tuple, dict")


def _encoded_dict(value: dict[Any, Any], path: str) -> dict[str, Any]:
    if all(type(key) is str and key not in (_TUPLE, _DICT) for key in value):
        return {key: _encoded(item, f"{path}.{key}") for key, item in value.items()}
    return {_DICT: [[_encoded(key, path), _encoded(item, f"{path}.{key}")] for key, item in value.items()]}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TUPLE in value:
        return tuple(_decoded(item) for item in value[_TUPLE])
    if _DICT in value:
        return {_decoded(key): _decoded(item) for key, item in value[_DICT]}
    return {key: _decoded(item) for key, item in value.items()}
