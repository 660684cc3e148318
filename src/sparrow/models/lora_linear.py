"""A linear layer with a LoRA whose update is added by the very product that makes it.

PEFT computes ``base(x) + scaling * B(A(x))`` by two more passes over a tensor as wide as the output, and another for
its gradient: a fifth of the sparse pass of a small model, and memory traffic for nothing on any device.
"""

from typing import Any, cast

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable


class LoraLinear(Linear):
    """PEFT's layer, with the same parameters under the same names.

    What it does not know (several adapters at once, dropout, merged weights, a variant such as DoRA, an adapter of
    another dtype than its input) goes PEFT's way.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``x`` [..., I] to [..., O]."""
        name = self._alone(x, args, kwargs)
        if name is None:
            return super().forward(x, *args, **kwargs)
        base: Tensor = self.base_layer(x)
        low: Tensor = self.lora_A[name](x)
        weight_OR = self.lora_B[name].weight
        update = low.to(base.dtype), weight_OR.to(base.dtype), self.scaling[name]
        return cast(Tensor, AddLowRank.apply(base, *update))  # type: ignore[no-untyped-call]

    def _alone(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The one active adapter, if it is nothing but two matrices."""
        active = [name for name in self.active_adapters if name in self.lora_A]
        if args or kwargs or self.disable_adapters or self.merged or len(active) != 1:
            return None
        (name,) = active
        plain = name not in self.lora_variant and isinstance(self.lora_dropout[name], nn.Identity)
        same = x.dtype == self.lora_A[name].weight.dtype or torch.is_autocast_enabled(x.device.type)
        return name if plain and same and self.lora_B[name].bias is None else None


class AddLowRank(torch.autograd.Function):
    """``base + scaling * low @ weight^T``, written over ``base``: a linear layer's product, which nobody else holds."""

    @staticmethod
    def forward(ctx: FunctionCtx, base: Tensor, low: Tensor, weight_OR: Tensor, scaling: float) -> Tensor:
        """``base`` [..., O], ``low`` [..., R], and the scale of the update."""
        ctx.mark_dirty(base)
        ctx.save_for_backward(low, weight_OR)
        ctx.scaling = scaling  # type: ignore[attr-defined]
        base.view(-1, base.shape[-1]).addmm_(low.reshape(-1, low.shape[-1]), weight_OR.t(), alpha=scaling)
        return base

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        """Gradients of ``base``, ``low`` and the weight."""
        low, weight_OR = ctx.saved_tensors
        grad_XO = grad.reshape(-1, grad.shape[-1])
        grad_low = (grad_XO @ weight_OR).mul_(ctx.scaling).view_as(low)
        grad_weight_OR = None
        if ctx.needs_input_grad[2]:
            grad_weight_OR = (grad_XO.t() @ low.reshape(-1, low.shape[-1])).mul_(ctx.scaling)
        return grad, grad_low, grad_weight_OR, None
