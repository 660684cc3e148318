"""Runs one reward on one completion: the rules that hold for every reward, and the boundary for its errors."""

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.outcome import Outcome

FINISH_REASONS = ("stop", "length")


def judge(reward: Reward, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
    """The outcome of one completion.

    A completion cut by the length limit is "truncated" with score 0, whatever it says, unless the reward documents
    partial credit for it. A reward that raises gives "error" with score 0 and the error as detail.

    Raises:
        ValueError: if the finish reason is unknown.
    """
    check_finish_reason(finish_reason, row)
    if finish_reason == "length" and not reward.scores_truncated:
        return Outcome(0.0, "truncated")
    try:
        outcome = reward(completion, row, finish_reason)
        if not isinstance(outcome, Outcome):
            raise TypeError(f"{type(reward).__name__} gave {str(outcome)[:80]!r}; allowed: an Outcome")
        return outcome
    except BaseException as error:
        # The boundary to foreign code (sympy, task scorers, users' functions) on text that the policy wrote: any error
        # is this one sample's outcome, counted apart, and must not end the run. `exit()` in a verifier and the panics
        # of compiled libraries are no `Exception`s.
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and type(error) is not SystemExit):
            raise
        return Outcome(0.0, "error", described(error))


def check_finish_reason(finish_reason: str, row: RewardRow) -> None:
    """Raises a ValueError that names the row if the finish reason is unknown."""
    if finish_reason not in FINISH_REASONS:
        raise ValueError(f"{row}: finish_reason {finish_reason!r} is unknown; allowed: {', '.join(FINISH_REASONS)}")


def described(error: BaseException) -> str:
    """An error as text; an error may fail to say what it is."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception as second:  # foreign code too
        return f"{type(error).__name__}, whose text raises {type(second).__name__}"
