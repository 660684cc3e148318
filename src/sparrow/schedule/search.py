"""The schedule at which something is lost, between one that holds it and one that does not."""

from collections.abc import Callable

from sparrow.schedule.budget import BudgetSchedule


def fewer_pages(rich: BudgetSchedule, poor: BudgetSchedule, pages: int) -> BudgetSchedule:
    """``rich`` with this many pages less in every bin, but never less than ``poor``.

    >>> fewer_pages(BudgetSchedule([8, 20]), BudgetSchedule([8, 10]), 4).table
    (8, 16)
    """
    table = [max(low, high - pages) for high, low in zip(rich.table, poor.table, strict=True)]
    return rich.replace(pages=table, tau=None, estimator=None, provenance=f"{rich.provenance}, {pages} pages less")


def first_at_most(
    level: float, rich: BudgetSchedule, poor: BudgetSchedule, read: Callable[[BudgetSchedule], float]
) -> BudgetSchedule:
    """The schedule of most pages on the way from ``rich`` to ``poor`` that reads ``level`` or less.

    Found by bisection over the pages that `fewer_pages` takes away, so a reading that rises and falls on the way gives
    one of the places where it falls to ``level``.

    Args:
        level: the reading that is looked for.
        rich: the schedule to start from; itself the result where it reads no more than that.
        poor: the schedule to end at, in no bin with more pages than ``rich``; itself the result where even it reads
            more.
        read: the number that falls as pages are taken away.

    Raises:
        ValueError: the two differ in more than their pages, or ``poor`` has more of them somewhere.
    """
    check_way(rich, poor)
    low, high = 0, max(high - low for high, low in zip(rich.table, poor.table, strict=True))
    while low < high:  # the result takes away at least `low` pages and at most `high`
        middle = (low + high) // 2
        if read(fewer_pages(rich, poor, middle)) <= level:
            high = middle
        else:
            low = middle + 1
    return fewer_pages(rich, poor, high)


def check_way(rich: BudgetSchedule, poor: BudgetSchedule) -> None:
    """Check that pages can be taken from one schedule until it is the other.

    Raises:
        ValueError: the two differ in more than their pages, or ``poor`` has more of them somewhere.
    """
    same = rich.replace(pages=[0], tau=None, estimator=None, provenance=None)
    if poor.replace(pages=[0], tau=None, estimator=None, provenance=None) != same or rich.num_bins != poor.num_bins:
        raise ValueError("it differs from the run's first schedule in more than its pages, so none lies between")
    if any(low > high for high, low in zip(rich.table, poor.table, strict=True)):
        raise ValueError(f"pages={list(poor.table)}: must be at most {list(rich.table)}, bin by bin")
