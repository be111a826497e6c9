"""The mapping file: what is written can be read by people and comes back the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sides import guess, pairing, signature, wanted

from ckptool.errors import Malformed, OutputExists, RuleError, Unreadable
from ckptool.porting import expression as ex
from ckptool.porting import mapping_file, ranges
from ckptool.porting.expression import Expr
from ckptool.porting.mapping import Entry, Mapping, Status
from ckptool.porting.port import port

pytestmark = pytest.mark.same_without_torch


def blocks(depth: int, *, fused: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"stem.weight": (8, 3)}
    for n in range(depth):
        if fused:
            found[f"blocks.{n}.attn.qkv.weight"] = (24, 8)
        else:
            found |= {f"blocks.{n}.attn.{part}.weight": (8, 8) for part in "qkv"}
        found[f"blocks.{n}.fc.weight"] = (16, 8)
    return found


def read_back(mapping: Mapping, folder: Path) -> Mapping:
    mapping_file.save(mapping, folder / "m.yaml")
    return mapping_file.read(folder / "m.yaml")


@pytest.mark.parametrize(("ours", "theirs"), [(False, True), (True, False), (True, True)])
def test_a_mapping_comes_back_as_it_was_written(tmp_path: Path, ours: bool, theirs: bool) -> None:
    source, target = signature(blocks(12, fused=theirs)), wanted(blocks(12, fused=ours))
    mapping = port(source, target)
    shapes = {key: entry.shape for key, entry in source.entries.items()}
    again = mapping_file.for_target(read_back(mapping, tmp_path), target, shapes)
    assert pairing(again) == pairing(mapping)
    assert [(e.target, e.status, e.shape) for e in again.entries] == [
        (e.target, e.status, e.shape) for e in mapping.entries
    ]


def test_blocks_are_one_line_however_many(tmp_path: Path) -> None:
    texts = []
    for depth in (3, 30):
        mapping = port(signature(blocks(depth, fused=True)), wanted(blocks(depth, fused=False)))
        texts.append(mapping_file.text_of(mapping))
    assert len(texts[0].splitlines()) == len(texts[1].splitlines())
    assert "  blocks.{0..29}.attn.k.weight: slice(blocks.{}.attn.qkv.weight, 0, 8, 16)" in texts[1].splitlines()


def test_doubts_come_first_with_their_rivals_ready_to_be_uncommented(tmp_path: Path) -> None:
    entries = (
        Entry("a.weight", (4,), ex.of("x.weight")),
        guess("b.weight", (4,), ex.of("y.weight"), (ex.of("z.weight"),)),
        Entry("c.weight", (4,)),
    )
    text = mapping_file.text_of(Mapping(entries, ()))
    lines = text.splitlines()
    assert lines.index("doubts:") < lines.index("mapping:")
    assert "  b.weight: guess(y.weight)" in lines
    assert "  # b.weight: z.weight" in lines
    (tmp_path / "m.yaml").write_text(
        text.replace("  b.weight: guess(y.weight)\n", "").replace("  # b.weight: z.weight", "  b.weight: z.weight")
    )
    read = mapping_file.read(tmp_path / "m.yaml")
    assert pairing(read) == {"a.weight": "x.weight", "b.weight": "z.weight"}
    assert read["b.weight"].status == "mapped"
    assert read["c.weight"].status == "unmapped"


def test_a_guess_stays_a_guess_until_somebody_settles_it(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("ckptool-mapping: 1\ndoubts:\n  b: guess(y)\n  c: z\n")
    read = mapping_file.read(tmp_path / "m.yaml")
    assert (read["b"].status, read["c"].status) == ("guessed", "mapped")


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ('"l.{0..2}.w": "h.{}.w"', {"l.0.w": "h.0.w", "l.1.w": "h.1.w", "l.2.w": "h.2.w"}),
        ('"l.{0,3}.w": "h.{1}.w"', {"l.0.w": "h.0.w", "l.3.w": "h.3.w"}),
        ('"l.{0..1}.{2..3}": "h.{2}.{1}"', {"l.0.2": "h.2.0", "l.0.3": "h.3.0", "l.1.2": "h.2.1", "l.1.3": "h.3.1"}),
        ('l.0.w: "cat(0, a.{0}, b)"', None),
        ('"l.{5..x}.w": h.w', None),
        ('"l.{0..99999999}.w": "h.{}.w"', None),
    ],
)
def test_ranges_stand_for_keys(tmp_path: Path, line: str, keys: dict[str, str] | None) -> None:
    (tmp_path / "m.yaml").write_text(f"ckptool-mapping: 1\nmapping:\n  {line}\n")
    if keys is None:
        with pytest.raises(Malformed):
            mapping_file.read(tmp_path / "m.yaml")
    else:
        assert pairing(mapping_file.read(tmp_path / "m.yaml")) == keys


@pytest.mark.parametrize("rival", [False, True])
def test_doubts_are_settled_by_editing_single_lines(tmp_path: Path, rival: bool) -> None:
    """Each line that is ready to be uncommented works when it is, whatever the keys are called."""
    odd = 'encoder/layers.0 #1: "x"'
    entries = (
        *(guess(f"b.{n}.w", (4,), ex.of(f"y.{n}.w"), (ex.of(odd),)) for n in range(3)),
        guess("no", (4,), ex.of(odd), (ex.parse("cat(0, y.0.w, null)"),)),
    )
    text = mapping_file.text_of(Mapping(entries, ()))
    read = read_back(Mapping(entries, ()), tmp_path)
    assert {e.target: (e.status, str(e.expr)) for e in read.entries} == {
        e.target: ("guessed", str(e.expr)) for e in entries
    }
    lines = text.splitlines()
    if rival:
        lines = [line.replace("  # ", "  ", 1) if line.startswith(("  # b.", "  # no:")) else line for line in lines]
    else:
        lines = [line.replace("guess(", "").removesuffix(")") if "guess(y" in line else line for line in lines]
    (tmp_path / "m.yaml").write_text("\n".join(lines))
    found = {e.target: (e.status, str(e.expr)) for e in mapping_file.read(tmp_path / "m.yaml").entries}
    want = {e.target: ("mapped", str(e.rivals[0] if rival else e.expr)) for e in entries}
    assert found == (want if rival else {**want, "no": ("guessed", str(entries[3].expr))})


def test_a_file_with_doubts_says_how_to_settle_them() -> None:
    entries = (guess("b.weight", (4,), ex.of("y.weight"), (ex.of("z.weight"),)),)
    assert "# `ckptool transfer SRC MODEL.py --mapping`." in mapping_file.text_of(Mapping(entries, ()))
    assert mapping_file.text_of(Mapping(entries, ())).endswith("\nmapping:\n")  # room for lines, and no `{}` in the way


@pytest.mark.parametrize("name", ["no", "on", "null", "true", "Yes", "off"])
def test_layers_with_the_words_of_yaml_keep_their_names(tmp_path: Path, name: str) -> None:
    read = read_back(Mapping((Entry(name, (), ex.of(name)), Entry("x", (), ex.of(name))), ()), tmp_path)
    assert pairing(read) == {name: name, "x": name}


def test_writing_the_same_again_is_no_error_and_what_was_edited_is_kept(tmp_path: Path) -> None:
    mapping = Mapping((Entry("a", (), ex.of("b")),), ())
    mapping_file.save(mapping, tmp_path / "m.yaml")
    mapping_file.save(mapping, tmp_path / "m.yaml")
    (tmp_path / "m.yaml").write_text("mine")
    with pytest.raises(OutputExists):
        mapping_file.save(mapping, tmp_path / "m.yaml")
    assert (tmp_path / "m.yaml").read_text() == "mine"


NAMES = st.text(st.sampled_from("ab.01_- :#{}\"'\\é\n"), min_size=1, max_size=8)


@given(st.dictionaries(NAMES, NAMES, max_size=4))
@example({"a.0.{": "0.}{", "a.1.{": "1.}{", "a.{0,1}": "{#1}", "{{}": "{}", "{1}.0": "{0..3}.0", "{1}.1": "{0..3}.1"})
def test_odd_names_survive(tmp_path_factory: pytest.TempPathFactory, names: dict[str, str]) -> None:
    entries = tuple(Entry(key, (), ex.of(value)) for key, value in names.items())
    read = read_back(Mapping(entries, ()), tmp_path_factory.mktemp("m"))
    assert {e.target: e.sources for e in read.entries} == {key: [value] for key, value in names.items()}


KEYS = st.text(min_size=1).map(ex.of)
SIZES = st.integers(0, 9)
FORMS = st.recursive(
    KEYS | st.lists(SIZES, max_size=3).map(lambda sizes: ex.zeros(*sizes)),
    lambda inner: st.one_of(
        st.builds(lambda x: Expr("transpose", (x,)), inner),
        st.builds(lambda x, a, b, c: Expr("slice", (x,), (a, b, c)), inner, SIZES, SIZES, SIZES),
        st.builds(lambda d, parts: Expr("cat", tuple(parts), (d,)), SIZES, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda x, n: Expr("scale", (x,), (n,)), inner, st.floats(allow_nan=False, allow_infinity=False)),
        st.builds(lambda x, n, to: ex.rotary(x, n, to), inner, SIZES, st.sampled_from(["half", "other"])),
    ),
    max_leaves=5,
)
STATUSES = st.sampled_from(["mapped", "guessed", "unmapped"])


@given(st.dictionaries(st.text(min_size=1), st.tuples(STATUSES, FORMS), max_size=6), st.text(), st.text())
@example({"\U0001f600": ("mapped", ex.of("\U0001f601"))}, "\x85", "\u2028\ufeff")
@example({f"a.{n}": ("mapped", ex.of(f"\x85.{n}.{{")) for n in range(3)}, "", "")
def test_a_mapping_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, told: dict[str, tuple[Status, Expr]], source: str, target: str
) -> None:
    entries = tuple(
        guess(key, (), expr) if status == "guessed" else Entry(key, (), None if status == "unmapped" else expr)
        for key, (status, expr) in told.items()
    )
    read = read_back(Mapping(entries, (), {}, source, target), tmp_path_factory.mktemp("m"))
    assert {e.target: (e.status, e.expr) for e in read.entries} == {e.target: (e.status, e.expr) for e in entries}
    assert (read.source, read.target) == (source, target)


def test_a_name_that_is_no_text_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="half a character"):
        mapping_file.save(Mapping((Entry("a\ud800", (), ex.of("b")),), ()), tmp_path / "m.yaml")
    assert not (tmp_path / "m.yaml").exists()


LIMIT = 5_000  # in place of 500,000


@pytest.mark.parametrize(
    ("lines", "fits"),
    [
        (f"mapping:\n  'a.{{0..{LIMIT - 1}}}': b\n", True),
        (f"mapping:\n  'a.{{0..{LIMIT}}}': b\n", False),
        (f"mapping:\n  'a.{{0..{LIMIT // 2}}}': b\nleft:\n- 'b.{{1..{LIMIT // 2}}}'\n", False),
        (f"mapping:\n  'a.{{0..{LIMIT // 2}}}': b\ndoubts:\n  'b.{{1..{LIMIT // 2}}}': c\n", False),
        (f"mapping:\n  'a.{{0..{LIMIT // 2}}}': cat(0, b, c, d)\n", False),
    ],
)
def test_what_a_file_stands_for_is_counted_over_all_of_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, fits: bool
) -> None:
    monkeypatch.setattr(ranges, "_MOST_PARTS", 2 * LIMIT)
    (tmp_path / "m.yaml").write_text(f"ckptool-mapping: 1\n{lines}")
    if fits:
        assert len(mapping_file.read(tmp_path / "m.yaml").entries) == LIMIT
        return
    with pytest.raises(Malformed, match="stands for too much") as caught:
        mapping_file.read(tmp_path / "m.yaml")
    assert f"{LIMIT:,} keys" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ckptool-mapping: [1]\n", "'ckptool-mapping' holds a list of 1 item, not a text"),
        ("ckptool-mapping: 1\nsource: {a: b}\n", "'source' holds a dict of 1 entry, not a text"),
        ("ckptool-mapping: 1\nmapping:\n  a: [b, c]\n", "a: a list of 2 items is not an expression"),
        ("ckptool-mapping: 1\nleft: [[a]]\n", "'left' holds a list of 1 item, which is not a key"),
        ("ckptool-mapping: 1\nmapping:\n  'a.{3..1}': b\n", "{3..1} is not a range such as {0..11}"),
        ("ckptool-mapping: 1\nmapping: {}\nmapping: {}\n", "line 3 has the key mapping a second time"),
        ("ckptool-mapping: 1\nmapping:\n  a: &x b\n", "line 3 has the anchor &x"),
        ("ckptool-mapping: 1\nmapping:\n  <<: {a: b}\n", "line 3 has the merge key <<"),
    ],
)
def test_what_no_line_can_hold_is_named_without_what_is_in_it(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(Malformed) as caught:
        mapping_file.read(tmp_path / "m.yaml")
    assert said in caught.value.what


@pytest.mark.parametrize("depth", [1, 4])
def test_the_way_back_leads_back(depth: int) -> None:
    apart, fused = blocks(depth, fused=False), blocks(depth, fused=True)
    forth = port(signature(apart), wanted(fused))
    back = mapping_file.invert(forth, apart)
    assert pairing(back)["blocks.0.attn.k.weight"] == "slice(blocks.0.attn.qkv.weight, 0, 8, 16)"
    assert set(pairing(back)) == set(apart)
    forth_again = mapping_file.invert(back, fused)
    assert pairing(forth_again) == pairing(forth)


def test_what_loses_values_cannot_be_inverted() -> None:
    mapping = Mapping((Entry("a", (1,), ex.parse("sum(b, 0)")),), (), {"b": (3,)})
    with pytest.raises(RuleError, match="values are lost"):
        mapping_file.invert(mapping, {"b": (3,)})


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "a: [",
        "- 1\n- 2\n",
        "ckptool-mapping: 1\nmapping: 3\n",
        "ckptool-mapping: 1\nleft: 3\n",
        "a: !!python/name:os.system\n",
    ],
)
def test_a_file_that_is_none_is_named_and_nothing_in_it_runs(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises((Malformed, Unreadable)):
        mapping_file.read(tmp_path / "m.yaml")


SHAPES = {"a": (4, 6), "b": (4, 6), "v": (12,), "c.weight": (4, 3, 2, 2), "n": ()}
GOOD = """
transpose(a); permute(c.weight, 1, 0, 2, 3); reshape(a, 24); slice(a, 0, 1, 3); select(c.weight, 0, 1); cat(0, a, b);
cat(1, a, b); stack(a, b); rotary(a, 2, half); of_heads(v, 2, 3, 1); by_heads(2, a, b); flatten(v, 3, 2, 2, nhwc);
cat(0, slice(a, 0, 0, 2), slice(b, 0, 0, 2)); shift(v, 1.0); scale(v, 0.5); guess(transpose(b)); zeros(3); sum(a, 1);
reshape(by_heads(2, transpose(a), transpose(b)), 48)
""".split(";")
BITS = [
    "0",
    "1",
    "2",
    "5",
    "-1",
    "99",
    "1.5",
    "half",
    "a",
    "v",
    "n",
    "none",
    "(",
    ")",
    ",",
    "",
    "cat",
    "by_heads",
    "{}",
]


@st.composite
def edited(draw: st.DrawFn) -> str:
    """What somebody makes of an expression who puts other words, numbers or brackets in it."""
    tokens = re.findall(r"[\w.]+|[(),]", draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(tokens) - 1))
        tokens[at : at + draw(st.integers(0, 1))] = [draw(st.sampled_from(BITS))]
    return " ".join(filter(None, tokens))


@settings(max_examples=3 * settings.default.max_examples)
@given(edited(), st.sampled_from([(4, 6), (6, 4), (24,), (12,), (8, 6), (3,)]))
@example("cat(5, a, b)", (8, 6))
@example("by_heads(0, a, b)", (8, 6))
@example("by_heads(1, n, n)", (8, 6))
@example("slice(n, 0, 0, 1)", (1,))
@example("reshape(c.weight, 2)", (2,))
def test_an_expression_that_was_edited_is_used_or_refused_in_one_line_that_names_its_key(
    tmp_path_factory: pytest.TempPathFactory, text: str, shape: tuple[int, ...]
) -> None:
    path = tmp_path_factory.mktemp("edited") / "m.yaml"
    path.write_text(f"ckptool-mapping: 1\nmapping:\n  made.weight: {json.dumps(text)}\n")
    target = wanted({"made.weight": shape})
    uses = (
        lambda: mapping_file.for_target(mapping_file.read(path), target, SHAPES),
        lambda: mapping_file.invert(mapping_file.read(path), SHAPES),
    )
    for use in uses:
        error = refused(use)
        if error is not None:
            assert "\n" not in error.what
            assert (
                error.what.startswith("line 3: made.weight: ")
                or "line 3: made.weight wants" in error.what
                or lost(error)
            )
            assert error.hint or lost(error)
            assert error.where in (str(path), path, "--mapping", "--invert")


def lost(error: RuleError | Malformed) -> bool:
    said = ("values are lost", "the model does not have")
    return error.where == "--invert" and any(words in error.what for words in said)


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("a: transpoze(b)", "a: there is no operation 'transpoze'", "did you mean transpose(x): "),
        ("a: slice(b, 0, 1)", "a: slice() in 'slice(b, 0, 1)' is given something else than it takes", "slice(x, dim,"),
        ("a: cat(b, c)", "a: cat() in 'cat(b, c)' is given something else than it takes", "it is written cat(dim, x"),
        ("a: rotary(b, half, 4)", "a: rotary() in 'rotary(b, half, 4)' is given something", "rotary(x, heads, half|"),
        ("a: scale(b, much)", "a: scale() in 'scale(b, much)' is given something else", "scale(x, value)"),
        ("a: transpose(b, c)", "a: transpose() in 'transpose(b, c)' is given something", "transpose(x)"),
        ("a: cat(0, b", "a: the expression 'cat(0, b' has no closing bracket", "an expression is a key"),
        ("a: transpose(", "a: the expression 'transpose(' has no closing bracket", "an expression is a key"),
        ("a.{0..x}: b.{}", "a.{0..x}: {0..x} is not a range such as {0..11}", "ranges are written"),
        ("a.{0..3}: b.{2}", "a.{0..3}: b.{2} has a hole that the left side does not fill", "{} stands for"),
        ("a.{0..3}.{0..1}: b.{}", "a.{0..3}.{0..1}: b.{} has a hole", "{1} and {2}"),
        ("a: [b, c]", "a: a list of 2 items is not an expression", "in quotes"),
        ("a.{0..999999999}: b", "stands for too much, from a.{0..999999999} on", None),
    ],
)
def test_a_bad_line_is_named_by_its_number_with_what_to_write(
    tmp_path: Path, line: str, said: str, hint: str | None
) -> None:
    (tmp_path / "m.yaml").write_text(f"# by hand\nckptool-mapping: 1\nmapping:\n  fine: also.fine\n  {line}\n")
    with pytest.raises(Malformed) as caught:
        mapping_file.read(tmp_path / "m.yaml")
    assert caught.value.what.startswith(f"line 5: {said}")
    assert hint is None or hint in (caught.value.hint or "")


def test_a_rival_that_was_uncommented_is_named_by_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("ckptool-mapping: 1\ndoubts:\n  a: guess(b)\n  a: select(c, 0)\n")
    with pytest.raises(Malformed, match=r"line 4: a: select\(\)"):
        mapping_file.read(tmp_path / "m.yaml")


def test_an_expression_that_does_not_fit_the_shapes_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("ckptool-mapping: 1\nmapping:\n  x.{0..1}: a\n  made: slice(a, 0, 0, 9)\n")
    target = wanted({"x.0": (4, 6), "x.1": (4, 6), "made": (9, 6)})
    with pytest.raises(RuleError, match=r"line 4: made: no elements 0 to 9 in \[4, 6\]") as caught:
        mapping_file.for_target(mapping_file.read(tmp_path / "m.yaml"), target, SHAPES)
    assert "docs/transfer.md" in (caught.value.hint or "")


def refused(use: Callable[[], Mapping]) -> RuleError | Malformed | None:
    try:
        use()
    except (RuleError, Malformed) as error:
        return error
    return None
