"""What the parts of a step cost: dense update, adapter update, measuring alpha, judging.

    sparrow-train experiment=distill-quickstart steps=3 data.prompts_per_step=4 held_out=false \\
        callbacks.adapter_tail.prompts=2 logger=csv threads=1 paths.run_dir=outputs/overhead
    python -m experiments.overhead.study --run outputs/overhead
"""

import argparse
import csv
import statistics
from pathlib import Path

from experiments.common import axes, save, write

HERE = Path(__file__).parent
PARTS = {
    "rollout": "timing_s/gen",
    "rewards": "timing_s/reward",
    "dense pass": "timing_s/dense_pass",
    "sparse pass": "timing_s/sparse_pass",
}


def breakdown(rows: list[dict[str, str]]) -> dict[str, float]:
    """Median seconds of each part, the rest of the step, and sparse over dense pass."""
    found = {name: statistics.median(float(row[key]) for row in rows) for name, key in PARTS.items()}
    found["rest"] = statistics.median(
        float(row["timing_s/step"]) - sum(float(row[key]) for key in PARTS.values()) for row in rows
    )
    return found | {"sparse over dense pass": found["sparse pass"] / found["dense pass"]}


def main() -> None:
    """Command line: the run folder. The first step compiles and is left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    with (parser.parse_args().run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))[1:]
    found = breakdown(rows)
    print({name: round(value, 3) for name, value in found.items()})
    write(HERE, {"steps": len(rows), "seconds": found})
    figure, (ax,) = axes()
    left = 0.0
    for name in (*PARTS, "rest"):
        ax.barh([0], found[name], left=left, label=name)
        left += found[name]
    ax.set(xlabel="seconds of a step, medians", yticks=[], title="Packaged policy, 32 samples of up to 220 tokens")
    save(figure, HERE / "step.png")


if __name__ == "__main__":
    main()
