"""The prompt schema of the field: one row is one problem, with what its checker needs.

The five fields are those of the parquet files that RL trainers exchange: where the row is from, the chat messages, the
ability, how the answer is judged, and anything else. A `Prompt` is such a row with its token ids and the key that
seeds its samples.
"""

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

ROLES = ("system", "user", "assistant", "tool")
FIELDS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
REQUIRED = ("data_source", "prompt", "reward_model")
_KEY_BITS = 63
_MAX_DEPTH = 64
"""Lists and mappings in each other; what copies, pickles or writes a row goes as deep, and Python's stack ends."""


@dataclass(frozen=True)
class PromptRow:
    """One problem.

    Attributes:
        data_source: names the data set; rewards are routed by it.
        prompt: chat messages, each {"role", "content"}; the last is the user's or a tool's.
        ability: free text such as "math" or "code".
        reward_model: {"style", "ground_truth"}; the ground truth is text, a number, a list or a mapping.
        extra_info: anything else, `split` and `index` by custom.
    """

    data_source: str
    prompt: list[dict[str, str]]
    reward_model: dict[str, Any]
    ability: str = ""
    extra_info: dict[str, Any] = field(default_factory=dict)

    @property
    def ground_truth(self) -> Any:
        """The gold answer, `reward_model["ground_truth"]`."""
        return self.reward_model["ground_truth"]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], where: str = "row") -> "PromptRow":
        """A checked row from a mapping in the common schema.

        Args:
            fields: the five fields; `ability` and `extra_info` may be missing or None.
            where: the file and row to name in errors, e.g. "train.parquet:17".

        Raises:
            ValueError: if a field is missing, unknown or malformed; names the place, the field, the value and what is
                allowed.
        """
        if not isinstance(fields, Mapping):
            raise _error(where, "(whole row)", fields, f"a mapping with the fields {', '.join(FIELDS)}")
        _check_names(fields, where)
        return cls(
            data_source=_text(fields["data_source"], "data_source", where),
            prompt=_messages(fields["prompt"], where),
            reward_model=_reward_model(fields["reward_model"], where),
            ability=_optional_text(fields.get("ability"), "ability", where),
            extra_info=_extra_info(fields.get("extra_info"), where),
        )

    def to_dict(self) -> dict[str, Any]:
        """The row as plain dicts and lists, `PromptRow.from_dict` undone."""
        return asdict(self)


@dataclass(frozen=True)
class Prompt:
    """A row ready to be sampled from.

    Attributes:
        row: the problem.
        token_ids: the tokenised prompt, generation prefix included; carried as ids from here on.
        key: stable 63-bit identity of the row; seeds its samples.
    """

    row: PromptRow
    token_ids: list[int]
    key: int

    def to(self, device: Any, **options: Any) -> Self:
        """The prompt itself, which stays on the host: Lightning moves a batch by this method, and would otherwise
        try to rebuild the dataclass, which it refuses for frozen ones."""
        return self


def row_key(row: PromptRow, occurrence: int = 0) -> int:
    """A stable 63-bit hash of a row's identity: data source, split, index and messages.

    Args:
        row: the row.
        occurrence: how many rows of the same identity came before it in its set; keeps duplicates apart.

    Returns:
        An integer in [0, 2^63), the same in every process and on every machine.
    """
    identity = [
        row.data_source,
        row.extra_info.get("split"),
        row.extra_info.get("index"),
        [[message["role"], message["content"]] for message in row.prompt],
        occurrence,
    ]
    text = json.dumps(identity, ensure_ascii=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _KEY_BITS)


def _error(where: str, name: str, value: Any, allowed: str) -> ValueError:
    try:
        shown = repr(value)
    except RecursionError:
        shown = f"a {type(value).__name__} in too many others"
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    return ValueError(f"{where}: field {name} is {shown}; allowed: {allowed}")


def _check_names(fields: Mapping[str, Any], where: str) -> None:
    for name in fields:
        if name not in FIELDS:
            near = difflib.get_close_matches(str(name), FIELDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{where}: unknown field {name!r}{hint}; allowed: {', '.join(FIELDS)}")
    for name in REQUIRED:
        if name not in fields:
            raise ValueError(f"{where}: field {name} is missing; required: {', '.join(REQUIRED)}")


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _error(where, name, value, "text that is not empty")
    return _unicode(value, name, where)


def _optional_text(value: Any, name: str, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _error(where, name, value, "text, or nothing")
    return _unicode(value, name, where)


def _unicode(value: str, name: str, where: str) -> str:
    """JSON can hold half a surrogate pair, which no tokenizer and no file takes."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _error(where, name, value, "text without lone surrogates") from error
    return value


def _plain(value: Any, name: str, where: str, depth: int = 0) -> Any:
    """Checks that a value goes through JSON unchanged, at any depth allowed."""
    if depth > _MAX_DEPTH:
        raise _error(where, name[:80], value, f"lists and mappings at most {_MAX_DEPTH} deep")
    if isinstance(value, str):
        return _unicode(value, name, where)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list):
        return [_plain(item, f"{name}[{place}]", where, depth + 1) for place, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {
            _unicode(key, name, where): _plain(item, f"{name}.{key}", where, depth + 1) for key, item in value.items()
        }
    raise _error(where, name, value, "text, a finite number, true, false, nothing, or a list or mapping of these")


def _messages(value: Any, where: str) -> list[dict[str, str]]:
    if not isinstance(value, list | tuple) or not value:
        raise _error(where, "prompt", value, 'a list of {"role", "content"} messages that is not empty')
    messages = [_message(message, f"prompt[{place}]", where) for place, message in enumerate(value)]
    if messages[-1]["role"] not in ("user", "tool"):
        name = f"prompt[{len(messages) - 1}].role"
        raise _error(where, name, messages[-1]["role"], "user or tool in the last message")
    return messages


def _message(value: Any, name: str, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or set(value) != {"role", "content"}:
        raise _error(where, name, value, 'a mapping with exactly "role" and "content"')
    if not isinstance(value["role"], str) or value["role"] not in ROLES:
        raise _error(where, f"{name}.role", value["role"], ", ".join(ROLES))
    return {"role": value["role"], "content": _text(value["content"], f"{name}.content", where)}


def _reward_model(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or "ground_truth" not in value:
        raise _error(where, "reward_model", value, 'a mapping with "style" and "ground_truth"')
    for name in value:
        if name not in ("style", "ground_truth"):
            raise _error(where, f"reward_model.{name}", value[name], "only style and ground_truth")
    truth = value["ground_truth"]
    if not isinstance(truth, str | int | float | list | Mapping) or truth in ([], {}):
        allowed = "text, a number, or a list or mapping that is not empty"
        raise _error(where, "reward_model.ground_truth", truth, allowed)
    truth = _plain(truth, "reward_model.ground_truth", where)
    return {"style": _text(value.get("style", "rule"), "reward_model.style", where), "ground_truth": truth}


def _extra_info(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _error(where, "extra_info", value, "a mapping, or nothing")
    info: dict[str, Any] = _plain(value, "extra_info", where)
    for name, kinds, allowed in (("split", str, "text, or nothing"), ("index", int | str, "a whole number or text")):
        if not isinstance(info.get(name), kinds | None) or isinstance(info.get(name), bool):
            raise _error(where, f"extra_info.{name}", info[name], allowed)
    return info
