"""Checkpoints: written whole or not at all, found again, checked against the run that resumes, saved before the end."""

from sparrow.checkpoints.newest import newest_checkpoint, resume_path
from sparrow.checkpoints.preemption import Preempted, Preemption
from sparrow.checkpoints.run_config import RunConfig, changed_keys
from sparrow.checkpoints.storage import WholeFiles

__all__ = [
    "Preempted",
    "Preemption",
    "RunConfig",
    "WholeFiles",
    "changed_keys",
    "newest_checkpoint",
    "resume_path",
]
