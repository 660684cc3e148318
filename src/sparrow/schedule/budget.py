"""The page budget as a function of sequence length: plain data with integer thresholds.

A decode step of a sequence with ``t`` cached tokens reads ``pages(t)`` scored pages plus the reserved first and last
ones. The table is indexed by length bin; there is no interpolation, so a schedule on the device is one integer tensor
and the trainer can reproduce each decision of the sampler exactly.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ALL_PAGES = 2**30
"""Table entry meaning "every page": larger than any sequence, small enough that adding reserved pages fits int32."""

ESTIMATORS = ("exact", "bounds", "top20")
"""How alpha was measured when a schedule's tau was chosen; a tau is only comparable within one estimator."""


@dataclass(frozen=True, init=False)
class BudgetSchedule:
    """Pages to read per decode step, by sequence length.

    Args:
        pages: scored pages per length bin, reserved ones **not** counted (29 means 29 + first + last pages are read).
        page_size: tokens per page.
        bin_tokens: width of a length bin in tokens; the last bin holds for all longer sequences.
        first: pages at the start of the sequence that are always read.
        last: pages at the end that are always read; at least 1, since a partly filled page is never scored.
        dense_layers: layers that read everything.
        tau: the tail threshold this schedule was made to hold, if any.
        estimator: the estimator of alpha that ``tau`` is stated in, one of ``exact``, ``bounds``, ``top20``.
        provenance: where the table came from (model, calibration set, date, or "published").

    Raises:
        ValueError: a value is out of range; the message names the key, the value and what is allowed.
    """

    table: tuple[int, ...]
    page_size: int
    bin_tokens: int
    first: int
    last: int
    dense_layers: tuple[int, ...]
    tau: float | None
    estimator: str | None
    provenance: Any

    def __init__(
        self,
        pages: Sequence[int],
        page_size: int = 16,
        bin_tokens: int = 2000,
        first: int = 1,
        last: int = 2,
        dense_layers: Sequence[int] = (0, 1),
        tau: float | None = None,
        estimator: str | None = None,
        provenance: Any = None,
    ) -> None:
        values = {
            "table": _whole_numbers("pages", pages, least=0),
            "page_size": _whole_number("page_size", page_size, least=1),
            "bin_tokens": _whole_number("bin_tokens", bin_tokens, least=1),
            "first": _whole_number("first", first, least=0),
            "last": _whole_number("last", last, least=1),
            "dense_layers": tuple(sorted(set(_whole_numbers("dense_layers", dense_layers, least=0, empty=True)))),
            "tau": _tau(tau),
            "estimator": _estimator(estimator, tau),
            "provenance": provenance,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def constant(cls, pages: int, page_size: int = 16, **fields: Any) -> "BudgetSchedule":
        """The same budget at every length."""
        return cls(pages=[pages], page_size=page_size, **fields)

    @classmethod
    def dense(cls, page_size: int = 16, **fields: Any) -> "BudgetSchedule":
        """Every page at every length: ordinary attention, through the same code."""
        return cls(pages=[ALL_PAGES], page_size=page_size, **fields)

    @property
    def is_dense(self) -> bool:
        """Whether no length is ever sparse."""
        return min(self.table) >= ALL_PAGES

    @property
    def num_bins(self) -> int:
        """Length bins of the table."""
        return len(self.table)

    @property
    def reserved(self) -> int:
        """Pages read on top of the scored ones."""
        return self.first + self.last

    def num_pages(self, cached_tokens: int) -> int:
        """Pages that hold ``cached_tokens`` tokens, the last one perhaps partly."""
        if cached_tokens < 0:
            raise ValueError(f"cached_tokens={cached_tokens}: must be 0 or more")
        return -(-cached_tokens // self.page_size)

    def bin_of(self, cached_tokens: int) -> int:
        """Length bin of a query that sees ``cached_tokens`` tokens, itself included."""
        return min(self.num_pages(cached_tokens) * self.page_size // self.bin_tokens, self.num_bins - 1)

    def pages(self, cached_tokens: int) -> int:
        """Scored pages at this length, reserved ones not counted."""
        return self.table[self.bin_of(cached_tokens)]

    def total_pages(self, cached_tokens: int) -> int:
        """Pages read at this length: scored plus reserved, never more than there are."""
        return min(self.pages(cached_tokens) + self.reserved, self.num_pages(cached_tokens))

    def reads_as(self, other: "BudgetSchedule") -> bool:
        """Whether both read the same pages at every length, wherever they came from."""
        nothing: dict[str, Any] = {"tau": None, "estimator": None, "provenance": None}
        return self.replace(**nothing) == other.replace(**nothing)

    def replace(self, **changes: Any) -> "BudgetSchedule":
        """A copy with some fields changed; ``pages`` replaces the table."""
        return BudgetSchedule(**{**self._fields(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """The YAML fields as plain data; the table of :meth:`dense` is written as the word ``all``."""
        fields = self._fields()
        fields["pages"] = "all" if self.table == (ALL_PAGES,) else list(self.table)
        fields["dense_layers"] = list(self.dense_layers)
        return fields

    def to_yaml(self, path: str | Path) -> None:
        """Write the schedule so that :func:`sparrow.schedule.load_schedule` reads it back equal."""
        text = yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, width=120)
        Path(path).write_text(text, encoding="utf-8")

    def _fields(self) -> dict[str, Any]:
        names = ("page_size", "bin_tokens", "first", "last", "dense_layers", "tau", "estimator", "provenance")
        return {"pages": self.table, **{name: getattr(self, name) for name in names}}


def schedule_from_dict(fields: Mapping[str, Any], where: str = "schedule") -> BudgetSchedule:
    """Build a schedule from YAML fields.

    Args:
        fields: mapping with ``pages`` (a list, one number for a constant budget, or ``all``) and the optional fields
            of :class:`BudgetSchedule`.
        where: file or key to name in errors.

    Raises:
        ValueError: a field is unknown, missing or out of range.
    """
    known = list(BudgetSchedule.constant(0)._fields())
    for key in fields:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ValueError(f"{where}: unknown field '{key}'{hint} (allowed: {', '.join(known)})")
    if "pages" not in fields:
        raise ValueError(f"{where}: field 'pages' is missing (a list of page counts per bin, a number, or 'all')")
    pages = fields["pages"]
    table = [ALL_PAGES] if pages == "all" else pages if isinstance(pages, Sequence) else [pages]
    if isinstance(table, str | bytes):
        raise ValueError(f"{where}: pages={table!r}: must be a list of page counts per bin, a number, or 'all'")
    try:
        return BudgetSchedule(**{**fields, "pages": table})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _whole_number(key: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= ALL_PAGES:
        raise ValueError(f"{key}={value!r}: must be a whole number from {least} to {ALL_PAGES}")
    return value


def _whole_numbers(key: str, values: object, least: int, empty: bool = False) -> tuple[int, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not (values or empty):
        raise ValueError(f"{key}={values!r}: must be a {'' if empty else 'non-empty '}list of whole numbers")
    return tuple(_whole_number(f"{key}[{i}]", value, least) for i, value in enumerate(values))


def _tau(tau: object) -> float | None:
    if tau is None:
        return None
    if isinstance(tau, bool) or not isinstance(tau, int | float) or not 0.0 < tau <= 1.0:
        raise ValueError(f"tau={tau!r}: must be a number above 0 and at most 1, or null")
    return float(tau)


def _estimator(estimator: object, tau: float | None) -> str | None:
    if estimator is None and tau is not None:
        raise ValueError(f"estimator is missing beside tau={tau}: a tau belongs to one of {', '.join(ESTIMATORS)}")
    if estimator is not None and estimator not in ESTIMATORS:
        raise ValueError(f"estimator={estimator!r}: must be one of {', '.join(ESTIMATORS)}")
    return None if estimator is None else str(estimator)
