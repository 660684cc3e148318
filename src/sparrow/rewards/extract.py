r"""Finds the answer in a completion. Only the completion is ever searched, never the prompt.

Each finder gives the answer's text, or None where the completion does not mark one. Thinking is cut off first: what
counts is what follows the last `</think>`.
"""

import re
from collections.abc import Callable
from typing import Literal

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?:/\d+)?")
# Possessive repeats: on text that a policy wrote, such as thousands of line ends, others take time to the third power.
_FINAL_LINE = re.compile(r"answer\**+\s*+(?:is|:)\s*+\**+\s*+:?+\s*+([^\n]+)", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")

Finder = Callable[[str], str | None]
FinderName = Literal["tag", "first_tag", "boxed", "hash", "line", "number", "whole"]


def without_thinking(completion: str) -> str:
    """The completion after its last `</think>`; nothing if thinking was opened and never closed."""
    _, closed, rest = completion.rpartition("</think>")
    if closed:
        return rest
    return "" if "<think>" in completion else completion


def last_tag(text: str, tag: str = "answer") -> str | None:
    """The text between the last `<tag>` and the `</tag>` that follows it."""
    found = _tagged(text, tag)
    return found[-1] if found else None


def first_tag(text: str, tag: str = "answer") -> str | None:
    """The text of the first `<tag>...</tag>`; for few-shot prompts, where a model may go on with new problems."""
    found = _tagged(text, tag)
    return found[0] if found else None


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` or `\fbox{...}`, braces balanced; None if it is never closed."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if not text.startswith("{", start):
        bare = re.match(r"[^\s${}\\]+", text[start:])
        return bare.group(0).rstrip(".,;") if bare else None
    end = _closing_brace(text, start)
    return None if end is None else text[start + 1 : end].strip()


def after_hash(text: str) -> str | None:
    """The rest of the line after the last `####`, as in GSM8K."""
    _, mark, rest = text.rpartition("####")
    line = rest.strip().split("\n", 1)[0].strip()
    return line if mark and line else None


def answer_line(text: str) -> str | None:
    """The rest of the line after the last "answer is" or "answer:"."""
    found = _FINAL_LINE.findall(text)
    if not found:
        return None
    line: str = found[-1].strip().rstrip("*").strip()
    return line or None


def last_number(text: str) -> str | None:
    """The last number in the text. A lax finder: prefer one that the prompt asks for."""
    found = [match.group(0).rstrip(",.") for match in _NUMBER.finditer(text)]
    return found[-1] if found else None


def whole(text: str) -> str | None:
    """The whole text without outer white space; None if nothing is left."""
    return text.strip() or None


FINDERS: dict[str, Finder] = {
    "tag": last_tag,
    "first_tag": first_tag,
    "boxed": last_boxed,
    "hash": after_hash,
    "line": answer_line,
    "number": last_number,
    "whole": whole,
}

GOLD_FORMS: dict[str, str] = {
    "tag": "<answer>{}</answer>",
    "first_tag": "<answer>{}</answer>",
    "boxed": "\\boxed{{{}}}",
    "hash": "#### {}",
    "line": "The answer is {}",
    "number": "{}",
    "whole": "{}",
}
"""How a right completion writes the answer for each finder; used by the dry run before training."""

ASKED_FORMS: dict[str, tuple[str, ...]] = {
    "tag": ("<answer>",),
    "first_tag": ("<answer>",),
    "boxed": ("\\boxed", "\\fbox"),
    "hash": ("####",),
    "line": ("answer is", "answer:"),
    "number": (),
    "whole": (),
}
"""Of which a prompt should hold one, without regard to case, so that the policy knows what each finder looks for."""


def find_answer(completion: str, finder: str) -> str | None:
    """The answer of a completion by a finder's name, thinking cut off.

    Raises:
        ValueError: if there is no such finder.
    """
    if finder not in FINDERS:
        raise ValueError(f"answer finder {finder!r} is unknown; allowed: {', '.join(FINDERS)}")
    return FINDERS[finder](without_thinking(completion))


def _tagged(text: str, tag: str) -> list[str]:
    opening, closing = f"<{tag}>", f"</{tag}>"
    # The innermost pair: an opening tag that is never closed does not swallow a later answer.
    pieces = [piece.split(closing, 1)[0] for piece in text.split(opening)[1:] if closing in piece]
    return [piece.strip() for piece in pieces]


def _closing_brace(text: str, start: int) -> int | None:
    depth, place = 0, start
    while place < len(text):
        if text[place] == "\\":
            place += 1
        elif text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return place
        place += 1
    return None
