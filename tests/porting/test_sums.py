"""One bias of several layers whose outputs are added, and stacks of layers with their biases."""

from __future__ import annotations

from dataclasses import replace

from sides import pairing, signature, wanted

from ckptool.model_code.signature import Facts, Flow
from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]


def test_a_bias_beside_two_layers_is_the_bias_of_one_of_them_if_their_outputs_are_added() -> None:
    source: Shapes = {}
    target: Shapes = {}
    for n in range(2):
        source |= {
            f"layers.{n}.fc_self.weight": (8, 8),
            f"layers.{n}.fc_neigh.weight": (8, 8),
            f"layers.{n}.bias": (8,),
        }
        target |= {
            f"conv{n}.lin_neigh.weight": (8, 8),
            f"conv{n}.lin_self.weight": (8, 8),
            f"conv{n}.lin_self.bias": (8,),
        }
    for one, other, bias in ((source, target, "layers.1.bias"), (target, source, "conv1.lin_self.bias")):
        made = wanted(other, used=other)
        flows = {key: Facts(Flow(n, (1 << n // 3 * 3) - 1)) for n, key in enumerate(other) if key.endswith("weight")}
        made = replace(made, entries={k: replace(e, facts=flows.get(k, e.facts)) for k, e in made.entries.items()})
        mapping = port(signature(one), made)
        key = next(key for key in other if "1." in key and key.endswith("bias"))
        assert pairing(mapping)[key] == bias
        assert not mapping.unused


def test_layers_of_which_one_takes_the_output_of_the_other_keep_their_biases() -> None:
    """A bias beside them is then not the bias of one of them."""
    source = {"fc_self.weight": (8, 8), "fc_neigh.weight": (8, 8), "bias": (8,)}
    target = {"lin_self.weight": (8, 8), "lin_self.bias": (8,), "lin_neigh.weight": (8, 8)}
    made = wanted(target, used=target)
    flows = {"lin_self.weight": Facts(Flow(0, 0)), "lin_neigh.weight": Facts(Flow(1, 1))}
    made = replace(made, entries={k: replace(e, facts=flows.get(k, e.facts)) for k, e in made.entries.items()})
    assert pairing(port(signature(source), made)).get("lin_self.bias") != "bias"


def test_the_biases_of_stacked_layers_are_joined_and_stacked_with_their_weights() -> None:
    """The two layers `mu` and `logvar` of each member are one stack, whose order is a question."""
    source: Shapes = {}
    for n in range(5):
        for name, rows in (("fc1", 16), ("fc2", 16), ("mu", 6), ("logvar", 6)):
            source |= {f"models.{n}.{name}.weight": (rows, 16), f"models.{n}.{name}.bias": (rows,)}
    target: Shapes = {"head.weight": (5, 16, 12), "head.bias": (5, 1, 12)}
    for n in range(2):
        target |= {f"hidden.{n}.weight": (5, 16, 16), f"hidden.{n}.bias": (5, 1, 16)}
    mapping = port(signature(source), wanted(target, used=target))
    assert not mapping.unused
    assert {f"models.{n}.mu.bias" for n in range(5)} < set(mapping["head.bias"].sources)
    assert mapping["hidden.1.bias"].sources == [f"models.{n}.fc2.bias" for n in range(5)]
    assert mapping["head.weight"].status == mapping["head.bias"].status == "guessed"


def test_lists_of_unequal_layers_beside_each_other_are_one_layer_for_each_number() -> None:
    """The third list has layers of other sizes, and a fourth is no part of them."""
    source: Shapes = {}
    for name, rows in (("stems", 12), ("cls_preds", 5), ("reg_preds", 4), ("obj_preds", 1)):
        for n in range(3):
            source |= {f"head.{name}.{n}.weight": (rows, 12, 1, 1), f"head.{name}.{n}.bias": (rows,)}
    target: Shapes = {}
    for n in range(3):
        target |= {f"detect.m.{n}.weight": (10, 12, 1, 1), f"detect.m.{n}.bias": (10,)}
        target |= {f"detect.cv.{n}.weight": (12, 12, 1, 1), f"detect.cv.{n}.bias": (12,)}
    mapping = port(signature(source), wanted(target, used=target))
    parts = [f"head.{name}_preds.1.weight" for name in ("reg", "obj", "cls")]
    assert mapping["detect.m.1.weight"].sources == parts
    assert mapping["detect.m.1.weight"].status == "guessed"
    assert pairing(mapping)["detect.cv.1.weight"] == "head.stems.1.weight"


def test_layers_of_equal_modules_of_a_block_are_one_layer_of_the_other_code() -> None:
    """Shift, scale and gate of two parts of a block, which diffusion transformers compute in one layer."""
    source: Shapes = {"final.adaLN.weight": (16, 8), "final.adaLN.bias": (16,)}
    target: Shapes = {}
    for n in range(2):
        source |= {f"blocks.{n}.qkv.weight": (24, 8), f"blocks.{n}.proj.weight": (8, 8)}
        source |= {f"blocks.{n}.adaLN.1.weight": (48, 8), f"blocks.{n}.adaLN.1.bias": (48,)}
        for part in ("msa", "mlp"):
            for name in ("shift", "scale", "gate"):
                target |= {f"layers.{n}.mod_{part}.{name}.weight": (8, 8), f"layers.{n}.mod_{part}.{name}.bias": (8,)}
        target |= {f"layers.{n}.qkv.weight": (24, 8), f"layers.{n}.proj.weight": (8, 8)}
    for name in ("shift", "scale"):
        target |= {f"mod_out.{name}.weight": (8, 8), f"mod_out.{name}.bias": (8,)}
    mapping = port(signature(source), wanted(target, used=target))
    assert str(mapping["layers.1.mod_mlp.scale.weight"].expr) == "slice(blocks.1.adaLN.1.weight, 0, 32, 40)"
    assert mapping["layers.1.mod_mlp.scale.weight"].status == "guessed"
    assert str(mapping["mod_out.scale.bias"].expr) == "slice(final.adaLN.bias, 0, 8, 16)"
    assert not mapping.unused


def test_numbers_without_dimensions_beside_layers_that_are_joined_are_no_biases() -> None:
    source = {f"m.w{n}.{leaf}": shape for n in (1, 3) for leaf, shape in (("weight", (4, 8)), ("bias", ()))}
    mapping = port(signature(source | {"x.weight": (3, 5)}), wanted({"m.both.weight": (8, 8), "x.weight": (3, 5)}))
    assert pairing(mapping) == {"x.weight": "x.weight", "m.both.weight": "cat(0, m.w1.weight, m.w3.weight)"}
