"""A schedule stated as a change of another one: cheaper by a factor, or with some fields of its own."""

import math
from collections.abc import Mapping
from typing import Any

from sparrow.schedule.budget import BudgetSchedule, schedule_from_dict
from sparrow.schedule.loading import load_schedule

ScheduleSpec = str | Mapping[str, Any]
"""A name or path for :func:`load_schedule`, or the fields that differ from the schedule at hand."""


def derive_schedule(base: BudgetSchedule, spec: ScheduleSpec, where: str = "schedule") -> BudgetSchedule:
    """The schedule that ``spec`` means beside ``base``.

    Args:
        base: the schedule at hand.
        spec: a name or path; or a mapping of YAML fields that replace those of ``base``, among which ``scale``
            multiplies every entry of its table (rounded to the nearest page); ``scale: null`` is as if left out.
        where: key to name in errors.

    Raises:
        ValueError: an unknown name or field, a value out of range, or ``scale`` beside ``pages``.

    >>> derive_schedule(BudgetSchedule([8, 13]), {"scale": 0.5}).table
    (4, 6)
    """
    if isinstance(spec, str):
        return load_schedule(spec)
    fields = {str(key): value for key, value in spec.items()}
    scale = fields.pop("scale", None)
    if scale is not None:
        if "pages" in fields:
            raise ValueError(f"{where}: a derived schedule takes scale or pages, not both")
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 <= scale < math.inf:
            raise ValueError(f"{where}.scale={scale!r}: must be a number, 0 or more")
        fields["pages"] = [round(scale * pages) for pages in base.table]
        fields.setdefault("provenance", f"{base.provenance}, pages x {scale:g}")
    return schedule_from_dict({**base.to_dict(), **fields}, where)
