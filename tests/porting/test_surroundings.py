"""Names that mean what they do by what stands beside them, and tensors that both sides have as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sides import found, pairing, signature, wanted

from ckptool.porting.port import port


def block(*norms: str, attention: str = "attn", layers: tuple[str, str] = ("up", "down")) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(2):
        shapes |= {f"layers.{i}.{attention}.{name}.weight": (8, 8) for name in ("query", "key", "value", "out")}
        shapes |= {f"layers.{i}.{layers[0]}.weight": (16, 8), f"layers.{i}.{layers[1]}.weight": (8, 16)}
        shapes |= {f"layers.{i}.{norm}.{leaf}": (8,) for norm in norms for leaf in ("weight", "bias")}
    return shapes


@pytest.mark.parametrize("theirs", [("attn_ln", "mlp_ln"), ("norm1", "norm2")])
def test_beside_the_norm_behind_the_second_part_the_one_behind_the_attention_is_the_first(
    theirs: tuple[str, str],
) -> None:
    source, target = block(*theirs), block("post_attention_layernorm", "post_mlp_layernorm", attention="self_attn")
    mapping = port(signature(source), wanted(target))
    for own, other in zip(("post_attention_layernorm", "post_mlp_layernorm"), theirs, strict=True):
        assert str(found(mapping, f"layers.1.{own}.weight").expr) == f"layers.1.{other}.weight"


def test_alone_with_one_before_the_block_the_norm_behind_the_attention_is_the_second() -> None:
    source = block("attention_norm", "ffn_norm", attention="attention")
    mapping = port(signature(source), wanted(block("input_layernorm", "post_attention_layernorm")))
    assert str(found(mapping, "layers.0.post_attention_layernorm.weight").expr) == "layers.0.ffn_norm.weight"


@pytest.mark.parametrize("first", [0, 1])
def test_layers_that_one_side_counts_from_0_and_the_other_from_1_are_counted_alike(first: int) -> None:
    """`norm1` is in both, and is another one."""
    own, theirs = (tuple(f"norm{n + base}" for n in range(2)) for base in (first, 1 - first))
    mapping = port(signature(block(*theirs)), wanted(block(*own, attention="self_attn")))
    for mine, other in zip(own, theirs, strict=True):
        entry = found(mapping, f"layers.0.{mine}.weight")
        assert (str(entry.expr), entry.status) == (f"layers.0.{other}.weight", "mapped")


def test_a_layer_0_that_the_other_side_calls_otherwise_moves_no_names() -> None:
    """All four are alike: `layer1` is `layer1`, and what stands before it is the stem."""
    own = {"stem.weight": (8, 8)} | {f"layer{n}.conv.weight": (8, 8) for n in range(1, 5)}
    theirs = {f"layer{n}.conv.weight": (8, 8) for n in range(5)}
    mapping = port(signature(theirs), wanted(own))
    for n in range(1, 5):
        assert str(found(mapping, f"layer{n}.conv.weight").expr) == f"layer{n}.conv.weight"


def test_a_gate_of_one_row_beside_experts_is_no_table_of_words() -> None:
    source = {f"layers.{i}.mlp.{name}": shape for i in range(2) for name, shape in _EXPERTS.items()}
    source |= {f"layers.{i}.norm.weight": (8,) for i in range(2)}
    mapping = port(signature(source), wanted(source))
    assert pairing(mapping) == {key: key for key in source}


_EXPERTS = {
    "gate.weight": (4, 8),
    "shared_expert.up.weight": (12, 8),
    "shared_expert.down.weight": (8, 12),
    "shared_expert_gate.weight": (1, 8),
}


def test_a_table_of_one_row_is_found_though_only_the_model_says_that_it_is_a_table() -> None:
    source = {f"tracker.layers.{i}.norm.{leaf}": (8,) for i in range(2) for leaf in ("weight", "bias")}
    source |= {"tracker.score_token.weight": (1, 8), "tracker.point_token.weight": (1, 8)}
    model = wanted({key.removeprefix("tracker."): shape for key, shape in source.items()})
    entries = {
        key: replace(entry, module="Embedding") if "token" in key else entry for key, entry in model.entries.items()
    }
    mapping = port(signature(source), replace(model, entries=entries))
    assert pairing(mapping) == {key.removeprefix("tracker."): key for key in source}


def test_what_both_sides_have_by_name_and_size_is_not_divided_into_layers() -> None:
    """Two heads of two classes look like layers scanned over; the model has them as they are."""
    shapes = {f"heads.{i}.{leaf}": size for i in range(2) for leaf, size in (("weight", (2, 8)), ("bias", (2,)))}
    shapes |= {f"body.{i}.{leaf}": size for i in range(2) for leaf, size in (("weight", (8,)), ("bias", (8,)))}
    shapes |= {"embed.weight": (2, 8)}
    mapping = port(signature(shapes), wanted(shapes))
    assert pairing(mapping) == {key: key for key in shapes}


def test_an_output_layer_is_no_new_head_because_sorted_names_put_it_first() -> None:
    source = {"body.embed_in.weight": (31, 8), "embed_out.weight": (31, 8)}
    source |= {f"body.layers.{i}.{name}.weight": (8, 8) for i in range(3) for name in ("dense", "other")}
    own = {key.replace("embed_out", "lm_head"): shape for key, shape in source.items()}
    used = [key for key in own if "lm_head" not in key] + ["lm_head.weight"]
    mapping = port(signature(dict(sorted(source.items())), ordered=False), wanted(own, used=used))
    assert str(found(mapping, "lm_head.weight").expr) == "embed_out.weight"


@pytest.mark.parametrize(("values", "status"), [(6, "guessed"), (8, "mapped")])
def test_keys_and_values_of_other_sizes_may_stand_in_each_head_whatever_their_name_spells(
    values: int, status: str
) -> None:
    own = {f"layers.{i}.attn.{n}_b.weight": (size, 5) for i in range(2) for n, size in (("k", 8), ("v", values))}
    source = {f"layers.{i}.attn.kv_b.weight": (8 + values, 5) for i in range(2)}
    out = {f"layers.{i}.attn.out.weight": (8, values) for i in range(2)}
    mapping = port(signature(source | out), wanted(own | out))
    entry = found(mapping, "layers.1.attn.v_b.weight")
    assert (entry.status, str(entry.expr)) == (status, f"slice(layers.1.attn.kv_b.weight, 0, 8, {8 + values})")


def test_a_layer_with_a_bias_is_none_without_one_whatever_the_modules_around_them_hold() -> None:
    """Two of three matrices stand together on both sides, and not the same two."""
    source, target = {}, {}
    for n in range(2):
        source |= {
            f"interactions.{n}.conv.lin1.weight": (8, 8),
            f"interactions.{n}.conv.lin2.weight": (8, 8),
            f"interactions.{n}.conv.lin2.bias": (8,),
            f"interactions.{n}.lin.weight": (8, 8),
            f"interactions.{n}.lin.bias": (8,),
        }
        target |= {
            f"steps.{n}.enter.weight": (8, 8),
            f"steps.{n}.leave.0.weight": (8, 8),
            f"steps.{n}.leave.0.bias": (8,),
            f"steps.{n}.leave.1.weight": (8, 8),
            f"steps.{n}.leave.1.bias": (8,),
        }
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping) == dict(zip(target, source, strict=True))
    assert {e.status for e in mapping.entries} == {"mapped"}


def test_a_norm_that_is_counted_as_second_is_so_too_in_the_block_that_has_no_first() -> None:
    source, target = {}, {}
    for n in range(3):
        norms = {} if n == 0 else {f"layers.{n}.norm0.weight": (8,)}
        source |= {f"layers.{n}.attention.out.weight": (8, 8), f"layers.{n}.linear0.weight": (16, 8)} | norms
        source |= {f"layers.{n}.linear1.weight": (8, 16), f"layers.{n}.norm1.weight": (8,)}
        target |= {} if n == 0 else {f"blocks.{n}.attn_norm.weight": (8,)}
        target |= {f"blocks.{n}.out.weight": (8, 8), f"blocks.{n}.ffn_norm.weight": (8,)}
        target |= {f"blocks.{n}.ffn_in.weight": (16, 8), f"blocks.{n}.ffn_out.weight": (8, 16)}
    mapping = port(signature(source), wanted(target, used=target))
    for n in (1, 2):
        assert pairing(mapping)[f"blocks.{n}.attn_norm.weight"] == f"layers.{n}.norm0.weight"
        assert pairing(mapping)[f"blocks.{n}.ffn_norm.weight"] == f"layers.{n}.norm1.weight"
    assert pairing(mapping)["blocks.0.ffn_norm.weight"] == "layers.0.norm1.weight"


@pytest.mark.parametrize("between", [".", "/"])
def test_statistics_in_a_collection_of_their_own_are_those_of_the_norm_whatever_stands_between_names(
    between: str,
) -> None:
    source, target = {"params.conv_init.kernel": (3, 3, 3, 8)}, {"conv1.weight": (8, 3, 3, 3)}
    for own, norm in (
        ("bn1", "bn_init"),
        ("layer1.0.bn1", "Block_0.BatchNorm_0"),
        ("layer1.0.bn2", "Block_0.BatchNorm_1"),
    ):
        source |= {f"params.{norm}.{leaf}": (8,) for leaf in ("scale", "bias")}
        source |= {f"batch_stats.{norm}.{leaf}": (8,) for leaf in ("mean", "var")}
        target |= {f"{own}.{leaf}": (8,) for leaf in ("weight", "bias", "running_mean", "running_var")}
    for n in range(2):
        source[f"params.Block_0.Conv_{n}.kernel"] = (3, 3, 8, 8)
        target[f"layer1.0.conv{n + 1}.weight"] = (8, 8, 3, 3)
    used = [
        key
        for part in ("conv1", "bn1", "layer1.0.conv1", "layer1.0.bn1", "layer1.0.conv2", "layer1.0.bn2")
        for key in target
        if key.rpartition(".")[0] == part
    ]
    mapping = port(
        signature({key.replace(".", between): size for key, size in source.items()}), wanted(target, used=used)
    )
    assert {e.status for e in mapping.entries} == {"mapped"}
    assert pairing(mapping)["layer1.0.bn2.running_var"].strip('"') == "batch_stats.Block_0.BatchNorm_1.var".replace(
        ".", between
    )


def test_heads_in_a_dimension_of_their_own_are_flat_where_the_model_holds_all_projections_in_one() -> None:
    source, target = {}, {}
    for n in range(2):
        source |= {f"layers.{n}.attn.W_{name}": (4, 16, 4) for name in ("query", "key", "val")}
        source |= {f"layers.{n}.attn.W_out": (4, 4, 16), f"layers.{n}.fc.weight": (24, 16)}
        target |= {f"blocks.{n}.attn.in_proj_weight": (48, 16), f"blocks.{n}.attn.out_proj.weight": (16, 16)}
        target |= {f"blocks.{n}.fc1.weight": (24, 16)}
    mapping = port(signature(source), wanted(target, used=target))
    flat = "reshape(permute(layers.1.attn.W_{}, 0, 2, 1), 16, 16)"
    assert pairing(mapping)["blocks.1.attn.in_proj_weight"] == "cat(0, {}, {}, {})".format(
        *(flat.format(name) for name in ("query", "key", "val"))
    )
    assert pairing(mapping)["blocks.1.attn.out_proj.weight"] == "reshape(permute(layers.1.attn.W_out, 2, 0, 1), 16, 16)"


@pytest.mark.parametrize(("names", "status"), [(("g", "theta", "phi"), "mapped"), (("a", "b", "c"), "guessed")])
def test_queries_keys_and_values_in_one_tensor_are_no_three_layers_that_merely_come_in_a_row(
    names: tuple[str, str, str], status: str
) -> None:
    source: dict[str, tuple[int, ...]] = {"enter.weight": (8, 3, 1, 1)}
    target: dict[str, tuple[int, ...]] = {"start.weight": (8, 3, 1, 1)}
    for n in range(2):
        source |= {f"nl{n}.{name}.weight": (4, 8, 1, 1) for name in names} | {f"nl{n}.W.weight": (8, 4, 1, 1)}
        target |= {f"attn{n}.to_qkv.weight": (12, 8, 1, 1), f"attn{n}.out.weight": (8, 4, 1, 1)}
    mapping = port(signature(source), wanted(target, used=target))
    for n in range(2):
        assert found(mapping, f"attn{n}.to_qkv.weight").status == status
    if status == "mapped":
        joined = "cat(0, nl1.theta.weight, nl1.phi.weight, nl1.g.weight)"
        assert pairing(mapping)["attn1.to_qkv.weight"] == joined


def test_a_norm_stays_beside_the_convolution_of_its_module_whatever_the_modules_farther_out_hold() -> None:
    """Only the head has a convolution of other sizes; all norms are of one size, and run in another order."""

    def unit(name: str, conv: str, norm: str, inputs: int = 8) -> dict[str, tuple[int, ...]]:
        shapes = {f"{name}.{norm}.{leaf}": (8,) for leaf in ("weight", "bias", "running_mean", "running_var")}
        return {f"{name}.{conv}.weight": (8, inputs, 3, 3)} | shapes

    source = {f"cp.arm{n}.conv_atten.weight": (8, 8, 1, 1) for n in (16, 32)}
    for name in ("cp.arm16.conv", "cp.arm32.conv", "cp.conv_head32", "cp.conv_head16"):
        source |= unit(name, "conv", "bn")
    source |= unit("conv_out.conv", "conv", "bn", 16) | {"conv_out.conv_out.weight": (5, 8, 1, 1)}
    target = {"head.classes.weight": (5, 8, 1, 1)} | unit("head.conv3", "conv", "norm", 16)
    target |= unit("refine16", "conv", "norm") | unit("refine32", "conv", "norm")
    for gate in ("gate32", "gate16"):
        target |= {f"{gate}.attention.weight": (8, 8, 1, 1)} | unit(f"{gate}.features", "conv", "norm")
    run = [key for part in ("gate32", "refine32", "gate16", "refine16", "head") for key in target if part in key]
    made = pairing(port(signature(source), wanted(target, used=run)))
    for key, made_of in made.items():
        if ".norm." in key:
            beside = made[f"{key.partition('.norm.')[0]}.conv.weight"]
            assert made_of.partition(".bn.")[0] == beside.removesuffix(".conv.weight"), key


def test_a_part_that_may_have_the_old_name_of_another_is_a_guess_if_its_neighbours_come_from_elsewhere() -> None:
    def part(name: str, *sizes: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.fc1.weight": sizes, f"{name}.fc2.weight": sizes[::-1]}

    ends = {"inp.weight": (8, 3), "head.weight": (4, 8)}
    target = part("vae_encoder", 16, 8) | part("encoder", 16, 8) | part("decoder", 12, 8) | ends
    moved = part("net.encoder", 16, 8) | part("net.decoder", 12, 8) | part("encoder", 16, 8) | ends
    mapping = port(signature(moved), wanted(target))
    assert pairing(mapping)["decoder.fc1.weight"] == "net.decoder.fc1.weight"
    assert {entry.target for entry in mapping.having("guessed")} == {key for key in target if "encoder" in key}
    others = {entry.target: str(option) for entry in mapping.entries for q in entry.questions for option in q.options}
    assert others["encoder.fc1.weight"] == "net.encoder.fc1.weight"
    stayed = part("net.encoder", 16, 8) | part("decoder", 12, 8) | part("encoder", 16, 8) | ends
    assert port(signature(stayed), wanted(target))["encoder.fc1.weight"].status == "mapped"


@pytest.mark.parametrize("inner", [("dense", "dense_1"), ("a", "b")])
def test_layers_alone_beside_a_part_show_where_it_may_come_from_whatever_the_layers_in_it_are_called(
    inner: tuple[str, str],
) -> None:
    def part(name: str, one: str, other: str) -> dict[str, tuple[int, ...]]:
        sizes = {"weight": (16, 8), "bias": (16,)}, {"weight": (8, 16), "bias": (8,)}
        layers = zip((one, other), sizes, strict=True)
        return {f"{name}.{layer}.{role}": shape for layer, held in layers for role, shape in held.items()}

    alone = {"gate.weight": (5, 8), "mix.weight": (6, 8)}
    target = part("pre_mlp", "0", "2") | alone | part("mlp", "0", "2")
    within = {f"slot_attention.{key}": shape for key, shape in (alone | part("mlp", *inner)).items()}
    mapping = port(signature(part("mlp", *inner) | within, ordered=False), wanted(target))
    assert pairing(mapping)["gate.weight"] == "slot_attention.gate.weight"
    assert {entry.target for entry in mapping.having("guessed")} == {key for key in target if "mlp" in key}
    for place, layer in zip("02", inner, strict=True):
        both = [f"mlp.{layer}.weight", f"slot_attention.mlp.{layer}.weight"]
        entry = mapping[f"mlp.{place}.weight"]
        assert sorted(str(expr) for expr in (entry.expr, *entry.rivals)) == both
    apart = signature(part("mlp", *inner) | part("slot_attention.mlp", *inner) | alone, ordered=False)
    assert port(apart, wanted(target))["mlp.0.weight"].status == "mapped"
