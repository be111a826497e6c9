"""Casts leave packed weights alone. Files have the layouts that the libraries write; torch is asked for values."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import ckptool
from ckptool.errors import CannotCarry
from ckptool.passes.packed import packed_in

STATE = torch.frombuffer(bytearray(json.dumps({"quant_type": "nf4", "shape": [8, 16]}).encode()), dtype=torch.uint8)


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape).to(dtype)


#: family -> (its tensors, further ones that are cast)
FAMILIES = {
    "bitsandbytes, 4 bits": {
        "a.weight": ones(64, 1, dtype=torch.uint8),
        "a.weight.absmax": ones(2, dtype=torch.uint8),
        "a.weight.quant_map": ones(16),
        "a.weight.nested_absmax": ones(1),
        "a.weight.nested_quant_map": ones(256),
        "a.weight.quant_state.bitsandbytes__nf4": STATE,
    },
    "bitsandbytes, 8 bits": {
        "a.weight": ones(4, 4, dtype=torch.int8),
        "a.SCB": ones(4),
        "a.weight_format": torch.tensor(0, dtype=torch.uint8),
    },
    "GPTQ": {
        "a.qweight": ones(2, 16, dtype=torch.int32),
        "a.qzeros": ones(1, 2, dtype=torch.int32),
        "a.scales": ones(1, 16),
        "a.g_idx": ones(16, dtype=torch.int32),
    },
    "AWQ or GPTQ": {
        "a.qweight": ones(16, 2, dtype=torch.int32),
        "a.qzeros": ones(1, 2, dtype=torch.int32),
        "a.scales": ones(1, 16),
    },
    "compressed-tensors": {
        "a.weight_packed": ones(6, 3, dtype=torch.int32),
        "a.weight_scale": ones(6, 1),
        "a.weight_shape": torch.tensor([6, 20]),
    },
    "float8_e4m3fn with scales": {"a.weight": ones(4, 4, dtype=torch.float8_e4m3fn), "a.weight_scale_inv": ones(1, 1)},
    "int8 with scales": {"a.weight": ones(4, 4, dtype=torch.int8), "a.weight_scale": ones(4, 1)},
    "MLX": {"a.weight": torch.ones(4, 2, dtype=torch.uint32), "a.scales": ones(4, 1), "a.biases": ones(4, 1)},
    "MXFP4": {"e.down_blocks": ones(2, 4, 1, 16, dtype=torch.uint8), "e.down_scales": ones(2, 4, 1, dtype=torch.uint8)},
    "torch": {"a.scale": ones(1), "a.zero_point": torch.tensor([0], dtype=torch.int32)},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_weight_and_its_scales_are_left_alone_and_named(tmp_path, family):
    held = FAMILIES[family] | {"norm.weight": ones(4), "a.bias": ones(4)}
    torch.save(held, tmp_path / "in.pth")
    done = ckptool.cast(ckptool.open(tmp_path / "in.pth"), "fp16")
    ckptool.save(done, tmp_path / "out.pth")
    loaded = torch.load(tmp_path / "out.pth")
    for key, tensor in FAMILIES[family].items():
        assert loaded[key].dtype == tensor.dtype, key
    assert loaded["norm.weight"].dtype == loaded["a.bias"].dtype == torch.float16
    (note,) = [line for line in done.history if "packed" in line]
    assert note.startswith(f"note: 1 packed weight ({family}) left as they are, {len(FAMILIES[family])} tensors")
    (one,) = packed_in(ckptool.open(tmp_path / "in.pth").state_dict())
    assert set(one.keys) == set(FAMILIES[family])


def test_what_looks_packed_in_an_unknown_way_is_refused_until_somebody_says_what_to_keep():
    held = {"a.packed": ones(4, 2, dtype=torch.uint8), "a.scale": ones(4), "b.weight": ones(2)}
    ckpt = ckptool.from_torch(held)
    with pytest.raises(CannotCarry, match=r"1 weight looks packed in a way that is not known") as raised:
        ckptool.cast(ckpt, "bf16")
    assert raised.value.evidence == ("a.packed (uint8) beside a.scale",)
    assert raised.value.hint.startswith("--cast-keep 're:scale$'")
    done = ckptool.cast(ckpt, "bf16", keep="re:scale$").state_dict()
    assert [done[key].dtype.name for key in held] == ["uint8", "float32", "bfloat16"]


def test_float8_without_scales_and_indices_beside_a_scale_are_cast():
    held = {
        "a.weight": ones(4, 4, dtype=torch.float8_e4m3fn),
        "attn.index": torch.ones(4, 4).long(),
        "attn.logit_scale": ones(4),
    }
    done = ckptool.cast(ckptool.from_torch(held), "bf16").state_dict()
    assert [done[key].dtype.name for key in held] == ["bfloat16", "int64", "bfloat16"]


@pytest.mark.parametrize("old", ["complex128", "complex64", "complex32"])
@pytest.mark.parametrize("new", ["complex64", "complex128"])
def test_complex_numbers_are_cast_as_torch_does(tmp_path, old, new):
    values = torch.complex(torch.randn(7), torch.tensor([1e30, -0.0, 0.5, float("inf"), float("nan"), 3, 1e-30]))
    if old == "complex32":
        values = values.to(torch.complex64)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = values.to(getattr(torch, old))
        expected = values.to(getattr(torch, new))
    torch.save({"w": values, "v": torch.ones(2)}, tmp_path / "in.pth")
    ckptool.save(ckptool.cast(ckptool.open(tmp_path / "in.pth"), new), tmp_path / "out.pth")
    loaded = torch.load(tmp_path / "out.pth")
    assert loaded["v"].dtype == torch.float32
    assert loaded["w"].dtype == expected.dtype
    assert torch.equal(torch.view_as_real(loaded["w"]).nan_to_num(), torch.view_as_real(expected).nan_to_num())


def test_complex128_becomes_a_safetensors_file(tmp_path):
    from safetensors.torch import load_file

    weights = {"w": torch.randn(3, dtype=torch.complex128)}
    torch.save(weights, tmp_path / "in.pth")
    ckptool.save(ckptool.cast(ckptool.open(tmp_path / "in.pth"), "complex64"), tmp_path / "out.safetensors")
    assert torch.equal(load_file(tmp_path / "out.safetensors")["w"], weights["w"].to(torch.complex64))


def test_values_that_overflow_name_their_tensors(tmp_path):
    weights = {
        "fine": torch.ones(9),
        "a": torch.full((3,), 1e6),
        "b": torch.tensor([1e9]),
        "c": torch.tensor([float("nan")]),
    }
    torch.save(weights, tmp_path / "in.pth")
    plan = ckptool.plan(ckptool.cast(ckptool.open(tmp_path / "in.pth"), "fp16"), tmp_path / "out.pth")
    from ckptool.formats import write

    notes = write(plan)
    assert notes == [
        "4 values beyond the range of the new type: a (3), b (1)",
        "1 value NaN, as before: c (1)",
    ]


@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(["", ".", "a.", "..", "a.weight."]),
            st.sampled_from(
                ["", "weight", "qweight", "scales", "g_idx", "absmax", "quant_map", "weight_scale", "weight.absmax"]
            ),
        ).map("".join),
        st.sampled_from(["int32", "uint8", "int8", "float32"]),
        max_size=8,
    )
)
def test_what_belongs_together_is_in_one_module_and_in_the_state_dict(types):
    weights = ckptool.from_torch(
        {key: ones(2, dtype=getattr(torch, name)) for key, name in types.items()}
    ).state_dicts()
    for one in packed_in(weights[0]) if weights else []:
        assert one.name in one.keys
        assert set(one.keys) <= types.keys()
        assert all(key.startswith(one.name[: one.name.rfind(".") + 1]) for key in one.keys)
