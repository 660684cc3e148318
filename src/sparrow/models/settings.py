"""Which model a run uses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSettings:
    """A policy by name, and the schedule it is usually run with.

    Attributes:
        name_or_path: ``tiny``, a prepared name such as ``smollm2-135m``, a transformers folder, or a hub id.
        default_schedule: what ``schedule=default`` means for this model; null makes the choice mandatory.
    """

    name_or_path: str
    default_schedule: str | None = None
