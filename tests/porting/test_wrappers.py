"""Layers that old files and wrappers hold in another way: statistics that nothing used, parameters of a wrapper."""

from __future__ import annotations

from dataclasses import replace

from sides import found, pairing, signature, wanted

from ckptool.model_code.signature import Signature
from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]


def lstm(wrapper: str, layer: str) -> Shapes:
    return {
        f"{wrapper}.weight_hh_l0_raw": (32, 8),
        f"{layer}.weight_ih_l0": (32, 6),
        f"{layer}.bias_ih_l0": (32,),
        f"{layer}.bias_hh_l0": (32,),
    }


def test_a_parameter_moves_from_a_layer_to_its_wrapper_and_back() -> None:
    in_layer, in_wrapper = lstm("rnns.0.module", "rnns.0.module"), lstm("0.rnns.0", "0.rnns.0.module")
    there = port(signature(in_layer), wanted(in_wrapper))
    back = port(signature(in_wrapper), wanted(in_layer))
    assert pairing(there)["0.rnns.0.weight_hh_l0_raw"] == "rnns.0.module.weight_hh_l0_raw"
    assert pairing(back)["rnns.0.module.weight_hh_l0_raw"] == "0.rnns.0.weight_hh_l0_raw"
    assert {entry.status for made in (there, back) for entry in made.entries} == {"mapped"}


def two_directions(holder: str) -> Shapes:
    made: Shapes = {}
    for way in ("fwd", "bwd"):
        made |= {f"enc.{way}.{leaf}": shape for leaf, shape in (("weight_ih_l0", (32, 6)), ("bias_ih_l0", (32,)))}
        made[holder.format(way)] = (32, 8)
    return made


def test_what_is_around_two_layers_wraps_none_of_them() -> None:
    around, inside = two_directions("enc.weight_hh_l0"), two_directions("enc.{}.weight_hh_l0")
    for source, target in ((around, inside), (inside, around)):
        mapping = port(signature(source), wanted(target))
        assert {e.status for e in mapping.entries if "weight_hh" in e.target} == {"unmapped"}


def test_what_a_layer_of_the_model_takes_is_not_that_of_a_wrapper_as_well() -> None:
    source = two_directions("enc.{}.weight_hh_l0")
    target = source | {"enc.weight_hh_l0": (32, 8)}
    assert found(port(signature(source), wanted(target)), "enc.weight_hh_l0").status == "unmapped"


def norms(statistics: bool) -> Shapes:
    made: Shapes = {}
    for n in range(3):
        made[f"conv{n}.weight"] = (8, 8, 3 + 2 * n, 3)
        made |= {f"in{n}.weight": (8,), f"in{n}.bias": (8,)}
        made |= {f"in{n}.running_mean": (8,), f"in{n}.running_var": (8,)} if statistics else {}
    return made


def with_modules(shapes: Shapes, module: str) -> Signature:
    made = wanted(shapes, used=shapes)
    entries = {key: replace(e, module=module if key.startswith("in") else "Conv2d") for key, e in made.entries.items()}
    return replace(made, entries=entries)


def test_statistics_that_old_instance_norms_kept_are_left_out() -> None:
    mapping = port(signature(norms(statistics=True)), with_modules(norms(statistics=False), "InstanceNorm2d"))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    assert len(mapping.unused) == 6


def test_statistics_with_a_count_of_batches_are_not_of_an_old_instance_norm() -> None:
    """Torch counts batches since 0.4.1, so the norms of this file used their statistics."""
    source = norms(statistics=True) | {f"in{n}.num_batches_tracked": () for n in range(3)}
    mapping = port(signature(source), with_modules(norms(statistics=False), "InstanceNorm2d"))
    assert {e.status for e in mapping.entries if e.target.startswith("in")} == {"guessed"}


def test_a_batch_norm_is_no_group_norm() -> None:
    mapping = port(signature(norms(statistics=True)), with_modules(norms(statistics=False), "GroupNorm"))
    assert found(mapping, "in0.weight").status != "mapped"


def test_a_gate_called_w1_beside_v1_is_the_gate_of_experts() -> None:
    """As DBRX has it, beside the names of Mixtral."""
    source = {f"experts.mlp.{name}": (80, 32) for name in ("v1", "w1", "w2")}
    target = {f"experts.{n}.{name}.weight": (20, 32) for n in range(4) for name in ("w1", "w3")}
    target |= {f"experts.{n}.w2.weight": (32, 20) for n in range(4)}
    made = pairing(port(signature(source), wanted(target)))
    assert "mlp.w1" in made["experts.0.w1.weight"]
    assert "mlp.v1" in made["experts.0.w3.weight"]
