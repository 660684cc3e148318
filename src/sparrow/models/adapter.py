"""The LoRA adapter of the sparse actor, and the one place that touches PEFT.

The base stays trainable beside its adapter: both are trained, each in its own pass. So the adapter must be added before
a strategy wraps the model (DDP registers only parameters that require gradients at that moment), and switching it on or
off must not touch ``requires_grad``, which PEFT's own ``disable_adapter`` does (and takes 70 times as long).
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.save_and_load import load_peft_weights
from torch import Tensor, nn
from torch.nn import Parameter

from sparrow.models.lora_linear import LoraLinear

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Projections of a decoder layer that an adapter can sit on, in every supported family."""

_ADAPTER = "default"
_LAYERS: WeakKeyDictionary[nn.Module, list[BaseTunerLayer]] = WeakKeyDictionary()
_MARK = "lora_"  # every parameter of a LoRA adapter has it in its name, no parameter of a base model does


def add_adapter(
    model: nn.Module,
    *,
    rank: int = 32,
    alpha: float = 64.0,
    targets: Sequence[str] | str = "all-linear",
    dropout: float = 0.0,
) -> PeftModel:
    """Wrap a policy with a new LoRA adapter that changes nothing yet; base and adapter both require gradients.

    Args:
        model: a transformers causal LM; its modules are modified in place.
        rank: rank of the update.
        alpha: the update is scaled by ``alpha / rank``.
        targets: some of :data:`LINEAR_LAYERS`, or ``all-linear`` for all of them.
        dropout: dropout on the adapter's input. Above 0 the trained policy is not the sampled one.

    Raises:
        ValueError: the model has an adapter already, or a value is out of range.
    """
    if has_adapter(model):
        raise ValueError("the model has an adapter already")
    if rank < 1:
        raise ValueError(f"rank={rank}: must be 1 or more")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout={dropout}: must be at least 0 and below 1")
    config = LoraConfig(
        r=rank,
        lora_alpha=cast(int, alpha),  # any number works; PEFT only divides it by the rank
        target_modules=_targets(targets),
        lora_dropout=dropout,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():  # PEFT asks transformers by a name that transformers is about to drop
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        wrapped = get_peft_model(cast(Any, model), config, adapter_name=_ADAPTER)
    assert isinstance(wrapped, PeftModel)
    for layer in _tuner_layers(wrapped):
        if type(layer) is lora.Linear:
            layer.__class__ = LoraLinear  # the same parameters, a cheaper forward
    wrapped.requires_grad_(True)
    return wrapped


def has_adapter(model: nn.Module) -> bool:
    """Whether :func:`add_adapter` was applied."""
    return bool(_tuner_layers(model))


@contextmanager
def adapter(model: nn.Module, on: bool) -> Iterator[None]:
    """Forward (and backward, which may recompute it) with the adapter on or off; restores what was.

    Off, a forward is bit-equal to the base model's. Leaves ``requires_grad`` alone.

    Raises:
        ValueError: switched on, and the model has none.
    """
    layers = _tuner_layers(model)
    if on and not layers:
        raise ValueError("the model has no adapter to switch on: add one with add_adapter first")
    before = [layer._disable_adapters for layer in layers]
    for layer in layers:
        layer._disable_adapters = not on
    try:
        yield
    finally:
        for layer, was in zip(layers, before, strict=True):
            layer._disable_adapters = was


def adapter_parameters(model: nn.Module) -> list[Parameter]:
    """Parameters of the adapter, in the model's order; empty without one."""
    return [parameter for name, parameter in model.named_parameters() if _MARK in name]


def base_parameters(model: nn.Module) -> list[Parameter]:
    """Parameters of the policy itself, in the model's order, tied ones once."""
    return [parameter for name, parameter in model.named_parameters() if _MARK not in name]


@contextmanager
def trainable(model: nn.Module, parameters: Iterable[Parameter]) -> Iterator[None]:
    """Exactly ``parameters`` of the model require gradients inside; restores the flags."""
    wanted = {id(parameter) for parameter in parameters}
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.requires_grad_(id(parameter) in wanted)
    try:
        yield
    finally:
        for parameter, was in before:
            parameter.requires_grad_(was)


def base_model(model: nn.Module) -> nn.Module:
    """The transformers model inside an adapter's wrapper; a model without one is returned as it is."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def base_state_dict(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The base's part of a (wrapped) model's state, under the names of the plain transformers model."""
    return {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): tensor
        for name, tensor in state.items()
        if _MARK not in name
    }


def save_adapter(model: nn.Module, path: str | Path, state: dict[str, Tensor] | None = None) -> None:
    """Write the adapter alone, in PEFT's format: ``PeftModel.from_pretrained(base, path)`` loads it.

    Args:
        model: the wrapped policy.
        path: folder to write.
        state: the wrapped model's full state where its own parameters are sharded; None: read from the model.

    Raises:
        ValueError: the model has no adapter.
    """
    _wrapped(model).save_pretrained(str(path), state_dict=state)


def load_adapter(model: nn.Module, path: str | Path) -> None:
    """Overwrite the adapter's weights in place with those of a PEFT folder of the same shape.

    Raises:
        ValueError: the model has no adapter, or the folder's weights do not fit it.
        FileNotFoundError: the folder holds no adapter.
    """
    wrapped = _wrapped(model)
    if not (Path(path) / "adapter_config.json").is_file():
        raise FileNotFoundError(f"{path} holds no adapter (no adapter_config.json)")
    saved = LoraConfig.from_pretrained(str(path))
    held = wrapped.peft_config[_ADAPTER]
    for key in ("r", "lora_alpha", "target_modules"):
        if getattr(saved, key) != getattr(held, key):
            raise ValueError(f"{path}: {key}={getattr(saved, key)} does not fit the model's {getattr(held, key)}")
    set_peft_model_state_dict(wrapped, load_peft_weights(str(path), device="cpu"), adapter_name=_ADAPTER)


def _wrapped(model: nn.Module) -> PeftModel:
    if not isinstance(model, PeftModel):
        raise ValueError("the model has no adapter: add one with add_adapter first")
    return model


def _tuner_layers(model: nn.Module) -> list[BaseTunerLayer]:
    """Layers with an adapter; remembered for wrapped models, whose layers stay the same objects."""
    layers = _LAYERS.get(model)
    if layers is None:
        layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
        if isinstance(model, PeftModel):
            _LAYERS[model] = layers
    return layers


def _targets(targets: Sequence[str] | str) -> list[str]:
    names = list(LINEAR_LAYERS) if targets == "all-linear" else [targets] if isinstance(targets, str) else list(targets)
    unknown = [name for name in names if name not in LINEAR_LAYERS]
    if unknown or not names:
        raise ValueError(f"targets={targets!r}: must be 'all-linear' or some of {', '.join(LINEAR_LAYERS)}")
    return names
