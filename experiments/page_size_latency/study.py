"""Time of a sparse decode step by page size, at equal tokens read.

    python -m experiments.page_size_latency.study --output outputs/page_size_latency

Each page size is a `sparrow-benchmark` of its own and is kept.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.common import axes, save, write
from experiments.folders import make_way

HERE = Path(__file__).parent
READ = 1024
"""Tokens read, reserved pages included."""

SIZES = (16, 32, 64, 128)
TOKENS = (4000, 8000, 16000)
SMALL = (
    *("suite=kernels", f"suite.tokens={list(TOKENS)}".replace(" ", ""), "suite.repeats=15", "suite.budget_s=2.0"),
    *("suite.train_tokens=64", "suite.statistics_tokens=16", "suite.hidden=64", "suite.vocab=500", "threads=1"),
)


def run(size: int, output: Path) -> dict[str, Any]:
    """Milliseconds of scores, choice and attention together, and of dense attention, by cached tokens."""
    folder = output / str(size)
    if not (folder / "kernels.json").is_file():
        command = [sys.executable, "-m", "sparrow.benchmark", *SMALL, f"suite.page_size={size}"]
        subprocess.run([*command, f"suite.pages=[{READ // size}]", f"paths.run_dir={make_way(folder)}"], check=True)
    tables = json.loads((folder / "kernels.json").read_text())["tables"]
    return {str(tokens): times(tables[f"decode, {tokens} tokens"], size) for tokens in TOKENS}


def times(table: list[dict[str, Any]], size: int) -> dict[str, float]:
    """Milliseconds of the two operators of a table that are compared."""
    rows = {entry["operator"]: entry for entry in table}
    named = {"sparse": f"sparse_step/{READ // size}", "dense": "paged_attention/dense"}
    return {name: 1000 * rows[operator]["seconds"] for name, operator in named.items()}


def main() -> None:
    """Command line: the output folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    results = {str(size): run(size, options.output) for size in SIZES}
    write(HERE, {"tokens_read": READ, "milliseconds": results})
    figure, (ax,) = axes()
    for size, found in results.items():
        ax.plot(TOKENS, [found[str(tokens)]["sparse"] for tokens in TOKENS], marker="o", label=f"pages of {size}")
    dense = [min(found[str(tokens)]["dense"] for found in results.values()) for tokens in TOKENS]
    ax.plot(TOKENS, dense, "--", color="gray", marker="o", label="dense, fastest page size")
    ax.set(xlabel="cached tokens", ylabel="milliseconds, median", title=f"One layer, 8 sequences, {READ} tokens read")
    save(figure, HERE / "latency.png")


if __name__ == "__main__":
    main()
