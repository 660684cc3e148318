"""The notebooks run from top to bottom, on the packaged policy in seconds, and are committed without outputs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))

TINY: dict[str, dict[str, Any]] = {
    "1_what_the_tail_is": {
        "model": "tiny",
        "data": "running-sum",
        "prompts": 4,
        "new_tokens": 220,
        "page_size": 4,
        "budgets": [1, 2, 4],
        "bin_tokens": 64,
    },
    "2_from_calibration_to_schedule": {"grid": [1, 8, 20], "prompts": 4, "new_tokens": 120, "filled": 100},
    "3_cost_model": {},
    "4_reading_a_run": {},
    "5_your_own_page_score": {"prompts": 4, "new_tokens": 120, "budgets": [2, 6]},
}
"""Parameters that a test puts in the place of a notebook's own; an empty entry runs it as it is."""

FIGURES = {
    "1_what_the_tail_is": 3,
    "2_from_calibration_to_schedule": 2,
    "3_cost_model": 3,
    "4_reading_a_run": 6,
    "5_your_own_page_score": 1,
}
"""Figures that a front end would show."""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingKernelClient]:
    """One kernel for all notebooks, whose names are cleared between them: packages are imported once."""
    home = tmp_path_factory.mktemp("jupyter")
    environment = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}  # the kernel draws inline
    environment |= {"IPYTHONDIR": str(home), "JUPYTER_RUNTIME_DIR": str(home)}
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(FOLDER), env=environment)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]


def sources(book: Any, parameters: dict[str, Any]) -> list[str]:
    """Code cells, the given parameters put right behind the tagged cell.

    Raises:
        KeyError: a parameter that the tagged cell does not set.
    """
    cells = []
    for cell in book.cells:
        if cell.cell_type != "code":
            continue
        cells.append(cell.source)
        if "parameters" in cell.metadata.get("tags", []):
            names = {line.partition("=")[0].strip() for line in cell.source.splitlines()}
            if unknown := set(parameters) - names:
                raise KeyError(f"no such parameter: {sorted(unknown)}")
            cells.append("\n".join(f"{name} = {value!r}" for name, value in parameters.items()))
    return cells


def run(kernel: BlockingKernelClient, cells: list[str]) -> list[dict[str, Any]]:
    """Execute cells one after another; what they displayed."""
    shown: list[dict[str, Any]] = []

    def keep(message: dict[str, Any]) -> None:
        if message["msg_type"] in ("display_data", "execute_result"):
            shown.append(message["content"]["data"])

    for source in ["%reset -f", *cells]:
        reply = kernel.execute_interactive(source, timeout=600, output_hook=keep)["content"]
        assert reply["status"] == "ok", f"{source}\n{reply.get('ename')}: {reply.get('evalue')}"
    return shown


def test_there_are_parameters_for_every_notebook() -> None:
    assert sorted(TINY) == sorted(FIGURES) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_stripped(name: str) -> None:
    book = read(name)
    nbformat.validate(book)
    for cell in book.cells:
        assert (cell.get("outputs", []), cell.get("execution_count")) == ([], None)
    assert [cell.metadata for cell in book.cells if cell.metadata] == [{"tags": ["parameters"]}]
    assert book.cells[0].source.startswith("# ")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name[0] in "34" else [pytest.mark.slow]) for name in NOTEBOOKS]
)
def test_a_notebook_runs_from_top_to_bottom(name: str, kernel: BlockingKernelClient) -> None:
    shown = run(kernel, sources(read(name), TINY[name]))
    assert sum("image/png" in data for data in shown) == FIGURES[name]


def test_a_parameter_must_exist() -> None:
    with pytest.raises(KeyError, match="no such parameter: .'modle'"):
        sources(read("1_what_the_tail_is"), {"modle": "tiny"})


@pytest.mark.slow
def test_the_tail_of_a_pretrained_model(smollm2: str, kernel: BlockingKernelClient) -> None:
    cells = sources(read("1_what_the_tail_is"), {"prompts": 1, "new_tokens": 160, "budgets": [1, 2]})
    assert f'model = "{smollm2}"' in cells[0]
    assert sum("image/png" in data for data in run(kernel, cells)) == FIGURES["1_what_the_tail_is"]
