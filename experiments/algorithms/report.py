"""From the files of finished runs to two markdown tables and a plot."""

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

LAST = 10
"""Steps at the end of a run whose mean is its last reward, as in a run's own summary."""

Runs = dict[str, list[dict[str, Any]]]


def write_report(folder: Path) -> None:
    """Write `tables.md` and `reward.png` into `folder` from `runs/*.json` there; nothing if there are none."""
    tables: dict[str, Runs] = {"algorithms": defaultdict(list), "corrections": defaultdict(list)}
    for file in sorted((folder / "runs").glob("*.json")):
        found = json.loads(file.read_text())
        table, arm, _ = found["name"].split("/")
        tables[table][arm].append(found)
    if not any(tables.values()):
        return
    written = [algorithm_table(tables["algorithms"]), correction_table(tables["corrections"])]
    (folder / "tables.md").write_text("\n".join(written))
    plot(folder / "reward.png", tables)


def algorithm_table(runs: Runs) -> str:
    """An algorithm a row: its seeds, and what they reached."""
    rows = ["| algorithm | seeds | exact match after, mean (least to most) | reward sampled, last 10 steps | wall s |"]
    rows.append("|---|---|---|---|---|")
    for arm, found in runs.items():
        after = [one["summary"].get("exact_match_after") for one in found]
        cells = [arm, str(len(found)), spread(after), f"{last(found, 'critic/score_sampled/mean'):.3f}", wall(found)]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def correction_table(runs: Runs) -> str:
    """A correction a row, under the budget that is too small."""
    heads = ("correction", "exact match after", "least p5 of a filled bin", "reward, last 10 steps", "tokens dropped")
    rows = ["| " + " | ".join([*heads, "gradient norm"]) + " |"]
    rows.append("|---|---|---|---|---|---|")
    columns = ("critic/score/mean", "rollout_corr/rollout_rs_masked_fraction", "actor/grad_norm")
    for arm, found in runs.items():
        measured = [spread([one["summary"].get(key) for one in found]) for key in ("exact_match_after", "tail_p05_min")]
        rows.append("| " + " | ".join([arm, *measured, *(f"{last(found, key):.3f}" for key in columns)]) + " |")
    return "\n".join(rows) + "\n"


def spread(values: list[float | None]) -> str:
    """Mean, and least and most of several; a dash where nothing was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = f"{statistics.mean(known):.3f}"
    return mean if len(known) == 1 else f"{mean} ({min(known):.3f} to {max(known):.3f})"


def last(runs: list[dict[str, Any]], key: str) -> float:
    """Mean over runs of the mean over their last steps; of a run without a log, the last reward in its summary."""
    ends = [statistics.mean(run["log"][key][-LAST:]) if run["log"] else run["summary"]["reward_last"] for run in runs]
    return statistics.mean(ends)


def wall(runs: list[dict[str, Any]]) -> str:
    """Mean wall time of a run."""
    return f"{statistics.mean(run['summary']['wall_s'] for run in runs):.0f}"


def plot(path: Path, tables: dict[str, Runs]) -> None:
    """Reward over steps: a panel per table, a line per run."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for ax, (table, runs) in zip(axes, tables.items(), strict=True):
        for index, (arm, found) in enumerate(runs.items()):
            for place, run in enumerate(found):
                values = run["log"].get("critic/score_sampled/mean", [])
                steps = range(1, len(values) + 1)
                ax.plot(steps, values, color=f"C{index % 10}", alpha=0.8, label=arm if place == 0 else None)
        ax.set(xlabel="RL step", ylabel="mean reward sampled", title=table)
        ax.grid(alpha=0.3)
        if runs:
            ax.legend(fontsize="small")
    figure.savefig(path, dpi=130)
    plt.close(figure)
