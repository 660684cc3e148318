"""Tasks of the reasoning-gym package as a source, made offline.

reasoning-gym seeds item i of a data set by `seed + i`, so neighbouring seeds share nearly all their items. The
held-out items therefore come from far away, and a question that is held out is never trained on, however small the
task's space is.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparrow.data.schema import PromptRow
from sparrow.rewards.reasoning_gym import PREFIX
from sparrow.rewards.tagged_json import dumps

INSTRUCTION = "\n\nGive the final answer, and nothing else, between <answer> and </answer>."
_HELD_OUT_OFFSET = 1_000_000_000
_MAX_SEED = 1_000_000_000
_MAX_REDRAWS = 20


@dataclass(frozen=True)
class Task:
    """One task of a mixture.

    Attributes:
        weight: relative share of rows.
        config: keyword arguments of the task's own configuration, without `seed` and `size`.
    """

    weight: float = 1.0
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReasoningGymSource:
    """Rows of one task or a mixture; judged by each task's own scorer.

    Attributes:
        tasks: name of the reasoning-gym task to its share and configuration; plain mappings with the keys `weight`
            and `config` do as well.
        count: training rows.
        validation_count: held-out rows.
        seed: of the training rows, below 10^9; the held-out rows do not depend on it.
        instruction: put after each question; must ask for the answer tag.
        distinct: no question twice in the training rows.
    """

    tasks: Mapping[str, Task | Mapping[str, Any]]
    count: int = 4096
    validation_count: int = 200
    seed: int = 0
    instruction: str = INSTRUCTION
    distinct: bool = False

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks is empty; at least one reasoning-gym task is needed")
        if not 0 <= self.seed < _MAX_SEED:
            raise ValueError(f"seed={self.seed} is not allowed; allowed: 0 to {_MAX_SEED - 1}")
        for name in ("count", "validation_count"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is not allowed; it must be 0 or more")
        for name in self.tasks:
            _check_task(name, self._task(name))

    def validation_rows(self) -> list[PromptRow]:
        """`validation_count` rows, no question twice."""
        return self._rows(self.validation_count, _HELD_OUT_OFFSET, "held_out", set(), distinct=True)

    def train_rows(self) -> list[PromptRow]:
        """`count` rows, none with a held-out question."""
        held_out = {row.prompt[-1]["content"] for row in self.validation_rows()}
        return self._rows(self.count, self.seed, "train", held_out, distinct=self.distinct)

    def _task(self, name: str) -> Task:
        task = self.tasks[name]
        return task if isinstance(task, Task) else Task(**{str(key): value for key, value in task.items()})

    def _rows(self, count: int, seed: int, split: str, taken: set[str], *, distinct: bool) -> list[PromptRow]:
        items = {name: _items(name, self._task(name), seed) for name in self.tasks}
        weights = [self._task(name).weight for name in self.tasks]
        rows: list[PromptRow] = []
        for index in range(count * _MAX_REDRAWS + _MAX_REDRAWS):
            if len(rows) == count:
                return rows
            chosen = random.Random(f"mixture/{seed}/{index}")
            name = chosen.choices(list(items), weights=weights)[0]
            row = self._row(name, items[name][index], split, len(rows))
            question = row.prompt[-1]["content"]
            if question not in taken:
                rows.append(row)
                taken |= {question} if distinct else set()
        raise ValueError(
            f"{split} rows of {', '.join(self.tasks)}: only {len(rows)} of {count} found in {_MAX_REDRAWS} x {count} "
            "draws without repeating or using held-out questions; allowed: a smaller count, or a larger task"
        )

    def _row(self, name: str, entry: Mapping[str, Any], split: str, index: int) -> PromptRow:
        fields = {
            "data_source": PREFIX + name,
            "prompt": [{"role": "user", "content": entry["question"] + self.instruction}],
            "ability": "reasoning",
            "reward_model": {"style": "rule", "ground_truth": str(entry["answer"])},
            "extra_info": {
                "split": split,
                "index": index,
                "dataset": name,
                "config": dumps(dict(self._task(name).config)),
                "entry": dumps(dict(entry)),
            },
        }
        return PromptRow.from_dict(fields, f"reasoning_gym/{name}[{split}]:{index}")


def _items(name: str, task: Task, seed: int) -> Any:
    import reasoning_gym

    # The size is nominal: items are made on demand at any index.
    return reasoning_gym.create_dataset(name, **task.config, seed=seed, size=_MAX_SEED)


def _check_task(name: str, task: Task) -> None:
    import difflib

    from reasoning_gym.factory import DATASETS

    if name not in DATASETS or name == "composite":
        near = difflib.get_close_matches(name, DATASETS, n=3)
        raise ValueError(f"reasoning-gym task {name!r} is unknown; near: {', '.join(near) or 'none of its tasks'}")
    if task.weight <= 0:
        raise ValueError(f"task {name}: weight={task.weight} is not allowed; it must be above 0")
    if {"seed", "size"} & set(task.config):
        raise ValueError(f"task {name}: config has seed or size; allowed: the source's own seed and count")
