"""The shape of the source: imports go one way, letters come from the legend, files and functions stay short."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparrow.shapes import LEGEND

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sparrow"

LAYERS = [
    "config_dir",
    "shapes",
    "ranges",
    "schedule",
    "kernels",
    "models",
    "rollout",
    "metrics",
    "algorithms",
    "rewards",
    "data",
    "tail",
    "checkpoints",
    "distributed",
    "modules",
    "evaluation",
    "callbacks",
    "benchmarks",
    "calibration",
    "auditing",
    "reporting",
    "config",
]
"""From the bottom up: a module imports from its own layer and those before it."""

COMMANDS = ["train", "calibrate", "audit", "evaluate", "benchmark", "cost", "prepare", "report"]
"""The top layer: thin commands, one job each."""

FILE_LINES = 400
FUNCTION_LINES = 60
KERNEL_LINES = 120

MODULES = sorted(SOURCE.rglob("*.py"))
CHECKED = [*MODULES, *(path for part in ("tests", "experiments") for path in sorted((ROOT / part).rglob("*.py")))]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _rank(layer: str) -> int:
    return len(LAYERS) if layer in COMMANDS else LAYERS.index(layer)


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imported_layers(path: Path) -> Iterator[tuple[int, str]]:
    """Line and layer of every import from the package, wherever in the file it stands."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}:{node.lineno}: relative import"
            whole = node.module == "sparrow"
            names = [f"sparrow.{alias.name}" for alias in node.names] if whole else [node.module or ""]
        else:
            continue
        for name in names:
            if name.startswith("sparrow.") and name != "sparrow.__version__":
                yield node.lineno, name.split(".")[1]


def test_every_module_has_its_place() -> None:
    homeless = {_layer(path) for path in MODULES} - {*LAYERS, *COMMANDS, "__init__"}
    assert not homeless, f"not in the list of layers: {sorted(homeless)}"


def test_every_command_is_installed_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    there = {f"sparrow-{name}": f"sparrow.{name}:main" for name in COMMANDS if (SOURCE / f"{name}.py").is_file()}
    assert project["scripts"] == there


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_go_one_way(path: Path) -> None:
    own = -1 if _layer(path) == "__init__" else _rank(_layer(path))
    wrong = [f"line {line}: sparrow.{layer}" for line, layer in _imported_layers(path) if _rank(layer) > own]
    assert not wrong, f"{_name(path)} imports from above: {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_module_opens_with_a_docstring(path: Path) -> None:
    docstring = ast.get_docstring(_tree(path))
    assert docstring, f"{_name(path)}: say what it is and why"


@pytest.mark.parametrize("path", CHECKED, ids=_name)
def test_files_and_functions_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES, f"{_name(path)} has {lines} lines"
    limit = KERNEL_LINES if SOURCE / "kernels" in path.parents else FUNCTION_LINES
    long = [f"{node.name}: {_code_lines(node)}" for node in _functions(path) if _code_lines(node) > limit]
    assert not long, f"{_name(path)}: functions over {limit} lines: {long}"


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(_tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, the docstring left out: documentation is not what makes a function long."""
    docstring = function.body[0]
    documented = ast.get_docstring(function) is not None
    inside = docstring.end_lineno - docstring.lineno + 1 if documented and docstring.end_lineno else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - inside


TENSOR_NAME = re.compile(r"^_?[a-z][a-z0-9_]*_([A-Z]+)$")
PEFT_NAMES = {"lora_A", "lora_B"}


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_suffix_letters_are_in_the_legend(path: Path) -> None:
    found = {getattr(node, field, None) for node in ast.walk(_tree(path)) for field in ("id", "arg", "attr")}
    names = {name for name in found if isinstance(name, str)} - PEFT_NAMES
    suffixes = {name: match[1] for name in names if (match := TENSOR_NAME.match(name))}
    unknown = {name: letters for name, letters in suffixes.items() if not set(letters) <= set(LEGEND)}
    assert not unknown, f"{_name(path)}: letters outside the legend: {unknown}"


def test_contributing_shows_the_legend() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `([A-Z])` \| (.+) \|$", text, re.MULTILINE)) == LEGEND
