"""What happens between backward and the optimizer's step: sum over ranks, check, clip."""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter


def without_reducer(strategy: Strategy) -> AbstractContextManager[None]:
    """Backward without DDP's own gradient reduction, which cannot tell passes and optimizers apart."""
    return strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) else nullcontext()


def all_reduce_gradients(parameters: Sequence[Parameter]) -> None:
    """Sum gradients over the ranks of a data-parallel job, in place, for the parameters of one optimizer.

    Losses are divided by global token counts, so gradients add up; there is no mean over ranks. A parameter without a
    gradient on this rank takes part with zeros: every rank must send the same list. Sharded parameters are left
    alone, since their backward has already reduced them.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)


def global_sum(value: float | Tensor, device: torch.device) -> float:
    """Sum a number over all ranks."""
    return float(sum_over_ranks(torch.as_tensor(value, dtype=torch.float64, device=device).clone()))


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum a tensor over all ranks, in place, and return it."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values


def clip_gradients(parameters: Iterable[Parameter], max_norm: float | None) -> float:
    """Scale gradients to a total norm of at most ``max_norm`` and return the norm before scaling.

    A norm that is not finite leaves the gradients untouched: the caller decides whether to skip or stop.
    """
    params = [p for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
    value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if max_norm is not None and math.isfinite(value):
        torch.nn.utils.clip_grads_with_norm_(params, max_norm, norm)
    return value
