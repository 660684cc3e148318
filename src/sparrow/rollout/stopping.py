"""Stop strings: a response ends with the token whose text completes one of them.

Tokens do not keep to the borders of a string, nor of a character, so the decoded text is searched, not the ids. Text
is decoded step by step: the last tokens whose text was complete give the context that some tokenizers need (the first
token of a text loses its leading space), and a text that ends inside a character waits for the bytes that follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

_INCOMPLETE = "\ufffd"
_MOST_PENDING = 64
"""Tokens that may wait for the rest of a character. A model that writes broken bytes would wait for ever."""


class TextDecoder(Protocol):
    """What is used of a tokenizer."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids."""
        ...


@dataclass
class _Text:
    """The end of one response: the tokens still needed, how many of them are read, and the last characters read."""

    token_ids: list[int] = field(default_factory=list)
    read: int = 0
    tail: str = ""


class StopStrings:
    """Watches the texts of the responses of one call. Special tokens count with the text they have.

    Args:
        strings: any of them ends a response.
        tokenizer: reads token ids.
    """

    def __init__(self, strings: Sequence[str], tokenizer: TextDecoder) -> None:
        self.strings, self.tokenizer = tuple(strings), tokenizer
        self._overlap = max(map(len, self.strings)) - 1
        self._texts: dict[int, _Text] = {}

    def push(self, sequence: int, token_id: int) -> bool:
        """Add a token to a response; whether its text holds a stop string now."""
        text = self._texts.setdefault(sequence, _Text())
        text.token_ids.append(token_id)
        known = self._decode(text.token_ids[: text.read])
        whole = self._decode(text.token_ids)
        seen = text.tail + whole[len(known) :]
        if any(string in seen for string in self.strings):
            return True
        pending = len(text.token_ids) - text.read
        if len(whole) > len(known) and (not whole.endswith(_INCOMPLETE) or pending >= _MOST_PENDING):
            text.tail = seen[len(seen) - min(self._overlap, len(seen)) :]
            text.token_ids = text.token_ids[text.read :]
            text.read = len(text.token_ids)
        return False

    def drop(self, sequence: int) -> None:
        """Forget a response that has ended."""
        self._texts.pop(sequence, None)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""
