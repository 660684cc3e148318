"""The audit as one HTML page that needs nothing else: verdict, tables, figures, and a heat map over a sequence."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from sparrow.auditing.measurement import Measured
from sparrow.auditing.report import Grid, top_text
from sparrow.auditing.tokens import show
from sparrow.auditing.verdict import Verdict
from sparrow.evaluation.reading import Decoder

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0;font-size:13px}td,th{border-bottom:1px solid #ddd;padding:.2rem .6rem;
text-align:right;vertical-align:top}td:first-child,th:first-child,caption{text-align:left}caption{font-weight:600}
.verdict{padding:1rem;border-radius:6px;background:#eee}.verdict.healthy{background:#dff0d8}
.verdict.risk{background:#fcf3d0}.verdict.collapse{background:#f6d5d5}img{max-width:34rem}
.trace{font:13px/1.7 ui-monospace,monospace;white-space:pre-wrap;
border:1px solid #ddd;padding:1rem;overflow-wrap:anywhere}.trace .prompt{color:#888}
"""
CLASSES = {"healthy": "healthy", "at risk": "risk", "will collapse": "collapse", "cannot be judged": "unknown"}
MOST_TOKENS = 6000
"""Tokens of the heat map; a longer sequence is cut there, and the page says so."""


def write_page(
    path: Path,
    title: str,
    verdict: Verdict,
    grids: Sequence[Grid],
    images: Sequence[Path],
    measured: Measured,
    tokenizer: Decoder,
    row: int,
) -> None:
    """Write the page.

    Args:
        path: file to write.
        title: its heading.
        verdict: shown first.
        grids: tables, in order.
        images: PNG files, embedded.
        measured: for the heat map.
        tokenizer: reads tokens.
        row: the sequence of the heat map.
    """
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        f"<p class='verdict {CLASSES[verdict.word]}'><b>{escape(verdict.word)}</b><br>{escape(verdict.text)}</p>",
        *(_table(grid) for grid in grids),
        *(_image(image) for image in images),
        heat_map(measured, tokenizer, row),
        "</html>",
    ]
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def heat_map(measured: Measured, tokenizer: Decoder, row: int) -> str:
    """A sequence, each decoded token on a red that deepens as alpha falls; details show on hover."""
    experience = measured.experience
    first, length = int(experience.prompt_len_B[row]), int(experience.length_B[row])
    end = min(length, first + MOST_TOKENS)
    prompt = tokenizer.decode(experience.tokens_BT[row, : first + 1].tolist(), skip_special_tokens=False)
    cut = f" The first {MOST_TOKENS} of its {length - first} response tokens." if end < length else ""
    spans = [_span(measured, tokenizer, row, position) for position in range(first + 1, end)]
    return (
        f"<h2>Sequence {row}: where actor and policy disagree</h2>"
        "<p>White: alpha 1; the deeper the red, the smaller alpha. Prompt and first response token are dense (grey)."
        f"{cut}</p>"
        f"<div class='trace'><span class='prompt'>{escape(prompt)}</span>{''.join(spans)}</div>"
    )


def _span(measured: Measured, tokenizer: Decoder, row: int, position: int) -> str:
    shown = show(measured, tokenizer, row, position, 0)
    details = (
        f"position {position}, alpha {shown.alpha:.4f}, entropy {shown.entropy:.3f}; "
        f"dense: {top_text(shown, 'dense')}; actor: {top_text(shown, 'sparse')}"
    )
    color = f"rgba(200,30,30,{max(0.0, 1 - shown.alpha):.3f})"
    return f"<span style='background:{color}' title='{escape(details, quote=True)}'>{escape(shown.text)}</span>"


def _table(grid: Grid) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in grid.heads)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    return f"<table><caption>{escape(grid.title)}</caption><tr>{heads}</tr>{rows}</table>"


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f"<img alt='{escape(path.stem)}' src='data:image/png;base64,{data}'>"
