"""Orders for long texts: reproducible, disjoint by subject, and judged by their closing number."""

import pytest

from sparrow.data.sources.long_texts import SUBJECTS, LongTexts
from sparrow.rewards import Scorer, check_routes


def test_rows_are_reproducible_and_sides_share_no_subject():
    source = LongTexts(count=20, validation_count=10)
    train, held_out = source.train_rows(), source.validation_rows()
    assert train == LongTexts(count=20).train_rows()
    assert train[:5] == LongTexts(count=5).train_rows()
    assert train[0] != LongTexts(count=1, seed=1).train_rows()[0]
    assert len({row.prompt[0]["content"] for row in (*train, *held_out)}) == 30
    assert {row.extra_info["subject"] for row in train} == set(SUBJECTS["train"])
    assert {row.extra_info["subject"] for row in held_out} == set(SUBJECTS["held_out"])
    assert not set(SUBJECTS["train"]) & set(SUBJECTS["held_out"])
    for row in train:
        text = row.prompt[0]["content"]
        assert row.extra_info["subject"] in text
        assert "{" not in text
        assert "Write 7 long sections" in text


def test_gold_answers_score():
    rows = LongTexts(count=3, validation_count=2, sections=5).train_rows()
    with Scorer() as scorer:
        assert sum(check_routes(rows, scorer).checked.values()) == 3
    assert rows[0].ground_truth == "5"


def test_too_many_sections_are_refused():
    with pytest.raises(ValueError, match="data.source.sections=10: must be from 1 to 9"):
        LongTexts(sections=10)
