"""Norms of the source that the model does not have."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sides import Made, found, pairing, port, signature, wanted, worked_out

from ckptool.model_code.signature import BehindLayer, Facts, Signature

LEAVES, STATISTICS = ("weight", "bias"), ("running_mean", "running_var")


def layers(bias: bool, norm: bool, first: str = "blocks", layer: str = "linear") -> dict[str, np.ndarray]:
    values = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    sizes = (12, 32, 24)
    for n, (width, rows) in enumerate(pairwise(sizes)):
        made[f"{first}.{n}.{layer}.weight"] = values.normal(size=(rows, width))
        if bias:
            made[f"{first}.{n}.{layer}.bias"] = values.normal(size=rows)
        if norm:
            for leaf in ("weight", "bias", "running_mean"):
                made[f"{first}.{n}.bn.{leaf}"] = values.normal(size=rows)
            made[f"{first}.{n}.bn.running_var"] = values.uniform(1, 2, size=rows)
    made["head.weight"] = values.normal(size=(3, sizes[-1]))
    made["head.bias"] = values.normal(size=3)
    return {key: value.astype(np.float32) for key, value in made.items()}


def into(source: dict[str, np.ndarray], model: dict[str, np.ndarray]) -> dict[str, Made]:
    return worked_out(source, {key: value.shape for key, value in model.items()})


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_batch_norm_behind_a_layer_is_folded_into_its_weight_and_its_bias(bias: bool, affine: bool) -> None:
    source = layers(bias, norm=True)
    if not affine:
        source = {key: value for key, value in source.items() if not key.endswith(("bn.weight", "bn.bias"))}
    made = into(source, layers(bias=True, norm=False, first="fc"))
    x = np.random.default_rng(1).normal(size=12)
    for n in range(2):
        before = source[f"blocks.{n}.linear.weight"] @ x + (source[f"blocks.{n}.linear.bias"] if bias else 0)
        norm = {leaf: source.get(f"blocks.{n}.bn.{leaf}", 1 - at) for at, leaf in enumerate(LEAVES)}
        norm |= {leaf: source[f"blocks.{n}.bn.{leaf}"] for leaf in STATISTICS}
        scaled = (before - norm["running_mean"]) / np.sqrt(norm["running_var"] + 1e-5)
        expected = scaled * norm["weight"] + norm["bias"]
        weight, own = made[f"fc.{n}.linear.weight"], made[f"fc.{n}.linear.bias"]
        assert (weight.status, own.status) == ("guessed", "guessed")
        plain = (
            f"blocks.{n}.linear.bias" if bias else f"zeros({len(expected)})"
        )  # the doubt says: if not, take the plain tensor
        assert list(map(str, own.entry.rivals)) == [plain]
        assert np.allclose(weight.values @ x + own.values, expected, atol=1e-5)
        x = expected
    assert made["head.weight"].status == "mapped"


@pytest.mark.parametrize("seen", [False, True])
def test_batch_norms_behind_all_layers_of_a_module_are_folded_in_the_order_of_both(seen: bool) -> None:
    """PointNet lists its convolutions, then its linear layers, then all norms."""
    layers_of = {"conv1": (4, 3), "conv2": (6, 4), "fc1": (4, 6), "fc2": (2, 4)}
    norms_of = {"bn1": "conv1", "bn2": "conv2", "bn3": "fc1"}
    source: dict[str, tuple[int, ...]] = {}
    target: dict[str, tuple[int, ...]] = {}
    for at, (name, shape) in enumerate(layers_of.items()):
        source |= {f"stn.{name}.weight": shape, f"stn.{name}.bias": shape[:1]}
        target |= {f"mlp.{2 * at}.weight": shape, f"mlp.{2 * at}.bias": shape[:1]}
    for name, layer in norms_of.items():
        source |= {f"stn.{name}.{leaf}": layers_of[layer][:1] for leaf in (*LEAVES, *STATISTICS)}
    read = signature(source)
    if seen:
        entries = dict(read.entries)
        for name, layer in norms_of.items():
            key = f"stn.{name}.running_mean"
            entries[key] = replace(entries[key], facts=Facts(behind=BehindLayer(f"stn.{layer}.weight", 1e-3)))
        read = Signature("", entries)
    mapping = port(read, wanted(target, used=target))
    for at, (name, layer) in enumerate(norms_of.items()):
        weight = found(mapping, f"mlp.{2 * at}.weight")
        eps = 1e-3 if seen else 1e-5
        assert (
            str(weight.expr) == f"fold_weight(stn.{layer}.weight, stn.{name}.weight, stn.{name}.running_var, {eps:g})"
        )
        assert weight.status == ("mapped" if seen else "guessed")
    assert found(mapping, "mlp.6.weight").status == "mapped"


def test_a_norm_that_the_file_has_twice_is_not_folded_into_the_layer_before_it() -> None:
    """RAFT's `norm3` is the norm in `downsample`, too."""
    names = ("conv", "downsample.0", "downsample.1", "norm3")
    source: dict[str, tuple[int, ...]] = {}
    for name in names:
        conv = name in names[:2]
        source |= {f"block.{name}.{leaf}": (4, 4, 1, 1) if conv and leaf == "weight" else (4,) for leaf in LEAVES}
        source |= {} if conv else {f"block.{name}.{leaf}": (4,) for leaf in STATISTICS}
    read = signature(source)
    behind = Facts(behind=BehindLayer("block.downsample.0.weight", 1e-5))
    entries = {key: replace(e, facts=behind) if "running_mean" in key else e for key, e in read.entries.items()}
    target = {key: shape for key, shape in source.items() if "norm3" not in key}
    mapping = port(Signature("", entries), wanted(target, used=target))
    assert {str(entry.expr) for entry in mapping.entries} == target.keys()


def test_a_layer_directly_before_the_norms_of_a_module_is_not_that_of_the_first_norm() -> None:
    """The shortcut has the size of the first norm, and no norm."""
    layers_of = {"conv1": (4, 3), "conv2": (6, 4), "shortcut": (4, 5)}
    source: dict[str, tuple[int, ...]] = {}
    for name, shape in layers_of.items():
        source |= {f"b.{name}.weight": shape, f"b.{name}.bias": shape[:1]}
    target = dict(source)
    for name, size in (("bn1", 4), ("bn2", 6)):
        source |= {f"b.{name}.{leaf}": (size,) for leaf in (*LEAVES, *STATISTICS)}
    mapping = port(signature(source), wanted(target, used=target))
    assert str(found(mapping, "b.conv1.weight").expr).startswith("fold_weight(b.conv1.weight, b.bn1.weight")
    assert found(mapping, "b.shortcut.weight").expr.is_copy


def test_norms_are_not_folded_by_order_if_one_of_their_module_has_a_partner() -> None:
    source = {f"stn.{name}.weight": (4, 4) for name in ("fc1", "fc2")} | {"stn.fc2.bias": (4,), "stn.fc1.bias": (4,)}
    source |= {f"stn.{name}.{leaf}": (4,) for name in ("bn1", "spare") for leaf in (*LEAVES, *STATISTICS)}
    target = {key: shape for key, shape in source.items() if "spare" not in key}
    assert all(entry.expr is None or entry.expr.is_copy for entry in port(signature(source), wanted(target)).entries)


@pytest.mark.parametrize("names", [("first", "norm"), ("conv", "bn")])
def test_a_norm_that_one_block_lacks_says_nothing_against_the_pairs_of_other_blocks(names: tuple[str, str]) -> None:
    def blocks(layer: str, norm: str, without: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for n in range(4):
            shapes |= {f"net.{n}.{layer}.weight": (6, 6, 3, 3), f"net.{n}.{layer}.bias": (6,)}
            shapes |= {f"net.{n}.{norm}.{leaf}": (6,) for leaf in (*LEAVES, *STATISTICS) if n != without}
        return shapes

    mapping = port(signature(blocks("conv", "bn", -1)), wanted(blocks(*names, 2)))
    asked = {entry.target: [q.reason.name for q in entry.questions] for entry in mapping.entries if entry.doubts}
    assert asked == {f"net.2.{names[0]}.{leaf}": ["FOLDED_NORM"] for leaf in LEAVES}


def test_a_batch_norm_before_a_linear_layer_is_folded_into_it() -> None:
    """LeViT has such heads, which its code fuses for use."""
    values = np.random.default_rng(0)
    norm = {leaf: values.uniform(0.5, 2.0, 6) for leaf in ("weight", "bias", "running_mean", "running_var")}
    linear = {"weight": values.normal(size=(4, 6)), "bias": values.normal(size=4)}
    source = {f"head.bn.{leaf}": value for leaf, value in norm.items()}
    source |= {f"head.l.{leaf}": value for leaf, value in linear.items()}
    made = into(source, {f"head.{leaf}": value for leaf, value in linear.items()})
    x = values.normal(size=6)
    scaled = (x - norm["running_mean"]) / np.sqrt(norm["running_var"] + 1e-5) * norm["weight"] + norm["bias"]
    weight, bias = made["head.weight"], made["head.bias"]
    assert np.allclose(weight.values @ x + bias.values, linear["weight"] @ scaled + linear["bias"], atol=1e-5)
    for one, leaf in ((weight, "weight"), (bias, "bias")):
        assert [q.reason.name for q in one.entry.questions] == ["FOLDED_NORM_BEFORE"]
        assert list(map(str, one.entry.rivals)) == [f"head.l.{leaf}"]


def test_further_layers_that_may_take_the_output_of_a_folded_norm_are_guesses() -> None:
    source: dict[str, np.ndarray] = {f"attn.bn.{leaf}": np.ones(6) for leaf in (*LEAVES, *STATISTICS)}
    layers_of = {f"attn.{part}": (4 + at, 6) for at, part in enumerate(("one", "two", "three"))} | {"attn.out": (7, 5)}
    own = {
        f"{name}.{leaf}": np.ones(shape[: 2 - at])
        for name, shape in layers_of.items()
        for at, leaf in enumerate(LEAVES)
    }
    made = into(source | own, own)
    assert {key for key, one in made.items() if one.status == "mapped"} == {"attn.out.weight", "attn.out.bias"}
    assert [q.reason.name for q in made["attn.two.weight"].entry.questions] == ["UNREAD_NORM"]


def test_a_layer_that_code_runs_with_two_norms_has_neither_folded() -> None:
    source = {f"a.{leaf}": (6, 6)[: 2 - at] for at, leaf in enumerate(LEAVES)}
    source |= {f"{name}.{leaf}": (6,) for name in ("bn1", "bn2") for leaf in (*LEAVES, *STATISTICS)}
    read = signature(source)
    behind = Facts(behind=BehindLayer("a.weight", 1e-5))
    entries = {key: replace(e, facts=behind) if "running_mean" in key else e for key, e in read.entries.items()}
    target = {key: source[key] for key in ("a.weight", "a.bias")}
    mapping = port(Signature("", entries), wanted(target, used=target))
    assert [(str(e.expr), e.status) for e in mapping.entries] == [("a.weight", "guessed"), ("a.bias", "guessed")]


def test_a_norm_in_a_head_that_the_model_lacks_is_no_certain_part_of_the_layer_before_it() -> None:
    source: dict[str, tuple[int, ...]] = {"out.weight": (6, 6), "out.bias": (6,)}
    source |= {f"head.bn.{leaf}": (6,) for leaf in (*LEAVES, *STATISTICS)} | {"head.fc.weight": (3, 6)}
    read = signature(source)
    behind = Facts(behind=BehindLayer("out.weight", 1e-5))
    entries = {key: replace(e, facts=behind) if "running_mean" in key else e for key, e in read.entries.items()}
    target = {key: source[key] for key in ("out.weight", "out.bias")}
    mapping = port(Signature("", entries), wanted(target, used=target))
    assert {e.status for e in mapping.entries} == {"guessed"}


def test_a_batch_norm_of_another_part_is_not_folded_into_a_matrix_with_as_many_inputs() -> None:
    source: dict[str, np.ndarray] = {"head.l.weight": np.ones((4, 6)), "head.l.bias": np.ones(4)}
    source |= {f"rest.bn.{leaf}": np.ones(6) for leaf in ("weight", "bias", "running_mean", "running_var")}
    made = into(source, {"head.weight": np.ones((4, 6)), "head.bias": np.ones(4)})
    assert all(one.entry.expr.is_copy for one in made.values())


def test_a_layer_without_a_bias_cannot_take_its_batch_norm_in_and_is_doubted() -> None:
    made = into(layers(bias=False, norm=True), layers(bias=False, norm=False, first="fc"))
    assert made["fc.0.linear.weight"].status == "guessed"
    assert "blocks.0.bn" in made["fc.0.linear.weight"].entry.doubts[0]


@pytest.mark.parametrize(("how", "module"), [("__getitem__", "Affine"), ("mul", "Scale"), ("group_norm", "GroupNorm")])
def test_a_scale_and_shift_where_the_source_has_a_batch_norm_get_what_it_does(how: str, module: str) -> None:
    source = {f"net.{n}.{key}": shape for n in (0, 1) for key, shape in SCALED["norm"].items()}
    model = {f"body.{n}.{key}": shape for n in (0, 1) for key, shape in SCALED["scale"].items()}
    target = wanted(model, used=model)
    entries = {
        key: replace(e, how=how, module=module) if ".scale." in key else replace(e, how="conv2d", module="Conv2d")
        for key, e in target.entries.items()
    }
    made = port(signature(source), replace(target, entries=entries))
    weight, bias = (found(made, f"body.1.scale.{leaf}") for leaf in ("weight", "bias"))
    if how == "group_norm":
        assert weight.status == bias.status == "unmapped"
        return
    given = ", ".join(f"net.1.norm.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var"))
    assert str(weight.expr) == "fold_weight(shift(zeros(6), 1.0), net.1.norm.weight, net.1.norm.running_var, 1e-05)"
    assert str(bias.expr) == f"fold_bias(zeros(6), {given}, 1e-05)"
    assert [[q.reason.name for q in entry.questions] for entry in (weight, bias)] == [["NORM_AS_SCALE"]] * 2


_NORM = {f"norm.{leaf}": (6,) for leaf in ("weight", "bias", "running_mean", "running_var")}
_SCALE = {f"scale.{leaf}": (6,) for leaf in ("weight", "bias")}
#: A convolution without a bias, with a norm, and with what is left of it.
SCALED = {"norm": {"conv.weight": (6, 6, 3, 3), **_NORM}, "scale": {"conv.weight": (6, 6, 3, 3), **_SCALE}}


def test_norms_of_which_the_model_has_no_statistics_are_not_folded() -> None:
    source = layers(bias=True, norm=True)
    model = {key: value for key, value in source.items() if "running" not in key}
    made = into(source, {key.replace("blocks", "fc"): value for key, value in model.items()})
    assert all(one.entry.expr.is_copy for one in made.values())


def test_a_model_with_norms_of_its_own_has_nothing_folded() -> None:
    model = layers(bias=True, norm=True, first="fc")
    made = into(layers(bias=True, norm=True), model)
    assert {one.status for one in made.values()} == {"mapped"}
    assert all(one.entry.expr.is_copy for one in made.values())


def residual(prefix: str, conv: str, norm: str, again: bool) -> dict[str, tuple[int, ...]]:
    """Two blocks of convolutions and norms, the first with a downsampling whose norm may be there AGAIN as norm3."""
    made: dict[str, tuple[int, ...]] = {}

    def layer(name: str, *shape: int) -> None:
        made[f"{prefix}.{name}.weight"], made[f"{prefix}.{name}.bias"] = shape, shape[:1]
        if len(shape) == 1:
            made[f"{prefix}.{name}.running_mean"], made[f"{prefix}.{name}.running_var"] = shape, shape

    for block, width in enumerate((8, 12)):
        layers = {(conv, n): (12, width if n == 1 else 12, 3, 3) for n in (1, 2)} | {(norm, n): (12,) for n in (1, 2)}
        for name, n in sorted(layers, key=lambda one: one if "{}" not in conv else (str(one[1]), one[0])):
            layer(f"{block}.{name.format(n) if '{}' in name else f'{name}{n}'}", *layers[name, n])
        if again and block == 0:
            layer("0.norm3", 12)
        if block == 0:
            layer("0.downsample.0", 12, 8, 1, 1)
            layer("0.downsample.1", 12)
    return made


def test_a_norm_that_fits_two_places_is_doubted_where_one_of_them_is_left_open() -> None:
    target = residual("enc.layer2", "unit{}.0", "unit{}.1", again=False)
    mapping = port(signature(residual("net.layer2", "conv", "norm", again=True)), wanted(target, used=target))
    for entry in mapping.entries:
        _, _, block, layer, place, _ = entry.target.split(".")
        if entry.status == "mapped" and layer.startswith("unit"):
            assert entry.sources[0].startswith(f"net.layer2.{block}.{'norm' if place == '1' else 'conv'}{layer[-1]}.")


@pytest.mark.parametrize("prefix", ["encoder", "backbone", "net"])
def test_a_new_layer_takes_no_layers_that_the_model_has_under_their_names(prefix: str) -> None:
    """Two convolutions of a block, one beside the other, have the sizes of the new one before the head."""

    def trunk(name: str) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {f"{name}.conv1.weight": (8, 3, 7, 7)}
        for stage, (inputs, width) in enumerate(((8, 8), (8, 16), (16, 32), (32, 64)), 1):
            for block in range(2):
                first = inputs if block == 0 else width
                shapes[f"{name}.layer{stage}.{block}.conv1.weight"] = (width, first, 3, 3)
                shapes[f"{name}.layer{stage}.{block}.conv2.weight"] = (width, width, 3, 3)
        return shapes

    theirs = trunk("encoder") | {
        "decoder.blocks.0.conv1.0.weight": (32, 96, 3, 3),
        "decoder.blocks.0.conv2.0.weight": (32, 32, 3, 3),
    }
    ours = trunk(prefix) | {"neck.conv1.weight": (32, 64, 3, 3), "head.weight": (6, 32)}
    mapping = port(signature(theirs), wanted(ours, used=ours))
    expected = {key: key.replace(prefix, "encoder", 1) for key in trunk(prefix)}
    assert pairing(mapping) == expected
    assert {e.status for e in mapping.entries if e.target in expected} == {"mapped"}


def test_a_layer_that_takes_a_norm_keeps_its_own_questions() -> None:
    """A square bare matrix may be transposed, with the norm folded into it or without."""
    norm = {f"bn.{leaf}": (6,) for leaf in ("weight", "bias", "running_mean", "running_var")}
    source = {"enc.W": (6, 6), "enc.b": (6,), **norm, "dec.W": (6, 6), "dec.b": (6,)}
    model = {f"{name}.{leaf}": shape for name in ("enc", "dec") for leaf, shape in (("weight", (6, 6)), ("bias", (6,)))}
    target = wanted(model, used=model)
    entries = {key: replace(e, how="linear", module="Linear") for key, e in target.entries.items()}
    entry = found(port(signature(source), replace(target, entries=entries)), "enc.weight")
    assert str(entry.expr) == "fold_weight(transpose(enc.W), bn.weight, bn.running_var, 1e-05)"
    assert {question.reason.name: [str(option) for option in question.options] for question in entry.questions} == {
        "INPUTS_FIRST": ["fold_weight(enc.W, bn.weight, bn.running_var, 1e-05)"],
        "FOLDED_NORM": ["transpose(enc.W)"],
    }
