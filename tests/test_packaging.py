"""The wheel, installed in an empty folder, is whole: configuration tree, data files and commands that run there."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sparrow"

pytestmark = pytest.mark.slow


def _run(*arguments: str, folder: Path, path: Path | None = None) -> str:
    """Standard output of a command run by this interpreter in ``folder``, with ``path`` first on the module path."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{arguments} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", ".", str(ROOT), folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    _run("-m", "pip", "install", "--quiet", "--no-deps", "--target", ".", str(wheel), folder=folder)
    return folder


def test_wheel_carries_every_file_of_the_package_and_of_configs(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    package = {f"sparrow/{path.relative_to(SOURCE)}" for path in _files(SOURCE)}
    configs = {f"sparrow/configs/{path.relative_to(ROOT / 'configs')}" for path in _files(ROOT / "configs")}
    assert {name for name in held if ".dist-info/" not in name} == package | configs
    assert {"sparrow/py.typed", "sparrow/configs/train.yaml", "sparrow/models/tiny/model.safetensors"} <= held
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in held)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_installed_package_finds_its_own_configuration_and_data(installed: Path, tmp_path: Path) -> None:
    program = (
        "from sparrow.config_dir import config_dir\n"
        "from sparrow.models.tiny import tiny_path\n"
        "from sparrow.schedule import load_schedule\n"
        "print(config_dir(), tiny_path(), load_schedule('qwen3-1.7b-0.86').pages(1985), sep='\\n')\n"
        "print(load_schedule('constant').pages(1))\n"
    )
    printed = _run("-c", program, folder=tmp_path, path=installed).split("\n")
    package = installed / "sparrow"
    assert printed[:4] == [str(package / "configs"), str(package / "models" / "tiny"), "61", "61"]


def test_a_run_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    printed = _run("-m", "sparrow.train", "debug=default", folder=tmp_path, path=installed)
    run_folder = tmp_path / printed.rstrip().rsplit("\n", 1)[-1]
    assert (run_folder / "summary.json").is_file()
    assert (run_folder / "config.yaml").is_file()
    assert tmp_path in run_folder.resolve().parents
