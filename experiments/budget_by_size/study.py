"""Which budgets hold a tail, by model size: the published tables beside what was calibrated here. Nothing is measured.

    python -m experiments.budget_by_size.study

Results and plots are written beside this file.
"""

from pathlib import Path

from experiments.common import axes, save, write
from sparrow.schedule import BudgetSchedule, load_schedule

HERE = Path(__file__).parent
PUBLISHED = tuple(f"qwen3-{size}-0.86" for size in ("1.7b", "4b", "8b", "14b"))
OURS = {
    "SmolLM2-135M, 0.86 of exact alpha": HERE.parent / "calibrate_smollm2" / "schedule_1k.yaml",
    "packaged policy, 0.95 of exact alpha": Path("tiny"),
}
LENGTHS = (128, 256, 512, 1000, 2000, 4000, 8000, 16000, 32000)


def tokens_read(schedule: BudgetSchedule, length: int) -> int:
    """Tokens that a step of a sparse layer reads at a length, reserved pages included."""
    return min(schedule.total_pages(length) * schedule.page_size, length)


def main() -> None:
    """Tabulate, write ``results.json`` and ``budgets.png``."""
    schedules = {name: load_schedule(name) for name in PUBLISHED}
    schedules |= {name: load_schedule(path) for name, path in OURS.items()}
    # A calibrated table holds for what was measured: its last bin's end is where its line ends.
    ends = {name: s.num_bins * s.bin_tokens if name in OURS else max(LENGTHS) for name, s in schedules.items()}
    results = {
        name: {str(n): tokens_read(schedule, n) for n in LENGTHS if n <= ends[name]}
        for name, schedule in schedules.items()
    }
    for name, row in results.items():
        print(name, row)
    write(HERE, {"tokens_read": results})
    figure, (ax,) = axes()
    for name, schedule in schedules.items():
        lengths = range(64, ends[name] + 1, 64)
        read = [tokens_read(schedule, length) for length in lengths]
        ax.plot(lengths, read, "--" if name in OURS else "-", label=name)
    ax.set(xlabel="cached tokens", ylabel="tokens read per step", xscale="log", yscale="log")
    ax.set_title("Tokens that a schedule reads")
    save(figure, HERE / "budgets.png")


if __name__ == "__main__":
    main()
