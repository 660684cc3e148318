"""Finding a schedule by name or path; whatever the file holds, an error says what is wrong with it."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow.schedule import ALL_PAGES, BudgetSchedule, load_schedule


def test_dense_by_name() -> None:
    assert load_schedule("dense") == BudgetSchedule.dense()


def test_shipped_dense_and_constant_files() -> None:
    folder = Path(__file__).parents[2] / "configs" / "schedule"
    dense = load_schedule(folder / "dense.yaml")
    assert dense == BudgetSchedule.dense(provenance="ordinary attention")
    assert load_schedule(folder / "constant.yaml") == BudgetSchedule.constant(61, provenance="constant")


def test_constant_by_name_comes_from_the_configuration_tree() -> None:
    assert load_schedule("constant").table == (61,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwen3-1.7b-0.87", r"unknown schedule 'qwen3-1.7b-0.87'; did you mean 'qwen3-1.7b-0.8\d'\? \(a path end"),
        ("dens", r"unknown schedule 'dens'; did you mean 'dense'\?"),
        ("zzz", r"unknown schedule 'zzz' \(a path ending in .yaml, or one of: constant, .*dense, .*qwen3-8b-0.92"),
        ("", r"unknown schedule '' \(a path"),
    ],
)
def test_unknown_name(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_schedule(name)


@pytest.mark.parametrize("name", ["missing.yaml", "a\0b.yaml", "x" * 5000 + ".yaml", "no/such/folder/s.yml"])
def test_missing_file(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_schedule(name)


def test_a_folder_is_no_schedule(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(FileNotFoundError, match=r"folder\.yaml does not exist"):
        load_schedule(tmp_path / "folder.yaml")


@pytest.mark.parametrize(
    "schedule",
    [
        BudgetSchedule([29, 61], tau=0.5, estimator="bounds", provenance={"model": "tiny", "prompts": 64}),
        BudgetSchedule([3, ALL_PAGES], page_size=4, bin_tokens=64, first=0, last=1, dense_layers=()),
        BudgetSchedule.dense(page_size=4),
        BudgetSchedule.constant(0),
    ],
    ids=["calibrated", "mixed", "dense", "reserved-only"],
)
def test_file_reads_back_equal(schedule: BudgetSchedule, tmp_path: Path) -> None:
    schedule.to_yaml(tmp_path / "s.yaml")
    assert load_schedule(tmp_path / "s.yaml") == schedule
    assert load_schedule(str(tmp_path / "s.yaml")) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pages: [1", "not valid YAML"),
        ("pages: !!python/object:os.system x", "not valid YAML"),
        ("pages: !!int ''", "not valid YAML"),
        ("pages: !!timestamp x", "not valid YAML"),
        ("pages: !!bool x", "not valid YAML"),
        ("provenance: 2026-13-45\npages: [1]", "not valid YAML"),
        ("? {a: 1}\n: 2", "not valid YAML"),
        ("[" * 600, "not valid YAML"),
        ("", "must hold a mapping of schedule fields, found NoneType"),
        ("[1, 2]", "must hold a mapping of schedule fields, found list"),
        ("pages: !!binary aGk=", r"pages=b'hi': must be a list of page counts per bin"),
        ("pages: [1, 2.5]", r"pages\[1\]=2.5: must be a whole number"),
        ("pages: [1]\npage-size: 4", r"unknown field 'page-size'; did you mean 'page_size'\?"),
    ],
)
def test_malformed_file_names_itself(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.yaml: {message}"):
        load_schedule(path)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"pages: \xff\xfe")
    with pytest.raises(ValueError, match=r"bad\.yaml: not valid YAML: 'utf-8' codec"):
        load_schedule(tmp_path / "bad.yaml")


FIELDS = ["pages", "page_size", "bin_tokens", "first", "last", "dense_layers", "tau", "estimator", "provenance", "junk"]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["all", "top20"])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SCALARS, inner, max_size=3))


@settings(max_examples=50)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), VALUES | st.integers(0, 50), max_size=6))
def test_any_fields_load_or_name_the_fault(fields: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fields.yaml"
    path.write_text(yaml.safe_dump(fields, allow_unicode=True), encoding="utf-8")
    _load_or_value_error(path)


@given(text=st.text(alphabet=" \n\t-:[]{}!&*#|>'\"%@`,?0123456789.eE+apges_tu~é\0", max_size=80))
def test_any_text_loads_or_names_the_fault(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "text.yaml"
    path.write_text(text, encoding="utf-8")
    _load_or_value_error(path)


@given(content=st.binary(max_size=60))
def test_any_bytes_load_or_name_the_fault(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(content)
    _load_or_value_error(path)


def _load_or_value_error(path: Path) -> None:
    try:
        schedule = load_schedule(path)
    except ValueError as error:
        assert path.name in str(error)  # noqa: PT017 (either outcome is right; the message must name the file)
        return
    assert min(schedule.table) >= 0
    assert schedule.total_pages(10**6) <= schedule.num_pages(10**6)
