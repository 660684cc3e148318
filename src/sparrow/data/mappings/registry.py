"""The named layouts: a name to the function that maps one raw row to the common fields."""

import difflib

from sparrow.data.mappings.choice_sets import CHOICE_SETS
from sparrow.data.mappings.code_sets import CODE_SETS
from sparrow.data.mappings.math_sets import MATH_SETS
from sparrow.data.readers import Mapper

MAPPINGS: dict[str, Mapper] = {**MATH_SETS, **CHOICE_SETS, **CODE_SETS}


def get_mapping(name: str) -> Mapper:
    """The mapping of a data set by its name.

    Raises:
        KeyError: if there is none; names the near ones and all.
    """
    if name not in MAPPINGS:
        near = difflib.get_close_matches(name, MAPPINGS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise KeyError(f"mapping {name!r} is unknown{hint}; allowed: {', '.join(sorted(MAPPINGS))}")
    return MAPPINGS[name]
