"""Weights spread over ranks (FSDP2): how they are cut, and when a rank holds all of them.

Each decoder layer is one group and everything else another, so a training pass gathers one layer at a time. A rollout
cannot: it runs as many steps as its longest completion, which no two ranks share, and a gather that one rank makes
alone never ends. So the weights are gathered once, before, and dropped after. Masters stay in fp32; gathered weights
are in the dtype that computes. Gradients are summed over ranks, as under DDP: losses are divided by global counts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from sparrow.models.adapter import base_model

BODY = "sparrow_body"
"""Name of the forward without head on a sharded model: FSDP gathers around methods that it knows."""


def shard(model: nn.Module, mesh: DeviceMesh, dtype: torch.dtype = torch.float32) -> None:
    """Spread a policy's weights over the ranks of ``mesh``, in place; a model that is spread already is left alone.

    Args:
        model: a causal LM, with or without an adapter; fp32 parameters.
        mesh: one-dimensional.
        dtype: of gathered weights and of computation; gradients are summed in fp32.
    """
    inner: Any = base_model(model)
    if isinstance(inner, FSDPModule):
        return
    low = None if dtype == torch.float32 else dtype
    # Inputs are not cast: token ids have no dtype to lose, and what else a pass carries must arrive as the same object.
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in inner.get_decoder().layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(inner, mesh=mesh, mp_policy=policy, reshard_after_forward=False)  # the head is read after the forward
    for module in _sharded(inner):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # any other factor than the mean is not known to gloo
    setattr(inner, BODY, MethodType(_body, inner))
    register_fsdp_forward_method(inner, BODY)


def is_sharded(model: nn.Module) -> bool:
    """Whether :func:`shard` was applied."""
    return isinstance(base_model(model), FSDPModule)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Every rank holds all weights inside: any number of forward passes without gradient runs, rank by rank.

    All ranks must enter; leaving takes no communication. What was read from the weights inside is empty afterwards,
    and they must not be stepped inside.
    """
    root: Any = base_model(model)
    modules = _sharded(model)
    for module in modules:
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    # CPU kernels read weights through numpy, after which torch may not free their memory, as resharding does: they get
    # copies there.
    lent = [(p, p.data) for p in model.parameters() if p.device.type == "cpu"] if modules else []
    for parameter, data in lent:
        parameter.data = data.clone()
    try:
        yield
    finally:
        for parameter, data in lent:
            parameter.data = data
        for module in modules:
            module.set_reshard_after_forward(module is not root, recurse=False)
            module.reshard()


@contextmanager
def resharded(model: nn.Module) -> Iterator[None]:
    """For a forward without backward: drops afterwards what backward would have dropped.

    A gathered weight that outlives an optimizer step would be read again, and is stale.
    """
    try:
        yield
    finally:
        for module in _sharded(model):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """A tensor as it is without sharding; all ranks must ask for it, for theirs to be put together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_state(model: nn.Module) -> dict[str, Tensor] | None:
    """The whole state of a sharded model on the CPU of rank 0, tensor by tensor; None of one that is not.

    All ranks must call it; on other ranks the result is empty.
    """
    if not is_sharded(model):
        return None
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        held = whole(tensor.detach())
        if torch.distributed.get_rank() == 0:
            state[name] = held.cpu()
    return state


def _sharded(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _body(self: Any, **arguments: Any) -> Tensor:
    states: Tensor = self.get_decoder()(**arguments).last_hidden_state
    return states
