"""The report of a port: what a person reads of it."""

from __future__ import annotations

import pytest
from sides import signature, wanted

from ckptool.errors import Doubtful
from ckptool.porting import expression as ex
from ckptool.porting.mapping import Entry, Mapping
from ckptool.porting.port import port
from ckptool.porting.refusal import require_accepted
from ckptool.porting.report import mapping_text


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
    entries = (Entry("t", (1,), "mapped", ex.of("h.0.x.w")), Entry("u", (1,), "mapped", ex.of("out.bias")))
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
    entry = Entry(
        "t.w", (2, 2), "guessed", ex.parse("shift(a.w, 1.0)" if rival == "a.w" else "a.w"), "", ("why",), rivals
    )
    with pytest.raises(Doubtful) as raised:
        require_accepted(Mapping((entry,), ()), None, None, "ckptool transfer a.pth m.py")
    assert len(raised.value.evidence) == 1 + len(says)
    assert all(line.startswith(said) for line, said in zip(raised.value.evidence[1:], says, strict=True))
