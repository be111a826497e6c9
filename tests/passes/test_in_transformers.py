"""Folders that ckptool wrote, loaded with transformers as people load them: the side files tell the truth.

`make test-models` builds an environment with transformers and peft.
"""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (make test-models)")

import ckptool

TINY = {
    "vocab_size": 8,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
pytestmark = pytest.mark.filterwarnings("default")  # of transformers and what it is made of


@pytest.fixture
def base(tmp_path):
    """A small model in bfloat16, as transformers saves it, in two shards."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "base", max_shard_size="6KB")
    return tmp_path / "base"


def loaded(folder, **how):
    """The model in a folder, and that every one of its weights was in it."""
    model, said = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **how)
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    assert not said["mismatched_keys"]
    return model.eval()


def answers(model):
    with torch.no_grad():
        return model(torch.arange(8).reshape(1, 8)).logits.float()


def test_a_cast_folder_loads_in_the_type_that_its_configuration_names(base, tmp_path):
    ckptool.save(ckptool.cast(ckptool.open(base), "float32"), tmp_path / "cast/")
    model = loaded(tmp_path / "cast", dtype="auto")
    assert model.dtype == torch.float32
    assert {one.dtype for one in model.parameters()} == {torch.float32}
    whole = loaded(base, dtype=torch.float32)
    assert torch.equal(answers(model), answers(whole))


def quantised(base, tmp_path):
    """The same model with float8 in blocks, as DeepSeek's and transformers' own configuration say it."""
    from safetensors.torch import save_file

    weights = {key: tensor.clone() for key, tensor in ckptool.load(base).items()}
    held = {}
    for key, value in weights.items():
        if "proj" not in key:
            held[key] = value
            continue
        rows, columns = (-(-n // 8) for n in value.shape)
        spread = torch.rand(rows, columns) + 0.5
        block = spread.repeat_interleave(8, 0).repeat_interleave(8, 1)[: value.shape[0], : value.shape[1]]
        held[key] = (value.float() / block).to(torch.float8_e4m3fn)
        held[f"{key}_scale_inv"] = spread
        weights[key] = (held[key].float() * block).to(value.dtype)
    folder = tmp_path / "fp8"
    folder.mkdir()
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [8, 8], "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text((base / "generation_config.json").read_text())
    return folder, weights


def test_a_dequantised_folder_loads_as_a_plain_model(base, tmp_path):
    folder, weights = quantised(base, tmp_path)
    ckptool.save(ckptool.dequantize(ckptool.open(folder)), tmp_path / "plain/")
    model = loaded(tmp_path / "plain", dtype="auto")
    assert getattr(model.config, "quantization_config", None) is None
    assert model.dtype == torch.bfloat16
    held = model.state_dict()
    assert all(torch.equal(held[key], value) for key, value in weights.items())


def test_a_merged_folder_loads_and_answers_as_peft_does(base, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed (make test-models)")
    whole = loaded(base, dtype=torch.float32)
    whole.save_pretrained(tmp_path / "base32", max_shard_size="12KB")
    settings = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(whole, settings)
    adapted.save_pretrained(tmp_path / "adapter")
    expected = answers(adapted.eval())
    merged = ckptool.merge_lora(ckptool.open(tmp_path / "base32"), [tmp_path / "adapter"])
    receipt = ckptool.save(merged, tmp_path / "merged/")
    assert any("config.json" in line for line in receipt.form)
    torch.testing.assert_close(answers(loaded(tmp_path / "merged", dtype="auto")), expected, rtol=1e-5, atol=1e-6)


def test_a_base_that_is_quantised_is_opened_before_an_adapter_is_merged(base, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed (make test-models)")
    folder, weights = quantised(base, tmp_path)
    plain = loaded(base, dtype=torch.bfloat16)
    plain.load_state_dict(weights)
    settings = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(plain, settings)
    adapted.save_pretrained(tmp_path / "adapter")
    ckptool.save(ckptool.merge_lora(ckptool.open(folder), [tmp_path / "adapter"]), tmp_path / "merged/")
    model = loaded(tmp_path / "merged", dtype="auto")
    assert getattr(model.config, "quantization_config", None) is None
    merged = adapted.merge_and_unload().state_dict()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value.float(), merged[key].float(), rtol=1 / 128, atol=1e-6)
