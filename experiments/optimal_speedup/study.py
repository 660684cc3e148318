"""What the cost model says of the published schedules at tau 0.86, by model size. Nothing is measured.

    python -m experiments.optimal_speedup.study

Results and plots are written beside this file.
"""

from pathlib import Path

from experiments.common import axes, save, write
from sparrow.schedule import BudgetSchedule, load_schedule
from sparrow.schedule.cost import GPU_INTENSITY, MODEL_SHAPES, Convention, rollout_cost

HERE = Path(__file__).parent
SIZES = ("1.7b", "4b", "8b", "14b")
STUDY = {"1.7b": 5.2, "4b": 5.1, "8b": 3.5, "14b": 2.7}
"""Best theoretical rollout speed-up at the threshold, read off the study's figure 2c."""

SAMPLES, PROMPT, RESPONSE, GPU = 8, 500, 32000, "h200"


def speedup(size: str, schedule: BudgetSchedule, convention: Convention, samples: int = SAMPLES) -> float:
    """Cost of a dense rollout over that of a scheduled one."""
    dense, sparse = (
        rollout_cost(
            MODEL_SHAPES[f"qwen3-{size}"],
            samples=samples,
            prompt_len=PROMPT,
            response_len=RESPONSE,
            schedule=choice,
            intensity=GPU_INTENSITY[GPU],
            convention=convention,
        ).total
        for choice in (None, schedule)
    )
    return dense / sparse


def main() -> None:
    """Compute, write ``results.json`` and ``speedup.png``."""
    schedules = {size: load_schedule(f"qwen3-{size}-0.86") for size in SIZES}
    results = {
        size: {
            "study_figure_2c": STUDY[size],
            "paper": speedup(size, schedule, "paper"),
            "bytes": speedup(size, schedule, "bytes"),
            "bytes_64_samples": speedup(size, schedule, "bytes", samples=64),
        }
        for size, schedule in schedules.items()
    }
    for size, found in results.items():
        print(size, {key: round(value, 2) for key, value in found.items()})
    write(HERE, {"samples": SAMPLES, "prompt_len": PROMPT, "response_len": RESPONSE, "gpu": GPU, "sizes": results})
    figure, (ax,) = axes()
    labels = {
        "study_figure_2c": "study, best at the threshold",
        "paper": "published schedule, study's formula",
        "bytes": "published schedule, bytes of a step",
        "bytes_64_samples": "the same, 64 sequences",
    }
    for place, (key, label) in enumerate(labels.items()):
        at = [index + 0.2 * place - 0.3 for index in range(len(SIZES))]
        ax.bar(at, [results[size][key] for size in SIZES], 0.2, label=label)
    ax.set_xticks(range(len(SIZES)), [size.upper() for size in SIZES])
    ax.set(xlabel="Qwen3 model", ylabel="dense cost / sparse cost")
    ax.set_title(f"Rollouts of {RESPONSE} tokens, {SAMPLES} sequences")
    save(figure, HERE / "speedup.png")


if __name__ == "__main__":
    main()
