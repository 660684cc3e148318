"""One operator to measure: how to call it, what it moves, and what it is compared against."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparrow.benchmarks.timing import Candidate, Measured

NO_COUNTERPART = "torch's attention has no such operation"
COPY = "copy"
"""Name of the plain copy that every rate is compared with."""


@dataclass(frozen=True)
class Operator:
    """An operator at one shape.

    Attributes:
        name: operator and variant; a number is a page budget, reserved pages included.
        run: calls it.
        bytes_moved: least that it moves, see `sparrow.benchmarks.traffic`.
        reference: the plain torch form of the same.
        sdpa: torch's dense attention for the same query; None: there is none.
        missing: why a comparison is absent, by ``reference`` or ``sdpa``.
    """

    name: str
    run: Callable[[], object]
    bytes_moved: int
    reference: Callable[[], object] | None = None
    sdpa: Callable[[], object] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


def candidates(operators: Sequence[Operator], copy: Candidate) -> dict[str, Candidate]:
    """Everything to time in one run. The same call by several operators is timed once."""
    found: dict[str, Candidate] = {COPY: copy}
    for operator in operators:
        found[operator.name] = operator.run
        if operator.reference is not None:
            found[f"{operator.name}/reference"] = operator.reference
        if operator.sdpa is not None:
            found[_sdpa_name(operator)] = operator.sdpa
    return found


def row(operator: Operator, measured: Measured, copy_rate: float) -> dict[str, Any]:
    """What was measured of one operator; None where nothing was, with the reason under ``not_measured``.

    Args:
        operator: the operator.
        measured: of all candidates.
        copy_rate: bytes per second that a copy moves, reads and writes both counted.
    """
    reasons = dict(operator.missing)
    own = _seconds(measured, operator.name, "run", reasons)
    others = {
        "reference": _seconds(measured, f"{operator.name}/reference", "reference", reasons),
        "sdpa": _seconds(measured, _sdpa_name(operator), "sdpa", reasons),
    }
    rate = operator.bytes_moved / own if own else None
    found: dict[str, Any] = {
        "operator": operator.name,
        "seconds": own,
        "seconds_fastest": measured.timings[operator.name].fastest if own else None,
        "seconds_slowest": measured.timings[operator.name].slowest if own else None,
        "bytes_moved": operator.bytes_moved,
        "gb_per_s": rate / 1e9 if rate else None,
        "share_of_copy": rate / copy_rate if rate else None,
    }
    for name, seconds in others.items():
        found[f"{name}_seconds"] = seconds
        found[f"speed_over_{name}"] = seconds / own if seconds and own else None
    return {**found, "not_measured": reasons}


def _sdpa_name(operator: Operator) -> str:
    """Decode operators share one dense attention; a pass over whole sequences has its own."""
    kind, _, variant = operator.name.partition("/")
    return f"sdpa/{variant}" if kind == "block_sparse_attention" else "sdpa"


def _seconds(measured: Measured, name: str, role: str, reasons: dict[str, str]) -> float | None:
    if name in measured.timings and role not in reasons:
        return measured.timings[name].median
    reasons.setdefault(role, measured.failures.get(name, "there is no such implementation"))
    return None
