"""A run folder read back and drawn: one page that needs nothing else to be looked at."""

from sparrow.reporting.page import run_page
from sparrow.reporting.run import Run, Trace, read_run

__all__ = ["Run", "Trace", "read_run", "run_page"]
