"""Loading a policy by name or path, and writing it back as a plain transformers folder."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from sparrow.models.adapter import base_model, base_state_dict
from sparrow.models.families import check_family
from sparrow.models.pretrained import PRETRAINED, prepared_path
from sparrow.models.tiny import tiny_path

TINY = "tiny"
"""Name of the policy that ships with the package."""


def load_policy(
    name_or_path: str | Path, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a policy and its tokenizer, in evaluation mode, ready for passes without a cache.

    Args:
        name_or_path: ``tiny``, a name of ``sparrow.models.pretrained.PRETRAINED`` that was prepared, a folder, or a hub
            id such as ``Qwen/Qwen3-1.7B``.
        dtype: dtype of the parameters.

    Raises:
        FileNotFoundError: nothing is there; the message says how to obtain it.
        ValueError: the model's family is not supported.
    """
    source = resolve_model(name_or_path)
    try:
        config = AutoConfig.from_pretrained(source)
        check_family(config)
        model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=dtype, attn_implementation="sdpa")
        tokenizer = AutoTokenizer.from_pretrained(source)
    except OSError as error:
        raise FileNotFoundError(f"model '{name_or_path}': could not be loaded from '{source}': {error}") from error
    model.config.use_cache = False
    return model, tokenizer


def resolve_model(name_or_path: str | Path) -> str:
    """What transformers is to load for a name: a folder, or a hub id.

    Raises:
        FileNotFoundError: a folder or a prepared model is missing, or the name is none of those.
    """
    name = str(name_or_path)
    if name == TINY:
        return str(tiny_path())
    folder = prepared_path(name) if name in PRETRAINED else Path(name).expanduser()
    if (folder / "config.json").is_file():
        return str(folder)
    if name in PRETRAINED:
        hub = f", or name the hub id '{PRETRAINED[name].hub_id}'"
        raise FileNotFoundError(f"model '{name}' is not in {folder}: run `sparrow-prepare model={name}`{hub}")
    if folder.is_dir():
        raise FileNotFoundError(f"model '{name}': {folder} holds no config.json, so it is not a transformers folder")
    if folder.is_file():
        raise FileNotFoundError(
            f"model '{name}' is a file: must be a transformers folder, such as a run leaves in export/base "
            "(a checkpoint goes to resume=)"
        )
    if isinstance(name_or_path, Path) or name.startswith((".", "/", "~")) or name.count("/") != 1:
        known = ", ".join([TINY, *PRETRAINED])
        raise FileNotFoundError(
            f"model '{name}' does not exist: must be a folder, a hub id (owner/name) or one of {known}"
        )
    return name


def eos_token_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token id that ends a completion: those of the generation config and the tokenizer's own, ascending.

    Raises:
        ValueError: there is none, so no completion could ever stop.
    """
    inner = base_model(model)
    assert isinstance(inner, PreTrainedModel)
    generation = inner.generation_config
    named = None if generation is None else generation.eos_token_id
    ids = set(named if isinstance(named, list) else [named]) | {tokenizer.eos_token_id}
    found = tuple(sorted(token for token in ids if isinstance(token, int)))
    if not found:
        raise ValueError("neither the model's generation config nor its tokenizer names an eos_token_id")
    return found


def recompute_layers(model: nn.Module) -> None:
    """Keep only each layer's input for backward and recompute the rest there (activation checkpointing).

    Never the reentrant kind, which would recompute without an error under whatever adapter or attention is on by then.
    """
    inner = base_model(model)
    assert isinstance(inner, PreTrainedModel)
    enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def export_policy(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    path: str | Path,
    state: dict[str, Tensor] | None = None,
) -> None:
    """Write the base policy as a folder that ``from_pretrained`` loads; an adapter is left out.

    Args:
        model: the policy, with or without an adapter.
        tokenizer: written beside it.
        path: folder to write.
        state: the (wrapped) model's full state where its own parameters are sharded; None: read from the model.
    """
    inner = base_model(model)
    assert isinstance(inner, PreTrainedModel)
    weights = base_state_dict(model.state_dict() if state is None else state)
    with torch.device("meta"):  # a second set of modules without storage: the adapter's never reach the file
        plain = type(inner)(type(inner.config).from_dict(inner.config.to_dict()))
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    plain.config.use_cache = True
    plain.generation_config = inner.generation_config
    plain.save_pretrained(path)
    tokenizer.save_pretrained(path)
