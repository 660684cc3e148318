"""The adapter: off it is the base to the last bit, and each pass trains only what it may."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from sparrow.models.adapter import (
    adapter,
    adapter_parameters,
    add_adapter,
    base_model,
    base_parameters,
    base_state_dict,
    has_adapter,
    load_adapter,
    save_adapter,
    trainable,
)

TOKENS_BT = torch.arange(14).view(2, 7)


def policy() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=30,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def trained(rank: int = 3) -> PeftModel:
    """An adapter that does something: its second matrix starts at zero."""
    model = add_adapter(policy(), rank=rank, alpha=6.0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapter_parameters(model):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def logits(model: nn.Module) -> Tensor:
    out: Tensor = model(input_ids=TOKENS_BT, use_cache=False).logits
    return out


def test_off_is_bit_equal_to_the_base_and_on_is_the_formula() -> None:
    base, model = policy(), trained()
    with torch.no_grad():
        with adapter(model, on=False):
            assert torch.equal(logits(model), logits(base))
        with adapter(model, on=True):
            on = logits(model)
        assert (on - logits(base)).abs().max() > 1e-2
        # W + (alpha / rank) B A, by hand, in a plain model
        merged = policy()
        lora = dict(model.named_parameters())
        for name, module in merged.named_modules():
            a = lora.get(f"base_model.model.{name}.lora_A.default.weight")
            if isinstance(module, nn.Linear) and a is not None:
                module.weight += 6.0 / 3 * lora[f"base_model.model.{name}.lora_B.default.weight"] @ a
        torch.testing.assert_close(on, logits(merged), rtol=1e-5, atol=1e-5)


def test_a_new_adapter_changes_nothing() -> None:
    with torch.no_grad():
        assert torch.equal(logits(add_adapter(policy())), logits(policy()))


def test_adapter_restores_what_was_and_leaves_requires_grad() -> None:
    model = trained()
    frozen = adapter_parameters(model)[0].requires_grad_(False)
    with torch.no_grad():
        on = logits(model)
        with adapter(model, on=False):
            off = logits(model)
            with adapter(model, on=True):
                assert torch.equal(logits(model), on)
            assert torch.equal(logits(model), off)
        with pytest.raises(RuntimeError, match="inside"), adapter(model, on=False):
            raise RuntimeError("inside")
        assert torch.equal(logits(model), on)
    assert [p for p in model.parameters() if not p.requires_grad] == [frozen]


def test_a_plain_model_has_nothing_to_switch_on() -> None:
    model = policy()
    assert not has_adapter(model)
    assert adapter_parameters(model) == []
    assert base_model(model) is model
    with adapter(model, on=False):
        pass
    with pytest.raises(ValueError, match="no adapter to switch on"), adapter(model, on=True):
        pass


def test_parameters_are_split_without_rest() -> None:
    model = trained()
    base, lora = base_parameters(model), adapter_parameters(model)
    # 2 layers x 7 projections x 2 matrices; the base as in a plain model, its tied head counted once
    assert len(lora) == 28
    assert [p.shape for p in base] == [p.shape for p in policy().parameters()]
    assert {id(p) for p in base + lora} == {id(p) for p in model.parameters()}
    assert all(p.requires_grad for p in base + lora)
    assert has_adapter(model)
    assert isinstance(base_model(model), Qwen3ForCausalLM)


@pytest.mark.parametrize("on", [False, True])
def test_gradients_land_only_where_allowed(on: bool) -> None:
    model = trained()
    base, lora = base_parameters(model), adapter_parameters(model)
    with adapter(model, on=on), trainable(model, lora if on else base):
        logits(model).square().sum().backward()
    for parameter in lora if on else base:
        assert parameter.grad is not None
        assert parameter.grad.any()
    assert all(parameter.grad is None for parameter in (base if on else lora))
    assert all(parameter.requires_grad for parameter in base + lora)


def test_trainable_restores_after_an_error() -> None:
    model = trained()
    fixed = base_parameters(model)[0].requires_grad_(False)
    with trainable(model, []):
        assert not any(p.requires_grad for p in model.parameters())
    with pytest.raises(RuntimeError, match="inside"), trainable(model, []):
        raise RuntimeError("inside")
    assert [p for p in model.parameters() if not p.requires_grad] == [fixed]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # inside PEFT
def test_plain_peft_loads_what_was_saved(tmp_path: Path) -> None:
    model = trained()
    save_adapter(model, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    with torch.no_grad():
        expected = logits(model)
        assert torch.equal(logits(PeftModel.from_pretrained(policy(), tmp_path)), expected)
        fresh = add_adapter(policy(), rank=3, alpha=6.0)
        held = adapter_parameters(fresh)
        load_adapter(fresh, tmp_path)
        assert torch.equal(logits(fresh), expected)
    assert all(a is b and a.requires_grad for a, b in zip(held, adapter_parameters(fresh), strict=True))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # inside PEFT
def test_a_given_state_is_saved_in_place_of_the_models_own(tmp_path: Path) -> None:
    model = trained()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = logits(model)
    with torch.no_grad():
        for parameter in adapter_parameters(model):
            parameter.zero_()
    save_adapter(model, tmp_path, state=state)
    assert torch.equal(logits(PeftModel.from_pretrained(policy(), tmp_path)), expected)


def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    save_adapter(trained(rank=2), tmp_path)
    model = trained()
    with pytest.raises(ValueError, match=r"r=2 does not fit the model's 3"):
        load_adapter(model, tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no adapter"):
        load_adapter(model, tmp_path / "nothing")
    with pytest.raises(ValueError, match="has no adapter: add one"):
        save_adapter(policy(), tmp_path)


def test_base_state_has_the_names_of_a_plain_model() -> None:
    plain, state = policy().state_dict(), base_state_dict(trained().state_dict())
    assert list(state) == list(plain)
    assert all(torch.equal(state[name], plain[name]) for name in plain)
    assert base_state_dict(plain).keys() == plain.keys()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="rank=0: must be 1 or more"):
        add_adapter(policy(), rank=0)
    with pytest.raises(ValueError, match=r"dropout=1.0: must be at least 0 and below 1"):
        add_adapter(policy(), dropout=1.0)
    with pytest.raises(ValueError, match=r"targets=\['q_proj', 'lm_head'\]: must be 'all-linear' or some of q_proj"):
        add_adapter(policy(), targets=["q_proj", "lm_head"])
    with pytest.raises(ValueError, match="has an adapter already"):
        add_adapter(trained())


def test_targets_can_be_chosen() -> None:
    model = add_adapter(policy(), rank=2, targets=["q_proj", "o_proj"])
    assert len(adapter_parameters(model)) == 2 * 2 * 2
    assert all("q_proj" in n or "o_proj" in n for n, _ in model.named_parameters() if "lora_" in n)
