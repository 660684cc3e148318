"""Weights held beside those that train: the ones of the start (a reference) or of the last refresh (an actor)."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sparrow.distributed.sharding import whole


class Snapshot:
    """A frozen copy of a policy. Not a submodule of anything: no optimizer, strategy or export sees it.

    It costs the memory of the weights once more.

    Args:
        model: the policy, with or without an adapter.

    Attributes:
        model: the copy.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def to(self, device: torch.device) -> None:
        """Move the copy."""
        self.model.to(device)

    @torch.no_grad()
    def copy_from(self, model: nn.Module) -> None:
        """Take over the weights of ``model`` as they are now, put together where they are sharded."""
        for held, parameter in zip(self.model.parameters(), model.parameters(), strict=True):
            held.copy_(whole(parameter.detach()))

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a checkpoint."""
        self.model.load_state_dict(state)


def check_shapes(model: Mapping[str, Tensor], checkpoint: Mapping[str, Tensor]) -> None:
    """Check that a checkpoint's weights are those of the model, before any is loaded.

    Raises:
        ValueError: one of them has another shape.
    """
    for name, tensor in checkpoint.items():
        if name in model and model[name].shape != tensor.shape:
            raise ValueError(
                f"resume: the checkpoint is of another model: {name} is {list(tensor.shape)} there and "
                f"{list(model[name].shape)} in model.name_or_path; a resumed run must keep its model"
            )
