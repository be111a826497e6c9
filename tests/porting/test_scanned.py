"""What files of other frameworks hold: layers and experts in one tensor, heads in a dimension of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import worked_out

LAYERS, HEADS, WIDTH, HIDDEN = 3, 2, 4, 10
MODEL = HEADS * WIDTH


def block(rng: np.random.Generator) -> dict[str, Any]:
    """The tensors of one block as a framework with its inputs first names and lays them out."""

    def new(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    found = {f"norm_{n}.{leaf}": new(MODEL) for n in (0, 1) for leaf in ("scale", "bias")}
    for name in ("query", "key", "value"):
        found |= {f"attention.{name}.kernel": new(MODEL, HEADS, WIDTH), f"attention.{name}.bias": new(HEADS, WIDTH)}
    found |= {"attention.out.kernel": new(HEADS, WIDTH, MODEL), "attention.out.bias": new(MODEL)}
    found |= {"mlp.fc_in.kernel": new(MODEL, HIDDEN), "mlp.fc_in.bias": new(HIDDEN)}
    return found | {"mlp.fc_out.kernel": new(HIDDEN, MODEL), "mlp.fc_out.bias": new(MODEL)}


def in_torch(held: dict[str, Any], *, fused: bool) -> dict[str, Any]:
    """The same block as layers of torch."""
    norms = {"scale": "weight", "bias": "bias"}
    made = {f"norm{n + 1}.{norms[leaf]}": held[f"norm_{n}.{leaf}"] for n in (0, 1) for leaf in norms}
    weights = {name: held[f"attention.{name}.kernel"].reshape(MODEL, MODEL).T for name in ("query", "key", "value")}
    biases = {name: held[f"attention.{name}.bias"].reshape(MODEL) for name in weights}
    if fused:
        made["attn.qkv.weight"] = np.concatenate(list(weights.values()))
        made["attn.qkv.bias"] = np.concatenate(list(biases.values()))
    else:
        made |= {f"attn.{name}.weight": w for name, w in weights.items()}
        made |= {f"attn.{name}.bias": b for name, b in biases.items()}
    made["attn.proj.weight"] = held["attention.out.kernel"].reshape(MODEL, MODEL).T
    made["attn.proj.bias"] = held["attention.out.bias"]
    for own, theirs in (("fc1", "fc_in"), ("fc2", "fc_out")):
        made[f"mlp.{own}.weight"] = held[f"mlp.{theirs}.kernel"].T
        made[f"mlp.{own}.bias"] = held[f"mlp.{theirs}.bias"]
    return made


@given(axis=st.sampled_from([None, 0, 1]), fused=st.booleans(), seed=st.integers(0, 1))
def test_blocks_of_another_framework_become_layers(axis: int | None, fused: bool, seed: int) -> None:
    """One tensor for all layers, stacked along the first or the second dimension, or a block for each."""
    rng = np.random.default_rng(seed)
    blocks = [block(rng) for _ in range(LAYERS)]
    embedding = rng.standard_normal((17, MODEL)).astype(np.float32)
    source: dict[str, Any] = {"params.embed.embedding": embedding}
    for key in sorted(blocks[0]):
        if axis is None:
            source |= {f"params.trunk.block_{n}.{key}": held[key] for n, held in enumerate(blocks)}
        else:
            source[f"params.trunk.block.{key}"] = np.stack([held[key] for held in blocks], axis)
    wanted = {"embed.weight": embedding}
    for n, held in enumerate(blocks):
        wanted |= {f"layers.{n}.{key}": value for key, value in in_torch(held, fused=fused).items()}
    made = worked_out(source, {key: value.shape for key, value in wanted.items()}, used=wanted)
    for key, value in wanted.items():
        np.testing.assert_array_equal(made[key].values, value, err_msg=key)


#: Where the dimensions (heads, inputs, width) of a projection stand; its bias has (heads, width).
ORDERS = {"hdw": (0, 1, 2), "dhw": (1, 0, 2), "hwd": (0, 2, 1)}


@given(order=st.sampled_from(sorted(ORDERS)), biases=st.booleans(), backwards=st.booleans())
def test_projections_of_all_heads_are_matrices(order: str, biases: bool, backwards: bool) -> None:
    heads, width, model = 3, 4, 10
    rng = np.random.default_rng(0)
    apart: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for n in range(2):
        for name in "qkv":
            whole = rng.standard_normal((heads, model, width)).astype(np.float32)
            row = rng.standard_normal((heads, width)).astype(np.float32)
            apart[f"blocks.{n}.attn.W_{name}"] = np.ascontiguousarray(whole.transpose(ORDERS[order]))
            plain[f"layers.{n}.self_attn.{name}_proj.weight"] = whole.transpose(0, 2, 1).reshape(-1, model)
            if biases:
                apart[f"blocks.{n}.attn.b_{name}"] = row
                plain[f"layers.{n}.self_attn.{name}_proj.bias"] = row.reshape(-1)
        out = rng.standard_normal((heads, width, model)).astype(np.float32)
        apart[f"blocks.{n}.attn.W_o"] = out
        plain[f"layers.{n}.self_attn.o_proj.weight"] = out.reshape(-1, model).T
    have, want = (plain, apart) if backwards else (apart, plain)
    made = worked_out(have, {key: value.shape for key, value in want.items()})
    for key, value in want.items():
        np.testing.assert_array_equal(made[key].values, value, err_msg=key)


@pytest.mark.parametrize("copy", ["rnn.module.weight_hh_l0", "rnn.weight_hh_l0"])
def test_a_weight_that_is_kept_beside_its_dropped_copy_is_the_one(copy: str) -> None:
    rng = np.random.default_rng(0)
    sizes = {"weight_ih_l0": (20, 6), "bias_ih_l0": (20,), "bias_hh_l0": (20,)}
    head = copy.rpartition(".")[0]
    source = {f"{head}.{leaf}": rng.standard_normal(shape).astype(np.float32) for leaf, shape in sizes.items()}
    source["rnn.weight_hh_l0_raw"] = rng.standard_normal((20, 5)).astype(np.float32)
    source[copy] = np.where(rng.random((20, 5)) < 0.5, 0, source["rnn.weight_hh_l0_raw"]).astype(np.float32)
    made = worked_out(source, {f"lstm.{leaf}": shape for leaf, shape in (sizes | {"weight_hh_l0": (20, 5)}).items()})
    np.testing.assert_array_equal(made["lstm.weight_hh_l0"].values, source["rnn.weight_hh_l0_raw"])
    assert made["lstm.weight_hh_l0"].status == "mapped"


def experts(rng: np.random.Generator, layout: str, *, biases: bool) -> dict[str, Any]:
    """Two mixtures of three experts: "apart", "numbered", and stacked as "layers" or for products ("fused")."""
    n, d, f = 3, 6, 8
    made: dict[str, Any] = {}
    for layer in range(2):
        gate, up = (rng.standard_normal((n, f, d)).astype(np.float32) for _ in range(2))
        down, of_router = rng.standard_normal((n, d, f)).astype(np.float32), rng.standard_normal((n, d))
        rows = [rng.standard_normal((n, size)).astype(np.float32) for size in (f, f, d)]
        made[f"layers.{layer}.router.weight"] = of_router.astype(np.float32)
        head = f"layers.{layer}.experts"
        names = ("gate_proj", "up_proj", "down_proj")
        if layout in ("apart", "numbered"):
            for i in range(n):
                one = f"{head}.{i}" if layout == "apart" else f"{head}.expert_{i}"
                made |= {f"{one}.{k}.weight": w[i] for k, w in zip(names, (gate, up, down), strict=True)}
                made |= {f"{one}.{k}.bias": b[i] for k, b in zip(names, rows, strict=True) if biases}
        elif layout == "layers":
            made |= {f"{head}.{k}": w for k, w in zip(names, (gate, up, down), strict=True)}
            made |= {f"{head}.{k}_bias": b for k, b in zip(names, rows, strict=True) if biases}
        else:
            made[f"{head}.gate_up_proj"] = np.concatenate([gate, up], 1).transpose(0, 2, 1).copy()
            made[f"{head}.down_proj"] = down.transpose(0, 2, 1).copy()
            if biases:
                made[f"{head}.gate_up_proj_bias"] = np.concatenate(rows[:2], 1)
                made[f"{head}.down_proj_bias"] = rows[2]
    return made


LAYOUTS = ["apart", "numbered", "layers", "fused"]


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("theirs", LAYOUTS)
@pytest.mark.parametrize("own", LAYOUTS)
def test_experts_go_from_any_layout_into_any_other(own: str, theirs: str, biases: bool) -> None:
    have = experts(np.random.default_rng(0), theirs, biases=biases)
    wanted = experts(np.random.default_rng(0), own, biases=biases)
    have = {key.replace("layers.", "blocks.") if own != theirs else key: value for key, value in have.items()}
    made = worked_out(have, {key: value.shape for key, value in wanted.items()})
    for key, value in wanted.items():
        np.testing.assert_array_equal(made[key].values, value, err_msg=key)
        turns = biases and theirs == "fused" != own and ("gate" in key or "up" in key)
        assert made[key].status == ("guessed" if turns else "mapped"), key


@pytest.mark.parametrize("backwards", [False, True])
def test_halves_of_stacked_experts_whose_name_says_nothing_are_guesses(backwards: bool) -> None:
    rng = np.random.default_rng(0)
    have, want = {}, {}
    for layer in range(2):
        both, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 16, 6), (3, 6, 8)))
        have |= {f"layers.{layer}.moe.rows_in.weight": both, f"layers.{layer}.moe.rows_out.weight": down}
        have[f"layers.{layer}.moe.route.weight"] = route = rng.standard_normal((3, 6)).astype(np.float32)
        want[f"layers.{layer}.moe.gate.weight"] = route
        for n in range(3):
            head = f"layers.{layer}.moe.experts.{n}"
            want |= {f"{head}.w1.weight": both[n, :8], f"{head}.w2.weight": down[n], f"{head}.w3.weight": both[n, 8:]}
    source, target = (want, have) if backwards else (have, want)
    made = worked_out(source, {key: value.shape for key, value in target.items()})
    for key, value in target.items():
        np.testing.assert_array_equal(made[key].values, value, err_msg=key)
        assert made[key].status == ("guessed" if any(part in key for part in ("w1", "w3", "rows_in")) else "mapped")


@given(ranks=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3), width=st.sampled_from([3, 5]))
def test_kernels_with_their_channels_last_are_turned_with_those_whose_sizes_tell(ranks: list[int], width: int) -> None:
    rng = np.random.default_rng(0)
    shapes = [
        (9, 7, *[width] * 2),
        *((9, 9, *[width] * rank) for rank in ranks),
        *((9, 9, *[9] * rank) for rank in ranks),
    ]
    wanted = {f"net.{n}.weight": rng.standard_normal(shape).astype(np.float32) for n, shape in enumerate(shapes)}
    source = {f"layers.{n}.weight": np.moveaxis(value, 1, -1).copy() for n, value in enumerate(wanted.values())}
    made = worked_out(source, {key: value.shape for key, value in wanted.items()})
    for key, value in wanted.items():
        np.testing.assert_array_equal(made[key].values, value, err_msg=key)


def test_names_in_one_word_hold_their_roles() -> None:
    rng = np.random.default_rng(0)
    leaves = {"gamma": "weight", "beta": "bias", "running_mean": "running_mean", "running_var": "running_var"}
    source = {"net0_conv0_weight": rng.standard_normal((8, 3, 3, 3)).astype(np.float32)}
    wanted = {"stem.weight": source["net0_conv0_weight"]}
    for stage in (1, 2):
        for n in (0, 1):
            key = f"net0_stage{stage}_conv{n}_weight"
            source[key] = wanted[f"layer{stage}.conv{n + 1}.weight"] = rng.standard_normal((8, 8, 3, 3)).astype(
                "float32"
            )
            for leaf, role in leaves.items():
                key = f"net0_stage{stage}_batchnorm{n}_{leaf}"
                source[key] = wanted[f"layer{stage}.bn{n + 1}.{role}"] = rng.standard_normal(8).astype(np.float32)
    made = worked_out(source, {key: value.shape for key, value in wanted.items()}, used=wanted)
    for key, value in wanted.items():
        np.testing.assert_array_equal(made[key].values, value, err_msg=key)
