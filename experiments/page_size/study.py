"""Page sizes at equal tokens read: the tail against the bytes that attention moves.

    sparrow-calibrate paths.run_dir=outputs/page_size 'calibration.sweep.page_sizes=[2,4,8,16]' \\
        'calibration.sweep.tokens=[64,96,128,160,192,224]' calibration.sweep.prompts=24 calibration.prompts=24 \\
        calibration.held_out=2 'calibration.grid=[8]' 'calibration.other_taus=[]' calibration.rounds=1 threads=1
    python -m experiments.page_size.study --run outputs/page_size --length 276
"""

import argparse
import json
from pathlib import Path
from typing import Any

from experiments.common import axes, save, write
from sparrow.schedule import BudgetSchedule
from sparrow.schedule.cost import attention_bound

HERE = Path(__file__).parent


def gain(page_size: int, tokens: int, length: int, reserved: int = 3) -> float:
    """Bytes of dense attention over those of sparse attention, of one layer at one length."""
    return attention_bound(length, BudgetSchedule.constant(tokens // page_size - reserved, page_size))


def main() -> None:
    """Command line: the calibration's run folder, and the length at which bytes are counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--length", type=int, required=True, help="cached tokens")
    options = parser.parse_args()
    points: list[dict[str, Any]] = json.loads((options.run / "calibration.json").read_text())["sweep"]
    found = [{**point, "gain": gain(point["page_size"], point["tokens"], options.length)} for point in points]
    write(HERE, {"length": options.length, "points": found})
    figure, (ax,) = axes()
    for size in sorted({point["page_size"] for point in found}):
        own = [point for point in found if point["page_size"] == size]
        ax.plot([p["gain"] for p in own], [p["tail"] for p in own], marker="o", label=f"pages of {size} tokens")
    ax.set(xlabel="bytes of dense attention / bytes of sparse", ylabel="least p5 of exact alpha of a bin")
    ax.set_title(f"Constant budgets, one layer at {options.length} tokens")
    save(figure, HERE / "pareto.png")


if __name__ == "__main__":
    main()
