"""The page: one file, the verdict, tables, images inside, and the sequence with each token's numbers."""

import re

import torch

from sparrow.auditing.page import heat_map, write_page
from sparrow.auditing.report import Grid
from sparrow.auditing.tokens import lowest_tokens, most_disagreeing
from sparrow.auditing.verdict import Verdict


class Letters:
    """Token 0 is "<", the others are letters."""

    def decode(self, token_ids, *, skip_special_tokens):
        return "".join("<abcdef"[token] for token in token_ids)


def two_rows(by_hand):
    alpha_BT = torch.tensor([[9.0, 9, 9, 0.75, 1, 1], [9.0, 9, 9, 0.5, 0.25, 9]])
    zeros = torch.zeros(2, 6)
    return by_hand(alpha_BT, zeros, zeros, [2, 2], [6, 5], [0, 1])


def test_lowest_tokens_in_context(by_hand):
    measured = two_rows(by_hand)
    shown = lowest_tokens(measured, Letters(), 3, 2)
    assert [(s.row, s.position, s.alpha) for s in shown] == [(1, 4, 0.25), (1, 3, 0.5), (0, 3, 0.75)]
    # Row 1 holds the ids 6, 0, 1, 2, 3, (4): its last token is d, after "ab".
    assert (shown[0].text, shown[0].before, shown[0].after) == ("c", "ab", "")
    assert (shown[1].before, shown[1].after) == ("<a", "c")
    assert shown[0].dense == (("a", 0.5), ("b", 0.25), ("c", 0.125))
    assert len(lowest_tokens(measured, Letters(), 99, 2)) == 5
    assert most_disagreeing(measured) == 1


def test_heat_map_holds_the_sequence(by_hand):
    html = heat_map(two_rows(by_hand), Letters(), 1)
    assert "<span class='prompt'>f&lt;a</span>" in html  # prompt and first response token, escaped
    assert "rgba(200,30,30,0.500)" in html
    assert "rgba(200,30,30,0.750)" in html
    assert "position 4, alpha 0.2500, entropy 0.500; dense: &#x27;a&#x27; 0.50" in html
    assert re.findall(r"'>(\w)</span>", html) == ["b", "c"]


def test_the_page_needs_nothing_else(by_hand, tmp_path):
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    grid = Grid("A & B", ("name", "value"), (("<x>", "1"),))
    verdict = Verdict("will collapse", "p5 < tau")
    write_page(tmp_path / "a.html", "T", verdict, [grid], [tmp_path / "x.png"], two_rows(by_hand), Letters(), 0)
    html = (tmp_path / "a.html").read_text()
    assert "class='verdict collapse'><b>will collapse</b><br>p5 &lt; tau" in html
    assert "<caption>A &amp; B</caption>" in html
    assert "<td>&lt;x&gt;</td><td>1</td>" in html
    assert "src='data:image/png;base64,iVBORw=='" in html
    assert not re.findall(r"(?:src|href)='(?!data:)", html)
