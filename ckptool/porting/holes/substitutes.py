"""Fill holes without a matched unit: from layers of other sizes, folded norms, leftovers, or tied tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.pieces import Name, Piece, holds_channels_last, substituted
from ..matching.match import is_average
from ..matching.units import SOME, Pair, Path, Unit, hard_conflict, label_of, related, similarity
from ..questions import Question, Reason, ask
from ..rules import Rule, Strength, in_order
from ..words import table
from . import left_over as leftovers
from .axial_positions import positions_of_axes
from .filling import Filled, Filling
from .folded import fold_norms
from .parallel import add_branches
from .remedies import of_rows, remedy


def substitute(filling: Filling) -> None:
    """Fill units that have no partner of equal shape, by the rules of the table `SUBSTITUTES`, in its order. Most of
    the results are guesses.
    """
    for rule in SUBSTITUTES:
        rule.run(filling)


def _averages(filling: Filling) -> None:
    """Fill each unfilled running average (EMA) of the model from a running average of the source.

    If it is the average of the model's tensor w (`_averaged`: the only filled one of its sizes in its module), and w is
    filled from the source's key k, it is filled from the source's average of k (`_average_in_source`), with the
    operations that make the key of w. It gets the questions about w, without options. It stays empty if w or the
    average of k is not found.
    """
    kept = [key for key in filling.source.signature.entries if is_average((key.rpartition(".")[2],))]
    pieces = list(filling.target.pieces.values()) if kept else []
    for piece in [p for p in pieces if is_average(p.path) and p.name not in filling.holes and p.expr.is_copy]:
        of = _averaged(filling, piece, pieces)
        key = None if of is None else _average_in_source(filling, filling.holes[of.name], kept)
        if of is None or key is None:
            continue
        filled = filling.holes[of.name]
        expr = substituted(filling.target.assembly[of.entry.key], {of.name.hole: filled.expr})
        expr = substituted(expr, {own: ex.of(key) for own in filled.expr.keys()})  # noqa: SIM118
        asked = [q.about() for q in filled.questions]
        filling.put(piece, filling.unit_of[of.name], Filled(expr, "the average of what is beside it", asked))


def _averaged(filling: Filling, piece: Piece, pieces: Sequence[Piece]) -> Piece | None:
    """Return the tensor of which the unfilled PIECE is the running average: the only filled one of PIECES, all tensors
    of the model, that is in the module of PIECE and whose key has the shape of PIECE.

    None if there is not exactly one, or if this module has another unfilled average (`is_average`) of this shape.
    """
    beside = [p for p in pieces if p.path[:-1] == piece.path[:-1] and p.entry.shape == piece.shape]
    filled = [p for p in beside if p.name in filling.holes]
    averages = [p for p in beside if is_average(p.path) and p.name not in filling.holes]
    return filled[0] if len(filled) == len(averages) == 1 else None


def _average_in_source(filling: Filling, filled: Filled, kept: Sequence[str]) -> str | None:
    """Return the key of the source's running average of the one tensor that FILLED reads. It is the only one of KEPT,
    the keys of all averages of the source, that has the sizes of this tensor and is in its module or in the module
    around that. None if there is none, or several, or if FILLED reads no key or several.
    """
    entries = filling.source.signature.entries
    own = list(filled.expr.keys())
    if len(own) != 1:
        return None
    module = own[0].rpartition(".")[0]
    near = [key for key in kept if key.rpartition(".")[0] in (module, module.rpartition(".")[0])]
    theirs = [key for key in near if entries[key].shape == entries[own[0]].shape]
    return theirs[0] if len(theirs) == 1 else None


def _of_wrappers(filling: Filling) -> None:
    """Fill tensors that one side stores in a layer, and the other side in a wrapper of the layer:
    `rnn.weight_hh_l0_raw` of the model from `rnn.module.weight_hh_l0_raw` of the source, or the other way round. The
    layer is a unit that fills another one, or is filled; a unit is its wrapper if it has one of the paths of
    `_wrappers`. No question is asked.

    The two tensors have one role, other than weight and bias, which both a wrapper and its layer may have, and equal
    sizes. That of the model is not filled, and that of the source is not read by what fills other holes. Each of the
    two fits no other one: what is around several layers wraps none of them.
    """
    cells = filling.matcher.cells
    targets, sources = ({unit.path: unit for unit in side} for side in (cells.targets, cells.sources))
    used = {key for filled in filling.holes.values() for key in filled.expr.keys()}  # noqa: SIM118
    fitting: dict[tuple[Name, Name], tuple[Unit, Unit]] = {}
    for t, s in {id(t): (t, s) for t, s in filling.unit_of.values()}.values():
        couples = [(targets[path], s) for path in _wrappers(t) if path in targets]
        couples += [(t, sources[path]) for path in _wrappers(s) if path in sources]
        for own, theirs in couples:
            for role in (own.pieces.keys() & theirs.pieces.keys()) - {"weight", "bias"}:
                piece, source = own.pieces[role], theirs.pieces[role]
                free = piece.name not in filling.holes and used.isdisjoint(source.expr.keys())
                if free and piece.shape == source.shape:
                    fitting[piece.name, source.name] = own, theirs
    counts = [Counter(names) for names in zip(*fitting, strict=True)]
    for names, (own, theirs) in fitting.items():
        if all(count[name] == 1 for count, name in zip(counts, names, strict=True)):
            filled = Filled(theirs.pieces[names[1].role].expr, "held by the layer or by its wrapper")
            filling.put(own.pieces[names[0].role], (own, theirs), filled)


def _wrappers(unit: Unit) -> list[Path]:
    """Return the paths that a unit with tensors of a wrapper of the layer UNIT may have: the path of UNIT without its
    last component but one, and without its last one. A layer of a recurrent module has its number last, behind the name
    of the module that is wrapped: `rnn.0` and `rnn.module` for `rnn.module.0`.
    """
    return [unit.path[:at] + unit.path[at + 1 :] for at in range(max(len(unit.path) - 2, 0), len(unit.path))]


def _leftovers(filling: Filling) -> None:
    """Fill units of the target of which no tensor is filled, also those in repeated blocks of which the source has only
    the first, by four functions of `left_over`, one after the other: several from one layer of the source that fills
    nothing, or one from several such layers (`parts`); tensors from the rows of such matrices (`rows`); segment tables
    with zeros (`segments`); layers of several blocks from one layer of the source (`shared`). Each tensor that is
    filled gets the question of its proposal.
    """
    for propose in (leftovers.parts, leftovers.rows, leftovers.segments, leftovers.shared):
        used = {key for filled in filling.holes.values() for key in filled.expr.keys()}  # noqa: SIM118
        cells = filling.matcher.cells
        every = (*cells.targets, *filling.matching.later)
        targets = [u for u in every if not any(p.name in filling.holes for p in u.pieces.values())]
        planned = {id(u) for u, _ in filling.planned}
        sources = [u for u in cells.sources if id(u) not in planned and not used & set(u.main.expr.keys())]
        pairs = [filling.unit_of[t.main.name] for t in cells.targets if t.main.name in filling.unit_of]
        everything = propose not in (leftovers.parts, leftovers.rows)
        for one in propose(pairs, targets, cells.sources if everything else sources):
            filled = Filled(one.expr, "left over", [one.question])
            filling.put(one.target.pieces[one.role], (one.target, one.source), filled)


def _near_misses(filling: Filling) -> None:
    """Fill units without a source from those of the same name or place (`_near_misses_once`), until a call fills none
    from a unit of other sizes any more. A unit that is filled so may show the place of the units beside it.
    """
    joined: list[Unit] = []
    while _near_misses_once(filling, joined):
        pass


def _near_misses_once(filling: Filling, joined: list[Unit]) -> bool:
    """Fill each unit without a source from the only unit of the source without a partner that is alike. That is a unit
    in its place (`Filling.alike`: its path is equal, its name says the same kind of embedding, or it is between the
    same pairs); if none is, a kernel that cuts patches for a linear layer over them (`_cuts_patches`). A unit for which
    none or several are alike stays empty, and so do heads in place of another head (`Matching.new`). Units of the
    source that filled something when the call began do not count; two units may still get the same one.

    If the two have equal sizes, it is filled if their names or JOINED support it (`_fill_of_equal_sizes`); if not, it
    is filled if a rule for the change of sizes is known (`_fill_of_other_sizes`). JOINED has all units filled from
    other sizes so far, and those of this call are added to it. Return whether this call added any.
    """
    new = set(map(id, filling.matching.new))
    free_t = [u for u in filling.matching.free_targets if u.main.name not in filling.holes and id(u) not in new]
    used = {id(s) for s in (*(s for _, s in filling.unit_of.values()), *(s for s, _ in filling.planned))}
    free_s = [s for s in filling.matching.free_sources if id(s) not in used]
    before = len(joined)
    for t in free_t:
        near = [s for s in free_s if filling.alike(t, s)] or [s for s in free_s if _cuts_patches(t, s)]
        if len(near) != 1:
            continue
        if t.main.shape == near[0].main.shape:
            _fill_of_equal_sizes(filling, t, near[0], joined)
        elif _fill_of_other_sizes(filling, t, near[0]):
            joined.append(t)
    return len(joined) > before


def _fill_of_equal_sizes(filling: Filling, t: Unit, s: Unit, joined: list[Unit]) -> None:
    """Fill T from S, a unit of equal sizes in its place, if their names are similar or related. If they are not, fill T
    only if JOINED, the units that were filled from units of other sizes, is not empty, and first add a question to T if
    what fills one of JOINED has a doubt. Else do nothing.
    """
    agree = similarity(t, s) > SOME or related(t, s)
    if not agree and any(filling.holes[one.main.name].doubts for one in joined):
        t.ask(ask(Reason.ONLY_ITS_PLACE))
    if agree or joined:
        filling.fill(t, s)


def _fill_of_other_sizes(filling: Filling, t: Unit, s: Unit) -> bool:
    """Fill T from S, changed to the sizes of T, and return True. Return False, and do nothing, if no rule for these
    sizes is known (`remedy`). T gets the question of this rule unless it is certain how to change S (`_is_shown`), or
    the question has options, and all are the same as the result (`_is_one_way`).

    The two units become a pair of the matcher. Other tensors of T are filled from those of S with the same role and as
    many elements, reshaped, with the same question, but no options. If T is a word table, by the name of T or S or by
    its use (`_is_looked_up`), output layers over the vocabulary are filled, too (`_other_vocabulary`).
    """
    kind = label_of(t, "embedding") or label_of(s, "embedding") or ("token" if _is_looked_up(filling, t) else None)
    found = remedy(t.main.shape, s.main.shape, s.main.expr, kind, is_input=_takes_inputs(filling, t))
    if found is None:
        return False
    expr, question = _as_code_lists_pixels(t, s, *found)
    asked = [] if _is_shown(filling, t, s) or _is_one_way(filling, expr, question) else [question]
    filling.put(t.main, (t, s), Filled(expr, "similar names", asked))
    filling.matcher.cells.join(t, s)
    for role, piece in t.pieces.items():
        other = s.pieces.get(role)
        if piece is not t.main and other is not None and prod(other.shape) == prod(piece.shape):
            same = ex.reshape(other.expr, piece.shape, other.shape)
            filling.put(piece, (t, s), Filled(same, "similar names", [q.about() for q in asked]))
    if kind == "token":
        _other_vocabulary(filling, t.main.shape, s.main.shape)
    return True


def _is_shown(filling: Filling, t: Unit, s: Unit) -> bool:
    """Return whether it is certain how the matrix S becomes the tensor T: it is its transpose (`_is_its_transpose`), or
    S has channels first, its code was not traced, and T is a kernel that the model's code moves by less than its size,
    with as many inputs as the layer before it has outputs (`_follows_its_channels`). False if S is no matrix.

    Such a T is a linear layer over all of a feature map, which torch flattens channel by channel. A kernel that moves
    by its size may take patches, whose numbers code lists in any order.
    """
    if len(s.main.shape) != 2:
        return False
    channels_first = not holds_channels_last(s.main, filling.source.signature.framework)
    over_map = t.main.entry.facts.overlaps and _follows_its_channels(filling, t)
    unseen = not filling.source.signature.traced
    return (channels_first and over_map and unseen) or _is_its_transpose(t, s)


def _is_one_way(filling: Filling, expr: Expr, question: Question[Expr]) -> bool:
    """Return whether all ways to fill the hole are one: QUESTION has options, and each option is the same as EXPR once
    both are simplified. False for a question without options.
    """
    shapes = {key: entry.shape for key, entry in filling.source.signature.entries.items()}
    return bool(question.options) and len({ex.simplified(one, shapes) for one in (expr, *question.options)}) == 1


def _cuts_patches(t: Unit, s: Unit) -> bool:
    """Return whether T is a linear layer over patches, as the model's code shows, and S is a kernel of four or more
    dimensions with as many outputs, and as many numbers for each output as T has columns. False if the words of their
    names exclude each other.
    """
    own, theirs = t.main.shape, s.main.shape
    if not t.main.entry.facts.pixels or len(theirs) < 4 or hard_conflict(t.words, s.words):
        return False
    return own == (theirs[0], prod(theirs[1:]))


def _is_looked_up(filling: Filling, t: Unit) -> bool:
    """Return whether the model looks up rows of T, and either T is the only unit of which it does, or another unit
    without a source has as many rows. A table whose name says nothing is then taken for a word table.
    """
    tables = [u for u in filling.matcher.cells.targets if u.main.entry.how == "embedding"]
    others = (u for u in filling.matching.free_targets if u is not t)
    return t in tables and (len(tables) == 1 or any(u.main.shape[:1] == t.main.shape[:1] for u in others))


def _other_vocabulary(filling: Filling, wanted: Shape, have: Shape) -> None:
    """Fill output layers over the vocabulary from those of the source with another number of rows, with a question. The
    word table has WANTED sizes in the model and HAVE sizes in the source.

    Such a layer is not filled and has WANTED[0] rows, and exactly one unit of the source without a partner has HAVE[0]
    rows and is alike (`Filling.alike`). Of its tensors, those are filled for which `of_rows` has a rule.
    """
    for t in filling.matching.free_targets:
        near = [s for s in filling.matching.free_sources if s.main.shape[:1] == have[:1] and filling.alike(t, s)]
        if t.main.name in filling.holes or t.main.shape[:1] != wanted[:1] or len(near) != 1:
            continue
        for role, piece in t.pieces.items():
            own = near[0].pieces.get(role)
            found = None if own is None else of_rows(piece.shape, own.shape, own.expr)
            if found is not None:
                filling.put(piece, (t, near[0]), Filled(found[0], "similar names", [found[1]]))


def _takes_inputs(filling: Filling, t: Unit) -> bool:
    """Return whether T comes before all other units of the model with as many dimensions: in the order of execution,
    without units whose place in it is not known; if that of T is not known, in the order of registration.
    """
    others = (u for u in filling.matcher.cells.targets if u is not t and len(u.main.shape) == len(t.main.shape))
    if t.used is None:
        return all(u.order > t.order for u in others)
    return all(u.used is None or u.used > t.used for u in others)


def _follows_its_channels(filling: Filling, t: Unit) -> bool:
    """Return whether T, a kernel [out, in, …] of four or five dimensions, has as many inputs as the layer before it has
    outputs: the last unit that the model runs before T, of those with as many dimensions. False if there is no such
    unit, or if it is not known when T runs.
    """
    before = [
        u for u in filling.matcher.cells.targets if u.used is not None and t.used is not None and u.used < t.used
        if len(u.main.shape) == len(t.main.shape)
    ]  # fmt: skip
    last = max(before, key=lambda u: u.used or 0.0, default=None)
    return last is not None and len(t.main.shape) in (4, 5) and last.main.shape[0] == t.main.shape[1]


def _is_its_transpose(t: Unit, s: Unit) -> bool:
    """Return whether T is a transposed 1d convolution with one output channel, and S a matrix of the sizes [size of the
    kernel of T, inputs of T], which are then known to be in this order.
    """
    wanted = t.main.shape
    return t.main.entry.how == "conv_transpose1d" and wanted[1] == 1 and s.main.shape == (wanted[2], wanted[0])


def _of_other_sizes(filling: Filling) -> None:
    """Put a question into `filling.misses` for each tensor of a unit whose main tensor is not filled, if exactly one
    unit of the source without a partner is alike (`Filling.alike`), and its tensor of the same role has other sizes as
    stored. The question names the key and the sizes of that tensor; a refusal prints it.
    Nothing is filled.
    """
    for t in filling.matching.free_targets:
        near = [s for s in filling.matching.free_sources if filling.alike(t, s)]
        if t.main.name not in filling.holes and len(near) == 1:
            for role, piece in t.pieces.items():
                other = near[0].pieces[role].entry if role in near[0].pieces else None
                if other is not None and other.shape != piece.entry.shape:
                    filling.misses[piece.name] = ask(Reason.OTHER_SIZES, other.key, str(list(other.shape)))


def _as_code_lists_pixels(t: Unit, s: Unit, expr: Expr, question: Question[Expr]) -> tuple[Expr, Question[Expr]]:
    """Return (the weight of S as that of T, in the order in which the code of the linear layer lists the pixels of a
    patch, or of all of a feature map; QUESTION as answered by this code, with the other orders as options). One of T
    and S is linear, the other a convolution.

    Return (EXPR, QUESTION) as they are, EXPR being the weight of S reshaped, if the question is not about patches, or
    if the forward pass of the code with the linear layer does not show this order.
    """
    flat, kernel = (s, t) if len(s.main.shape) == 2 else (t, s)
    facts = flat.main.entry.facts
    order = "".join(axis.letter for axis in facts.pixels)
    if facts.flattened is not None and tuple(facts.flattened[1:]) == kernel.main.shape[1:]:
        order = facts.flattened.order.replace("n", "")
    if question.reason is not Reason.PATCHES or len(order) + 1 != len(kernel.main.shape):
        return expr, question
    made = _reordered_pixels(t, s, order, expr)
    whose = "source" if flat is s else "model"
    shows = f"the {whose}'s code lists the numbers of a patch in the order {', '.join(order)}"
    rivals = [one for one in (expr, *question.options) if one != made]
    return made, replace(question.about(*rivals), answer=shows)


def _reordered_pixels(t: Unit, s: Unit, order: str, expr: Expr) -> Expr:
    """Return the weight of S, reordered to be that of T. One of the two is a matrix whose columns are the pixels of a
    patch in ORDER ("hwc" …), the other a kernel [outputs, channels, space…]. EXPR, the weight of S only reshaped, is
    returned if ORDER is that of the kernel ("chw", "cthw").
    """
    usual = "cthw" if len(order) == 4 else "chw"
    if order == usual:
        return expr
    if len(s.main.shape) != 2:
        return ex.reshape(ex.permute(s.main.expr, 0, *(1 + usual.index(letter) for letter in order)), t.main.shape)
    sizes = dict(zip(usual, t.main.shape[1:], strict=True))
    apart = ex.reshape(s.main.expr, (s.main.shape[0], *(sizes[letter] for letter in order)))
    return ex.permute(apart, 0, *(1 + order.index(letter) for letter in usual))


def _tied_sources(filling: Filling) -> None:
    """Fill the main tensor of each unit without a source, if it is not filled, from a key that the source ties to
    another tensor (both keys hold one tensor). The key is the only tied one with the shape and the last two components
    of the model's key; of several, the one that equals the model's key. If that leaves none or several, the tensor
    stays empty. No question is asked, and `unit_of` gets the unit itself as its source.
    """
    tied = [e for e in filling.source.signature.entries.values() if e.tied is not None]
    for t in filling.matching.free_targets if tied else ():
        if t.main.name in filling.holes:
            continue
        wanted = t.main.entry.key.split(".")
        near = [e for e in tied if e.shape == t.main.shape and e.key.split(".")[-2:] == wanted[-2:]]
        exact = [e for e in near if e.key == t.main.entry.key] or near
        if len(exact) == 1:
            filled = Filled(ex.of(exact[0].key), f"name; tied to {exact[0].tied} in the source")
            filling.put(t.main, (t, t), filled)


def _tables_of_words(filling: Filling) -> list[Pair]:
    """Return the pairs (target, source) of word tables among the units that fill a hole, each once. A pair is one if
    the name of the source says "token", or if the model looks up rows of the target, and the target's name says "token"
    or no kind of embedding. [] if there is none.
    """
    pairs = {id(t): (t, s) for t, s in filling.unit_of.values()}
    return [
        (t, s)
        for t, s in pairs.values()
        if (label_of(t, "embedding") in ("token", None) and t.main.entry.how == "embedding")
        or label_of(s, "embedding") == "token"
    ]


def _tied_tables(filling: Filling) -> None:
    """Fill each unfilled word table of the model, by its name, with the expression that fills another word table (of
    encoder or decoder), with a question. The model looks up rows of both, and the other is the only filled word table
    of these sizes whose rows it looks up; if there are none or several, the table stays empty.
    """
    free = [t for t in filling.matching.free_targets if t.main.name not in filling.holes]
    for t in [t for t in free if label_of(t, "embedding") == "token" and t.main.entry.how == "embedding"]:
        words = [one for one in _tables_of_words(filling) if one[0].main.entry.how == "embedding"]
        found = [(own, s) for own, s in words if own.main.shape == t.main.shape]
        if len(found) == 1:
            own, s = found[0]
            expr = filling.holes[own.main.name].expr
            filling.put(t.main, (t, s), Filled(expr, "the table of words", [ask(Reason.ONE_TABLE)]))


def _tied_heads(filling: Filling) -> None:
    """Fill each output layer that the source lacks (`_lacking_heads`) with the expression that fills the first word
    table of its sizes, to which it is most likely tied; it stays empty if there is no such table. This is a question
    unless the source ties a key to this table, or the file seems to come from a model that ties the two
    (`_was_beside`). If the table was changed on its way (its expression is not that of the source's table), its doubts
    are copied, without options.
    """
    tied = {e.tied for e in filling.source.signature.entries.values()}
    for t in _lacking_heads(filling):
        own, s = next((one for one in _tables_of_words(filling) if one[0].main.shape == t.main.shape), (None, None))
        if own is None or s is None:
            continue
        certain = s.main.entry.key in tied or _was_beside(filling, t, own, s)
        asked: list[Question[Expr]] = [] if certain else [ask(Reason.TIED_HEAD)]
        table_of_words = filling.holes[own.main.name]
        asked += [q.about() for q in table_of_words.doubts if table_of_words.expr != s.main.expr]
        filling.put(t.main, (t, s), Filled(table_of_words.expr, "tied to the embedding", asked))


def _lacking_heads(filling: Filling) -> list[Unit]:
    """Return the output layers of the model that have no source and are not filled: units whose main tensor is a weight
    and a matrix in which no rows are looked up. Their name is one for a head, or they are linear layers and the model
    uses no tensor of two or more dimensions after them. New layers, with an unfilled bias and no word for a vocabulary
    in their names (`_has_new_bias`), are left out.
    """
    used = [t.used for t in filling.matcher.cells.targets if t.used is not None and len(t.main.shape) > 1]
    last = max(used, default=0)
    free = [t for t in filling.matching.free_targets if t.main.name not in filling.holes and len(t.main.shape) == 2]
    return [
        t
        for t in free
        if t.main.role == "weight"
        and t.main.entry.how != "embedding"
        and (label_of(t, "purpose") == "head" or (t.main.entry.how == "linear" and t.used == last))
        and not _has_new_bias(filling, t)
    ]


def _has_new_bias(filling: Filling, t: Unit) -> bool:
    """Return whether T has a tensor beside its weight that is not filled, and no word for a vocabulary in its name."""
    biased = any(p.name not in filling.holes for p in t.pieces.values() if p.role != "weight")
    return biased and table().vocabulary.isdisjoint(t.words)


def _was_beside(filling: Filling, t: Unit, own: Unit, s: Unit) -> bool:
    """Return whether the file is that of a model with the output layer T tied to its word table: the keys of the word
    tables OWN, of the model, and S, of the source, begin with one component ("bert"), all keys of the source begin with
    it, and the model's keys begin with it or with that of T ("cls"), which is another one.

    Then the file comes from a model with more than the body: a file of the body alone would not have this prefix. What
    it had more was tied, as a file with another head would have keys for it.
    """
    first, *more = own.main.entry.key.split(".")
    if not more or s.main.entry.key.split(".")[0] != first:
        return False
    theirs = {key.split(".")[0] for key in filling.source.signature.entries}
    ours = {key.split(".")[0] for key in filling.target.signature.entries}
    return theirs == {first} and ours == {first, t.main.entry.key.split(".")[0]} and len(ours) == 2


#: What may go where nothing was matched.
SUBSTITUTES: tuple[Rule[Callable[[Filling], None]], ...] = in_order(
    Rule(
        "averages",
        10,
        "A running average of a tensor is filled with the file's average of the tensor that fills this tensor.",
        "A file stores an average next to the tensor that it is an average of.",
        _averages,
    ),
    Rule(
        "wrapped layers",
        15,
        "A tensor that a wrapper of a layer holds is filled with that of this name which the layer holds in the file, "
        "or the other way round.",
        "A wrapper that changes a parameter of its layer on each call keeps the parameter itself.",
        _of_wrappers,
    ),
    Rule(
        "parallel branches",
        18,
        "The source has several branches in the place of one layer, so their kernels are added, each with its batch "
        "norm folded in.",
        "Such code trains the branches and adds their outputs; for use, it replaces them by one layer.",
        add_branches,
        Strength.OPEN,
    ),
    Rule(
        "folded batch norm",
        20,
        "A batch norm that the model does not have is folded into the layer before it, or into the scale and shift "
        "that stand in its place.",
        "In evaluation, the two compute the same as one layer. The file does not hold the eps.",
        fold_norms,
        Strength.OPEN,
    ),
    Rule(
        "positions of axes",
        25,
        "A table of positions is filled with the sums of two tables, of frames and of places in a frame.",
        "Code that has the two tables adds them for each place of each frame, frame after frame.",
        positions_of_axes,
        Strength.OPEN,
    ),
    Rule(
        "other sizes",
        30,
        "A tensor of the same name or place, but of other sizes, is changed to the sizes of the model.",
        "For vocabularies, positions, channels and frames there is a usual way to change the size.",
        _near_misses,
        Strength.OPEN,
    ),
    Rule(
        "tied in the file",
        40,
        "A tensor without a source is filled with a key that the file ties to a used tensor.",
        "The model has two tensors where the file has one under two names.",
        _tied_sources,
    ),
    Rule(
        "left over in one part",
        50,
        "Layers without a partner in one part of both sides are joined, split, or shared.",
        "No other layers are left there, and the sizes add up.",
        _leftovers,
        Strength.OPEN,
    ),
    Rule(
        "one table of words",
        60,
        "A second word table of the model is filled with the only word table of the file.",
        "An encoder and a decoder often share one.",
        _tied_tables,
        Strength.OPEN,
    ),
    Rule(
        "tied output layer",
        70,
        "An output layer that the file does not have is filled with its word embedding.",
        "Most language models tie the two. The result is certain if the file ties them, or holds only the body of "
        "the model.",
        _tied_heads,
        Strength.LIKELY,
    ),
    Rule(
        "other sizes, named",
        80,
        "The tensor at the same place in the file has other sizes and does not fit.",
        "The refusal names that tensor, so that the user sees what is new.",
        _of_other_sizes,
    ),
)
