#!/usr/bin/env bash
# Everything that only a GPU can show, in one go: the tests marked `gpu`, then the benchmarks at the shape of Qwen3-1.7B.
#   bash scripts/gpu.sh outputs/gpu          # about twenty minutes on one H200
# Each part leaves its log; a part that fails does not stop the others. Results: <folder>/*/summary.json.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
out=${1:?usage: gpu.sh <folder for results>}
python=${PYTHON:-python}
mkdir "$out" || exit 1 # a folder of its own: no run overwrites another one
status=0

part() { # name, command
    local name=$1
    shift
    echo "== $name"
    "$@" >"$out/$name.log" 2>&1 || { status=1; echo "failed, see $out/$name.log"; }
    tail -n 3 "$out/$name.log"
}

part tests "$python" -m pytest -m gpu -q -p no:cacheprovider
part kernels "$python" -m sparrow.benchmark suite=kernels-qwen3-1.7b paths.run_dir="$out/kernels"
part steps "$python" -m sparrow.benchmark suite=rollout-qwen3-1.7b paths.run_dir="$out/steps"
part steps_eager "$python" -m sparrow.benchmark suite=rollout-qwen3-1.7b suite.graphs=false paths.run_dir="$out/steps_eager"
part rollout "$python" -m sparrow.benchmark suite=rollout-qwen3-1.7b suite.batch=64 suite.pages=null \
    suite.schedule=qwen3-1.7b-0.86 suite.generate_contexts=[] paths.run_dir="$out/rollout"
exit "$status"
