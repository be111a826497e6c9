"""The tables of rules that tell units apart, and of rules that support a pair made only by its shape.

Rows of the first table (`TELLING`) split cells: certain rows until they split no more, then all rows, and again from
the start whenever a cell was split. A row of the second table (`SUPPORT`) says that a pair is supported (True), that it
is not (False), or nothing (None); the first row that says something decides.
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

#: Splits cells of a matcher, and returns whether it split any.
Split = Callable[["Matcher"], bool]
#: Returns whether a decided pair (target, source) is supported: True, False, or None if this rule does not tell.
Support = Callable[["Matcher", Unit, Unit], bool | None]

TELLING: tuple[Rule[Split], ...] = in_order(
    Rule(
        "equal names",
        10,
        "The names are equal below a prefix of each side.",
        "Most names below the two prefixes are equal, and no other two prefixes fit as well.",
        lambda matcher: matcher.naming.by_exact_names(),
    ),
    Rule(
        "tensors that it holds",
        20,
        "The layers of the pair hold the same tensors: a weight alone, or a weight and a bias.",
        "A layer with a bias does not lose it in other code. This rule runs before the modules around the layer are "
        "compared.",
        lambda matcher: matcher.naming.by_roles(),
        when="every kind of layer is there as often on both sides",
    ),
    Rule(
        "modules around it",
        30,
        "The modules around it are a pair.",
        "The layers of a module of the model are in the module of the file that is its partner.",
        lambda matcher: matcher.scopes.split(),
    ),
    Rule(
        "words that exclude each other",
        40,
        "Both names have the same word of a group of words that exclude each other (such as query, key and value).",
        "A query is no key, and an encoder is no decoder; `words.yaml` lists these groups.",
        lambda matcher: matcher.naming.by_hard_words(),
    ),
    Rule(
        "modules of its class",
        50,
        "In other modules of the same class, shapes or names show that the layer at this place has this partner.",
        "All blocks that code builds from one class have the same names inside.",
        lambda matcher: matcher.classes.split(),
    ),
    Rule(
        "named after a part",
        60,
        "Its name contains the name of a neighbouring layer, and that layer is matched.",
        "`norm_attn` belongs to `attn`, whatever the two are called on the other side.",
        lambda matcher: matcher.naming.by_parts(),
        Strength.LIKELY,
    ),
    Rule(
        "words that mean the same",
        70,
        "Words of both names mean the same.",
        "`gamma` and `weight` of a norm mean the same; `words.yaml` lists such words. Names without such words may "
        "still be partners.",
        lambda matcher: matcher.naming.by_soft_words(),
        Strength.LIKELY,
        when="a layer without such a word on one side may be the partner of a layer with one on the other",
    ),
    Rule(
        "other blocks",
        80,
        "In other blocks, the layer with this name was paired with the layer of that name.",
        "If `h.3.a` is paired with `layers.3.b`, then `h.7.a` is paired with `layers.7.b`.",
        lambda matcher: matcher.naming.by_other_blocks(),
        Strength.LIKELY,
    ),
    Rule(
        "its series",
        90,
        "Other members of its numbered list, or of a parallel list, show how the two sides count.",
        "The two sides count a list with a constant difference, or from opposite ends.",
        lambda matcher: matcher.naming.by_series(),
        Strength.LIKELY,
    ),
    Rule(
        "words told apart beside it",
        100,
        "Neighbouring pairs show which word of one side means which word of the other.",
        "If `left.a` is paired with `x.a`, then `left.b` is paired with `x.b`.",
        lambda matcher: matcher.naming.by_words_beside(),
        Strength.LIKELY,
    ),
    Rule(
        "initials",
        103,
        "The words that tell the look-alikes of one side apart are the first letters of those of the other side.",
        "`r_w_bias`, `r_r_bias` and `r_s_bias` abbreviate `word_bias`, `rel_bias` and `seg_bias`.",
        lambda matcher: matcher.naming.by_initials(),
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
        "`conv2_bn` follows `conv2`, so its partner is the norm that follows the partner of `conv2`.",
        lambda matcher: matcher.naming.by_owners(),
        Strength.LIKELY,
    ),
    Rule(
        "numbers in the names",
        120,
        "Both sides number the look-alikes, and the two layers have the same place among these numbers.",
        "Numbers count in the order of use, unless a decided pair or an order says otherwise.",
        lambda matcher: matcher.orders.by_numbers(),
        Strength.LIKELY,
    ),
    Rule(
        "neighbours",
        130,
        "The layer before and the layer after are pairs on both sides, or at least one of them is.",
        "The layers directly before and after it, in the order of registration or of execution, already have partners.",
        lambda matcher: matcher.orders.by_neighbours(),
        Strength.LIKELY,
    ),
    Rule(
        "places that names say",
        140,
        "Its name says its place: before, between or after.",
        "`pre_norm` is used before the layer that it belongs to, `post_norm` after it.",
        lambda matcher: matcher.orders.by_said_places(),
        Strength.LIKELY,
    ),
    Rule(
        "similar names",
        150,
        "The two names have more words in common with each other than either has with any other name.",
        "Each of the two is the best choice for the other, by a margin.",
        lambda matcher: matcher.naming.by_similar_names(),
        Strength.LIKELY,
    ),
    Rule(
        "place in an order",
        160,
        "The two layers have the same place among their look-alikes, in an order of both sides.",
        "Both sides have equally many look-alikes. If two orders disagree, the pair is a question.",
        lambda matcher: matcher.orders.by_rank(),
        Strength.LIKELY,
        when="both sides have equally many look-alikes",
    ),
    Rule(
        "next in line",
        170,
        "The two layers directly follow a pair, each on its side.",
        "Layers that follow each other on one side most often do so on the other. The pair is a question unless the "
        "names agree, too.",
        lambda matcher: matcher.orders.by_chain(),
        Strength.LIKELY,
    ),
)


def _by_evidence(_: Matcher, t: Unit, s: Unit) -> bool | None:
    """Return True if the path of T ends with that of S, or that of S with that of T, or if a piece of evidence of T is
    enough (`Evidence.supports`); else None.
    """
    ends = s.path[-len(t.path) :] == t.path or t.path[-len(s.path) :] == s.path
    return True if ends or any(e.supports for e in t.evidence) else None


def _by_similar_name(matcher: Matcher, t: Unit, s: Unit) -> bool | None:
    """Return True if the names of T and S are similar (`similarity` of more than 0.15) or `related`; else None.

    None, too, if two things are true: T has no evidence, or none but the modules around it; and T or S is in a module
    without other pairs (`in_unused_parts`).
    """
    if all(e.kind is Kind.SCOPE for e in t.evidence) and matcher.in_unused_parts(t, s):
        return None
    return True if similarity(t, s) > SOME or related(t, s) else None


def _by_telling_words(_: Matcher, t: Unit, s: Unit) -> bool | None:
    """Return True if T and S share a telling word, hold the same roles, and have as many dimensions; else None."""
    same_form = t.pieces.keys() == s.pieces.keys() and len(t.main.shape) == len(s.main.shape)
    return True if same_form and shared(telling_words(t.path), telling_words(s.path)) else None


def _by_end(matcher: Matcher, t: Unit, s: Unit) -> bool | None:
    """Return True if two things are true; else None. T and S are at the end (`Orders.at_the_end`). And they are the
    only units of their colour on their sides, or T has its place among the look-alikes as evidence.
    """
    alone = matcher.alike(t) == (1, 1) or any(e.is_rank for e in t.evidence)
    return True if alone and matcher.orders.at_the_end(t, s) else None


SUPPORT: tuple[Rule[Support], ...] = in_order(
    Rule(
        "enough evidence",
        10,
        "Other rules found enough evidence for the pair, or one name ends in the other.",
        "Enough evidence is a name, other blocks, or neighbours on both sides.",
        _by_evidence,
    ),
    Rule(
        "excluding names",
        20,
        "The names exclude each other, so the two are not paired.",
        "A query and a key are different tensors, even if their shapes are equal.",
        lambda _, t, s: False if hard_conflict(t.words, s.words) else None,
    ),
    Rule(
        "one name or one module",
        30,
        "The two layers have one name, or are in two modules that match as a whole, or equal layers of other blocks "
        "are in such modules.",
        "Not only the kind of the layer is equal.",
        lambda matcher, t, s: True if matcher.in_whole_modules(t, s) or of_one_name(t, s) else None,
    ),
    Rule(
        "a similar name",
        40,
        "The names have words in common.",
        "The names share a word, or both have words that mean the same.",
        _by_similar_name,
        when="there is other evidence than the modules around the layers, or these modules are used on both sides",
    ),
    Rule(
        "a telling word",
        50,
        "The names share a word that means more than the kind of layer, and both layers hold the same tensors.",
        "Words that name only the kind of layer (such as `conv`) do not count.",
        _by_telling_words,
    ),
    Rule(
        "the same neighbours",
        60,
        "The two layers are between the same pairs on both sides.",
        "No other layer on either side has this place.",
        lambda matcher, t, s: True if matcher.orders.between(t, s) else None,
    ),
    Rule(
        "only the end differs",
        80,
        "The two layers follow a pair, and no later layer has a partner.",
        "If the end of a model was replaced, the layers before it are the same.",
        _by_end,
        when="the layer is the only one of its shape, or has the same place among the layers of its shape",
    ),
)
