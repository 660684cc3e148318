"""The published presets and the YAML files made from them."""

from pathlib import Path

import pytest

from sparrow.schedule import BudgetSchedule, load_schedule, published_names, published_schedule
from sparrow.schedule.published import write_presets

SHIPPED = Path(__file__).parents[2] / "configs" / "schedule"


def test_names() -> None:
    taus = {
        "qwen3-1.7b": ["0.75", "0.80", "0.83", "0.86", "0.88", "0.90", "0.92", "0.94"],
        "qwen3-4b": ["0.75", "0.80", "0.86", "0.88", "0.90", "0.92"],
        "qwen3-8b": ["0.75", "0.80", "0.86", "0.87", "0.92"],
        "qwen3-14b": ["0.86"],
    }
    assert sorted(published_names()) == sorted(f"{model}-{tau}" for model in taus for tau in taus[model])
    assert len(published_names()) == 20


def test_one_table_in_full() -> None:
    expected = [29, 61, 93, 93, 125, 157, 189, 221, 221] + [253] * 11
    assert published_schedule("qwen3-1.7b-0.86") == BudgetSchedule(
        expected,
        page_size=16,
        bin_tokens=2000,
        first=1,
        last=2,
        dense_layers=(0, 1),
        tau=0.86,
        estimator="top20",
        provenance="published, arXiv 2606.08446, model qwen3-1.7b",
    )


@pytest.mark.parametrize("name", published_names())
def test_fields_agree_with_the_name(name: str) -> None:
    schedule = published_schedule(name)
    assert f"{schedule.tau:.2f}" == name.rsplit("-", 1)[1]
    assert schedule.estimator == "top20"
    assert schedule.num_bins == 20
    assert list(schedule.table) == sorted(schedule.table)
    assert {(pages + 3) % 4 for pages in schedule.table} == {0}  # totals are multiples of 64 tokens


@pytest.mark.parametrize("name", published_names())
def test_shipped_file_is_the_generated_one(name: str, tmp_path: Path) -> None:
    published_schedule(name).to_yaml(tmp_path / "generated.yaml")
    generated = (tmp_path / "generated.yaml").read_text()
    assert (SHIPPED / f"{name}.yaml").read_text() == generated
    assert load_schedule(SHIPPED / f"{name}.yaml") == published_schedule(name)
    assert load_schedule(name) == published_schedule(name)


def test_writing_all_presets(tmp_path: Path) -> None:
    assert sorted(path.stem for path in write_presets(tmp_path)) == sorted(published_names())
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(published_names())


def test_unknown_name_lists_the_options() -> None:
    with pytest.raises(KeyError, match=r"no published schedule 'qwen3-2b-0.86' \(one of: qwen3-1.7b-0.75, "):
        published_schedule("qwen3-2b-0.86")
