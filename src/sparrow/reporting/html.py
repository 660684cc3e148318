"""Small pieces of HTML: tables, and text with a colour per token."""

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  margin: 2rem auto; max-width: 1180px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
.figures svg { width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td.number { text-align: right; }
.trace { font: 13px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  margin: .3rem 0 1.2rem; }
.trace span { border-radius: 2px; } .trace .below { outline: 1px solid #a00; }
.prompt { color: #666; } pre { overflow-x: auto; background: #f6f6f6; padding: 1rem; font-size: 12px; }
@media (prefers-reduced-motion: no-preference) { details summary { cursor: pointer; } }
""".strip()


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page; it loads nothing."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table(rows: Iterable[Sequence[str | float]], header: Sequence[str] = ()) -> str:
    """A table; numbers are set to the right."""
    head = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in header) + "</tr>" if header else ""
    lines = ["<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows]
    return "<table>\n" + "\n".join([head, *lines] if head else lines) + "\n</table>"


def heat_map(tokens: Sequence[str], values: Sequence[float | None], threshold: float | None = None) -> str:
    """Text with a background per token: white at 1, red towards 0, outlined below the threshold.

    Args:
        tokens: text of each token.
        values: alpha of each, from 0 to 1; None where it was not measured.
        threshold: alpha below which a token is outlined, or None.

    Raises:
        ValueError: not as many values as tokens.
    """
    if len(tokens) != len(values):
        raise ValueError(f"{len(values)} values for {len(tokens)} tokens: must be as many")
    spans = "".join(_span(token, value, threshold) for token, value in zip(tokens, values, strict=True))
    return f'<div class="trace">{spans}</div>'


def _span(token: str, value: float | None, threshold: float | None) -> str:
    if value is None:
        return f"<span>{escape(token)}</span>"
    opacity = (1 - value) ** 0.5  # a token at .99 is visible, and one at .5 still paler than one at 0
    below = ' class="below"' if threshold is not None and value < threshold else ""
    style = f' style="background: rgba(214, 69, 65, {opacity:.2f})"' if opacity >= 0.005 else ""
    return f'<span{below}{style} title="alpha {value:.4f}">{escape(token)}</span>'


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    return f'<td class="number">{value:.6g}</td>'
