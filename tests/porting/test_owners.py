"""Norms that are named after a part, where the model has them in or beside that part."""

from __future__ import annotations

import pytest
from sides import found, pairing, signature, wanted

from ckptool.porting.port import port

#: Of each part of a block, what it holds.
PARTS = {"attn": {"q": (8, 8), "o": (8, 8)}, "conv": {"a": (16, 8), "b": (8, 16)}, "feed_forward": {"x": (24, 8)}}


def block(part: str, norm: str, order: list[str], *, norms_last: bool) -> dict[str, tuple[int, ...]]:
    """A block: names of parts and norms by patterns over `name` and `place`."""
    layers: dict[str, tuple[int, ...]] = {}
    norms: dict[str, tuple[int, ...]] = {}
    for place, name in enumerate(order):
        into = norms if norms_last else layers
        into[norm.format(name=name, place=place)] = (8,)
        layers |= {f"{part.format(name=name, place=place)}.{leaf}.weight": size for leaf, size in PARTS[name].items()}
    return layers | norms


@pytest.mark.parametrize("norm", ["norm_{name}.weight", "pre_{name}_layer_norm.scale", "{name}_ln.weight"])
@pytest.mark.parametrize("order", [["attn", "conv", "feed_forward"], ["feed_forward", "attn", "conv"]])
def test_a_norm_that_is_named_after_a_part_stands_with_it_on_the_other_side(norm: str, order: list[str]) -> None:
    for short in ("feed_forward", "ff"):
        theirs, own = {}, {}
        for n in range(2):
            one = block("{name}", norm, ["conv", "feed_forward", "attn"], norms_last=True)
            names = {k: k.replace("feed_forward", short) if "norm" in k or "_ln" in k else k for k in one}
            theirs |= {f"blocks.{n}.{names[key]}": size for key, size in one.items()}
            one = block("steps.{place}.part", "steps.{place}.norm.weight", order, norms_last=False)
            own |= {f"body.{n}.{key}": size for key, size in one.items()}
        mapping = port(signature(theirs), wanted(own, used=own))
        for n in range(2):
            for place, name in enumerate(order):
                source = f"blocks.{n}.{norm.format(name=name.replace('feed_forward', short))}"
                assert pairing(mapping)[f"body.{n}.steps.{place}.norm.weight"] == source


def test_what_stands_after_a_part_is_not_named_after_it() -> None:
    theirs = {
        "attn.q.weight": (8, 8),
        "attn.o.weight": (8, 8),
        "mlp.x.weight": (24, 8),
        "mlp.y.weight": (8, 24),
        "input_norm.weight": (8,),
        "post_attn_norm.weight": (8,),
    }
    own = {
        "first.norm.weight": (8,),
        "first.part.q.weight": (8, 8),
        "first.part.o.weight": (8, 8),
        "second.norm.weight": (8,),
        "second.part.x.weight": (24, 8),
        "second.part.y.weight": (8, 24),
    }
    mapping = port(signature(theirs), wanted(own, used=own))
    assert "post" not in pairing(mapping)["first.norm.weight"]


@pytest.mark.parametrize("own", ["ffn{n}", "ff{n}", "feed_forward{n}"])
def test_of_two_halves_that_one_is_called_which_comes_first_is_known_by_that_word(own: str) -> None:
    layers = {"w_1.weight": (16, 8), "w_2.weight": (8, 16)}
    theirs = {
        f"encoders.{n}.{part}.{leaf}": size
        for n in range(2)
        for part in ("feed_forward", "feed_forward_macaron")
        for leaf, size in layers.items()
    }
    target = {
        f"layers.{n}.{own.format(n=half)}.{leaf}": size
        for n in range(2)
        for half in (1, 2)
        for leaf, size in zip(("up.weight", "down.weight"), layers.values(), strict=True)
    }
    mapping = port(signature(theirs), wanted(target, used=target))
    key = f"layers.1.{own.format(n=1)}.up.weight"
    assert pairing(mapping)[key] == "encoders.1.feed_forward_macaron.w_1.weight"


@pytest.mark.parametrize("before", [True, False])
def test_a_norm_that_is_named_after_a_part_is_the_one_that_the_model_uses_before_or_behind_it(before: bool) -> None:
    sizes = {"mixer.q.weight": (8, 8), "mixer.o.weight": (8, 8), "n1.weight": (8,), "n2.weight": (8,)}
    sizes |= {"feed.x.weight": (24, 8), "feed.y.weight": (8, 24)}
    parts = [["mixer.q.weight", "mixer.o.weight"], ["feed.x.weight", "feed.y.weight"]]
    order = [
        key
        for part, norm in zip(parts, ("n1.weight", "n2.weight"), strict=True)
        for key in ([norm, *part] if before else [*part, norm])
    ]
    target = {f"body.{n}.{key}": shape for n in range(2) for key, shape in sizes.items()}
    used = [f"body.{n}.{key}" for n in range(2) for key in order]
    theirs = {"n1.weight": "mixer_layer_norm.weight", "n2.weight": "final_layer_norm.weight"}
    stored = ["n2.weight", *parts[0], *parts[1], "n1.weight"]
    source = {f"layers.{n}.{theirs.get(key, key)}": sizes[key] for n in range(2) for key in stored}
    mapping = port(signature(source), wanted(target, used=used))
    for n in range(2):
        assert pairing(mapping)[f"body.{n}.n1.weight"] == f"layers.{n}.mixer_layer_norm.weight"
        assert pairing(mapping)[f"body.{n}.n2.weight"] == f"layers.{n}.final_layer_norm.weight"


def test_a_norm_that_one_block_has_more_than_the_others_is_not_the_first_of_them() -> None:
    layers = {"attn.weight": (8, 8), "up.weight": (16, 8), "down.weight": (8, 16)}
    target = {"input_norm.weight": (8,)}
    source: dict[str, tuple[int, ...]] = {}
    for n in range(2):
        target |= {f"layers.{n}.norm1.weight": (8,), f"layers.{n}.norm2.weight": (8,)}
        target |= {f"layers.{n}.{key}": shape for key, shape in layers.items()}
        source |= {f"blocks.{n}.ln{i}.weight": (8,) for i in ((1, 2, 0) if n == 0 else (1, 2))}
        source |= {f"blocks.{n}.{key}": shape for key, shape in layers.items()}
    made = port(signature(source), wanted(target))
    for n in range(2):
        for i in (1, 2):
            assert pairing(made)[f"layers.{n}.norm{i}.weight"] == f"blocks.{n}.ln{i}.weight"
    assert pairing(made)["input_norm.weight"] == "blocks.0.ln0.weight"


@pytest.mark.parametrize("norm", ["norm", "bn"])
def test_a_norm_within_a_layer_stands_beside_the_partner_of_that_layer(norm: str) -> None:
    """All norms are of one size, and the model uses and counts them in another order than the file does."""
    theirs: dict[str, tuple[int, ...]] = {}
    own: dict[str, tuple[int, ...]] = {}
    layers = {"layer_4": "stem"}
    for n in range(3):
        layers |= {f"adapter_{3 - n}": f"layers.{n}.proj", f"layer_{3 - n}": f"layers.{n}.block"}
    for name, other in layers.items():
        size = (8, 5 + len(own), 1, 1)
        own |= {f"fpn.{other}.0.weight": size, f"fpn.{other}.1.weight": (8,), f"fpn.{other}.1.bias": (8,)}
        theirs |= {f"head.{name}.weight": size, f"head.{name}.{norm}.weight": (8,), f"head.{name}.{norm}.bias": (8,)}
    theirs = dict(sorted(theirs.items()))
    mapping = port(signature(theirs, ordered=False), wanted(own, used=own))
    for name, other in layers.items():
        assert pairing(mapping)[f"fpn.{other}.1.bias"] == f"head.{name}.{norm}.bias"
        assert found(mapping, f"fpn.{other}.1.bias").status == "mapped"


@pytest.mark.parametrize("swapped", [False, True])
def test_names_that_count_the_norms_of_a_block_speak_of_the_order_in_which_they_are_used(swapped: bool) -> None:
    theirs: dict[str, tuple[int, ...]] = {}
    own: dict[str, tuple[int, ...]] = {}
    used: list[str] = []
    for n in range(2):
        theirs |= {
            f"transformer.layers.{n}.attention.dense.weight": (8, 8),
            f"transformer.layers.{n}.input_layernorm.weight": (8,),
            f"transformer.layers.{n}.mlp.dense.weight": (24, 8),
            f"transformer.layers.{n}.post_attention_layernorm.weight": (8,),
        }
        block = f"encoder.layer.{n}"
        norms = [f"{block}.attention.ln.weight", f"{block}.ln.weight"]
        own |= dict.fromkeys(norms, (8,)) | {f"{block}.attention.out.weight": (8, 8), f"{block}.up.weight": (24, 8)}
        first, second = norms[::-1] if swapped else norms
        used += [first, f"{block}.attention.out.weight", second, f"{block}.up.weight"]
    mapping = port(signature(theirs, ordered=False), wanted(own, used=used))
    for n in range(2):
        said = [f"transformer.layers.{n}.{name}.weight" for name in ("input_layernorm", "post_attention_layernorm")]
        norms = [f"encoder.layer.{n}.attention.ln.weight", f"encoder.layer.{n}.ln.weight"]
        assert [pairing(mapping)[key] for key in norms] == said[:: -1 if swapped else 1]


def test_numbers_alone_name_no_norm_after_a_part() -> None:
    sizes = {"attn.q.weight": (8, 8), "attn.o.weight": (8, 8), "mlp.x.weight": (24, 8), "mlp.y.weight": (8, 24)}
    target: dict[str, tuple[int, ...]] = {}
    source: dict[str, tuple[int, ...]] = {}
    used: list[str] = []
    for n in range(2):
        block = {f"b.{n}.norm{i}.weight": (8,) for i in (1, 2)} | {
            f"b.{n}.{key}": shape for key, shape in sizes.items()
        }
        target |= block
        keys = list(block)
        used += [keys[0], *keys[2:4], keys[1], *keys[4:]]
        source |= {f"e.{n}.LayerNorm_{i}.scale": (8,) for i in (0, 1)}
        source |= {
            f"e.{n}.{key.replace('attn', 'Attention_1').replace('mlp', 'MlpBlock_0')}": shape
            for key, shape in sizes.items()
        }
    made = pairing(port(signature(source, ordered=False), wanted(target, used=used)))
    for n in range(2):
        assert [made[f"b.{n}.norm{i}.weight"] for i in (1, 2)] == [f"e.{n}.LayerNorm_{i}.scale" for i in (0, 1)]


def test_numbers_of_norms_speak_of_no_order_of_use() -> None:
    """Code that registers the norm of its cross attention first calls it `norm1`, and uses it second."""
    theirs: dict[str, tuple[int, ...]] = {}
    own: dict[str, tuple[int, ...]] = {}
    for n in range(2):
        theirs |= {f"layers.{n}.{name}.weight": size for name, size in (("mix", (16, 8)), ("norm1", (8,)))}
        theirs |= {f"layers.{n}.{name}.weight": size for name, size in (("attn", (24, 8)), ("norm2", (8,)))}
        own |= {f"blocks.{n}.{name}.weight": size for name, size in (("attn", (24, 8)), ("own_norm", (8,)))}
        own |= {f"blocks.{n}.{name}.weight": size for name, size in (("mix", (16, 8)), ("mix_norm", (8,)))}
    mapping = port(signature(theirs), wanted(own, used=own))
    for n in range(2):
        assert pairing(mapping)[f"blocks.{n}.own_norm.weight"] == f"layers.{n}.norm2.weight"
