"""A LoRA whose update is added in place: PEFT's values and gradients, and PEFT's own way for all it does not know."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.autograd.function import Function

from sparrow.models.lora_linear import AddLowRank, LoraLinear

INPUTS, OUTPUTS, RANK, ALPHA = 7, 5, 3, 6.0


class Holder(nn.Module):
    """One projection, as PEFT wants it: inside a module."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(INPUTS, OUTPUTS, bias=bias)


def pair(bias: bool = False, **settings: Any) -> tuple[Linear, LoraLinear]:
    """PEFT's layer and ours on the same weights, the second matrix away from zero."""
    layers: list[Linear] = []
    for kind in (Linear, LoraLinear):
        torch.manual_seed(0)
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["proj"], **settings)
        layer = get_peft_model(Holder(bias), config).base_model.model.proj
        assert type(layer) is Linear
        nn.init.normal_(layer.lora_B["default"].weight)
        layer.__class__ = kind
        layers.append(layer.requires_grad_(True))
    theirs, ours = layers
    assert isinstance(ours, LoraLinear)
    return theirs, ours


def passed(layer: Linear, x: Tensor) -> list[Tensor]:
    """Output and every gradient of one pass."""
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    out = layer(x)
    (out.float() * torch.linspace(-1.0, 1.0, out.numel()).view(out.shape)).sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]


@pytest.fixture
def adds(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of the outputs that were written over."""
    seen: list[torch.Size] = []
    forward: Callable[..., Tensor] = AddLowRank.forward

    def counted(ctx: Any, base: Tensor, *rest: Any) -> Tensor:
        seen.append(base.shape)
        return forward(ctx, base, *rest)

    monkeypatch.setattr(AddLowRank, "forward", staticmethod(counted))
    return seen


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(INPUTS,), (1, INPUTS), (4, INPUTS), (2, 3, INPUTS), (2, 1, 3, INPUTS), (0, INPUTS)])
def test_values_and_gradients_are_those_of_peft(bias: bool, shape: tuple[int, ...], adds: list[torch.Size]) -> None:
    theirs, ours = pair(bias)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    expected, found = passed(theirs, x), passed(ours, x)
    assert adds == [torch.Size((*shape[:-1], OUTPUTS))]
    assert len(expected) == len(found) == 5 + bias
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_the_formula_by_hand() -> None:
    _, ours = pair()
    x = torch.randn(4, INPUTS)
    update = ALPHA / RANK * ours.lora_B["default"].weight @ ours.lora_A["default"].weight
    torch.testing.assert_close(ours(x), x @ (ours.base_layer.weight + update).t())


def test_gradients_in_double_precision_against_finite_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    base, low, weight = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 2, 5), (3, 2, 4), (5, 4))
    )
    assert torch.autograd.gradcheck(lambda b, x, w: AddLowRank.apply(b * 1.0, x, w, 1.7), (base, low, weight))


def test_an_input_laid_out_the_other_way_round() -> None:
    theirs, ours = pair()
    x = torch.randn(INPUTS, 3, 2).permute(2, 1, 0)
    for one, other in zip(passed(theirs, x), passed(ours, x), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_a_frozen_base_gets_no_gradient_and_the_adapter_gets_its_own() -> None:
    theirs, ours = pair()
    x = torch.randn(4, INPUTS)
    for layer in (theirs, ours):
        layer.base_layer.requires_grad_(False)
        layer(x).square().sum().backward()  # not even the input has a gradient, as in a model's first layer
        assert layer.base_layer.weight.grad is None
    for name in ("lora_A", "lora_B"):
        one, other = (getattr(layer, name)["default"].weight.grad for layer in (theirs, ours))
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_a_frozen_adapter_still_moves_the_base() -> None:
    theirs, ours = pair()
    x = torch.randn(4, INPUTS)
    for layer in (theirs, ours):
        layer.lora_A.requires_grad_(False)
        layer.lora_B.requires_grad_(False)
    for one, other in zip(passed(theirs, x), passed(ours, x), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_autocast_gives_what_it_gives_peft_to_the_step_of_its_type() -> None:
    theirs, ours = pair()
    x = torch.randn(4, INPUTS)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = passed(theirs, x), passed(ours, x)
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(other.float(), one.float(), rtol=2e-2, atol=2e-2)


def test_without_gradients_the_input_stays_as_it_was() -> None:
    _, ours = pair()
    x = torch.randn(4, INPUTS)
    kept = x.clone()
    with torch.inference_mode():
        ours(x)
    assert torch.equal(x, kept)


def switched_off(layer: Linear) -> None:
    layer.enable_adapters(False)


def merged(layer: Linear) -> None:
    layer.merge()


def two_at_once(layer: Linear) -> None:
    layer.update_layer("second", r=2, lora_alpha=1.0, config=LoraConfig(r=2, lora_alpha=1.0))
    torch.manual_seed(3)
    nn.init.normal_(layer.lora_A["second"].weight)
    nn.init.normal_(layer.lora_B["second"].weight)
    layer.set_adapter(["default", "second"])


def in_another_type(layer: Linear) -> None:
    layer.lora_A.to(torch.float64)
    layer.lora_B.to(torch.float64)


@pytest.mark.parametrize("change", [switched_off, merged, two_at_once, in_another_type])
def test_what_it_does_not_know_goes_the_way_of_peft(change: Callable[[Linear], None], adds: list[torch.Size]) -> None:
    theirs, ours = pair()
    x = torch.randn(4, INPUTS)
    for layer in (theirs, ours):
        change(layer)
    assert torch.equal(ours(x), theirs(x))
    assert adds == []


@pytest.mark.parametrize("settings", [{"lora_dropout": 0.5}, {"use_dora": True}, {"lora_bias": True}])
def test_settings_it_does_not_know_go_the_way_of_peft(settings: dict[str, Any], adds: list[torch.Size]) -> None:
    theirs, ours = pair(bias=True, **settings)
    x = torch.randn(4, INPUTS)
    found = []
    for layer in (theirs, ours):
        torch.manual_seed(4)  # dropout
        found.append(layer(x))
    assert torch.equal(*found)
    assert adds == []


def test_the_counting_of_these_tests_counts(adds: list[torch.Size]) -> None:
    assert issubclass(AddLowRank, Function)
    pair()[1](torch.randn(2, INPUTS))
    assert adds == [torch.Size((2, OUTPUTS))]
