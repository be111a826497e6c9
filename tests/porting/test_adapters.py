"""Low-rank adapters: what is merged is what their code adds, and what is not merged is a doubt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import found, lazy_tensor, signature, wanted, worked_out

from ckptool.porting.expression import lazy
from ckptool.porting.port import port

RANDOM = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def low_rank(*, out: int = 8, into: int = 6, rank: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    return {"weight": values(out, into), "a": values(rank, into), "b": values(out, rank)}


#: How codes spell the parts of an adapted layer `proj`.
SPELLINGS = {
    "inside the layer": ("proj.weight", "proj.lora_A", "proj.lora_B"),
    "around the layer": ("proj.base_layer.weight", "proj.lora_A.default.weight", "proj.lora_B.default.weight"),
    "down and up": ("proj.org_module.weight", "proj.lora_down.weight", "proj.lora_up.weight"),
    "a linear inside": ("proj.linear.weight", "proj.lora_a.weight", "proj.lora_b.weight"),
    "apart, with other separators": (
        "block.proj.weight",
        "lora_unet_block_proj.lora_down.weight",
        "lora_unet_block_proj.lora_up.weight",
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(rank=st.integers(1, 4), alpha=st.integers(1, 32))
def test_an_alpha_in_the_file_scales_the_product_by_the_rank(spelling: str, rank: int, alpha: int) -> None:
    w, a, b = SPELLINGS[spelling]
    parts = low_rank(rank=rank)
    beside = a.partition(".lora")[0] + ".alpha"
    source = {w: parts["weight"], a: parts["a"], b: parts["b"], beside: np.float32(alpha), "norm.weight": values(6)}
    made = worked_out(source, {"proj.weight": (8, 6), "norm.weight": (6,)})
    assert made["proj.weight"].status == "mapped"
    np.testing.assert_allclose(
        made["proj.weight"].values, parts["weight"] + alpha / rank * parts["b"] @ parts["a"], rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_without_a_scale_the_merged_weight_is_a_guess(spelling: str) -> None:
    w, a, b = SPELLINGS[spelling]
    shapes = {w: (8, 6), a: (2, 6), b: (8, 2), "norm.weight": (6,)}
    entry = found(port(signature(shapes), wanted({"proj.weight": (8, 6), "norm.weight": (6,)})), "proj.weight")
    assert entry.status == "guessed"
    assert "scale" in entry.doubts[0]


def test_a_convolution_takes_adapters_of_its_own_kernel_and_of_one_pixel() -> None:
    down, up = values(2, 3, 3, 3), values(8, 2, 1, 1)
    weight = values(8, 3, 3, 3)
    source = {"c.weight": weight, "c.lora_down.weight": down, "c.lora_up.weight": up, "c.alpha": np.float32(4)}
    made = worked_out(source, {"c.weight": (8, 3, 3, 3)})["c.weight"]
    assert made.status == "mapped"
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(values(1, 3, 5, 5))
    conv = torch.nn.functional.conv2d
    wanted_out = conv(x, torch.from_numpy(weight)) + 2 * conv(conv(x, torch.from_numpy(down)), torch.from_numpy(up))
    np.testing.assert_allclose(conv(x, torch.from_numpy(made.values)).numpy(), wanted_out.numpy(), rtol=1e-3, atol=1e-4)


def test_a_table_and_a_matrix_with_its_inputs_first_take_the_product_turned() -> None:
    a, b, alpha = values(2, 10), values(6, 2), np.float32(2)
    source = {
        "e.weight": values(10, 6),
        "e.lora_embedding_A.default": a,
        "e.lora_embedding_B.default": b,
        "e.alpha": alpha,
    }
    made = worked_out(source, {"e.weight": (10, 6)})["e.weight"]
    np.testing.assert_allclose(made.values, source["e.weight"] + (b @ a).T, rtol=1e-5, atol=1e-5)
    source = {
        "c.weight": values(6, 9),
        "c.bias": values(9),
        "c.lora_A": values(2, 6),
        "c.lora_B": values(9, 2),
        "c.alpha": alpha,
    }
    made = worked_out(source, {"c.weight": (9, 6), "c.bias": (9,)})["c.weight"]
    np.testing.assert_allclose(
        made.values, source["c.weight"].T + source["c.lora_B"] @ source["c.lora_A"], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(8,), (8, 1)])
def test_magnitudes_give_the_rows_of_the_merged_weight_their_norms(shape: tuple[int, ...]) -> None:
    parts, magnitude = low_rank(), np.abs(values(*shape)) + 1
    source = {
        "p.base_layer.weight": parts["weight"],
        "p.lora_A.default.weight": parts["a"],
        "p.lora_B.default.weight": parts["b"],
        "p.lora_magnitude_vector.default.weight": magnitude,
        "p.alpha": np.float32(2),
    }
    made = worked_out(source, {"p.weight": (8, 6)})["p.weight"]
    assert made.status == "mapped"
    merged = parts["weight"] + parts["b"] @ parts["a"]
    np.testing.assert_allclose(np.linalg.norm(made.values, axis=1), magnitude.reshape(-1), rtol=1e-5)
    np.testing.assert_allclose(made.values / merged, (made.values / merged)[:, :1].repeat(6, 1), rtol=1e-3)


def biased(named: str = "default") -> dict[str, np.ndarray[Any, Any]]:
    """A layer as peft stores it with `lora_bias`."""
    parts = low_rank()
    return {
        "proj.base_layer.weight": parts["weight"],
        "proj.base_layer.bias": values(8),
        f"proj.lora_A.{named}.weight": parts["a"],
        f"proj.lora_B.{named}.weight": parts["b"],
        f"proj.lora_B.{named}.bias": values(8),
    }


@pytest.mark.parametrize("scale", [None, 4.0])
def test_a_bias_of_the_adapter_is_added_to_that_of_the_layer_with_the_same_scale(scale: float | None) -> None:
    source = biased()
    tensors = {key: lazy_tensor(value) for key, value in source.items()}
    shapes = {"proj.weight": (8, 6), "proj.bias": (8,)}
    mapping = port(signature({k: v.shape for k, v in source.items()}), wanted(shapes), lora_scale=scale)
    w, bias, a, b, more = source.values()
    for key, value in (("proj.weight", w + (scale or 1) * b @ a), ("proj.bias", bias + (scale or 1) * more)):
        entry = found(mapping, key)
        assert entry.status == ("guessed" if scale is None else "mapped")
        np.testing.assert_allclose(lazy(entry.expr, tensors).numpy(), value, rtol=1e-5, atol=1e-5)


#: What beside a layer with an adapter that has a bias, and without what, makes it one that is not merged.
UNMERGED: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "of another adapter": ({"proj.lora_A.more.weight": (2, 6), "proj.lora_B.more.weight": (8, 2)}, ""),
    "with an alpha": ({"proj.alpha": ()}, ""),
    "with magnitudes": ({"proj.lora_magnitude_vector.default.weight": (8,)}, ""),
    "without factors": ({}, "proj.lora_A.default.weight"),
    "of another size": ({"proj.lora_B.default.bias": (4,)}, ""),
    "of the factor for the inputs": ({"proj.lora_A.default.bias": (2,)}, "proj.lora_B.default.bias"),
    "of a layer without one": ({}, "proj.base_layer.bias"),
}


@pytest.mark.parametrize("kind", UNMERGED)
def test_a_layer_with_an_adapter_whose_bias_is_not_merged_is_a_guess(kind: str) -> None:
    more, without = UNMERGED[kind]
    shapes = {key: value.shape for key, value in biased().items() if key != without} | more
    mapping = port(signature(shapes), wanted({"proj.weight": (8, 6), "proj.bias": (8,)}))
    assert found(mapping, "proj.weight").status == "guessed"
    if without not in ("proj.base_layer.bias", "proj.lora_B.default.bias"):
        assert found(mapping, "proj.bias").status == "guessed"


@pytest.mark.parametrize("around", ["alpha", "lora_A", "lora_mid.alpha"])
def test_a_module_with_the_name_of_a_part_of_an_adapter_hides_none_of_those_in_it(around: str) -> None:
    parts = low_rank()
    source = {f"{around}.fc.weight": parts["weight"], f"{around}.fc.lora_A.weight": parts["a"]}
    source |= {f"{around}.fc.lora_B.weight": parts["b"], f"{around}.fc.alpha": np.float32(2)}
    made = worked_out(source, {f"{around}.fc.weight": (8, 6)})[f"{around}.fc.weight"]
    assert made.status == "mapped"
    np.testing.assert_allclose(made.values, parts["weight"] + parts["b"] @ parts["a"], rtol=1e-5, atol=1e-5)


#: What stands beside `proj.weight` [8, 6] and is not merged.
LEFT = {
    "a kind that is known by name only": {"proj.hada_w1_a": (8, 2), "proj.hada_w1_b": (2, 6)},
    "a part without the other": {"proj.lora_A.weight": (2, 6)},
    "one that does not fit": {"proj.lora_A.weight": (2, 7), "proj.lora_B.weight": (8, 2)},
    "two by name": {
        f"proj.lora_{part}.{name}.weight": shape
        for name in ("style", "subject")
        for part, shape in (("A", (2, 6)), ("B", (8, 2)))
    },
    "a middle": {"proj.lora_down.weight": (2, 6), "proj.lora_mid.weight": (2, 2), "proj.lora_up.weight": (8, 2)},
}


@pytest.mark.parametrize("kind", LEFT)
def test_an_adapter_that_is_not_merged_makes_its_weight_a_guess(kind: str) -> None:
    shapes = {"proj.weight": (8, 6), **LEFT[kind], "norm.weight": (6,)}
    mapping = port(signature(shapes), wanted({"proj.weight": (8, 6), "norm.weight": (6,)}))
    assert found(mapping, "proj.weight").status == "guessed"
    assert "merged" in found(mapping, "proj.weight").doubts[0]
    assert found(mapping, "norm.weight").status == "mapped"


ADAPTED = {"proj.base_layer.weight": (8, 6), "proj.lora_A.default.weight": (2, 6), "proj.lora_B.default.weight": (8, 2)}


def test_a_model_with_adapters_gets_them_as_they_are() -> None:
    mapping = port(signature({f"module.{k}": s for k, s in ADAPTED.items()}), wanted(ADAPTED))
    assert {e.target: str(e.expr) for e in mapping.entries} == {k: f"module.{k}" for k in ADAPTED}


def test_a_model_with_adapters_takes_its_base_from_a_plain_file() -> None:
    target = {
        "proj.base_layer.weight": (8, 6),
        "proj.lora_A.default.weight": (2, 6),
        "proj.lora_B.default.weight": (8, 2),
    }
    mapping = port(signature({"proj.weight": (8, 6), "norm.weight": (8,)}), wanted(target | {"norm.weight": (8,)}))
    assert str(found(mapping, "proj.base_layer.weight").expr) == "proj.weight"
    assert found(mapping, "proj.lora_A.default.weight").status == "unmapped"


def test_of_a_module_that_was_trained_instead_the_trained_copy_counts() -> None:
    shapes = {
        "head.original_module.weight": (5, 6),
        "head.modules_to_save.default.weight": (5, 6),
        "proj.weight": (8, 6),
        "proj.lora_A.default.weight": (2, 6),
        "proj.lora_B.default.weight": (8, 2),
    }
    mapping = port(signature(shapes), wanted({"proj.weight": (8, 6), "head.weight": (5, 6)}))
    assert str(found(mapping, "head.weight").expr) == "head.modules_to_save.default.weight"
    assert found(mapping, "head.weight").status == "mapped"


def test_of_layers_in_a_module_that_was_trained_instead_the_trained_copies_count() -> None:
    shapes = {f"head.{copy}.dense.weight": (5, 6) for copy in ("original_module", "modules_to_save.default")}
    shapes |= {"proj.weight": (8, 6), "proj.lora_A.default.weight": (2, 6), "proj.lora_B.default.weight": (8, 2)}
    mapping = port(signature(shapes), wanted({"proj.weight": (8, 6), "head.dense.weight": (5, 6)}))
    assert str(found(mapping, "head.dense.weight").expr) == "head.modules_to_save.default.dense.weight"
    assert found(mapping, "head.dense.weight").status == "mapped"


@pytest.mark.parametrize("inner", ["", "dense."])
def test_a_model_that_keeps_a_trained_copy_of_a_module_gets_the_one_of_a_plain_file_in_both_places(inner: str) -> None:
    copies = [f"head.{copy}.{inner}weight" for copy in ("original_module", "modules_to_save.default")]
    source = {f"head.{inner}weight": (5, 6), "proj.weight": (8, 6)}
    mapping = port(signature(source), wanted({**dict.fromkeys(copies, (5, 6)), "proj.base_layer.weight": (8, 6)}))
    assert [str(found(mapping, key).expr) for key in copies] == [f"head.{inner}weight"] * 2
    assert {found(mapping, key).status for key in copies} == {"mapped"}


def test_originals_and_trained_copies_of_a_file_are_those_of_a_model_that_has_both() -> None:
    target = {f"head.{copy}.weight": (5, 6) for copy in ("original_module", "modules_to_save.default")}
    target |= {"proj.weight": (8, 6)}
    mapping = port(signature({f"module.{key}": shape for key, shape in target.items()}), wanted(target))
    assert {e.target: str(e.expr) for e in mapping.entries} == {key: f"module.{key}" for key in target}
    assert mapping.is_sure


def test_an_alpha_that_belongs_to_no_adapter_is_a_tensor_like_any_other() -> None:
    shapes = {"act.alpha": (1,), "proj.weight": (8, 6), "proj.bias": (8,)}
    mapping = port(signature(shapes), wanted(shapes))
    assert {e.target: str(e.expr) for e in mapping.entries} == {k: k for k in shapes}


#: What a file says about its adapters, and the scale that follows.
CONFIGS = {
    "alpha and rank": ({"peft_config": {"lora_alpha": 16, "r": 4}}, 4.0),
    "by the root of the rank": ({"peft_config": {"lora_alpha": 16, "r": 4, "use_rslora": True}}, 8.0),
    "another rank for some layers": ({"peft_config": {"lora_alpha": 16, "r": 4, "rank_pattern": {"q": 8}}}, None),
    "an alpha beyond all numbers": ({"peft_config": {"lora_alpha": 10**400, "r": 4}}, None),
    "an alpha that is none": ({"peft_config": {"lora_alpha": float("nan"), "r": 4}}, None),
    "a rank of next to nothing": ({"peft_config": {"lora_alpha": 16, "r": 5e-324}}, None),
    "the rank of a process": ({"config": {"alpha": 0.25, "rank": 1}}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("said", CONFIGS)
def test_a_scale_beside_the_weights_is_taken_where_it_holds_for_all(said: str) -> None:
    torch = pytest.importorskip("torch")
    import ckptool

    config, scale = CONFIGS[said]
    net = torch.nn.Sequential(torch.nn.Linear(6, 8))
    weights = {"0.weight": torch.randn(8, 6), "0.bias": torch.randn(8)}
    weights |= {"0.lora_A": torch.randn(4, 6), "0.lora_B": torch.randn(8, 4)}
    entry = ckptool.transfer(ckptool.from_torch({"model": weights, **config}), net)["0.weight"]
    assert entry.status == ("guessed" if scale is None else "mapped")
    assert str(entry.expr) == f"lora(0.weight, 0.lora_A, 0.lora_B, {scale or 1.0})"


def test_an_adapter_of_a_number_without_dimensions_is_not_merged() -> None:
    mapping = port(
        signature({"fc.weight": (), "fc.lora_A.weight": (1, 1), "fc.lora_B.weight": (1, 1)}), wanted({"fc.weight": ()})
    )
    assert str(found(mapping, "fc.weight").expr) == "fc.weight"
