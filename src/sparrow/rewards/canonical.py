r"""A second, independent checker of mathematical answers, by rewriting and not by algebra.

It has an opinion only where rewriting decides: on numbers, on lists, tuples, intervals and sets of numbers, and on
texts that are equal. Elsewhere it abstains. `Math` reports where it contradicts math-verify.
"""

import re
from fractions import Fraction

from sparrow.rewards.numeric import parse_number

_DROPPED = re.compile(r"\\left|\\right|\\[,;:!]|\\ |~|\\displaystyle|\\quad|\s+")
_UNITS = re.compile(r"(?<=.)\\(?:text|mathrm)\{\s*[a-zA-Z.\s]+\}$|\^\{?\\circ\}?$|\\%$")
_LIST_COMMA = re.compile(r"(?<=\d),\s+(?=\d{3}(?!\d))")  # 1, 234 is a list and 1,234 a number
_FRAC_SHORT = re.compile(r"\\[dt]?frac(\d)(\d)")
_PERCENT = re.compile("%|percent")
_SPACED = re.compile(r"\d\s+\d")
_CLOSING = {"(": ")]", "[": ")]", "{": "}"}

Value = Fraction | tuple[str, tuple[Fraction, ...]]


def same_answer(gold: str, answer: str) -> bool | None:
    """True or False where rewriting decides, else None.

    Args:
        gold: the gold answer, LaTeX or plain.
        answer: the answer to judge.
    """
    if _names(gold) != _names(answer) and _names(gold) and _names(answer):
        return None
    if bool(_PERCENT.search(gold)) != bool(_PERCENT.search(answer)) or _SPACED.search(gold) or _SPACED.search(answer):
        return None
    if len({unit for text in (gold, answer) for unit in _UNITS.findall(text.strip())}) > 1:
        return None  # it knows no units
    left, right = rewrite(gold), rewrite(answer)
    if left == right:
        return True
    first, second = _value(left), _value(right)
    if first is None or second is None:
        return None
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return first == second if _exact(left) and _exact(right) else _near(first, second)
    if isinstance(first, tuple) and isinstance(second, tuple) and {first[0], second[0]} == {"set", "()"}:
        return None  # a list without brackets may stand for a tuple
    return first == second


def rewrite(text: str) -> str:
    """The text without spaces, sizing commands, a leading `x =`, units, or short forms of fractions."""
    text = _LIST_COMMA.sub(";", text.strip().strip("$").rstrip("."))
    text = _DROPPED.sub("", text)
    text = text.replace("{,}", ",").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cdot", "*")
    text = _FRAC_SHORT.sub(r"\\frac{\1}{\2}", text)
    text = re.sub(r"^[a-zA-Z]=(?=.)", "", text)
    return _UNITS.sub("", text)


def _names(text: str) -> list[str]:
    return re.findall(r"^\s*([a-zA-Z])\s*=", text)


def _value(text: str) -> Value | None:
    number = parse_number(text)
    if number is not None:
        return number
    text = text.replace("\\{", "{").replace("\\}", "}")
    opening, closing = text[:1], text[-1:]
    if len(text) > 2 and closing in _CLOSING.get(opening, ""):
        kind, inner = ("set" if opening == "{" else opening + closing), text[1:-1]
    else:
        kind, inner = "set", text
    items = [parse_number(item) for item in re.split("[,;]", inner)]
    numbers = tuple(item for item in items if item is not None)
    if len(items) < 2 or len(numbers) < len(items):
        return None
    return kind, tuple(sorted(set(numbers))) if kind == "set" else numbers


def _near(gold: Fraction, answer: Fraction) -> bool:
    """To six decimal places, and to three significant digits."""
    return abs(gold - answer) < Fraction(1, 2 * 10**6) and 200 * abs(gold - answer) <= abs(gold)


def _exact(text: str) -> bool:
    return "." not in text and "e" not in text.lower()
