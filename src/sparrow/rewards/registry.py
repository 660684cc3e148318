"""Which reward judges which row: by `data_source`, exactly or by a prefix that ends in `/*`.

The table below is what ships. A user adds to it with `register_reward`, or gives a scorer its own routes.
"""

import difflib
from collections.abc import Mapping

from sparrow.rewards.base import AnyRow, Reward, RewardFunction, as_reward, reward_row
from sparrow.rewards.code import Code
from sparrow.rewards.exact import Exact
from sparrow.rewards.math import Math
from sparrow.rewards.multiple_choice import MultipleChoice
from sparrow.rewards.numeric import Numeric
from sparrow.rewards.packaged import RunningSumReward
from sparrow.rewards.reasoning_gym import ReasoningGym

_MATH_SETS = (
    "POLARIS-Project/Polaris-Dataset-53K",
    "agentica-org/DeepScaleR-Preview-Dataset",
    "BytedTsinghua-SIA/DAPO-Math-17k",
    "open-r1/DAPO-Math-17k-Processed",
    "EleutherAI/hendrycks_math",
    "HuggingFaceH4/MATH-500",
    "openai/gsm8k",
    "HuggingFaceH4/aime_2024",
    "Maxwell-Jia/AIME_2024",
    "MathArena/aime_2025",
    "opencompass/AIME2025",
    "MathArena/aime_2026",
    "AI-MO/aimo-validation-amc",
    "math-ai/amc23",
    "scottgeng00/amc_22-24",
    "math-ai/minervamath",
    # Names in parquet files that other trainers wrote.
    "math_dapo",
    "lighteval/MATH",
    "DigitalLearningGmbH/MATH-lighteval",
)

_ROUTES: dict[str, Reward] = {
    "sparrow/running_sum": RunningSumReward(),
    "sparrow/chain_sum": Numeric(finder="first_tag"),
    "sparrow/exact": Exact(),
    "sparrow/numeric": Numeric(),
    "sparrow/math": Math(),
    "sparrow/multiple_choice": MultipleChoice(),
    "sparrow/code": Code(),
    **dict.fromkeys(_MATH_SETS, Math()),
    "Idavidrein/gpqa": MultipleChoice(),
    "cais/mmlu": MultipleChoice(),
    "TIGER-Lab/MMLU-Pro": MultipleChoice("ABCDEFGHIJ"),
    "BAAI/TACO": Code(),
    "likaixin/TACO-verified": Code(),
    "code": Code(),  # the name in code-r1's files
    "evalplus/humanevalplus": Code(),
    "evalplus/mbppplus": Code(),
    "livecodebench/code_generation_lite": Code(),
    # Decimal arithmetic only, so it cannot hang; every other task runs isolated.
    "reasoning_gym/chain_sum": ReasoningGym(isolated=False),
    "reasoning_gym/*": ReasoningGym(),
}


def registered() -> list[str]:
    """The data sources and prefixes that route, sorted."""
    return sorted(_ROUTES)


def register_reward(data_source: str, reward: Reward | RewardFunction) -> None:
    """Routes a data source, or a prefix ending in `/*`, to a reward.

    Raises:
        ValueError: if it is routed already.
    """
    if data_source in _ROUTES:
        raise ValueError(f"data_source {data_source!r} is routed already, to {_ROUTES[data_source]}")
    _ROUTES[data_source] = as_reward(reward)


def route(row: AnyRow, routes: Mapping[str, Reward] | None = None) -> Reward:
    """The reward of a row.

    Args:
        row: a row object or mapping.
        routes: looked up before the registered ones.

    Raises:
        KeyError: if its data source does not route; names the row, its data source and those that do.
    """
    compact = reward_row(row)
    for table in (routes or {}, _ROUTES):
        if (reward := _look_up(table, compact.data_source)) is not None:
            return reward
    known = sorted({*_ROUTES, *(routes or {})})
    near = difflib.get_close_matches(compact.data_source, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise KeyError(f"{compact}: no reward is registered for this data_source{hint}; registered: {', '.join(known)}")


def _look_up(table: Mapping[str, Reward], data_source: str) -> Reward | None:
    if data_source in table:
        return table[data_source]
    prefixes = [name for name in table if name.endswith("/*") and data_source.startswith(name[:-1])]
    return table[max(prefixes, key=len)] if prefixes else None
