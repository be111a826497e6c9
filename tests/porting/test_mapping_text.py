"""The report of a port: what a person reads of it."""

from __future__ import annotations

import pytest
from sides import guess, signature, wanted

from ckptool.errors import Doubtful
from ckptool.keys import Pattern
from ckptool.porting import expression as ex
from ckptool.porting.mapping import Entry, Mapping
from ckptool.porting.mapping_text import mapping_text
from ckptool.porting.port import port
from ckptool.porting.refusal import gap_patterns, require_accepted


def blocks(depth: int, *, fused: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"stem.weight": (8, 3)}
    for n in range(depth):
        if fused:
            found[f"blocks.{n}.attention.qkv_projection.weight"] = (24, 8)
        else:
            found |= {f"encoder.layers.{n}.attention.{part}_projection.weight": (8, 8) for part in "qkv"}
    return found | {"head.weight": (5, 8)}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("everything", [False, True])
def test_lines_fit_and_what_is_folded_goes_on_below_its_expression(width: int, everything: bool) -> None:
    mapping = port(signature(blocks(12, fused=False)), wanted(blocks(12, fused=True)))
    text = mapping_text(mapping, width=width, everything=everything)
    assert max(map(len, text.splitlines())) <= width
    line = "blocks.{0..11}.attention.qkv_projection.weight <- cat(0,"
    if not everything:
        assert line in text
        assert " ".join(text.split()).count("encoder.layers.{}.attention.k_projection.weight") == 1


def test_a_long_expression_does_not_move_the_sizes_of_the_others_away() -> None:
    mapping = port(signature(blocks(2, fused=False)), wanted(blocks(2, fused=True)))
    line = next(line for line in mapping_text(mapping, width=80).splitlines() if "stem.weight " in line)
    assert line.endswith("<- stem.weight   8x3")


def test_what_is_not_used_is_said_by_modules() -> None:
    """Parts of which nothing is read are a line with a number of tensors; in others the keys are named."""
    own = ["a.weight", *(f"h.{n}.{leaf}.w" for n in range(3) for leaf in "xy"), "out.weight", "out.bias", "b", "c.d.e"]
    entries = (Entry("t", (1,), ex.of("h.0.x.w")), Entry("u", (1,), ex.of("out.bias")))
    mapping = Mapping((), (), dict.fromkeys(own, (1,))).with_entries(entries)
    text = mapping_text(mapping)
    shown = text[text.index("  not used") :].splitlines()
    assert shown == [
        "  not used, of the source (9):",
        "    a.weight",
        "    h.0.y.w",
        "    h.{1,2}.   4 tensors",
        "    out.weight",
        "    b",
        "    c.d.e",
    ]
    every = mapping_text(mapping, everything=True)
    assert [line.strip() for line in every[every.index("  not used") :].splitlines()[1:]] == list(mapping.unused)


@pytest.mark.parametrize(
    ("rival", "says"),
    [
        ("b.w", ["if t.w is b.w: --hint b=t", "to settle them: --source-model SRC.py --prove, or by hand:"]),
        ("transpose(a.w)", ["to settle them: --source-model SRC.py --prove, or by hand:"]),
        ("a.w", ["to settle them: --source-model SRC.py --prove, or by hand:"]),
        (None, []),
    ],
)
def test_a_hint_is_named_only_where_another_tensor_could_be_meant(rival: str | None, says: list[str]) -> None:
    rivals = () if rival is None else (ex.parse(rival),)
    entry = guess("t.w", (2, 2), ex.parse("shift(a.w, 1.0)" if rival == "a.w" else "a.w"), rivals)
    with pytest.raises(Doubtful) as raised:
        require_accepted(Mapping((entry,), ()), [], [], "ckptool transfer a.pth m.py")
    assert len(raised.value.evidence) == 1 + len(says)
    assert all(line.startswith(said) for line, said in zip(raised.value.evidence[1:], says, strict=True))


def guesses(*pairs: tuple[str, str, tuple[str, ...]]) -> list[Entry]:
    return [guess(t, (2,), ex.of(s), tuple(map(ex.of, r))) for t, s, r in pairs]


def shown(entries: list[Entry]) -> list[str]:
    text = mapping_text(Mapping(tuple(entries), ()))
    lines = text[text.index("(2 tensors of the source fit this layer equally well") :].splitlines()
    return lines[next(place for place, line in enumerate(lines) if line.endswith(")")) + 1 :]


def test_copies_from_below_one_prefix_are_one_line_with_the_prefixes_that_fit_as_well() -> None:
    names = [f"layer{n}.{leaf}" for n in range(5) for leaf in ("weight", "bias")]
    entries = guesses(*((f"net.{k}", f"student.net.{k}", (f"teacher.net.{k}",)) for k in names))
    assert shown(entries) == ["    * <- student.*   10 tensors", "       or teacher.*"]
    entries[3] = guesses(("net.layer1.bias", "student.net.layer0.bias", ("teacher.net.layer1.bias",)))[0]
    assert len(shown(entries)) > 5


def test_a_module_and_its_rivals_are_one_line_and_blocks_have_the_same_holes() -> None:
    entries = guesses(
        *((f"h.{n}.a.{leaf}", f"l.{n}.b.{leaf}", (f"l.{n}.c.{leaf}",)) for n in range(3) for leaf in ("weight", "bias"))
    )
    assert [" ".join(line.split()) for line in shown(entries)] == [
        "h.{0..2}.a. <- l.{}.b. weight 2, bias 2",
        "or l.{}.c.",
    ]


@pytest.mark.parametrize(
    ("target", "rival", "others", "rule"),
    [
        ("left.weight", "a.weight", (), "a=left"),
        ("conv.weight", "module.teacher.conv.weight", ("module.student.conv.weight",), "module.teacher="),
        ("x.norm.w", "y.norm.w", ("x.norm.b", "y.norm.b"), "y.norm.w=x.norm.w"),
        ("x.norm.w", "y.norm.w", ("x.norm.w",), None),
        ("w", "v", (), "v=w"),
    ],
)
def test_the_hint_that_is_named_never_gives_two_keys_one_name(
    target: str, rival: str, others: tuple[str, ...], rule: str | None
) -> None:
    (entry,) = guesses((target, "other", (rival,)))
    mapping = Mapping((entry,), (), dict.fromkeys(("other", rival, *others), (2,)))
    with pytest.raises(Doubtful) as raised:
        require_accepted(mapping, [], [])
    said = [line for line in raised.value.evidence if line.startswith("if ")]
    assert said == ([] if rule is None else [f"if {target} is {rival}: hints=[{rule!r}]"])


def test_blocks_that_a_shallower_model_leaves_behind_are_noted_on_top() -> None:
    """A model built with fewer layers than the file has computes something else, though all its keys are filled."""

    def layers(depth: int) -> dict[str, tuple[int, ...]]:
        names = ("q.weight", "k.weight", "v.weight", "o.weight")
        return {f"encoder.layer.{n}.{name}": (4, 4) for n in range(depth) for name in names} | {"fc.1.weight": (3, 4)}

    note = "  note: 2 of 6 equal blocks of the source are not used: encoder.layer.{4,5}"
    assert note in mapping_text(port(signature(layers(6)), wanted(layers(4)))).splitlines()
    assert "note:" not in mapping_text(port(signature(layers(6)), wanted(layers(6))))


@pytest.mark.parametrize("below", [(), ("w",), ("w", "0.w")])
@pytest.mark.parametrize("key", ["p.a b", "p.x{}y", "re:z", "p.re:z*", "p.q'uote", "{...}", "a.*", "p.w", "w"])
def test_the_patterns_of_a_refusal_accept_just_what_is_missing(key: str, below: tuple[str, ...]) -> None:
    """Whatever a parameter is called: dicts of parameters have any text for a name, also that of a module beside it."""
    others = ("p.a", "p.xzy", "z", "q.w", "a.b", *(f"{key}.{name}" for name in below))
    entries = (Entry(key, (1,)), *(Entry(other, (1,), ex.of("s")) for other in others))
    mapping = Mapping(entries, ())
    (pattern,) = gap_patterns(mapping, entries[:1])
    assert [e.target for e in entries if Pattern.parse(pattern).matches(e.target)] == [key]
    require_accepted(mapping, [], [pattern])
