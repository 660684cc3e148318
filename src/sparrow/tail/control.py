"""Holding the tail of every length bin at tau by moving its page budget: the rule, without a training loop.

A page count *holds* if p5 of the bin lies at or above the line (tau less a tolerance), and *fails* otherwise; the rule
looks for the least count that holds. Each bin keeps the nearest counts known to hold and to fail, as in a bisection:
while one of them is missing it moves by at most a factor, with both it goes to their middle, and where they are
neighbours it rests. All bins search at once. What an earlier bin reads changes the cache that later ones see, so a
failure found while earlier bins read less is tried again (once they rest, if they have grown by little), and evidence
gathered before a long move of theirs is dropped.

At rest a bin is raised only when it fails with confidence, and lowered only when there is room: when the share of
tokens below the line has fallen so far that one page fewer, scaled from what it read last, would hold, or when that
reading is old. What lies between is left alone; that is the hysteresis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sparrow.tail.evidence import Evidence, Verdict

Reason = Literal["fails", "holds", "room", "stale", "order"]

SHARE_FLOOR = 0.002
"""Added to shares before their ratio is taken: nothing below the line is no proof of infinite room."""


@dataclass(frozen=True)
class ControlRule:
    """When a bin is moved, and how far.

    Attributes:
        tau: p5 to hold.
        tolerance: p5 may lie this much below tau.
        quantile: level of the tail statistic.
        confidence: of a verdict, one-sided.
        least_design_effect: tokens of a prompt count as at most this many times fewer independent ones at least; see
            `Evidence.interval`.
        filled: tokens since the last move from which a bin is judged.
        prompts: prompts since the last move from which a bin is judged.
        patience: steps after which a searching bin is judged by the share itself.
        window: steps of evidence a bin keeps.
        growth: largest factor of one move, up or down.
        min_pages: least budget, reserved pages not counted.
        monotone: a bin reads at least as many pages as the measured ones before it.
        influence: relative change of an earlier bin from which what was found before it no longer counts.
        rest: steps between two tries of a smaller budget.
        retest: steps after which a failure is tried again although nothing changed; null for never.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    tau: float
    tolerance: float = 0.015
    quantile: float = 0.05
    confidence: float = 0.95
    least_design_effect: float = 2.0
    filled: int = 1000
    prompts: int = 4
    patience: int = 3
    window: int = 10
    growth: float = 2.0
    min_pages: int = 1
    monotone: bool = True
    influence: float = 0.2
    rest: int = 10
    retest: int | None = 50

    def __post_init__(self) -> None:
        _between("tau", self.tau, 0, 1, top=True)
        _between("tolerance", self.tolerance, 0, self.tau, bottom=True)
        _between("quantile", self.quantile, 0, 1)
        _between("confidence", self.confidence, 0.5, 1)
        for key, least in _LEAST.items():
            value = getattr(self, key)
            if value is not None and value < least:
                raise ValueError(f"controller.{key}={value}: must be {least} or more")
        if self.growth <= 1:
            raise ValueError(f"controller.growth={self.growth}: must be above 1")

    @property
    def line(self) -> float:
        """Alpha below which a token is counted."""
        return self.tau - self.tolerance

    def judge(self, evidence: Evidence) -> Verdict | None:
        """Whether a bin's budget holds; None where there is too little to tell."""
        if evidence.tokens < self.filled or evidence.prompts < self.prompts:
            return None
        return evidence.verdict(self.quantile, self.confidence, self.least_design_effect)


@dataclass(frozen=True)
class Known:
    """What was found at a page count.

    Attributes:
        pages: the count.
        share: of tokens below the line there.
        before: pages of all earlier bins at that time.
    """

    pages: int
    share: float
    before: tuple[int, ...]


@dataclass(frozen=True)
class BinState:
    """One length bin under control.

    Attributes:
        pages: its budget now.
        most: the largest budget that makes sense, every page of the longest sequence.
        fails: nearest smaller budget known to fail.
        holds: smallest budget known to hold.
        stride: pages of the next move while one of the two is missing; null moves by the largest factor.
        evidence: of the last steps, oldest first, all under this budget.
        steps: steps since the last move.
        measured: whether the bin was ever judged.
    """

    pages: int
    most: int
    fails: Known | None = None
    holds: Known | None = None
    stride: int | None = None
    evidence: tuple[Evidence, ...] = ()
    steps: int = 0
    measured: bool = False

    @property
    def total(self) -> Evidence:
        """Evidence of the steps together."""
        return sum(self.evidence, Evidence())

    def rests(self, least: int) -> bool:
        """Whether this budget holds and, as far as known, none below it does."""
        at_bottom = self.pages == least or (self.fails is not None and self.fails.pages == self.pages - 1)
        return at_bottom and self.holds is not None and self.holds.pages == self.pages

    def settled(self, least: int) -> bool:
        """Whether this is the least budget that holds, or the largest there is and that fails."""
        fails_at_most = self.pages == self.most and self.fails is not None and self.fails.pages == self.pages
        return fails_at_most or self.rests(least)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> BinState:
        """The state that :meth:`to_dict` wrote."""
        known = {key: values[key] and Known(**_tuples(values[key])) for key in ("fails", "holds")}
        evidence = tuple(Evidence(**sums) for sums in values["evidence"])
        return cls(**{**values, **known, "evidence": evidence})


@dataclass(frozen=True)
class Move:
    """One change of a bin's budget, and what it was decided on.

    Attributes:
        bin: index of the bin.
        before: pages until now.
        after: pages from the next step on.
        reason: ``fails`` or ``holds`` (search), ``room`` or ``stale`` (a smaller budget is tried again), ``order``
            (an earlier bin reads as much).
        evidence: under the old budget.
    """

    bin: int
    before: int
    after: int
    reason: Reason
    evidence: Evidence


def decide(
    rule: ControlRule, bins: Sequence[BinState], step: Sequence[Evidence]
) -> tuple[tuple[BinState, ...], list[Move]]:
    """Take in one step's evidence and say what every bin reads next.

    Args:
        rule: how.
        bins: states under which the step was sampled, shortest bin first.
        step: evidence of each bin, of all ranks.

    Returns:
        The new states and the moves among them.
    """
    pages = tuple(state.pages for state in bins)
    after: list[BinState] = []
    moves: list[Move] = []
    floor, calm = rule.min_pages, True
    for index, (state, sums) in enumerate(zip(bins, step, strict=True)):
        seen = _observe(rule, state, sums)
        least = min(max(rule.min_pages, floor), seen.most)
        new, reason = _next(rule, seen, least, Earlier(pages[:index], calm))
        if new.pages < least:
            new, reason = _moved(new, least, stride=1), "order"
        if new.pages != state.pages:
            moves.append(Move(index, state.pages, new.pages, reason, seen.total))
        if rule.monotone and new.measured:
            floor = max(floor, new.pages)
        calm = calm and (new.settled(least) or not new.measured)
        after.append(new)
    states = _forget_after(rule, after, moves)
    return (_cap_unmeasured(states, moves) if rule.monotone else states), moves


def _observe(rule: ControlRule, state: BinState, sums: Evidence) -> BinState:
    if not sums.tokens:
        return replace(state, steps=state.steps + 1)
    return replace(state, evidence=(*state.evidence, sums)[-rule.window :], steps=state.steps + 1)


@dataclass(frozen=True)
class Earlier:
    """The bins before one: their budgets in the step at hand, and whether all of them rest."""

    pages: tuple[int, ...]
    calm: bool

    def grown(self, then: tuple[int, ...], factor: float) -> bool:
        """Whether one of them reads more than ``factor`` times what it read then."""
        return any(now > factor * before for now, before in zip(self.pages, then, strict=True))


def _next(rule: ControlRule, state: BinState, least: int, earlier: Earlier) -> tuple[BinState, Reason]:
    """The state after this step's verdict; it has moved if its pages differ."""
    total = state.total
    verdict = rule.judge(total)
    if verdict is None:
        return state, "holds"
    rests = state.rests(least)
    state = replace(state, measured=True)
    if verdict == "unsure":
        if rests or len(state.evidence) < rule.patience:
            return state, "holds"
        verdict = "holds" if total.share <= rule.quantile else "fails"
    if verdict == "fails":
        return _raise(rule, state, Known(state.pages, total.share, earlier.pages)), "fails"
    return _lower(rule, state, earlier, rests, least)


def _raise(rule: ControlRule, state: BinState, found: Known) -> BinState:
    holds = state.holds if state.holds is not None and state.holds.pages > state.pages else None
    lost = state.holds is not None and holds is None  # it held here: the weights or the cache have changed
    state = replace(state, fails=found, holds=holds, stride=1 if lost else state.stride)
    if holds is not None:
        return _moved(state, (state.pages + holds.pages + 1) // 2, stride=1)
    return _moved(state, min(state.pages + _stride(rule, state, up=True), state.most))


def _lower(rule: ControlRule, state: BinState, earlier: Earlier, rests: bool, least: int) -> tuple[BinState, Reason]:
    share = state.total.share
    fails = state.fails if state.fails is not None and state.fails.pages < state.pages else None
    again = None if fails is None or fails.pages < least else _worth_a_try(rule, state, fails, earlier)
    if again is not None:
        state, fails = replace(state, stride=1), None
    if not rests or again is not None:
        state = replace(state, holds=Known(state.pages, share, earlier.pages))
    state = replace(state, fails=fails)
    reason = again or "holds"
    bottom = least if fails is None else max(least, fails.pages + 1)
    if state.pages <= bottom:
        return replace(state, stride=1), reason
    if fails is not None and fails.pages >= least:
        return _moved(state, (state.pages + fails.pages) // 2, stride=1), reason
    return _moved(state, max(state.pages - _stride(rule, state, up=False), least)), reason


def _worth_a_try(rule: ControlRule, state: BinState, fails: Known, earlier: Earlier) -> Reason | None:
    """Why a budget that failed should be tried again, if it should."""
    if earlier.grown(fails.before, 1 + rule.influence):
        return "stale"
    if fails.pages != state.pages - 1:
        return None
    if earlier.calm and earlier.grown(fails.before, 1):
        return "stale"
    if state.steps < rule.rest or state.holds is None:
        return None
    if rule.retest is not None and state.steps >= rule.retest:
        return "stale"
    ratio = (state.total.share + SHARE_FLOOR) / (state.holds.share + SHARE_FLOOR)
    return "room" if fails.share * ratio <= rule.quantile else None


def _stride(rule: ControlRule, state: BinState, up: bool) -> int:
    longest = state.pages * (rule.growth - 1) if up else state.pages * (1 - 1 / rule.growth)
    longest = max(1, int(longest))
    return longest if state.stride is None else min(state.stride, longest)


def _moved(state: BinState, pages: int, stride: int | None = None) -> BinState:
    if pages == state.pages:
        return state
    doubled = None if state.stride is None else 2 * state.stride
    return replace(state, pages=pages, evidence=(), steps=0, stride=doubled if stride is None else stride)


def _forget_after(rule: ControlRule, bins: Sequence[BinState], moves: Sequence[Move]) -> tuple[BinState, ...]:
    """Drop what later bins have gathered where an earlier one, itself measured, has moved far."""
    far = [m.bin for m in moves if bins[m.bin].measured and abs(m.after - m.before) > rule.influence * m.before]
    first = min(far, default=len(bins))
    return tuple(replace(state, evidence=()) if index > first else state for index, state in enumerate(bins))


def _cap_unmeasured(bins: Sequence[BinState], moves: list[Move]) -> tuple[BinState, ...]:
    """Bins before the first measured one hold no tokens; they read no more than it, so that the table stays ordered."""
    first = next((state for state in bins if state.measured), None)
    capped: list[BinState] = []
    for index, state in enumerate(bins):
        before = first is not None and not any(earlier.measured for earlier in bins[: index + 1])
        if before and first is not None and state.pages > first.pages:
            moves.append(Move(index, state.pages, first.pages, "order", state.total))
            state = _moved(state, first.pages, stride=1)
        capped.append(state)
    return tuple(capped)


_LEAST = {
    "least_design_effect": 1,
    "filled": 1,
    "prompts": 2,
    "patience": 1,
    "window": 1,
    "min_pages": 0,
    "influence": 0,
    "rest": 1,
    "retest": 1,
}


def _between(key: str, value: float, low: float, high: float, *, bottom: bool = False, top: bool = False) -> None:
    inside = (low <= value if bottom else low < value) and (value <= high if top else value < high)
    if not inside:
        words = f"{'from' if bottom else 'above'} {low:g} and {'at most' if top else 'below'} {high:g}"
        raise ValueError(f"controller.{key}={value}: must be {words}")


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
