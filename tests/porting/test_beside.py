"""What stands beside a tensor says which one it is, where its own name and sizes do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sides import found, lazy_tensor, pairing, signature, wanted

from ckptool.porting.forms.copies import called_as_in, doubles
from ckptool.porting.port import port


@pytest.mark.parametrize("order", [("text_to_image", "image_to_text"), ("image_to_text", "text_to_image")])
def test_the_order_of_words_tells_parts_apart_that_are_called_by_the_same(order: tuple[str, str]) -> None:
    leaves = {"first.weight": (6, 6), "second.weight": (6, 6)}
    source = {f"cross.{part}.{leaf}": size for part in order for leaf, size in leaves.items()}
    target = {
        f"{part}_look.{leaf}": size for part in ("text_to_image", "image_to_text") for leaf, size in leaves.items()
    }
    made = pairing(port(signature(source), wanted(target)))
    assert made == {key: f"cross.{key.replace('_look', '')}" for key in target}


def test_which_of_two_holds_the_bias_is_a_guess_where_the_order_of_use_speaks_for_the_other() -> None:
    """Code that adds what two layers give has the bias in either."""
    source, target, used = {}, {}, []
    for n in range(2):
        source |= {f"convs.{n}.a.weight": (6, 6), f"convs.{n}.a.bias": (6,), f"convs.{n}.b.weight": (6, 6)}
        target |= {f"layers.{n}.own.weight": (6, 6), f"layers.{n}.near.weight": (6, 6), f"layers.{n}.near.bias": (6,)}
        used += [f"layers.{n}.own.weight", f"layers.{n}.near.weight", f"layers.{n}.near.bias"]
    made = port(signature(source), wanted(target, used=used))
    for n in range(2):
        for key, expected in (("own.weight", "b.weight"), ("near.weight", "a.weight"), ("near.bias", "a.bias")):
            entry = found(made, f"layers.{n}.{key}")
            assert (str(entry.expr), entry.status) == (f"convs.{n}.{expected}", "guessed")


def test_the_norm_of_the_feed_forward_part_is_the_third_beside_a_list_of_two() -> None:
    names = {"norms.0": "norm1", "norms.1": "norm2", "ff_norm": "norm3"}
    source = {f"blocks.{n}.{name}.{leaf}": (6,) for n in range(2) for name in names for leaf in ("weight", "bias")}
    target = {
        f"blocks.{n}.{name}.{leaf}": (6,) for n in range(2) for name in names.values() for leaf in ("weight", "bias")
    }
    made = pairing(port(signature(source), wanted(target)))
    for n in range(2):
        assert {made[f"blocks.{n}.{own}.weight"] for own in names.values()} == {f"blocks.{n}.{k}.weight" for k in names}
        assert all(made[f"blocks.{n}.{own}.weight"] == f"blocks.{n}.{k}.weight" for k, own in names.items())


NORM = {"weight": (6,), "bias": (6,), "running_mean": (6,), "running_var": (6,)}


def test_a_norm_with_statistics_is_one_whatever_it_is_called() -> None:
    """That one is called `bn` and the other is in a list says nothing of which is which: their orders do."""
    source = {"conv1.weight": (6, 3, 3, 3)} | {f"bn1.{leaf}": size for leaf, size in NORM.items()}
    source |= {"up.0.weight": (6, 6, 4, 4)} | {f"up.1.{leaf}": size for leaf, size in NORM.items()}
    target = {"rise.weight": (6, 6, 4, 4)} | {f"rise_norm.{leaf}": size for leaf, size in NORM.items()}
    target |= {"trunk.0.weight": (6, 3, 3, 3)} | {f"trunk.1.{leaf}": size for leaf, size in NORM.items()}
    used = [
        "trunk.0.weight",
        *(f"trunk.1.{leaf}" for leaf in NORM),
        "rise.weight",
        *(f"rise_norm.{leaf}" for leaf in NORM),
    ]
    made = pairing(port(signature(source), wanted(target, used=used)))
    assert made["trunk.1.weight"] == "bn1.weight"
    assert made["rise_norm.weight"] == "up.1.weight"


def test_a_norm_before_a_layer_of_other_sizes_is_known_by_its_place() -> None:
    source = {"a.weight": (6, 3, 3, 3), "a.bias": (6,)} | {f"n.{leaf}": size for leaf, size in NORM.items()}
    source |= {"fc1.weight": (8, 24), "fc1.bias": (8,), "fc2.weight": (5, 8), "fc2.bias": (5,)}
    target = {"t.0.weight": (6, 3, 3, 3), "t.0.bias": (6,)} | {f"t.2.{leaf}": size for leaf, size in NORM.items()}
    target |= {"window.weight": (8, 6, 2, 2), "window.bias": (8,), "score.weight": (5, 8, 1, 1), "score.bias": (5,)}
    made = pairing(port(signature(source), wanted(target, used=list(target))))
    assert made["window.weight"] == "reshape(fc1.weight, 8, 6, 2, 2)"
    assert {leaf: made[f"t.2.{leaf}"] for leaf in NORM} == {leaf: f"n.{leaf}" for leaf in NORM}


def test_the_norm_of_a_new_head_is_not_that_of_the_old_one() -> None:
    names = [f"conv{n}" for n in range(1, 5)]
    trunk = {f"{name}.weight": (6, 6, 3) for name in names} | {f"{name}.bias": (6,) for name in names}
    source = {f"encoder.{key}": size for key, size in trunk.items()}
    source |= {"fc1.weight": (8, 6), "fc1.bias": (8,)} | {f"bn1.{leaf}": (8,) for leaf in NORM}
    target = {f"backbone.{key}": size for key, size in trunk.items()}
    target |= {"rise1.weight": (8, 12, 1), "rise1.bias": (8,)} | {f"rise_bn1.{leaf}": (8,) for leaf in NORM}
    made = port(signature(source), wanted(target, used=list(target)))
    assert all(found(made, f"rise_bn1.{leaf}").status == "unmapped" for leaf in NORM)
    assert found(made, "backbone.conv2.weight").status == "mapped"


def test_lists_beside_it_tell_from_which_end_one_of_equal_members_is_counted() -> None:
    source, target = {}, {}
    for level, width in ((4, 9), (3, 7), (2, 5)):
        source |= {f"deconv{level}.weight": (width, 4, 4, 4), f"predict{level}.weight": (2, width, 3, 3)}
        place = 4 - level
        target |= {f"rises.{place}.weight": (width, 4, 4, 4), f"flows.{place}.weight": (2, width, 3, 3)}
    source |= {f"up{level + 1}_to_{level}.weight": (2, 2, 4, 4) for level in (4, 3, 2)}
    target |= {f"lifts.{place}.weight": (2, 2, 4, 4) for place in range(3)}
    used = [f"{name}.{place}.weight" for place in range(3) for name in ("rises", "flows", "lifts")]
    made = port(signature(source), wanted(target, used=used))
    assert [str(found(made, f"lifts.{n}.weight").expr) for n in range(3)] == [
        f"up{n + 1}_to_{n}.weight" for n in (4, 3, 2)
    ]
    assert {found(made, f"lifts.{n}.weight").status for n in range(3)} == {"mapped"}


# -- one layer under two names


def test_a_norm_is_one_with_another_where_its_statistics_are() -> None:
    rng = np.random.default_rng(0)
    values = {leaf: rng.standard_normal(6).astype("float32") for leaf in NORM}
    held = {f"{path}.{leaf}": lazy_tensor(v) for path in ("norm3", "down.1") for leaf, v in values.items()}
    assert doubles(held, list(held)) == {f"down.1.{leaf}": f"norm3.{leaf}" for leaf in NORM}
    ones = {f"{path}.{leaf}": lazy_tensor(np.ones(6, "float32")) for path in ("a", "b") for leaf in NORM}
    assert doubles(ones, list(ones)) == {}


def test_of_two_names_of_one_layer_in_a_block_that_counts_which_the_model_has() -> None:
    source = signature({"layers.0.norm3.weight": (6,), "layers.0.down.1.weight": (6,), "head.weight": (3, 6)})
    tied = replace(source.entries["layers.0.down.1.weight"], tied="layers.0.norm3.weight")
    source = replace(source, entries={**source.entries, tied.key: tied})
    model = wanted({"blocks.0.down.1.weight": (6,), "head.weight": (3, 6)})
    made = called_as_in(source, model)
    assert made.entries["layers.0.down.1.weight"].tied is None
    assert made.entries["layers.0.norm3.weight"].tied == "layers.0.down.1.weight"
    assert called_as_in(source, wanted({"head.weight": (3, 6)})) == source


@pytest.mark.parametrize(
    ("source", "gives"),
    [
        (("q",), {"critic": "q", "critic_target": "q"}),
        (("q", "q_target"), {"critic": "q", "critic_target": "q_target"}),
        (("q", "v"), {}),
    ],
)
def test_a_target_network_that_the_file_does_not_have_is_a_copy(source: tuple[str, ...], gives: dict[str, str]) -> None:
    shapes = {f"{net}.{n}.weight": (8 + n, 7 + n) for net in source for n in range(3)}
    target = wanted({f"{net}.{n}.weight": (8 + n, 7 + n) for net in ("critic", "critic_target") for n in range(3)})
    made = port(signature(shapes), target)
    asks = {entry.target.split(".")[0]: [q.reason.name for q in entry.questions] for entry in made.entries}
    for net, own in gives.items():
        assert {str(entry.expr) for entry in made.entries if entry.target.startswith(f"{net}.")} == {
            f"{own}.{n}.weight" for n in range(3)
        }
    assert ("TARGET_NETWORK" in asks["critic_target"]) is (source == ("q",))
    assert "TARGET_NETWORK" not in asks["critic"]


def continued(name: str, *, dot: str = "/") -> dict[str, tuple[int, ...]]:
    """Convolutions of TensorFlow, each with its kernel, and a tensor of its size with NAME behind the kernel's name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for n in range(4):
        layer = f"Net{dot}Conv2d_{n}{dot}"
        shapes |= {f"{layer}BatchNorm{dot}{part}": (8,) for part in ("beta", "gamma", "moving_mean", "moving_variance")}
        shapes |= {f"{layer}weights": (1, 1, 8, 8), f"{layer}weights{dot}{name}": (1, 1, 8, 8)}
    return shapes


NORMED = {
    f"layer.{n}.{key}": (8, 8, 1, 1) if key == "convolution.weight" else (8,)
    for n in range(4)
    for key in ("convolution.weight", *(f"norm.{part}" for part in ("weight", "bias", "running_mean", "running_var")))
}


@pytest.mark.parametrize("dot", ["/", "."])
@pytest.mark.parametrize("name", ["RMSProp", "RMSProp_1", "Adam"])
def test_what_an_optimizer_keeps_behind_the_name_of_a_tensor_is_not_that_tensor(name: str, dot: str) -> None:
    made = port(signature(continued(name, dot=dot), ordered=False), wanted(NORMED, used=list(NORMED)))
    for n in range(4):
        kernel = found(made, f"layer.{n}.convolution.weight")
        assert (kernel.status, kernel.sources) == ("mapped", [f"Net{dot}Conv2d_{n}{dot}weights"])
    assert sum(key.endswith(name) for key in made.unused) == 4


def test_an_average_behind_the_name_of_a_tensor_is_an_option() -> None:
    made = port(signature(continued("ExponentialMovingAverage")), wanted(NORMED, used=list(NORMED)))
    for n in range(4):
        kernel = found(made, f"layer.{n}.convolution.weight")
        assert (kernel.status, kernel.sources) == ("guessed", [f"Net/Conv2d_{n}/weights"])
        assert [rival.keys() for rival in kernel.rivals] == [[f"Net/Conv2d_{n}/weights/ExponentialMovingAverage"]]


def test_a_tensor_behind_the_name_of_another_is_none_of_training_if_the_model_needs_both() -> None:
    source = {"mix/w": (8, 6), "mix/w/gate": (8, 6), "head/w": (3, 8)}
    made = port(signature(source), wanted({"mix.weight": (8, 6), "mix_gate.weight": (8, 6), "head.weight": (3, 8)}))
    assert found(made, "mix_gate.weight").sources == ["mix/w/gate"]


@pytest.mark.parametrize(("bias", "asked"), [(True, True), (False, False)])
def test_one_bias_of_the_model_is_most_likely_the_sum_of_those_that_were_left_out(bias: bool, asked: bool) -> None:
    source = {"linear.fc.weight": (39, 1), "linear.bias": (1,), "mlp.0.weight": (24, 64), "mlp.1.weight": (1, 24)}
    source |= {"mlp.1.bias": (1,)} if bias else {}
    target = {"wide.weight": (39, 1), "deep.0.weight": (24, 64), "deep.1.weight": (1, 24), "bias": (1,)}
    made = port(signature(source), wanted(target))
    entry = found(made, "bias")
    questions = {q.reason.name: q for q in entry.questions}
    assert ("BIAS_FOR_ALL" in questions) is asked
    assert (entry.status == "guessed") is asked
    if asked:
        chosen = str(questions["BIAS_FOR_ALL"].options[0])
        assert str(entry.expr) == f"add({chosen}, {'mlp.1.bias' if chosen == 'linear.bias' else 'linear.bias'})"
    assert {e.status for e in made.entries if e is not entry} == {"mapped"}
    assert not made.unused


def test_a_question_about_the_modules_beside_a_layer_names_the_other_layer_alone() -> None:
    """The part of the source that the modules beside it come from is the outermost module, which has no name."""

    def parts(names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        sizes = ((16, 8), (12, 8), (16, 8))
        made = {f"{name}.fc1.weight": (a, b) for name, (a, b) in zip(names, sizes, strict=True)}
        return made | {f"{name}.fc2.weight": (b, a) for name, (a, b) in zip(names, sizes, strict=True)}

    ends = {"inp.weight": (8, 3), "head.weight": (4, 8)}
    source = parts(("encoder", "decoder", "net.encoder")) | ends
    target = parts(("net.encoder", "net.decoder", "vae_encoder")) | ends
    (doubt,) = found(port(signature(source), wanted(target)), "net.encoder.fc1.weight").doubts
    assert doubt.startswith("the modules beside this layer, or beside the layer that got encoder.fc1 of the source, ")


def test_a_norm_between_two_others_is_the_third_only_if_names_speak_of_attentions() -> None:
    """ProteinMPNN's third norm is that of its edges, after the feed-forward part; nothing in the names says so."""
    theirs = {f"layers.{n}.norm{at}.weight": (8,) for n in range(2) for at in (1, 2, 3)}
    names = ("node_norm", "ffn_norm", "edge_norm")
    made = port(signature(theirs), wanted({f"blocks.{n}.{name}.weight": (8,) for n in range(2) for name in names}))
    assert all(pairing(made)[f"blocks.{n}.ffn_norm.weight"] == f"layers.{n}.norm2.weight" for n in range(2))
    names = ("self_attn_norm", "ffn_norm", "cross_attn_norm")
    made = port(signature(theirs), wanted({f"blocks.{n}.{name}.weight": (8,) for n in range(2) for name in names}))
    assert all(pairing(made)[f"blocks.{n}.ffn_norm.weight"] == f"layers.{n}.norm3.weight" for n in range(2))
