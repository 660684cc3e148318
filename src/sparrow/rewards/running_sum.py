"""The running-sum task: how a trace is written, and the verifier that reads one.

The packaged tiny policy (`sparrow.models.tiny`) adds one-digit numbers. Its prompt is `3+9+4=`; its trace repeats
each number with the sum so far, modulo 100, ones digit first, and closes with the answer in the same notation:
`+3=30;+9=21;+4=61;#61$`. Carries run from left to right that way, so every character follows from what precedes it.
A trace of n numbers has 6 n + 4 tokens. A slip early in the trace spoils the sums after it, as in any longer
derivation, and the share of right steps tells an early slip from a late one: that is what makes it a usable reward
while whole traces still fail.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sparrow.rewards.outcome import Outcome

END = "$"
MODULUS = 100

RunningSumMode = Literal["answer", "steps"]

_STEP_LENGTH = len("+3=30;")
_ANSWER = re.compile(r"#([0-9]{2})\Z")


def two_digits(total: int) -> str:
    """Writes `total` modulo 100 as two digits, ones first: 12 -> "21", 305 -> "50"."""
    return f"{total % MODULUS:02d}"[::-1]


def running_sum_prompt(numbers: Sequence[int]) -> str:
    """The question for `numbers`: [3, 9, 4] -> "3+9+4="."""
    return "+".join(str(number) for number in numbers) + "="


def running_sum_steps(numbers: Sequence[int]) -> list[str]:
    """The right steps, one per number: [3, 9] -> ["+3=30;", "+9=21;"]."""
    steps, total = [], 0
    for number in numbers:
        total += number
        steps.append(f"+{number}={two_digits(total)};")
    return steps


def running_sum_answer(numbers: Sequence[int]) -> str:
    """The answer in the trace's notation: [3, 9] -> "21"."""
    return two_digits(sum(numbers))


def running_sum_trace(numbers: Sequence[int]) -> str:
    """The whole right completion, closing `$` included: [3, 9] -> "+3=30;+9=21;#21$"."""
    return "".join(running_sum_steps(numbers)) + f"#{running_sum_answer(numbers)}{END}"


def share_of_right_steps(completion_text: str, numbers: Sequence[int]) -> float:
    """Share of right steps, the answer counted as one more step.

    Step i is right when the six characters at its own place are the right ones, judged against the true partial sum
    and not against the sum the trace had reached. The answer is right when it directly follows the last step.

    Args:
        completion_text: the completion, with or without the closing `$`.
        numbers: the n numbers of the prompt.

    Returns:
        right / (n + 1), in [0, 1].
    """
    text = completion_text.removesuffix(END)
    steps = running_sum_steps(numbers)
    right = sum(text.startswith(step, place * _STEP_LENGTH) for place, step in enumerate(steps))
    right += text[len(steps) * _STEP_LENGTH :] == f"#{running_sum_answer(numbers)}"
    return right / (len(steps) + 1)


def running_sum_outcome(
    completion_text: str,
    row: Mapping[str, Any],
    finish_reason: str = "stop",
    *,
    mode: RunningSumMode = "answer",
) -> Outcome:
    """Judges one completion of a running-sum row.

    A completion is parsable when it ends in `#` and two digits (a closing `$` is optional), and correct when those
    are the ground truth. A truncated completion is never correct, whatever it says.

    Args:
        completion_text: the completion alone, without the prompt.
        row: a row of `sparrow.data.sources.running_sum`; read are `reward_model.ground_truth` and, in mode "steps",
            `extra_info.numbers`.
        finish_reason: "stop" or "length".
        mode: "answer" scores 1 for a right answer, else 0; "steps" scores the share of right steps
            (`share_of_right_steps`), truncated completions included.

    Returns:
        The outcome, labelled "correct", "wrong", "unparsable" or "truncated".

    Raises:
        ValueError: if `mode` is none of the above.
    """
    if mode not in ("answer", "steps"):
        raise ValueError(f"reward mode {mode!r} is unknown; allowed: 'answer', 'steps'")
    label = _label(completion_text, row["reward_model"]["ground_truth"], finish_reason)
    if mode == "steps":
        return Outcome(share_of_right_steps(completion_text, row["extra_info"]["numbers"]), label)
    return Outcome(float(label == "correct"), label)


def running_sum_answered(completion_text: str) -> str | None:
    """The answer that a trace gives, in its own notation; None if it ends in none."""
    answer = _ANSWER.search(completion_text.removesuffix(END))
    return answer.group(1) if answer else None


def _label(
    completion_text: str, ground_truth: str, finish_reason: str
) -> Literal["correct", "wrong", "unparsable", "truncated"]:
    if finish_reason == "length":
        return "truncated"
    answer = running_sum_answered(completion_text)
    if answer is None:
        return "unparsable"
    return "correct" if answer == ground_truth else "wrong"
