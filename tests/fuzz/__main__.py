"""Command line of the fuzz run; `tests.fuzz` says what it does and how to add an operator."""

import argparse
import os
import sys
from pathlib import Path

# Triton reads it when it is imported first, and torch may do that.
os.environ["TRITON_INTERPRET"] = "1"

from tests.fuzz import OPERATORS
from tests.fuzz.run import run_index, run_operator, save

OUTPUT = Path("experiments/kernels/fuzz.json")


def main() -> int:
    """Runs the operators one after the other; 1 if any configuration failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random configurations of the operators.")
    parser.add_argument("--operator", choices=sorted(OPERATORS), action="append", help="default: all; may be repeated")
    parser.add_argument("--configurations", type=int, default=2000, help="per operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--index", type=int, help="run this configuration only; nothing is written")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON; results of other operators in it are kept")
    args = parser.parse_args()
    operators = args.operator or list(OPERATORS)
    if args.index is not None:
        for operator in operators:
            run_index(operator, args.seed, args.index)
        return 0
    failures = 0
    for operator in operators:
        result = run_operator(operator, args.seed, args.configurations)
        save(args.output, operator, result)
        failures += len(result["failures"])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
