"""The page holds the numbers, escapes what users wrote, and loads nothing."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sparrow.reporting import Run, read_run, run_page
from sparrow.reporting.html import document, heat_map, table
from sparrow.reporting.page import verdict

VOID = {"meta", "path", "use"}


class Balance(HTMLParser):
    """Checks that elements close in order, and gathers what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [f"{name}={value}" for name, value in attrs if name in ("src", "href") and tag != "use"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_the_page_of_a_run(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    page = run_page(read_run(make_run(tmp_path / "run")))
    found = parsed(page)
    assert found.loaded == []
    assert page.count("<svg") == 2  # reward, and the tail per bin: nothing else was recorded
    text = "".join(found.text)
    for expected in ("run: 2 RL steps", "Tail per length bin", "tau 0.9 (exact)", "not measured", "2.13.0", "<demo>"):
        assert expected in text
    assert "step 1, reward 1 (correct), advantage +0.50, 2 tokens, least alpha 0.250, disagreements 0.75" in text


def test_the_verdict_compares_only_exact_with_exact(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert verdict(run) == (
        "<p>Over the last 2 steps the least p5 of exact alpha of a bin in a step was 0.800; 33% of the readings lie "
        "below tau = 0.9. Bins with few tokens read noisily.</p>"
    )
    assert run.schedule is not None
    other = run.schedule.__class__([4], page_size=4, bin_tokens=64, tau=0.9, estimator="top20")
    assert "in units of top20 and cannot be compared" in verdict(Run(run.folder, run.rows, schedule=other))
    assert "names no threshold" in verdict(Run(run.folder, run.rows))
    assert "did not measure" in verdict(Run(run.folder, [{"training/global_step": 1.0}]))


def test_page_budgets_are_named_by_their_tokens(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = read_run(make_run(tmp_path / "run"))
    rows = [{"training/global_step": 1.0, "schedule/pages/bin_0": 4.0, "schedule/pages/bin_1": 8.0}]
    page = run_page(Run(run.folder, rows, schedule=run.schedule))
    assert ">0 to 64<" in page
    assert ">64 on<" in page
    assert ">0<" in run_page(Run(run.folder, rows))


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metrics.csv has no row"):
        run_page(Run(tmp_path, []))


def test_heat_map_colours_by_disagreement() -> None:
    html = heat_map(["<a>", "b", "c", "d"], [None, 1.0, 0.75, 0.0], threshold=0.5)
    assert html == (
        '<div class="trace"><span>&lt;a&gt;</span><span title="alpha 1.0000">b</span>'
        '<span style="background: rgba(214, 69, 65, 0.50)" title="alpha 0.7500">c</span>'
        '<span class="below" style="background: rgba(214, 69, 65, 1.00)" title="alpha 0.0000">d</span></div>'
    )
    with pytest.raises(ValueError, match="1 values for 2 tokens"):
        heat_map(["a", "b"], [1.0])


def test_tables_and_documents_escape() -> None:
    rows: list[tuple[str, float]] = [("<x>", 0.123456789)]
    assert table(rows, ("a&b",)) == (
        '<table>\n<tr><th>a&amp;b</th></tr>\n<tr><td>&lt;x&gt;</td><td class="number">0.123457</td></tr>\n</table>'
    )
    assert re.search("<title>&lt;t&gt;</title>", document("<t>", ["<p>x</p>"]))
