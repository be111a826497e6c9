"""The tables of rules that tell units apart, and of rules that support a pair made only by its shape.

Rows of the first table split cells: certain rows until they split no more, then all rows, and again from the start
whenever a cell was split. A row of the second table says that a pair is supported, that it is not, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..rules import Rule, Strength, in_order
from ..words import shared, telling_words
from .evidence import Kind
from .units import SOME, Unit, hard_conflict, of_one_name, related, similarity

if TYPE_CHECKING:
    from .match import Matcher

#: Splits cells by what it knows. Whether it split any.
Split = Callable[["Matcher"], bool]
#: Whether it supports a pair (target, source): yes, no, or it says nothing.
Support = Callable[["Matcher", Unit, Unit], bool | None]

TELLING: tuple[Rule[Split], ...] = in_order(
    Rule(
        "equal names",
        10,
        "The names are equal below a prefix of each side.",
        "Most of what is below the two prefixes has equal names, and no other prefixes fit as well.",
        lambda matcher: matcher.naming.by_exact_names(),
    ),
    Rule(
        "tensors that it holds",
        20,
        "It holds the same tensors: a weight alone, or one with a bias.",
        "A layer with a bias does not become one without; this tells a layer before the modules around it do.",
        lambda matcher: matcher.naming.by_roles(),
        when="every kind of layer is there as often on both sides",
    ),
    Rule(
        "modules around it",
        30,
        "The modules around it are a pair.",
        "What is in a module of the model is in the module of the file that was matched with it.",
        lambda matcher: matcher.scopes.split(),
    ),
    Rule(
        "words that exclude each other",
        40,
        "Both names have the same one of some words that exclude each other.",
        "A query is no key and an encoder no decoder; `words.yaml` lists such words.",
        lambda matcher: matcher.naming.by_hard_words(),
    ),
    Rule(
        "modules of its class",
        50,
        "Other modules of the same class have it in this place, where shapes or names tell it.",
        "Code builds blocks from a class, and all of them have the same names inside.",
        lambda matcher: matcher.classes.split(),
    ),
    Rule(
        "named after a part",
        60,
        "Its name contains the name of a neighbouring layer, and that layer is matched.",
        "`norm_attn` stands with `attn`, whatever the other side calls the two.",
        lambda matcher: matcher.naming.by_parts(),
        Strength.LIKELY,
    ),
    Rule(
        "words that mean the same",
        70,
        "Words of both names mean the same.",
        "`gamma` and `weight` of a norm; `words.yaml` lists such words. Names with other words may still be it.",
        lambda matcher: matcher.naming.by_soft_words(),
        Strength.LIKELY,
        when="what has no such word on one side can be what has one on the other",
    ),
    Rule(
        "other blocks",
        80,
        "In other blocks the same name goes to the same name.",
        "If `h.3.a` is `layers.3.b`, so is `h.7.a` `layers.7.b`.",
        lambda matcher: matcher.naming.by_other_blocks(),
        Strength.LIKELY,
    ),
    Rule(
        "its series",
        90,
        "Other members of its numbered list, or of a parallel list, show how the two sides count.",
        "A list is counted in one way: so many more, or from the other end.",
        lambda matcher: matcher.naming.by_series(),
        Strength.LIKELY,
    ),
    Rule(
        "words told apart beside it",
        100,
        "Neighbouring pairs show which word of one side means which word of the other.",
        "If `left.a` is `x.a`, then `left.b` is `x.b`.",
        lambda matcher: matcher.naming.by_words_beside(),
        Strength.LIKELY,
    ),
    Rule(
        "named like its branch",
        105,
        "Its name shares a word with the layers along its branch: those that take its output, or give its input.",
        "`hidden_value` flows into `value`, and `hidden_action` into `action`, whatever the other side calls the two.",
        lambda matcher: matcher.naming.by_branches(),
        Strength.LIKELY,
        when="the forward pass shows which of its look-alikes flows where",
    ),
    Rule(
        "named after the layer before",
        110,
        "A norm is named after the layer that it follows.",
        "`conv2_bn` follows `conv2`, so it is what follows the partner of `conv2`.",
        lambda matcher: matcher.naming.by_owners(),
        Strength.LIKELY,
    ),
    Rule(
        "numbers in the names",
        120,
        "Both sides number what looks alike, and these have the same place.",
        "Numbers count in the order of use, unless a decided pair or an order says otherwise.",
        lambda matcher: matcher.orders.by_numbers(),
        Strength.LIKELY,
    ),
    Rule(
        "neighbours",
        130,
        "Its neighbours are the same on both sides, or one of them is.",
        "What comes directly before and after it is decided, in the order of registration or of execution.",
        lambda matcher: matcher.orders.by_neighbours(),
        Strength.LIKELY,
    ),
    Rule(
        "places that names say",
        140,
        "Its name says its place: before, between or after.",
        "`pre_norm` is used before what it stands with, `post_norm` after it.",
        lambda matcher: matcher.orders.by_said_places(),
        Strength.LIKELY,
    ),
    Rule(
        "similar names",
        150,
        "Its name has more words in common with this one than with any other, and the other way round.",
        "Each is the best of the other by a margin.",
        lambda matcher: matcher.naming.by_similar_names(),
        Strength.LIKELY,
    ),
    Rule(
        "place in an order",
        160,
        "It has the same place among those that look alike.",
        "Both sides have as many of them; where two orders disagree, that is a question.",
        lambda matcher: matcher.orders.by_rank(),
        Strength.LIKELY,
        when="both sides have as many",
    ),
    Rule(
        "next in line",
        170,
        "It follows a decided pair on both sides.",
        "From the front on, the next on one side is the next on the other; a question unless its name says so, too.",
        lambda matcher: matcher.orders.by_chain(),
        Strength.LIKELY,
    ),
)


def _by_evidence(_: Matcher, t: Unit, s: Unit) -> bool | None:
    ends = s.path[-len(t.path) :] == t.path or t.path[-len(s.path) :] == s.path
    return True if ends or any(e.supports for e in t.evidence) else None


def _by_words(_: Matcher, t: Unit, s: Unit) -> bool | None:
    return False if hard_conflict(t.words, s.words) else None


def _by_name(matcher: Matcher, t: Unit, s: Unit) -> bool | None:
    return True if matcher.scopes.same(t, s) or of_one_name(t, s) else None


def _by_similar_name(matcher: Matcher, t: Unit, s: Unit) -> bool | None:
    if all(e.kind is Kind.SCOPE for e in t.evidence) and matcher.in_unused_parts(t, s):
        return None
    return True if similarity(t, s) > SOME or related(t, s) else None


def _by_telling_words(_: Matcher, t: Unit, s: Unit) -> bool | None:
    same_form = t.pieces.keys() == s.pieces.keys() and len(t.main.shape) == len(s.main.shape)
    return True if same_form and shared(telling_words(t.path), telling_words(s.path)) else None


def _by_neighbours(matcher: Matcher, t: Unit, s: Unit) -> bool | None:
    return True if matcher.orders.between(t, s) else None


def _by_row(matcher: Matcher, t: Unit, s: Unit) -> bool | None:
    own, theirs = matcher.alike(t)
    return True if own == theirs and t.pieces.keys() == s.pieces.keys() and matcher.orders.goes_on(t, s) else None


def _by_end(matcher: Matcher, t: Unit, s: Unit) -> bool | None:
    alone = matcher.alike(t) == (1, 1) or any(e.is_rank for e in t.evidence)
    return True if alone and matcher.orders.at_the_end(t, s) else None


SUPPORT: tuple[Rule[Support], ...] = in_order(
    Rule(
        "enough evidence",
        10,
        "Its evidence is enough for a pair, or one name ends in the other.",
        "A name, other blocks, or neighbours on both sides.",
        _by_evidence,
    ),
    Rule(
        "excluding names",
        20,
        "The names exclude each other, so it is no pair.",
        "An equal shape does not make a query of a key.",
        _by_words,
    ),
    Rule(
        "one name or one module",
        30,
        "Both are in modules that match as a whole, or have one name.",
        "More is equal than the kind of layer.",
        _by_name,
    ),
    Rule(
        "a similar name",
        40,
        "The names have words in common.",
        "They share words, or a group of words calls both the same.",
        _by_similar_name,
        when="more than the modules around it speaks for it, or these are used on both sides",
    ),
    Rule(
        "a telling word",
        50,
        "The names share a word that tells, and both hold the same tensors.",
        "Words that say no more than the kind of layer do not count.",
        _by_telling_words,
    ),
    Rule(
        "the same neighbours",
        60,
        "Both stand between the same pairs.",
        "Nothing else on either side has that place.",
        _by_neighbours,
    ),
    Rule(
        "next in its row",
        70,
        "Both come directly behind a pair, in the row of layers that it is in.",
        "`stem.2` follows `stem.1`.",
        _by_row,
        when="both sides have as many that look so",
    ),
    Rule(
        "only the end differs",
        80,
        "Both follow a pair, and nothing behind them has a partner.",
        "A part that was cut off leaves what is before it.",
        _by_end,
        when="it is the only one of its shape, or has its place among these",
    ),
)
