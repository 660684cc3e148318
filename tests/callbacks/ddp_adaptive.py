"""A few steps of control on this rank's share of the prompts; run as a script, on one process or on two.

python ddp_adaptive.py <folder> <rank> <processes>
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from test_adaptive import START, Data, Policy, rollout

from sparrow.callbacks import AdaptiveBudget, Tail

SHARES = ((0.0, 0.1, 0.5), (0.1, 0.0, 0.3), (0.06, 0.06, 0.05), (0.06, 0.0, 0.0))
"""Of the tokens below the line, per step and bin; the second half of the prompts has twice as many."""


def main() -> None:
    folder, rank, processes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    meeting = f"file://{folder}/group_of_{processes}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    tail, module, controller = Tail(START, filled=100), Policy(), AdaptiveBudget()
    own = folder / f"{rank}_of_{processes}"
    own.mkdir()
    run = SimpleNamespace(
        callbacks=[tail], datamodule=Data(), is_global_zero=rank == 0, default_root_dir=own, global_step=1
    )
    controller.on_train_start(run, module)  # type: ignore[arg-type]
    tables = []
    for below in SHARES:
        halves = [rollout(below, 3), rollout(tuple(2 * share for share in below), 3)]  # type: ignore[arg-type]
        mine = halves if processes == 1 else [halves[rank]]
        alpha_BT = torch.cat([scores.alpha_BT for _, scores in mine if scores.alpha_BT is not None])
        experience, module.scores = rollout(below, len(alpha_BT))
        object.__setattr__(module.scores, "alpha_BT", alpha_BT)
        controller.on_train_batch_end(run, module, None, {"experience": experience}, 0)  # type: ignore[arg-type]
        tables.append(list(module.schedule.table))
    (folder / f"{own.name}.json").write_text(json.dumps(tables))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
