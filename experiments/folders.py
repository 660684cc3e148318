"""Run folders of studies. A study can be stopped and continued, and a command refuses a folder that holds a run."""

import shutil
from pathlib import Path

from sparrow.config.folders import result_in


def make_way(folder: Path) -> Path:
    """The folder of a run that is about to start; what an interrupted one left there is removed.

    A folder without results, or that is not there, stays as it is. Ask only for runs that the study has no result of.
    """
    if result_in(folder) is not None:
        shutil.rmtree(folder)
    return folder
