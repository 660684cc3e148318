"""Finding the cheapest page budgets that hold the tail: sequences of the sparse actor, read under other budgets."""

from sparrow.calibration.settings import CalibrationSettings, PageSweep

__all__ = ["CalibrationSettings", "PageSweep"]
