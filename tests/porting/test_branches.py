"""Which of several equal parts is which: branches beside each other, modules of one class, and lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from sides import found, pairing, signature, wanted

from ckptool.model_code.signature import Facts, Flow, Signature
from ckptool.porting.forms.branches import beside
from ckptool.porting.matching.units import units_of
from ckptool.porting.port import port
from ckptool.porting.questions import Reason

Shapes = dict[str, tuple[int, ...]]


def followed(shapes: Shapes, before: Mapping[str, list[str]]) -> Signature:
    """What a model wants of which a forward pass showed what flows into what: into KEY what BEFORE names for it."""
    made = wanted(shapes, used=shapes)
    bit = {key: at for at, key in enumerate(shapes)}
    entries = {
        key: replace(entry, facts=Facts(Flow(bit[key], sum(1 << bit[other] for other in before.get(key, [])))))
        for key, entry in made.entries.items()
    }
    return replace(made, entries=entries)


def guessed(mapping: Any) -> set[str]:
    return {entry.target for entry in mapping.having("guessed")}


def test_two_branches_that_only_their_order_tells_apart_are_guesses() -> None:
    source = {"in.weight": (8, 3), "x.weight": (8, 8), "y.weight": (8, 8), "out.weight": (4, 8)}
    target = {"stem.weight": (8, 3), "wide.weight": (8, 8), "deep.weight": (8, 8), "last.weight": (4, 8)}
    apart = {"wide.weight": ["stem.weight"], "deep.weight": ["stem.weight"], "last.weight": list(target)[:3]}
    mapping = port(signature(source), followed(target, apart))
    assert guessed(mapping) == {"wide.weight", "deep.weight"}
    one_after_the_other = apart | {"deep.weight": ["stem.weight", "wide.weight"]}
    mapping = port(signature(source), followed(target, one_after_the_other))
    assert guessed(mapping) == set()
    assert pairing(mapping)["deep.weight"] == "y.weight"


def test_branches_that_cannot_be_confused_show_that_an_order_is_kept() -> None:
    source = {"in.weight": (8, 3)} | {
        f"{n}.weight": (rows, 8) for n, rows in zip("pqrst", (8, 8, 5, 6, 7), strict=True)
    }
    target = {"stem.weight": (8, 3)} | {
        f"{n}.weight": (rows, 8) for n, rows in zip("abcde", (8, 8, 5, 6, 7), strict=True)
    }
    apart = {key: ["stem.weight"] for key in target if key != "stem.weight"}
    assert guessed(port(signature(source), followed(target, apart))) == set()
    turned = {"in.weight": source["in.weight"]} | {key: source[key] for key in reversed(list(source)[1:])}
    assert guessed(port(signature(turned), followed(target, apart))) == {"a.weight", "b.weight"}


BETWEEN: Shapes = {"stem.weight": (8, 3), "size.weight": (2, 8), "heat.weight": (5, 8), "offset.weight": (2, 8)}


@pytest.mark.parametrize("more", [0, 1])
def test_two_choices_of_other_modules_do_not_show_the_order_of_two_heads(more: int) -> None:
    """A block and a head of another size keep the order, and so may a second kind of block."""
    source = {"in.weight": (8, 3), "block.main.weight": (8, 8), "block.skip.weight": (8, 1), "mid.weight": (9, 8)}
    target = {"stem.weight": (8, 3), "part.own.weight": (8, 8), "part.past.weight": (8, 1), "neck.weight": (9, 8)}
    before = {"part.own.weight": ["stem.weight"], "part.past.weight": ["stem.weight"]}
    before["neck.weight"] = list(target)[:3]
    if more:
        source |= {"other.x.weight": (7, 9), "other.y.weight": (6, 9), "end.weight": (9, 13)}
        target |= {"unit.one.weight": (7, 9), "unit.two.weight": (6, 9), "join.weight": (9, 13)}
        before |= {"unit.one.weight": list(target)[:4], "unit.two.weight": list(target)[:4]}
        before["join.weight"] = list(target)[:6]
    body = list(target)
    source |= {"p.weight": (5, 9), "q.weight": (2, 9), "r.weight": (2, 9)}
    target |= {"a.weight": (5, 9), "b.weight": (2, 9), "c.weight": (2, 9)}
    before |= dict.fromkeys(("a.weight", "b.weight", "c.weight"), body)
    mapping = port(signature(source), followed(target, before))
    assert guessed(mapping) == (set() if more else {"b.weight", "c.weight"})


def test_a_branch_before_two_look_alikes_does_not_show_their_order() -> None:
    """A heat map is computed first, then sizes and offsets: which of these two is which, the heat map does not say."""
    source = {"in.weight": (8, 3), "hm.weight": (5, 8), "reg.weight": (2, 8), "wh.weight": (2, 8)}
    target = {"stem.weight": (8, 3), "heat.weight": (5, 8), "size.weight": (2, 8), "offset.weight": (2, 8)}
    apart = {key: ["stem.weight"] for key in target if key != "stem.weight"}
    assert guessed(port(signature(source), followed(target, apart))) == {"size.weight", "offset.weight"}
    between = {f"{name}.weight": source[f"{name}.weight"] for name in ("in", "wh", "hm", "reg")}
    mapping = port(signature(between), followed(BETWEEN, apart))
    assert guessed(mapping) == set()  # of which one is before the heat map, and one after it
    listed = {"in.weight": (8, 3), "hm.weight": (5, 8), "box.0.weight": (2, 8), "box.1.weight": (2, 8)}
    assert guessed(port(signature(listed), followed(target, apart))) == set()


def test_equal_branches_of_all_blocks_of_a_class_are_one_choice_of_the_code() -> None:
    """Four blocks in which `x` comes before `c` say no more about `p` and `q` than one block does."""
    source: Shapes = {"in.weight": (8, 3)}
    target: Shapes = {"stem.weight": (8, 3)}
    before: dict[str, list[str]] = {}
    for n in range(4):
        shapes = ((16, 8), (16, 5), (8, 8), (8, 8))
        source |= {f"layers.{n}.{name}.weight": shape for name, shape in zip("xcpq", shapes, strict=True)}
        target |= {f"blocks.{n}.{name}.weight": shape for name, shape in zip("wadb", shapes, strict=True)}
        came = [key for key in target if f".{n}." not in key and key[-8] != "d"]
        before |= {f"blocks.{n}.w.weight": came, f"blocks.{n}.a.weight": []}
        for name in "db":
            before[f"blocks.{n}.{name}.weight"] = [*came, f"blocks.{n}.w.weight", f"blocks.{n}.a.weight"]
    mapping = port(signature(source), followed(target, before))
    assert guessed(mapping) == {f"blocks.{n}.{name}.weight" for n in range(4) for name in "db"}


def test_a_block_with_a_numbered_part_is_settled_by_a_block_that_has_only_this_part() -> None:
    """`branch2` is all that `stage.1` holds, and `stage.0` has `branch1` beside it."""
    source: Shapes = {}
    target: Shapes = {}
    before: dict[str, list[str]] = {}
    for stage, wide in ((1, 8), (2, 16)):
        for n in range(2):
            depthwise, matrix = (wide, 1, 3, 3), (wide, wide)
            whole = {"branch2.0": matrix, "branch2.3": depthwise, "branch2.5": matrix}
            shapes = whole if n else {"branch1.0": depthwise, "branch1.2": matrix, **whole}
            source |= {f"stage{stage}.{n}.{name}.weight": shape for name, shape in shapes.items()}
            for name in ("main_a", "main_b", "main_c", *("side_b", "side_c")[: 2 * (n == 0)]):
                target[f"part{stage}.{n}.{name}.weight"] = depthwise if name[-1] == "b" else matrix
    came: list[str] = []
    for stage in (1, 2):
        for n in range(2):
            block = [key for key in target if key.startswith(f"part{stage}.{n}.")]
            for branch in ("side", "main"):
                own = sorted(key for key in block if branch in key)
                for at, key in enumerate(own):
                    before[key] = [*came, *own[:at]]
            came += block
    mapping = port(signature(source), followed(target, before))
    assert pairing(mapping)["part2.0.side_c.weight"] == "stage2.0.branch1.2.weight"
    assert guessed(mapping) == set()


def test_what_two_blocks_of_one_class_show_holds_for_a_third() -> None:
    sizes = [(8, 8), (4, 8), (8, 6)]
    source: Shapes = {}
    target: Shapes = {}
    for n, (first, second) in enumerate(sizes):
        source |= {f"mix{n}x.p.weight": (second, 8), f"mix{n}x.q.weight": (first, 8), f"mix{n}x.r.weight": (3 + n, 5)}
        target |= {f"m_{n}a.u.weight": (first, 8), f"m_{n}a.v.weight": (second, 8), f"m_{n}a.w.weight": (3 + n, 5)}
    mapping = port(signature(source), wanted(target, used=target))
    assert guessed(mapping) == set()
    assert pairing(mapping)["m_0a.u.weight"] == "mix0x.q.weight"
    assert pairing(mapping)["m_0a.v.weight"] == "mix0x.p.weight"


def test_equal_names_in_a_list_that_counts_from_another_number_mean_nothing() -> None:
    source = {f"layers.{n}.{k}.weight": s for n in (1, 2, 3) for k, s in (("a", (8, 8)), ("b", (8, 4)))}
    target = {f"layers.{n}.{k}.weight": s for n in (0, 1, 2) for k, s in (("a", (8, 8)), ("b", (8, 4)))}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping) == dict(zip(target, source, strict=True))


def test_numbers_are_compared_by_what_they_count() -> None:
    source = {f"conv{k}s.{n}.weight": (8, 8, 3, 3) for k in (1, 2) for n in (3, 4, 5)}
    target = {f"blocks.{n}.conv{k}.weight": (8, 8, 3, 3) for n in (3, 4, 5) for k in (1, 2)}
    found = pairing(port(signature(source, ordered=False), wanted(target)))
    assert all(found[f"blocks.{n}.conv{k}.weight"] == f"conv{k}s.{n}.weight" for n in (3, 4, 5) for k in (1, 2))


def test_one_member_that_differs_shows_that_a_list_is_counted_backwards() -> None:
    block = {"conv.weight": (8, 8, 3, 3), "norm.weight": (8,), "mix.weight": (8, 8)}
    last = {"conv.weight": (4, 8, 3, 3), "norm.weight": (4,), "mix.weight": (4, 4)}
    source = {f"net.up.{n}.{k}": s for n in range(4) for k, s in (last if n == 0 else block).items()}
    target = {f"rise.{n}.{k}": s for n in range(4) for k, s in (last if n == 3 else block).items()}
    found = pairing(port(signature(source), wanted(target, used=target)))
    assert all(found[key] == f"net.up.{3 - int(key.split('.')[1])}.{key.split('.', 2)[2]}" for key in target)


def test_a_forward_pass_shows_which_layers_run_beside_each_other() -> None:
    torch = pytest.importorskip("torch")
    from ckptool.model_code.trace import signature_of
    from ckptool.porting.forms.canonical import canonical

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b, self.after = (torch.nn.Linear(6, 6) for _ in range(4))
            self.norm = torch.nn.LayerNorm(6)
            self.standardized = torch.nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            y = torch.zeros_like(x)
            y[:, 0] = self.a(x)[:, 0]
            y = self.norm(y) + self.b(x).chunk(1, -1)[0]
            weight = self.standardized.weight - self.standardized.weight.mean()
            return self.after(torch.nn.functional.linear(y, weight))

    found = signature_of(Net(), inputs=(torch.zeros(2, 6),))
    unit = {unit.path[0]: unit for unit in units_of(canonical(found, found)[1])}
    assert beside(unit["a"], unit["b"])
    assert beside(unit["norm"], unit["b"])
    assert not beside(unit["a"], unit["norm"])
    assert not any(beside(unit["stem"], unit[name]) for name in unit)
    assert not any(beside(unit["standardized"], unit[name]) for name in unit)
    assert not any(beside(unit["after"], unit[name]) for name in unit)


def blocks_with_a_shortcut_first(*, plain: bool) -> tuple[Shapes, Signature]:
    """Blocks of three layers and a shortcut, which the source registers first and the model last.

    If PLAIN, a block without a shortcut stands beside those with one.
    """
    source, target, before = Shapes(), Shapes(), dict[str, list[str]]()
    last = None
    for n in range(3):
        shortcut = not plain or n < 2
        head, own = f"trunk.part{n}.unit", f"s{n}.b"
        if shortcut:
            source[f"{head}.way.weight"] = (8, 8, 1, 1)
        for name, place, size in (("a", 1, 1), ("b", 2, 3), ("c", 3, 1)):
            source[f"{head}.f.{name}.weight"] = (8, 8 + n * (place == 2), size, size)
            key = f"{own}.conv{place}.weight"
            target[key] = (8, 8 + n * (place == 2), size, size)
            before[key] = [k for k in target if k != key]
        if shortcut:
            target[f"{own}.other.weight"] = (8, 8, 1, 1)
            before[f"{own}.other.weight"] = [k for k in target if not k.startswith(own)]
        last = own
    assert last is not None
    return source, followed(target, before)


def test_a_block_without_a_shortcut_shows_which_layer_of_the_others_is_theirs() -> None:
    source, target = blocks_with_a_shortcut_first(plain=True)
    mapping = port(signature(source), target)
    assert guessed(mapping) == set()
    for n in range(2):
        assert pairing(mapping)[f"s{n}.b.conv1.weight"] == f"trunk.part{n}.unit.f.a.weight"
        assert pairing(mapping)[f"s{n}.b.other.weight"] == f"trunk.part{n}.unit.way.weight"


def test_where_every_block_has_a_shortcut_none_shows_which_it_is() -> None:
    source, target = blocks_with_a_shortcut_first(plain=False)
    mapping = port(signature(source), target)
    assert {f"s{n}.b.{name}.weight" for n in range(3) for name in ("conv1", "other")} <= guessed(mapping)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("towers", [2, 3])
def test_towers_that_one_list_counts_through_are_the_members_of_the_other_in_turn(towers: int, layers: int) -> None:
    """Twin critics: `l1` to `l6`, of which the first three are `q1`; what is `left` and `right` is nowhere."""
    sizes = [(8, 5), (8, 8), (1, 8)][-layers:]
    source = {f"critic.l{n * layers + i + 1}.weight": size for n in range(towers) for i, size in enumerate(sizes)}

    def wanted_by(names: tuple[str, ...]) -> Signature:
        rows = [[f"{names[n]}.{2 * i}.weight" for i in range(layers)] for n in range(towers)]
        model = {key: size for row in rows for key, size in zip(row, sizes, strict=True)}
        return followed(model, {key: row[:at] for row in rows for at, key in enumerate(row)})

    for names, open_to in ((("q1", "q2", "q3"), False), (("left", "right", "middle"), True)):
        target = wanted_by(names)
        mapping = port(signature(source), target)
        assert list(pairing(mapping).items()) == list(zip(target.entries, source, strict=True))
        assert guessed(mapping) == (set(target.entries) if open_to else set())


def test_a_list_is_not_counted_through_where_another_way_of_counting_fits() -> None:
    """Towers called by what they look at, in no row; and layers of which none differs from the others."""

    def status(names: tuple[str, str], sizes: list[tuple[int, int]]) -> set[str]:
        rows = [[f"{name}.{i}.weight" for i in range(len(sizes))] for name in names]
        model: Shapes = {key: size for row in rows for key, size in zip(row, sizes, strict=True)}
        source: Shapes = {f"l{at}.weight": size for at, size in enumerate(sizes * 2)}
        flow = {key: row[:at] for row in rows for at, key in enumerate(row)}
        return {entry.status for entry in port(signature(source), followed(model, flow)).entries}

    assert status(("k0", "k1"), [(8, 5), (8, 8)]) == {"mapped"}
    assert "guessed" in status(("k0", "k1"), [(8, 8), (8, 8)])
    assert "guessed" in status(("k3", "k7"), [(8, 5), (8, 8)])
    assert "guessed" in status(("k7", "k3"), [(8, 5), (8, 8)])


@pytest.mark.parametrize("names", [("users", "items"), ("user_emb", "item_emb")])
def test_rows_of_tables_are_concatenated_in_an_order_that_only_equal_names_show(names: tuple[str, str]) -> None:
    source = {"user_emb.weight": (20, 4), "item_emb.weight": (30, 6), "fc1.weight": (7, 10)}
    first, second = (f"{name}.weight" for name in names)
    target = {first: (20, 4), second: (30, 6), "tower.weight": (7, 10)}
    plain = wanted(target, used=target)
    tables = {key: replace(plain.entries[key], how="embedding") for key in (first, second)}
    joined = Facts(joined=((first, 4), (second, 6)))
    tower = {"tower.weight": replace(plain.entries["tower.weight"], facts=joined)}
    entry = found(port(signature(source), replace(plain, entries={**tables, **tower})), "tower.weight")
    assert str(entry.expr) == "fc1.weight"
    asked = names[0] != "user_emb"
    assert [question.reason for question in entry.questions] == [Reason.TABLES_JOINED] * asked
    assert list(map(str, entry.rivals)) == ["cat(1, slice(fc1.weight, 1, 6, 10), slice(fc1.weight, 1, 0, 6))"] * asked


def test_a_list_that_is_the_beginning_of_a_longer_one_keeps_its_numbers() -> None:
    """The last member of the longer list stands apart in the model, and runs before the others."""

    def members(path: str, conv: tuple[int, ...], at: int = 0) -> Shapes:
        return {f"{path}.{at}.weight": conv, f"{path}.{at + 1}.weight": (4,)}

    convs = [(4, 8, 1, 1), *[(4, 8, 3, 3)] * 3]
    listed = [key for n, conv in enumerate(convs) for key in members(f"aspp.convs.{n}", conv)]
    target = {key: conv for n, shape in enumerate(convs) for key, conv in members(f"aspp.convs.{n}", shape).items()}
    source = {key.replace("aspp", "head.0"): size for key, size in target.items()}
    target |= members("aspp.pool", convs[0])
    source |= members("head.0.convs.4", convs[0], at=1)
    body = {f"body.{n}.conv.weight": (8, 8, 3, 3) for n in range(3)}
    used = [*body, *members("aspp.pool", convs[0]), *listed]
    got = pairing(port(signature(body | source), wanted(body | target, used=used)))
    assert all(got[key] == key.replace("aspp", "head.0") for key in listed)
    assert [got[f"aspp.pool.{n}.weight"] for n in (0, 1)] == [f"head.0.convs.4.{n}.weight" for n in (1, 2)]


@pytest.mark.parametrize("towers", [("actor", "critic"), ("critic", "actor")])
def test_a_part_of_a_module_is_not_taken_out_of_a_module_beside_it(towers: tuple[str, str]) -> None:
    """The critic lacks one layer of the policy, and has the hidden ones alone that the policy can use."""
    hidden: Shapes = {"0.weight": (16, 8), "2.weight": (12, 16), "4.weight": (9, 12)}
    last = {"actor": (4, 9), "critic": (1, 9)}
    source = {f"{tower}.{key}": size for tower in towers for key, size in (hidden | {"6.weight": last[tower]}).items()}
    target = {f"hidden.{n}.weight": size for n, size in enumerate(hidden.values())} | {"joints.weight": (4, 9)}
    got = pairing(port(signature(source), wanted(target, used=target)))
    assert got == dict(zip(target, (f"actor.{n}.weight" for n in (0, 2, 4, 6)), strict=True))
