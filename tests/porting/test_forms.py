"""One layer in several forms: in lists, beside each other, in one tensor, without names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sides import found, pairing, signature, wanted, worked_out

from ckptool.porting.forms.nameless import named_by_position
from ckptool.porting.port import port


def arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {key: rng.standard_normal(shape) for key, shape in shapes.items()}


# -- several layers in one


def test_a_layer_over_all_blocks_is_cut_into_one_for_each() -> None:
    source = arrays({"table.weight": (9, 8), "filters.weight": (36, 5), "filters.bias": (36,)})
    source |= arrays({f"blocks.{n}.mix.weight": (8, 8) for n in range(3)})
    target = {"table.weight": (9, 8)}
    for n in range(3):
        target |= {
            f"steps.{n}.filter.weight": (12, 5),
            f"steps.{n}.filter.bias": (12,),
            f"steps.{n}.mix.weight": (8, 8),
        }
    made = worked_out(source, target)
    for n in range(3):
        for leaf in ("weight", "bias"):
            values = source[f"filters.{leaf}"][12 * n : 12 * n + 12]
            np.testing.assert_array_equal(made[f"steps.{n}.filter.{leaf}"].values, values)


def test_layers_that_each_block_holds_together_are_not_cut_into_one_for_each_block() -> None:
    rest = {"a.weight": (7, 6), "b.weight": (4, 6), "c.weight": (6, 4)}
    source = {f"layers.{n}.{key}": size for n in range(2) for key, size in {"in_proj.weight": (12, 5), **rest}.items()}
    parts = {"to_x.weight": (6, 5), "to_z.weight": (6, 5)}
    target = {f"stack.{n}.{key}": size for n in range(2) for key, size in {**parts, **rest}.items()}
    made = pairing(port(signature(source), wanted(target)))
    for n in range(2):
        assert made[f"stack.{n}.to_x.weight"] == f"slice(layers.{n}.in_proj.weight, 0, 0, 6)"
        assert made[f"stack.{n}.to_z.weight"] == f"slice(layers.{n}.in_proj.weight, 0, 6, 12)"


def test_a_matrix_whose_name_spells_the_layers_in_it_is_turned_and_cut_in_that_order() -> None:
    source = arrays({f"layers.{n}._vqk": (10, 24) for n in range(2)} | {"out.weight": (3, 10)})
    rows = {"value_v": (0, 12), "key_k": (18, 24), "query_q": (12, 18)}
    target = {f"parts.{n}.{name}.weight": (b - a, 10) for n in range(2) for name, (a, b) in rows.items()}
    made = worked_out(source, target | {"out.weight": (3, 10)})
    for n in range(2):
        for name, (start, stop) in rows.items():
            values = source[f"layers.{n}._vqk"].T[start:stop]
            np.testing.assert_array_equal(made[f"parts.{n}.{name}.weight"].values, values)


def test_positions_of_the_class_and_of_patches_stand_in_one_table_beside_a_token_for_the_class() -> None:
    source = arrays(
        {"cls_token": (1, 1, 6), "cls_pos_embed": (1, 1, 6), "patch_pos_embed": (1, 4, 6), "fc.weight": (3, 6)}
    )
    made = worked_out(source, {"class_token": (1, 1, 6), "pos_embed": (1, 5, 6), "fc.weight": (3, 6)})
    table = np.concatenate([source["cls_pos_embed"], source["patch_pos_embed"]], axis=1)
    np.testing.assert_array_equal(made["pos_embed"].values, table)
    assert made["class_token"].status == "mapped"


def test_experts_that_a_model_has_side_by_side_are_added_up_by_what_gives_the_results() -> None:
    source = arrays({f"experts.{n}.{name}.weight": (7, 6) for n in range(2) for name in ("gate_proj", "up_proj")})
    source |= arrays({f"experts.{n}.down_proj.weight": (6, 7) for n in range(2)})
    target = {
        "experts.gate_proj.weight": (14, 6),
        "experts.up_proj.weight": (14, 6),
        "experts.down_proj.weight": (6, 14),
    }
    made = worked_out(source, target)
    down = np.concatenate([source[f"experts.{n}.down_proj.weight"] for n in range(2)], axis=1)
    gate = np.concatenate([source[f"experts.{n}.gate_proj.weight"] for n in range(2)])
    np.testing.assert_array_equal(made["experts.down_proj.weight"].values, down)
    np.testing.assert_array_equal(made["experts.gate_proj.weight"].values, gate)


def test_scales_and_shifts_of_a_norm_for_each_type_are_those_of_a_list_of_norms() -> None:
    source = {f"{name}.{n}.weight": (6, 5) for name in ("keys", "values") for n in range(3)}
    source |= {f"{name}.{n}.bias": (6,) for name in ("keys", "values", "norms") for n in range(3)}
    source |= {f"norms.{n}.weight": (6,) for n in range(3)}
    made = pairing(
        port(
            signature(source),
            wanted(
                {"k.weight": (3, 6, 5), "k.bias": (3, 6), "v.weight": (3, 6, 5), "v.bias": (3, 6)}
                | {"norm_scale": (3, 6), "norm_shift": (3, 6)}
            ),
        )
    )
    assert made["norm_scale"] == "stack(norms.0.weight, norms.1.weight, norms.2.weight)"
    assert made["norm_shift"] == "stack(norms.0.bias, norms.1.bias, norms.2.bias)"


# -- gates and gains


@pytest.mark.parametrize("letters", ["ifzo", "ofiz"])
def test_a_matrix_whose_name_spells_all_gates_holds_them_in_that_order(letters: str) -> None:
    source = arrays(
        {f"cell.W_{gate}.weight": (4, 4) for gate in "ifzo"} | {f"cell.R_{g}.weight": (4, 4) for g in "ifzo"}
    )
    source |= arrays({f"cell.W_{gate}.bias": (4,) for gate in "ifzo"})
    target = {f"cell.weight_{letters}": (16, 4), f"cell.recurrent_{letters}": (16, 4), f"cell.bias_{letters}": (16,)}
    made = worked_out(source, target)
    for name, side, leaf in (("weight", "W", "weight"), ("recurrent", "R", "weight"), ("bias", "W", "bias")):
        values = np.concatenate([source[f"cell.{side}_{gate}.{leaf}"] for gate in letters])
        np.testing.assert_array_equal(made[f"cell.{name}_{letters}"].values, values)


def test_a_gain_by_its_name_is_that_of_weight_norm_and_a_guess() -> None:
    source = arrays({"cell_wx": (5, 8), "cell_wh": (3, 8), "cell_gx": (8,), "cell_gh": (8,), "cell_b": (8,)})
    made = worked_out(source, {"cell.x.weight": (8, 5), "cell.h.weight": (8, 3), "cell.h.bias": (8,)})
    for letter in "xh":
        matrix = source[f"cell_w{letter}"].T
        normed = matrix / np.linalg.norm(matrix, axis=1, keepdims=True) * source[f"cell_g{letter}"][:, None]
        np.testing.assert_allclose(made[f"cell.{letter}.weight"].values, normed)
        assert made[f"cell.{letter}.weight"].status == "guessed"
    np.testing.assert_array_equal(made["cell.h.bias"].values, source["cell_b"])


def test_gains_beside_shifts_are_those_of_norms() -> None:
    source = {"cell_wx": (5, 8), "cell_gx": (8,), "cell_bx": (8,)}
    made = port(signature(source), wanted({"x.weight": (8, 5), "norm.weight": (8,), "norm.bias": (8,)}))
    assert "weight_norm" not in pairing(made)["x.weight"]


@pytest.mark.parametrize("row", [(), (1,)])
def test_weights_and_biases_in_names_without_modules_are_told_by_a_letter(row: tuple[int, ...]) -> None:
    source, target = {}, {}
    for n in (1, 2):
        for name in ("Wq", "Wk", "Wo"):
            source[f"encoder_l{n}_self_{name}"] = (8, 8)
            source[f"encoder_l{n}_self_b{name[1:]}"] = (*row, 8)
        source |= {f"encoder_l{n}_ffn_W1": (8, 16), f"encoder_l{n}_ffn_b1": (*row, 16)}
        source |= {f"encoder_l{n}_ffn_W2": (16, 8), f"encoder_l{n}_ffn_b2": (*row, 8)}
        for name, shape in {
            "q_proj": (8, 8),
            "k_proj": (8, 8),
            "out_proj": (8, 8),
            "fc1": (16, 8),
            "fc2": (8, 16),
        }.items():
            target |= {f"layers.{n - 1}.{name}.weight": shape, f"layers.{n - 1}.{name}.bias": shape[:1]}
    values = arrays(source)
    made = worked_out(values, target)
    assert {one.status for one in made.values()} == {"mapped"}
    for key, name in (("layers.1.k_proj", "self_{}k"), ("layers.1.out_proj", "self_{}o"), ("layers.1.fc2", "ffn_{}2")):
        np.testing.assert_array_equal(made[f"{key}.weight"].values, values["encoder_l2_" + name.format("W")].T)
        np.testing.assert_array_equal(made[f"{key}.bias"].values, values["encoder_l2_" + name.format("b")].reshape(-1))


@pytest.mark.parametrize("inputs", [8, 1])
def test_a_row_of_biases_belongs_to_the_matrix_with_as_many_columns(inputs: int) -> None:
    source = arrays({"gate": (1, 9), "bias": (1, 5), "mix": (inputs, 5)})
    made = worked_out(source, {"x.weight": (5, inputs), "x.bias": (5,), "z.weight": (1, 9)})
    assert {one.status for one in made.values()} == {"mapped"}
    np.testing.assert_array_equal(made["x.weight"].values, source["mix"].T)
    np.testing.assert_array_equal(made["x.bias"].values, source["bias"][0])
    np.testing.assert_array_equal(made["z.weight"].values, source["gate"])


def test_a_kernel_of_three_dimensions_that_the_model_holds_so_is_no_convolution() -> None:
    source, target = {}, {}
    for n in range(2):
        for name in "qkvor":
            source[f"model/layer_{n}/rel_attn/{name}/kernel"] = (16, 4, 6)
            target[f"layer.{n}.rel_attn.{name}"] = (16, 4, 6)
        source[f"model/layer_{n}/ff/layer_1/kernel"] = (16, 32)
        target[f"layer.{n}.ff.layer_1.weight"] = (32, 16)
    mapping = port(signature(source), wanted(target, used=target))
    assert {e.status for e in mapping.entries} == {"mapped"}
    assert pairing(mapping)["layer.1.rel_attn.k"] == "model/layer_1/rel_attn/k/kernel"
    assert pairing(mapping)["layer.1.ff.layer_1.weight"] == "transpose(model/layer_1/ff/layer_1/kernel)"


@pytest.mark.parametrize("size", [(4, 4, 4), (3, 16, 16)])
def test_kernels_of_layers_are_turned_though_a_parameter_of_the_model_has_their_sizes(size: tuple[int, ...]) -> None:
    source = {f"enc/conv_{n}/kernel": size for n in range(3)} | {"enc/mixer": size}
    source |= {f"enc/conv_{n}/bias": size[-1:] for n in range(3)}
    target = {
        f"enc.conv.{n}.{leaf}": size[::-1] if leaf == "weight" else size[-1:]
        for n in range(3)
        for leaf in ("weight", "bias")
    }
    mapping = port(signature(source), wanted(target | {"enc.mixer": size}))
    for n in range(3):
        assert pairing(mapping)[f"enc.conv.{n}.weight"] == f"permute(enc/conv_{n}/kernel, 2, 1, 0)"


# -- tables and lists without names


def test_weights_of_what_is_called_embeddings_by_scopes_stand_with_their_rows_first() -> None:
    source = {"embeddings/weights": (20, 6), "encoder/dense/kernel": (6, 8)}
    made = pairing(port(signature(source), wanted({"shared.weight": (20, 6), "encoder.fc.weight": (8, 6)})))
    assert made == {"shared.weight": "embeddings/weights", "encoder.fc.weight": "transpose(encoder/dense/kernel)"}


MODEL = {
    "conv.weight": (4, 1, 3, 3),
    "norm.weight": (4,),
    "norm.bias": (4,),
    "norm.running_mean": (4,),
    "norm.running_var": (4,),
    "norm.num_batches_tracked": (),
    "head.weight": (5, 4),
    "head.bias": (5,),
}


@pytest.mark.parametrize("counters", [True, False])
@pytest.mark.parametrize("classes", [5, 3])
def test_a_list_of_arrays_is_read_in_the_order_of_the_state_dict(counters: bool, classes: int) -> None:
    keys = [key for key in MODEL if counters or "tracked" not in key]
    sizes = {**MODEL, "head.weight": (classes, 4), "head.bias": (classes,)}
    listed = {f"arr_{n}": sizes[key] for n, key in enumerate(keys)}
    shuffled = dict(sorted(listed.items(), reverse=True))
    named, new = named_by_position(signature(shuffled), wanted(MODEL))
    made = pairing(port(named, wanted(MODEL)))
    expected = {key: new[f"arr_{n}"] for n, key in enumerate(keys) if sizes[key] == MODEL[key]}
    assert made == expected


def test_a_list_of_other_sizes_or_with_names_is_left_as_it_is() -> None:
    for shapes in ({f"arr_{n}": (3, 3) for n in range(8)}, {"a": (4,), "b": (4,), "c": (4,), "d": (4,)}):
        assert named_by_position(signature(shapes), wanted(MODEL)) == (signature(shapes), {})
    gap = {f"arr_{n + (n > 3)}": shape for n, shape in enumerate(MODEL.values())}
    assert named_by_position(signature(gap), wanted(MODEL))[1] == {}


def test_what_a_list_holds_of_parts_that_run_beside_each_other_is_a_guess() -> None:
    torch = pytest.importorskip("torch")
    import ckptool

    class Two(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.right, self.left, self.out = (torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Any) -> Any:
            return self.out(self.left(x).relu() * self.right(x).tanh())

    held = {f"arr_{n}": value for n, value in enumerate(Two().state_dict().values())}
    mapping = ckptool.transfer(held, Two(), inputs=["float32[2,4]"])
    assert [str(e.expr) for e in mapping.entries] == list(held)
    assert found(mapping, "left.weight").status == "guessed"
    assert found(mapping, "out.weight").status == "mapped"
