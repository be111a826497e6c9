"""Merging adapters, held against `merge_and_unload` of peft: what it left is stored in fixtures/adapters.zip."""

import json
import shutil

import numpy as np
import pytest

import ckptool
from ckptool.errors import CannotCarry, CheckpointError
from tests.adapters.conftest import cases

CASES = cases()
#: Rounding of sums in another order; where norms are taken, of a quotient.
TOLERANCE = 3e-7


def arrays(ckpt):
    return {key: tensor.numpy() for key, tensor in ckpt.state_dict().tensors.items()}


def merged(written, case, **more):
    said = CASES[case]
    adapters = [written / "adapters" / name for name, _ in said["adapters"]]
    weights = [weight for _, weight in said["adapters"]]
    return ckptool.merge_lora(ckptool.open(written / "bases" / said["base"]), adapters, weights=weights, **more)


@pytest.mark.parametrize("case", CASES)
def test_a_merge_equals_that_of_peft_to_rounding(written, tmp_path, case):
    ckptool.save(merged(written, case), tmp_path / "merged/")
    made = arrays(ckptool.open(tmp_path / "merged"))
    expected = arrays(ckptool.open(written / "bases" / CASES[case]["base"]))
    changed = arrays(ckptool.open(written / "merged" / f"{case}.safetensors"))
    assert changed
    expected |= changed
    assert set(made) == set(expected)
    for key, values in expected.items():
        assert made[key].dtype == values.dtype
        one, other = made[key].astype(np.float64), values.astype(np.float64)
        if values.dtype.itemsize == 2 and key in changed:  # peft rounds the change before it adds it
            assert np.abs(one - other).max() <= 2**-7 * max(np.abs(other).max(), 1)
        elif key in changed:
            assert np.abs(one - other).max() <= TOLERANCE * max(np.abs(other).max(), 1)
        else:
            assert np.array_equal(one, other)


def test_a_merge_into_bfloat16_is_rounded_once(written):
    """What float32 gives, rounded: nearer to the truth than a sum of two rounded numbers."""
    base = arrays(ckptool.open(written / "bases" / "llama-bf16"))
    adapter = arrays(ckptool.open(written / "adapters" / "lora-bf16"))
    made = arrays(merged(written, "lora-bf16"))
    for key, a in adapter.items():
        if ".lora_A." in key:
            name = key.removeprefix("base_model.model.").replace(".lora_A", "")
            b = adapter[key.replace("lora_A", "lora_B")]
            exact = base[name].astype(np.float32) + np.float32(3) * (b.astype(np.float32) @ a.astype(np.float32))
            assert np.array_equal(made[name], exact.astype(made[name].dtype))


def test_a_merge_by_pieces_equals_the_whole(written):
    """Any run of bytes of a computed tensor is that run of the whole."""
    for case in ("dora", "conv1d-dora", "embedding", "experts", "lokr", "lokr-kernels", "loha-kernels", "tokens"):
        for tensor in merged(written, case).state_dict().tensors.values():
            source = tensor.source()
            whole = bytes(source.read(0, source.length))
            assert bytes(source.read(0, 0)) == b""
            for offset, length in ((0, 1), (3, 7), (source.length // 2, source.length // 3), (source.length - 5, 5)):
                assert bytes(source.read(offset, length)) == whole[offset : offset + length]
            assert b"".join(bytes(chunk) for chunk in source.chunks()) == whole


def test_the_weight_of_an_adapter_multiplies_its_change(written):
    base = ckptool.open(written / "bases" / "llama")
    path = written / "adapters" / "lora"
    before = arrays(base)
    whole, half = arrays(ckptool.merge_lora(base, path)), arrays(ckptool.merge_lora(base, path, weights=[0.5]))
    moved = [key for key in before if not np.array_equal(before[key], whole[key])]
    assert moved
    for key in moved:
        assert np.allclose(half[key] - before[key], (whole[key] - before[key]) / 2, atol=1e-6)


def test_a_part_of_what_has_no_parts_is_refused(written):
    base = ckptool.open(written / "bases" / "llama-bias")
    with pytest.raises(CannotCarry, match=r"weight 0\.5, and half of IA3 has no meaning"):
        ckptool.merge_lora(base, written / "adapters" / "ia3", weights=[0.5])


def test_an_adapter_of_another_base_is_refused_with_evidence(written):
    with pytest.raises(CannotCarry) as refused:
        ckptool.merge_lora(ckptool.open(written / "bases" / "gpt2"), written / "adapters" / "lora")
    assert "does not fit this base: 2 of 2 layers do not" in str(refused.value)
    assert "model.layers.0.self_attn.q_proj: is not in the base" in str(refused.value)


def test_a_shape_that_does_not_fit_is_shown(written, tmp_path):
    base = ckptool.select(ckptool.open(written / "bases" / "llama"), "model.layers.0.mlp")
    renamed = ckptool.rename(base, "model.layers.0.mlp.gate_proj=model.layers.0.self_attn.q_proj")
    renamed = ckptool.rename(renamed, "model.layers.0.mlp.down_proj=model.layers.0.self_attn.v_proj")
    with pytest.raises(CannotCarry, match=r"q_proj: \[2, 8\] and \[8, 2\] give \[8, 8\], the base has \[12, 8\]"):
        ckptool.merge_lora(renamed, written / "adapters" / "lora")


def edited(written, tmp_path, case, **settings):
    folder = tmp_path / case
    shutil.copytree(written / "adapters" / case, folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "VERA"}, "family 'VERA'; LORA, LOHA"),
        ({"init_lora_weights": "pissa"}, "began with init_lora_weights 'pissa'"),
        ({"layer_replication": [[0, 1]]}, "sets layer_replication to a list"),
        ({"alpha_pattern": {"(a+)+b": 3}}, "has the pattern"),
        ({"alpha_pattern": {"a?" * 60 + "a" * 60 + "b": 3}}, "has the pattern"),
        ({"alpha_pattern": {"(a|aa)" * 20 + "b": 3}}, "has the pattern"),
        ({"lora_alpha": "much"}, "gives lora_alpha the value 'much'"),
        ({"r": None, "lora_alpha": None}, "says neither the rank nor the alpha"),
    ],
)
def test_a_setting_that_cannot_be_merged_is_named(written, tmp_path, settings, said):
    folder = edited(written, tmp_path, "lora", **settings)
    with pytest.raises(CheckpointError, match=r"adapter_config\.json") as refused:
        ckptool.merge_lora(ckptool.open(written / "bases" / "llama"), folder)
    assert said in str(refused.value)


def test_an_adapter_that_was_never_trained_is_refused(written, tmp_path, torch):
    ckpt = ckptool.open(written / "adapters" / "lora")
    tensors = arrays(ckpt)
    zeros = {k: torch.from_numpy(v * 0 if "lora_B" in k else v) for k, v in tensors.items()}
    shutil.copytree(written / "adapters" / "lora", tmp_path / "new")
    ckptool.save(zeros, tmp_path / "new" / "adapter_model.safetensors", overwrite=True)
    with pytest.raises(CannotCarry, match="changes nothing: its factors are 0"):
        ckptool.merge_lora(ckptool.open(written / "bases" / "llama"), tmp_path / "new")


def test_a_key_that_no_adapter_has_is_named(written, tmp_path, torch):
    tensors = {k: torch.from_numpy(v) for k, v in arrays(ckptool.open(written / "adapters" / "unet-kohya")).items()}
    ckptool.save(tensors | {"lora_unet_x.odd": torch.zeros(1)}, tmp_path / "odd.safetensors")
    with pytest.raises(CannotCarry, match="holds 1 key that no adapter of a known layout has") as refused:
        ckptool.merge_lora(ckptool.open(written / "bases" / "unet"), tmp_path / "odd.safetensors")
    assert "lora_unet_x.odd" in str(refused.value)


def test_a_name_with_underscores_that_fits_two_modules_is_refused(written, torch):
    base = ckptool.open(written / "bases" / "unet")
    twice = base.state_dict().tensors
    both = {f"one.{key}": t for key, t in twice.items()} | {f"two.{key}": t for key, t in twice.items()}
    held = {key: torch.from_numpy(tensor.numpy()) for key, tensor in both.items()}
    with pytest.raises(LookupError, match="fits 2 modules of the base"):
        ckptool.merge_lora(ckptool.from_torch(held), written / "adapters" / "unet-kohya")


def test_a_head_that_is_tied_is_said_to_move(written):
    done = merged(written, "embedding-tied")
    # the file has no head of its own; peft moves both
    assert any("the head is tied to model.embed_tokens.weight, so it moves with it" in line for line in done.history)


def test_a_head_that_was_trained_apart_is_added_and_the_configuration_says_so(written, tmp_path):
    receipt = ckptool.save(merged(written, "whole-head-tied"), tmp_path / "merged/")
    assert "config.json: tie_word_embeddings true -> false, since the head was trained apart" in receipt.form
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert "lm_head.weight" in ckptool.open(tmp_path / "merged").state_dict()


def test_tied_tensors_stay_tied_in_a_pickle(written, tmp_path, torch):
    base = {k: torch.from_numpy(v) for k, v in arrays(ckptool.open(written / "bases" / "llama-tied")).items()}
    base["lm_head.weight"] = base["model.embed_tokens.weight"]
    torch.save(base, tmp_path / "base.pth")
    done = ckptool.merge_lora(ckptool.open(tmp_path / "base.pth"), written / "adapters" / "embedding-tied")
    ckptool.save(done, tmp_path / "merged.pth")
    loaded = torch.load(tmp_path / "merged.pth")
    assert loaded["lm_head.weight"].data_ptr() == loaded["model.embed_tokens.weight"].data_ptr()
    assert any("share one tensor, so the change moves them all" in line for line in done.history)


def test_a_base_saved_inside_a_wrapper_is_recognised(written, tmp_path, torch):
    base = {k: torch.from_numpy(v) for k, v in arrays(ckptool.open(written / "bases" / "llama")).items()}
    torch.save({f"module.{key}": value for key, value in base.items()}, tmp_path / "base.pth")
    done = ckptool.merge_lora(ckptool.open(tmp_path / "base.pth"), written / "adapters" / "lora")
    assert "note: the base has the adapter's names with 'module.' before them" in done.history
    plain = arrays(merged(written, "lora"))
    assert all(np.array_equal(values, plain[key.removeprefix("module.")]) for key, values in arrays(done).items())


def test_a_merge_keeps_the_division_of_the_base(written, tmp_path):
    ckptool.save(ckptool.open(written / "bases" / "llama"), tmp_path / "base/", max_shard_size=1500)
    shards = sorted(path.name for path in (tmp_path / "base").glob("*.safetensors"))
    assert len(shards) > 2
    done = ckptool.merge_lora(ckptool.open(tmp_path / "base"), written / "adapters" / "whole-modules")
    receipt = ckptool.save(done, tmp_path / "merged/")
    assert sorted(path.name for path in (tmp_path / "merged").glob("*.safetensors")) == shards
    assert "divided as before" in receipt.how
    assert (tmp_path / "merged" / "config.json").exists()
    index = [json.loads((tmp_path / name / "model.safetensors.index.json").read_text()) for name in ("base", "merged")]
    assert index[0]["weight_map"] == index[1]["weight_map"]
    assert all(
        np.array_equal(values, arrays(merged(written, "whole-modules"))[key])
        for key, values in arrays(ckptool.open(tmp_path / "merged")).items()
    )


def test_one_part_of_a_pipeline_is_merged_by_name(written, tmp_path, torch):
    tensors = {k: torch.from_numpy(v) for k, v in arrays(ckptool.open(written / "adapters" / "unet-kohya")).items()}
    more = {key.replace("lora_unet_", "lora_te_"): value for key, value in tensors.items()}
    ckptool.save(tensors | more, tmp_path / "both.safetensors")
    base = ckptool.open(written / "bases" / "unet")
    with pytest.raises(CannotCarry, match="several parts of a pipeline: lora_unet, lora_te"):
        ckptool.merge_lora(base, tmp_path / "both.safetensors")
    done = arrays(ckptool.merge_lora(base, tmp_path / "both.safetensors", component="unet"))
    alone = arrays(merged(written, "unet-kohya"))
    assert all(np.array_equal(values, alone[key]) for key, values in done.items())


@pytest.mark.parametrize("side", ["outputs", "inputs"])
@pytest.mark.parametrize("kernel", [(), (3, 3)])
def test_magnitudes_of_lycoris_are_of_the_outputs_or_of_the_inputs(tmp_path, torch, side, kernel):
    """By their sizes, [n, 1, 1, 1] or [1, n, 1, 1], also where the layer has as many inputs as outputs; expected is
    what LyCORIS computes (`apply_weight_decompose`).
    """
    torch.manual_seed(0)
    base, up, down = torch.randn(4, 4, *kernel), torch.randn(4, 2), torch.randn(2, 4, *kernel)
    change = (up @ down.reshape(2, -1)).reshape(base.shape)
    ones = [1] * len(kernel)
    scale = torch.rand(4, 1, *ones) if side == "outputs" else torch.rand(1, 4, *ones)
    rest = tuple(n for n in range(base.ndim) if n != (side == "inputs"))
    expected = (base + change) * (scale / (base + change).square().sum(rest, keepdim=True).sqrt())
    state = {"lora_down.weight": down, "lora_up.weight": up.reshape(4, 2, *ones), "dora_scale": scale}
    state["alpha"] = torch.tensor(2.0)
    ckptool.save({"conv.weight": base}, tmp_path / "base.safetensors")
    ckptool.save({f"lora_unet_conv.{name}": value for name, value in state.items()}, tmp_path / "dora.safetensors")
    done = ckptool.merge_lora(ckptool.open(tmp_path / "base.safetensors"), tmp_path / "dora.safetensors")
    assert np.allclose(arrays(done)["conv.weight"], expected.numpy(), atol=1e-6)


def test_a_base_of_diffusers_keeps_the_name_that_diffusers_looks_for(written, tmp_path):
    (tmp_path / "unet").mkdir()
    data = (written / "bases" / "unet" / "model.safetensors").read_bytes()
    (tmp_path / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(data)
    (tmp_path / "unet" / "config.json").write_text("{}")
    done = ckptool.merge_lora(ckptool.open(tmp_path / "unet"), written / "adapters" / "unet-kohya")
    ckptool.save(done, tmp_path / "merged/")
    names = sorted(path.name for path in (tmp_path / "merged").iterdir())
    assert names == ["config.json", "diffusion_pytorch_model.safetensors"]
    ckptool.save(done, tmp_path / "shards/", max_shard_size=4000)
    assert (tmp_path / "shards" / "diffusion_pytorch_model.safetensors.index.json").exists()
