r"""Writes mathematical answers in forms that the parsers read, without changing what they say.

The parsers take plain `1.5e3` for 1.5 times Euler's number times 3, `2 1/3` for 21/3, and do not know recurring
decimals, `\pm` inside a fraction, or symbols beyond ASCII. Each rule here is one such form.
"""

import re

_SYMBOLS = str.maketrans({
    "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{DEGREE SIGN}": "^\\circ", "\N{INFINITY}": "\\infty ",
    "\N{EMPTY SET}": "\\emptyset ", "\N{MULTIPLICATION SIGN}": "\\times ", "\N{MIDDLE DOT}": "\\cdot ",
    "\N{SUPERSCRIPT TWO}": "^{2}", "\N{SUPERSCRIPT THREE}": "^{3}", "\N{VULGAR FRACTION ONE HALF}": "\\frac{1}{2}",
    "\N{VULGAR FRACTION ONE QUARTER}": "\\frac{1}{4}", "\N{VULGAR FRACTION THREE QUARTERS}": "\\frac{3}{4}",
    "\N{VULGAR FRACTION ONE THIRD}": "\\frac{1}{3}", "\N{VULGAR FRACTION TWO THIRDS}": "\\frac{2}{3}",
    "\N{EURO SIGN}": "", "\N{POUND SIGN}": "",
})  # fmt: skip
_ROOT = re.compile(r"\N{SQUARE ROOT}\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+|[a-zA-Z]))")
_POWER = re.compile(r"(?<=[\w)])\*\*(?=[\w(])")
_PERCENT_WORD = re.compile(r"\s*\\text\{\s*percent\s*\}$|\s+percent$")
_SCIENTIFIC = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))[eE]([-+]?\d{1,3})")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,;:! ]|~|\s)\d{3})+(?!\d)")
_MIXED = re.compile(r"([-+]?\d+)\s+(\d+)/(\d+)")
_RECURRING = re.compile(r"(\d{0,30})\.(\d{0,30})\\overline\{(\d{1,30})\}")
_CHOICE = re.compile(r"^(?:\\text(?:bf)?\{\s*\([A-E]\)\s*\}|\([A-E]\)\s)(?:\\ |\\quad|~|\s)*(?=[^\s\\]|\\[^ ])")
_DEGREES = re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc))\s*([({]?)\s*(\d+(?:\.\d+)?)\s*\^\s*\{?\s*\\circ\s*\}?\s*[)}]?")


def normalized(text: str) -> str:
    """The answer in forms that the parsers read.

    Args:
        text: an answer in LaTeX or plain text, without dollar signs around it.
    """
    text = text.translate(_SYMBOLS).replace("\\varnothing", "\\emptyset").strip()
    text = _ROOT.sub(lambda root: f"\\sqrt{{{next(part for part in root.groups() if part is not None)}}}", text)
    text = _PERCENT_WORD.sub(r"\\%", _POWER.sub("^", text))
    text = _CHOICE.sub("", text)
    text = _GROUPED.sub(lambda digits: re.sub(r"\D", "", digits.group()), text)
    text = _RECURRING.sub(_as_fraction, text)
    text = _DEGREES.sub(r"\1(\\frac{\3\\pi}{180})", text)
    if plain := _SCIENTIFIC.fullmatch(text):
        return f"{plain.group(1)}\\times 10^{{{int(plain.group(2))}}}"
    if plain := _MIXED.fullmatch(text):
        return f"{plain.group(1)}\\frac{{{plain.group(2)}}}{{{plain.group(3)}}}"
    return _both_signs(text)


def _as_fraction(decimal: re.Match[str]) -> str:
    r"""0.1\overline{6} = (16 - 1) / 90."""
    whole, fixed, repeated = decimal.groups()
    numerator = int(whole + fixed + repeated) - int(whole + fixed or "0")
    return f"\\frac{{{numerator}}}{{{10 ** len(fixed) * (10 ** len(repeated) - 1)}}}"


def _both_signs(text: str) -> str:
    r"""`\frac{1\pm a}{2}` as the list of its two values; math-verify does so for a `\pm` outside braces."""
    before, sign, after = text.partition("\\pm")
    if not sign or "\\pm" in after or before.count("{") <= before.count("}"):
        return text
    return f"{before}+{after}, {before}-{after}"
