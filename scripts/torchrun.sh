#!/usr/bin/env bash
# One run on several GPUs of one machine, or on several machines, by torchrun. Start it on every machine:
#
#   RUN_DIR=/shared/runs/a NODES=2 NODE_RANK=0 MASTER=10.0.0.1 scripts/torchrun.sh experiment=mine trainer=fsdp2_multinode
#   RUN_DIR=/shared/runs/a NODES=2 NODE_RANK=1 MASTER=10.0.0.1 scripts/torchrun.sh experiment=mine trainer=fsdp2_multinode
#
# RUN_DIR    the run folder, the same on all machines and on a file system that they share; a run found there goes on
# NODES      machines (1)
# NODE_RANK  this one, from 0 (0)
# GPUS       processes on each (all GPUs)
# MASTER     address of machine 0, and PORT a free port there (127.0.0.1, 29500)
set -euo pipefail

: "${RUN_DIR:?set RUN_DIR to the run folder}"
nodes=${NODES:-1}
processes=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}

exec python -m torch.distributed.run \
    --nnodes="$nodes" --node-rank="${NODE_RANK:-0}" --nproc-per-node="$processes" \
    --master-addr="${MASTER:-127.0.0.1}" --master-port="${PORT:-29500}" \
    -m sparrow.train "$@" \
    trainer.num_nodes="$nodes" trainer.devices="$processes" paths.run_dir="$RUN_DIR" resume=auto
