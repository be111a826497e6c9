"""What matching of many layers costs: rounds and comparisons that grow with what is related, not with all there is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from effort import calls
from hypothesis import given
from hypothesis import strategies as st
from sides import pairing, signature, wanted

from ckptool.porting.forms import joining
from ckptool.porting.forms.canonical import canonical
from ckptool.porting.matching import match
from ckptool.porting.matching.match import Matcher
from ckptool.porting.matching.units import Unit
from ckptool.porting.port import port
from ckptool.porting.rivals import company
from ckptool.porting.rivals.company import Anchors, in_company
from ckptool.porting.words import Group, _label_of_kind, label, table

LETTERS = "zxwvtsrqpmkjhgfdc"  # backwards: an alphabetical order of keys is no order of layers


def name(side: str, at: int) -> str:
    """A name that shares no word with any other."""
    return side + "".join(LETTERS[at // len(LETTERS) ** place % len(LETTERS)] for place in range(5))


def layers(side: str, count: int) -> dict[str, tuple[int, ...]]:
    return {f"{name(side, at)}.weight": (4, 4) for at in range(count)}


def rounds(count: int, **more: tuple[int, ...]) -> int:
    source, target = layers("y", count) | more, layers("z", count) | more
    matcher = Matcher(*canonical(signature(source), wanted(target, used=target)))
    matching = matcher.run()
    assert [(t.last, s.last) for t, s in matching.pairs][:count] == [
        (name("z", at), name("y", at)) for at in range(count)
    ]
    return matcher.orders.neighbours.rounds


def test_a_row_of_unrelated_names_takes_as_few_rounds_of_all_rules_as_a_short_one() -> None:
    assert rounds(60) == rounds(10) < 5


def test_a_long_row_of_unrelated_names_needs_no_more_rounds_than_there_may_be() -> None:
    source, target = layers("y", 40), layers("z", 40)
    with mock.patch.object(match, "_MOST_ROUNDS", 5):
        mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping) == dict(zip(target, source, strict=True))
    assert not mapping.having("guessed")


def test_nothing_is_looked_for_in_parts_if_both_sides_have_the_same_sizes() -> None:
    def joins(left_out: str) -> int:
        target = {key: shape for key, shape in layers("z", 4).items() if key != left_out}
        sides = canonical(signature(layers("y", 4)), wanted(target))
        with mock.patch.object(joining, "join_families", return_value=False) as looked:
            joining.join_parts(*sides)
        return looked.call_count

    assert (joins(""), joins(f"{name('z', 1)}.weight")) == (0, 1)


SPOKEN = sorted({word for group in table().groups for phrase in group.phrases for word in phrase})
spoken = st.lists(st.one_of(st.sampled_from(SPOKEN), st.sampled_from(["0", "3", "17", "v", "zq"])), max_size=5)


@given(st.sampled_from(table().groups), spoken)
def test_a_label_is_the_same_for_every_block(group: Group, words: list[str]) -> None:
    """Words and numbers in no phrase are left empty before the label is looked up."""
    assert label(group, words) == _label_of_kind(group, tuple(words))


WORDS = ("stem", "block", "conv", "convolution", "norm", "bn1", "fc2", "0", "1", "left", "lft", "head7")
NO_FLOW = SimpleNamespace(entry=SimpleNamespace(facts=SimpleNamespace(flow=None)))


def unit(path: list[str], turn: int | None = None, *, statistics: bool = False, backwards: bool = False) -> Any:
    pieces: Any = dict.fromkeys(("weight", "running_var") if statistics else ("weight",), NO_FLOW)
    lists = frozenset({"0"}) if backwards else frozenset()
    return Unit(tuple(path), pieces, ((4,), ""), 0, turn, tuple(path), turn, backwards=lists)


paths = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3)
turns = st.one_of(st.none(), st.integers(0, 20))
pairs = st.tuples(*[st.builds(unit, paths, turns, statistics=st.booleans(), backwards=st.booleans())] * 2)


@given(pairs, pairs, st.lists(pairs, max_size=8), st.sampled_from([1, 2]))
def test_certain_pairs_that_are_passed_over_would_say_nothing(one: Any, other: Any, certain: Any, least: int) -> None:
    with mock.patch.object(company, "_ALL", 0):
        assert in_company(one, other, Anchors(certain), least) == in_company(one, other, certain, least)


def test_a_pair_is_compared_with_what_may_be_near_it_and_not_with_a_whole_block() -> None:
    def cost(count: int) -> int:
        row = [(unit([name("z", at)], at), unit([name("y", at)], at)) for at in range(count)]
        anchors = Anchors(row)
        in_company(row[1], row[2], anchors)  # what is noted once
        return calls(lambda: in_company(row[3], row[4], anchors))

    cost(50)
    assert cost(500) <= cost(50) * 2
