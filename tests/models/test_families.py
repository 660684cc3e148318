"""The flat view of a model's weights: which models are read, and that what is read is live."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from transformers import (
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sparrow.models.families import check_family, decoder_weights

# PEFT 0.21 asks transformers 5.24 for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SMALL = {
    "vocab_size": 17,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture
def qwen3():
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=10, tie_word_embeddings=True))


def test_families_differ_where_they_should(qwen3):
    qwen2 = decoder_weights(Qwen2ForCausalLM(Qwen2Config(**SMALL)))
    llama = decoder_weights(LlamaForCausalLM(LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True)))
    weights = decoder_weights(qwen3)
    assert (weights.family, weights.heads, weights.kv_heads, weights.head_dim) == ("qwen3", 4, 2, 10)
    assert weights.scale == 10**-0.5
    assert weights.max_positions == 64
    assert (qwen2.head_dim, llama.head_dim) == (6, 6)
    assert weights.layers[0].q_norm_D.shape == (10,)
    assert qwen2.layers[0].q_norm_D is None
    biases = [
        [getattr(w.layers[1], name).bias is not None for name in ("q", "k", "v", "o", "up")]
        for w in (weights, qwen2, llama)
    ]
    assert biases == [[False] * 5, [True, True, True, False, False], [True] * 5]
    assert weights.head_VE.data_ptr() == weights.embed_VE.data_ptr()
    assert qwen2.head_VE.data_ptr() != qwen2.embed_VE.data_ptr()


def test_weights_are_the_live_parameters(qwen3):
    weights = decoder_weights(qwen3, torch.float32, torch.float32)
    layer, module = weights.layers[1], qwen3.model.layers[1]
    assert layer.gate.weight.data_ptr() == module.mlp.gate_proj.weight.data_ptr()
    assert layer.k_norm_D.data_ptr() == module.self_attn.k_norm.weight.data_ptr()
    with torch.no_grad():
        module.mlp.gate_proj.weight.fill_(3.0)
    assert (layer.gate.weight == 3.0).all()
    assert not layer.gate.weight.requires_grad


def test_casts_are_rewritten_in_place(qwen3):
    copies = {}
    first = decoder_weights(qwen3, torch.bfloat16, torch.float32, copies)
    assert first.layers[0].q.weight.dtype == torch.bfloat16
    assert first.head_VE.data_ptr() == qwen3.lm_head.weight.data_ptr()  # fp32 already: no copy
    with torch.no_grad():
        qwen3.model.layers[0].self_attn.q_proj.weight.fill_(0.1)
    second = decoder_weights(qwen3, torch.bfloat16, torch.float32, copies)
    assert second.layers[0].q.weight.data_ptr() == first.layers[0].q.weight.data_ptr()
    assert torch.equal(first.layers[0].q.weight, torch.full((40, 24), 0.1, dtype=torch.bfloat16))


@pytest.mark.parametrize("rope", ["llama3", "linear"])
def test_rope_is_that_of_the_model(rope):
    scaling = {"rope_type": rope, "rope_theta": 100.0, "factor": 4.0}
    if rope == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    weights = decoder_weights(LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=scaling)))
    cos, _ = weights.rotary(weights.embed_VE, torch.arange(5)[None])
    plain = 100.0 ** -(torch.arange(0, 6, 2) / 6)  # head size 6: frequencies 1, 0.215, 0.046
    expected = plain / 4
    if rope == "llama3":
        # Wavelengths 6.3, 29.2 and 135 against 16 / 4 and 16 / 1: the first is between, the others are divided by 4.
        smooth = (16 * plain[0] / (2 * torch.pi) - 1.0) / (4.0 - 1.0)
        expected[0] = (1 - smooth) * plain[0] / 4 + smooth * plain[0]
    torch.testing.assert_close(cos[0, :, :3], (torch.arange(5)[:, None] * expected).cos())


def test_lora_is_read_apart_from_its_base(qwen3):
    model = get_peft_model(qwen3, LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "down_proj"]))
    torch.nn.init.normal_(model.base_model.model.model.layers[0].self_attn.q_proj.lora_B["default"].weight)
    weights = decoder_weights(model)
    assert weights.has_adapter
    layer = weights.layers[0]
    assert layer.k.branches == ()
    (branch,) = layer.q.branches
    assert (branch.a.shape, branch.b.shape, branch.scaling) == ((3, 24), (40, 3), 2.0)
    module = model.base_model.model.model.layers[0].self_attn.q_proj
    x = torch.randn(5, 24)
    torch.testing.assert_close(layer.q.apply(x, adapter=True), module(x))
    assert torch.equal(layer.q.apply(x, adapter=False), module.base_layer(x))
    model.merge_adapter()
    with pytest.raises(ValueError, match=r"layers.0.q_proj: adapter \['default'\] is merged"):
        decoder_weights(model)


def test_other_adapters_are_refused(qwen3):
    dora = get_peft_model(qwen3, LoraConfig(r=3, target_modules=["v_proj"], use_dora=True))
    with pytest.raises(ValueError, match=r"layers.0.v_proj: adapter 'default' is a LoRA variant"):
        decoder_weights(dora)


def test_an_adapter_on_the_head_is_refused():
    untied = Qwen3ForCausalLM(Qwen3Config(**SMALL, tie_word_embeddings=False))
    with pytest.raises(ValueError, match="lm_head carries an adapter"):
        decoder_weights(get_peft_model(untied, LoraConfig(r=3, target_modules=["lm_head"])))


def test_a_sharded_parameter_is_refused(qwen3):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        norm = qwen3.model.layers[1].input_layernorm
        norm.weight = torch.nn.Parameter(distribute_tensor(norm.weight.detach(), mesh, [Replicate()]))
        with pytest.raises(
            ValueError, match=r"layers.1.input_norm is sharded over devices: gather the full parameters"
        ):
            decoder_weights(qwen3)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPT2Config(), "model_type='gpt2' is not supported: must be one of qwen3, qwen2, llama"),
        (MistralConfig(), "model_type='mistral' is not supported"),
        (
            Qwen3Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1),
            r"qwen3 layer_types\[1\]='sliding_attention': must be full_attention",
        ),
        (LlamaConfig(**SMALL, hidden_act="gelu"), "hidden_act='gelu' is not supported: must be silu"),
        (
            LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "rope_type='dynamic' is not supported: must be one of default, linear, llama3, yarn",
        ),
        (LlamaConfig(**SMALL, quantization_config={"quant_method": "gptq"}), "quantization_config is set"),
    ],
    ids=["gpt2", "mistral", "sliding", "activation", "rope", "quantised"],
)
def test_unsupported_configs_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        check_family(config)


def test_a_replaced_linear_is_refused(qwen3):
    qwen3.model.layers[1].mlp.up_proj = torch.nn.Bilinear(2, 2, 2)
    with pytest.raises(ValueError, match=r"layers.1.up_proj is a Bilinear: must be a plain torch.nn.Linear"):
        decoder_weights(qwen3)
