r"""Differences between two mathematical answers that math-verify does not see.

It reads 101_2 and 101_3 as equal, ABC and ACB as products, 6.6 \times 10^{-34} as 0 to six places, and only the first
number of "1 hour 30 minutes". Each function here is one such difference.
"""

import re

from sparrow.rewards.canonical import rewrite
from sparrow.rewards.numeric import parse_number

_BASE = re.compile(r"[0-9A-Z]+\s*_\s*\{?\s*(\d+)\s*\}?")
_HALF_DAY = re.compile(r"(?<![a-z])([ap])\.?\s?m\.?(?![a-z])", re.IGNORECASE)
_COMPOSED = re.compile(r"\d\s*\\(?:text|textrm|mathrm|mbox)\{(?!\s*(?:and|or|,)?\s*\})[^{}]*\}\s*(?=\d)")
_UNIT = re.compile(r"\d\s*(?:\\[,; ]\s*)?\\(?:text|mathrm)\{\s*([a-zA-Z]+)\s*\}$")
_UNITS = {
    "mm", "cm", "dm", "m", "km", "in", "ft", "yd", "mi", "mg", "g", "kg", "oz", "lb", "ms", "s", "min", "h", "ml", "cl",
    "l",
}  # fmt: skip
_LETTERS = re.compile(r"(?<![\\a-zA-Z])[A-Z]{3,}(?![a-zA-Z])")
_NUMBERS = re.compile(r"\d+\.?\d*")
_CLOSING = {"(": ")]", "[": ")]", "{": "}"}


def differ(gold: str, answer: str) -> bool:
    """True if the answers are certainly not the same; False says nothing.

    Args:
        gold: the gold answer, in LaTeX or plain text.
        answer: the answer to judge.
    """
    tests = (_other_base, _other_half_day, _other_unit, _other_quantity, _other_letters, _other_brackets, _other_size)
    return any(test(gold, answer) for test in tests)


def _other_base(gold: str, answer: str) -> bool:
    bases = [match.group(1) for text in (gold, answer) if (match := _BASE.fullmatch(text))]
    return len(set(bases)) == 2


def _other_half_day(gold: str, answer: str) -> bool:
    halves = [match.group(1).lower() for text in (gold, answer) if (match := _HALF_DAY.search(text))]
    return len(set(halves)) == 2


def _other_unit(gold: str, answer: str) -> bool:
    """Two of the abbreviations that have no second spelling; a unit beside none is left to the question."""
    units = {match.group(1) for text in (gold, answer) if (match := _UNIT.search(text))} & _UNITS
    return len(units) == 2


def _other_quantity(gold: str, answer: str) -> bool:
    """A quantity with several numbers, such as hours and minutes, needs all of them."""
    if not (_COMPOSED.search(gold) or _COMPOSED.search(answer)):
        return False
    return _NUMBERS.findall(gold) != _NUMBERS.findall(answer)


def _other_letters(gold: str, answer: str) -> bool:
    """The same capitals in another order: an order of names, an angle; the corners of a triangle may come in any."""
    words = _LETTERS.findall(gold), _LETTERS.findall(answer)
    if words[0] == words[1] or "\\triangle" in gold or not all(words):
        return False
    if "\\angle" in gold and words[1] == [word[::-1] for word in words[0]]:
        return False
    return sorted("".join(words[0])) == sorted("".join(words[1]))


def _other_brackets(gold: str, answer: str) -> bool:
    """A set is no tuple or interval, and a list without brackets is a tuple in its own order only."""
    (left, first), (right, second) = _items(gold), _items(answer)
    if len(first) < 2 or len(second) < 2 or left == right:
        return False
    if "{" in (left, right):
        return bool(left and right)
    return "(" in (left, right) and first != second and sorted(first) == sorted(second)


def _other_size(gold: str, answer: str) -> bool:
    """Decimal places say nothing about numbers that are small themselves: three significant digits must agree too."""
    if "%" in gold or "%" in answer:
        return False
    left, right = parse_number(gold), parse_number(answer)
    return left is not None and right is not None and 200 * abs(left - right) > abs(left)


def _items(text: str) -> tuple[str, list[str]]:
    """The bracket around a whole list, "" for none, and its items."""
    text = rewrite(text).replace("\\{", "{").replace("\\}", "}")
    opening = text[:1] if text[-1:] in _CLOSING.get(text[:1], " ") and _balanced(text[1:-1]) else ""
    inner = text[1:-1] if opening else text
    items, depth = [""], 0
    for character in inner:
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return opening, items


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0
