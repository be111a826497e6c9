"""Dequantising, held against the libraries that wrote the files: fixtures/make_quantized.py stores their answers."""

import json
import zipfile
from pathlib import Path

import pytest

import ckptool
from ckptool.errors import CannotCarry, NoMatch, RuleError
from ckptool.passes import dequantizing
from ckptool.passes.packed import grain, packed_in
from ckptool.passes.side_files import quantization_of

ARCHIVE = Path(__file__).parents[2] / "fixtures" / "quantized.zip"
with zipfile.ZipFile(ARCHIVE) as _archive:
    CASES = sorted(name.removesuffix(".expected.safetensors") for name in _archive.namelist() if ".expected." in name)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


def opened(written, case):
    return ckptool.open(written / case / "model.pt" if case.endswith("-pickle") else written / case)


def raw(ckpt):
    def held(tensor):
        source = tensor.source()
        return tensor.dtype.name, tensor.shape, bytes(source.read(0, source.length))

    return {key: held(tensor) for key, tensor in ckpt.state_dict().tensors.items()}


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_library_to_the_last_bit(written, case):
    made, expected = (
        raw(ckptool.dequantize(opened(written, case))),
        raw(ckptool.open(written / f"{case}.expected.safetensors")),
    )
    assert {key for key in made if not key.endswith("_scale")} == set(expected)
    for key, values in expected.items():
        assert made[key] == values, key


@pytest.mark.parametrize("case", CASES)
def test_any_run_of_bytes_is_that_run_of_the_whole(written, case):
    for tensor in ckptool.dequantize(opened(written, case)).state_dict().tensors.values():
        source = tensor.source()
        whole = bytes(source.read(0, source.length))
        for offset, length in ((0, 0), (0, 1), (source.length // 3, source.length // 2), (source.length - 3, 3)):
            assert bytes(source.read(offset, length)) == whole[offset : offset + length]
        assert b"".join(bytes(chunk) for chunk in source.chunks()) == whole


@pytest.mark.parametrize(
    ("case", "family", "bits", "shared"),
    [
        ("bnb-nf4", "bitsandbytes, 4 bits", 4, "groups of 64"),
        ("bnb-int8", "bitsandbytes, 8 bits", 8, "rows"),
        ("gptq-4-order", "GPTQ", 4, "groups of 16"),
        ("gptq-3", "GPTQ", 3, "groups of 16"),
        ("awq", "AWQ or GPTQ", 4, "groups of 32"),
        ("ct-pack3", "compressed-tensors", 3, "groups of 32"),
        ("ct-channel", "compressed-tensors", 4, "rows"),
        ("ct-int8-tensor", "int8 with scales", 8, "the whole tensor"),
        ("ct-float8-blocks", "float8_e4m3fn with scales", 8, "blocks of 4 x 4"),
        ("ct-nvfp4", "compressed-tensors", 4, "groups of 16"),
        ("gpt-oss", "MXFP4", 4, "groups of 32"),
        ("ao-int8-groups", "torchao", 8, "groups of 8"),
        ("fp8-blocks", "float8_e4m3fn with scales", 8, "blocks of 8 x 16"),
        ("autogptq-3", "GPTQ", 3, "groups of 16"),
        ("autoawq", "AWQ or GPTQ", 4, "groups of 32"),
        ("ct-mxfp4", "compressed-tensors", 4, "groups of 32"),
        ("mlx-3", "MLX", 3, "groups of 64"),
        ("mlx-experts", "MLX", 4, "groups of 32"),
        ("mlx-nvfp4", "MLX", 4, "groups of 16"),
    ],
)
def test_a_family_is_recognised_with_its_bits_and_groups(written, case, family, bits, shared):
    ckpt = opened(written, case)
    weights = ckpt.state_dict()
    first = packed_in(weights)[0]
    assert (first.family, *grain(first, weights.tensors, quantization_of(ckpt))) == (family, bits, shared)


@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith("-pickle")])
def test_passes_carry_quantised_weights_untouched_and_rename_them_as_one(written, tmp_path, case):
    ckpt = opened(written, case)
    before = raw(ckpt)
    moved = ckptool.map_location(ckptool.add_prefix(ckpt, "x."), "cpu", missing="ok")
    ckptool.save(moved, tmp_path / "moved.safetensors")
    after = raw(ckptool.open(tmp_path / "moved.safetensors"))
    assert {f"x.{key}": values for key, values in before.items()} == after


@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith("-pickle")])
def test_a_cast_touches_no_part_of_a_quantised_weight(written, tmp_path, case):
    ckpt = opened(written, case)
    before = raw(ckpt)
    packed = {key for one in packed_in(ckpt.state_dict()) for key in one.keys}
    if not any(dtype.startswith(("float", "bfloat")) for key, (dtype, *_) in before.items() if key not in packed):
        with pytest.raises(CannotCarry, match="which a cast leaves alone, and nothing else to cast"):
            ckptool.cast(ckpt, "float64")
        return
    ckptool.save(ckptool.cast(ckpt, "float64"), tmp_path / "cast.safetensors")
    after = raw(ckptool.open(tmp_path / "cast.safetensors"))
    assert {key: after[key] for key in packed} == {key: before[key] for key in packed}
    assert {dtype for key, (dtype, *_) in after.items() if key not in packed} == {"float64"}


def test_a_cast_leaves_quantised_weights_alone_and_casts_the_rest(written, tmp_path):
    ckpt = opened(written, "bnb-nf4")
    packed = {key for one in packed_in(ckpt.state_dict()) for key in one.keys}
    receipt = ckptool.save(ckptool.cast(ckpt, "bfloat16"), tmp_path / "cast/")
    after, before = raw(ckptool.open(tmp_path / "cast")), raw(ckpt)
    for key, (dtype, _, values) in after.items():
        assert (dtype, values) == (before[key][0], before[key][2]) if key in packed else dtype == "bfloat16"
    assert any("(bitsandbytes, 4 bits) left as they are" in line for line in receipt.steps)
    assert any(line.startswith("config.json: ") and "'float16' -> 'bfloat16'" in line for line in receipt.form)
    config = json.loads((tmp_path / "cast" / "config.json").read_text())
    assert "bfloat16" in (config.get("dtype"), config.get("torch_dtype"))
    assert config["quantization_config"]["load_in_4bit"] is True


def test_a_cast_with_nothing_else_to_cast_is_refused(written):
    with pytest.raises(
        CannotCarry, match=r"packed weights \(GPTQ\), which a cast leaves alone, and nothing else"
    ) as said:
        ckptool.cast(opened(written, "gptq-4"), "bfloat16")
    assert said.value.hint.startswith("--dequantize ")


def test_a_part_of_a_quantised_weight_is_not_dropped_or_renamed_alone(written):
    ckpt = opened(written, "bnb-int8")
    with pytest.raises(RuleError, match="would take apart the packed weight") as said:
        ckptool.drop(ckpt, "re:SCB$")
    assert "SCB" in str(said.value)
    renamed = ckptool.rename(ckpt, "model.layers.{}.self_attn.q_proj.weight=layers.{}.q.weight")
    keys = set(renamed.state_dict())
    assert {"layers.0.q.weight", "layers.0.q.SCB", "layers.0.q.weight_format"} <= keys


def test_dequantising_takes_the_quantisation_out_of_the_configuration(written, tmp_path):
    receipt = ckptool.save(ckptool.dequantize(opened(written, "gptq-4")), tmp_path / "plain/")
    assert "config.json: quantization_config removed" in receipt.form
    assert json.loads((tmp_path / "plain" / "config.json").read_text()) == {"torch_dtype": "float16"}


def test_a_file_that_describes_the_quantisation_alone_is_left_behind(written, tmp_path):
    case = tmp_path / "model"
    case.mkdir()
    for path in (written / "gptq-4").iterdir():
        (case / path.name).write_bytes(path.read_bytes())
    config = json.loads((case / "config.json").read_text())
    (case / "quantize_config.json").write_text(json.dumps(config.pop("quantization_config")))
    (case / "config.json").write_text(json.dumps(config))
    receipt = ckptool.save(ckptool.dequantize(ckptool.open(case)), tmp_path / "plain/")
    assert not (tmp_path / "plain" / "quantize_config.json").exists()
    assert any("quantize_config.json: left behind" in line for line in receipt.form)
    assert (tmp_path / "plain" / "config.json").exists()


def changed(written, tmp_path, case, without=(), **settings):
    """A case with other settings of its quantisation, and without some tensors."""
    ckpt = opened(written, case)
    if without:
        entries = [pair for pair in ckpt.root.entries if pair[0] not in without]
        from dataclasses import replace

        ckpt = replace(ckpt, root=replace(ckpt.root, entries=entries))
    ckptool.save(ckpt, tmp_path / "changed/")
    path = tmp_path / "changed" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {
        k: v for k, v in (config["quantization_config"] | settings).items() if v is not None
    }
    path.write_text(json.dumps(config))
    return ckptool.open(tmp_path / "changed")


@pytest.mark.parametrize(
    ("case", "without", "settings", "said"),
    [
        ("gptq-4", (), {"checkpoint_format": None}, "does not say in which version it is packed"),
        ("gptq-4", (), {"checkpoint_format": "marlin"}, "is packed in the version 'marlin'"),
        ("gptq-4", ("m.g_idx",), {"desc_act": True}, "has no g_idx"),
        ("gptq-4", ("m.g_idx",), {"desc_act": None}, "has no g_idx"),
        ("gptq-4", (), {"bits": None}, "does not say its bits"),
        ("gptq-4", (), {"bits": 8}, "which 8 bits do not bear out"),
        ("gptq-4", (), {"quant_method": "hqq"}, "is of the method 'hqq'"),
        ("awq", (), {"version": "gemv"}, "is packed in the version 'gemv'"),
        ("awq", (), {"version": None}, "says neither its bits nor the version"),
        ("awq", ("m.qzeros",), {}, "has no qzeros"),
        ("awq", (), {"bits": 8}, "has '8' bits; 4 are known"),
        ("fp8-blocks", (), {"weight_block_size": None}, "nothing says how large a block is"),
        ("bnb-int8", ("model.layers.0.mlp.up_proj.weight_format",), {}, None),
        ("autogptq-3", (), {"checkpoint_format": "gptq_p"}, "is packed in the version 'gptq_p'"),
    ],
)
def test_what_is_not_sure_is_refused_and_not_guessed(written, tmp_path, case, without, settings, said):
    ckpt = changed(written, tmp_path, case, without, **settings)
    if said is None:
        assert ckptool.dequantize(ckpt)
        return
    with pytest.raises(CannotCarry, match="cannot be dequantised") as refused:
        ckptool.dequantize(ckpt)
    assert said in str(refused.value)


def test_a_trial_takes_one_of_the_weights_that_are_alike_and_finds_the_odd_one(monkeypatch):
    torch = pytest.importorskip("torch")

    state = {}
    for number in range(50):
        state[f"layers.{number}.weight"] = torch.ones(8, 8).to(torch.float8_e4m3fn)
        state[f"layers.{number}.weight_scale"] = torch.ones(8)
    made = []
    family = dequantizing._FAMILIES["float8_e4m3fn with scales"]
    monkeypatch.setitem(
        dequantizing._FAMILIES, "float8_e4m3fn with scales", lambda given: made.append(given.one.name) or family(given)
    )
    dequantizing.try_dequantizing(ckptool.from_torch(state))
    assert made == ["layers.0.weight"]
    state["layers.30.weight_scale"] = torch.ones(3)
    with pytest.raises(CannotCarry, match="cannot be dequantised"):
        dequantizing.try_dequantizing(ckptool.from_torch(state))
    assert made == ["layers.0.weight", "layers.0.weight", "layers.30.weight"]


@pytest.mark.parametrize(
    ("case", "settings", "said"),
    [
        ("mlx-4", {}, "does not say how many bits and how large a group they are"),  # 4 and 64, 8 and 32, or 2 and 128
        ("mlx-4", {"bits": 4, "group_size": 32}, "does not say how many bits and how large a group they are"),
        ("mlx-mxfp4", {"bits": 4, "group_size": 32, "mode": "affine"}, "which are not affine ones of MLX"),
        ("mlx-4", {"bits": 4, "group_size": 64, "mode": "mxfp4"}, "is of the mode 'mxfp4'"),
    ],
)
def test_a_weight_of_mlx_whose_settings_are_not_told_is_refused(written, tmp_path, case, settings, said):
    for path in (written / case).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"quantization": settings}))
    with pytest.raises(CannotCarry) as refused:
        ckptool.dequantize(ckptool.open(tmp_path))
    assert said in str(refused.value)


def test_widths_alone_tell_the_settings_of_mlx_where_one_pair_fits(written, tmp_path):
    for case in ("mlx-5", "mlx-mxfp8"):
        (tmp_path / "alone.safetensors").write_bytes((written / case / "model.safetensors").read_bytes())
        weights = raw(ckptool.select(ckptool.open(tmp_path / "alone.safetensors"), ["m.a.*"]))
        assert len(weights) >= 2
        made = raw(ckptool.dequantize(ckptool.select(ckptool.open(tmp_path / "alone.safetensors"), ["m.a.*"])))
        assert made["m.a.weight"] == raw(ckptool.open(written / f"{case}.expected.safetensors"))["m.a.weight"]


def test_without_g_idx_columns_that_are_said_to_be_in_order_are(written, tmp_path):
    ckpt = changed(written, tmp_path, "gptq-4", ("m.g_idx",), desc_act=False)
    made, expected = raw(ckptool.dequantize(ckpt)), raw(ckptool.open(written / "gptq-4.expected.safetensors"))
    assert made == expected


def test_a_plain_model_has_nothing_to_dequantise(written):
    with pytest.raises(NoMatch, match="no tensor is quantized"):
        ckptool.dequantize(ckptool.open(written / "gptq-4.expected.safetensors"))


@pytest.mark.parametrize(("rows", "scales", "sure"), [(192, 2, False), (448, 4, False), (256, 2, True), (96, 3, True)])
def test_the_size_of_blocks_is_not_guessed_where_the_last_may_be_cut(tmp_path, rows, scales, sure):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    weight = torch.ones(rows, 128).to(torch.float8_e4m3fn)
    save_file({"m.weight": weight, "m.weight_scale_inv": torch.ones(scales, 1)}, tmp_path / "x.safetensors")
    ckpt = ckptool.open(tmp_path / "x.safetensors")
    if sure:
        assert ckptool.dequantize(ckpt).state_dict()["m.weight"].shape == (rows, 128)
    else:
        with pytest.raises(CannotCarry, match="nothing says how large a block is"):
            ckptool.dequantize(ckpt)
