"""Random configurations of the operators: reference against CPU path against Triton under its interpreter.

    python -m tests.fuzz --configurations 2000            # every operator, results in experiments/kernels/fuzz.json
    python -m tests.fuzz --operator select_pages --seed 7 --configurations 50 --output /tmp/fuzz.json
    python -m tests.fuzz --operator select_pages --seed 7 --index 31     # one configuration again, with its traceback

To add an operator, write `tests/fuzz/<operator>.py` with two functions and add its line to `OPERATORS`:

- `draw(random) -> case` takes a `random.Random` and returns a frozen dataclass of plain numbers and strings; its repr
  is what a failure prints. Keep sizes small: a configuration should take 0.05 to 0.3 seconds.
- `check(case) -> errors` runs every path on tensors made from the case (seed torch from a number of the case), raises
  AssertionError where paths disagree, and returns the error of each path, `{"cpu": 1e-7, "triton": 2e-7}`. For a path
  that must agree exactly the error is 0.0.

`TRITON_INTERPRET=1` is set before any operator module is imported, so that a module may import `gpu.py` at its top.
Configuration i depends on (seed, operator, i) alone: it is the same whatever else runs.
"""

OPERATORS: dict[str, str] = {
    "page_landmarks": "tests.fuzz.page_landmarks",
    "page_scores": "tests.fuzz.page_scores",
    "select_pages": "tests.fuzz.select_pages",
    "paged_attention": "tests.fuzz.paged_attention",
    "decode_attention": "tests.fuzz.decode_attention",
    "row_linear": "tests.fuzz.row_linear",
    "block_sparse_attention": "tests.fuzz.block_sparse_attention",
    "token_statistics": "tests.fuzz.token_statistics",
}
"""Operator and the module that draws and checks its configurations."""
