"""Layouts of named data sets, each turned into the common schema by one function."""

from sparrow.data.mappings.registry import MAPPINGS, get_mapping

__all__ = ["MAPPINGS", "get_mapping"]
