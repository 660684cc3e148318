"""Keeps the terminal for the run: messages of libraries that say nothing about it are silenced, each for a reason."""

import logging
import warnings

IGNORED = (
    # Lightning 2.6 uses a torch API that 2.13 renamed.
    ".*LeafSpec.*",
    # Held-out evaluation is a callback over the rollout engine, not a validation step.
    ".*no `validation_step`.*",
    # Prompts are held in memory: worker processes would cost more than they save.
    ".*does not have many workers.*",
    # A run that goes on does so beside its own checkpoints; the folder of another one was refused before.
    ".*Checkpoint directory .* exists and is not empty.*",
    # A run resumed in another folder ranks no checkpoints: all are kept.
    ".*dirpath has changed.*",
    # The optimizer steps inside the batch; a checkpoint after it holds the stepped weights.
    ".*pre-optimization state.*",
)


def quiet() -> None:
    """Silence what :data:`IGNORED` lists, device banners, and bars for loading weights."""
    from transformers.utils import logging as transformers_logging

    for message in IGNORED:
        warnings.filterwarnings("ignore", message=message)
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    transformers_logging.disable_progress_bar()
