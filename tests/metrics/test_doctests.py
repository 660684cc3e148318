"""The examples in the docstrings of the metrics are true."""

import doctest
import importlib

import pytest

MODULES = [
    "sparrow.metrics.correction_health",
    "sparrow.metrics.pooled_tail",
    "sparrow.metrics.tail_acceptance",
    "sparrow.metrics.functional.acceptance",
    "sparrow.metrics.functional.quantiles",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
