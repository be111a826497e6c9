"""Ask about conventions of code that neither names nor shapes show, such as the order of the parts of a projection."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from .. import expression as ex
from ..expression import Shape
from ..forms.fused import other_arrangement
from ..forms.layouts import PRODUCTS, is_bare, is_turned, kin
from ..forms.pieces import Name, Piece, holds_channels_last, squeezed
from ..forms.projections import heads_of, of_library, part_label
from ..matching.evidence import Kind
from ..matching.units import Unit, label_of
from ..questions import Reason, Topic
from ..rules import Rule, Strength, in_order
from ..words import Rotary, cut, label, table, words_of
from .bypassed import doubt_bypasses
from .factors import equalised, multiplied_in_code, scaled_tables
from .filling import Filling, Values
from .modulation import doubt_gates, doubt_modulation
from .thirds import doubt_thirds

#: What a matrix that is taken as it stands may have been through.
_AS_IT_IS = frozenset({"select", "reshape"})


def doubt_conventions(filling: Filling) -> None:
    """Ask about tensors that the two codes may use in different ways, by the rules of the table `CONVENTIONS`, in its
    order.

    Where other evidence shows how the source's code uses a tensor, its expression is changed instead.
    """
    for rule in CONVENTIONS:
        rule.run(filling)


def _bare_squares(filling: Filling) -> None:
    """Transpose square bare parameters if the file's other bare parameters, by their sizes, are transposed, and keep
    them if one of these is not; ask if there are none, unless it is asked already whether the parameter is transposed.
    All bare parameters of the file count together. A bare parameter is an `nn.Parameter` that is no weight of a torch
    layer.

    Only parameters that the model multiplies with, or takes single numbers from, under another last name are looked at.
    With a question, the transpose is taken unless the key ends in `_weight`, the parameter is a stack of matrices or
    holds scores; the other one is the option.
    """
    votes: Counter[bool] = Counter()
    square = []
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece = t.pieces.get(hole.role)
        shape = None if piece is None else _as_matrix(piece) or _as_scores(piece)
        if piece is None or shape is None:
            continue
        same = filled.expr, ex.unreshaped(filled.expr)
        own = next((p for p in s.pieces.values() if p.expr in same), None)
        if own is None or not is_bare(own) or len(own.shape) < 2:
            continue
        if own.shape != shape:
            votes[own.shape == piece.entry.shape] += 1  # one row or column, as the model has it or turned
        elif own.shape[-1] != own.shape[-2]:
            votes["transpose" in filled.expr.operations()] += 1
        elif "reshape" in own.expr.operations():
            continue  # a step has read its rows off sizes that are no square's, such as those of heads
        elif own.entry.key.split(".")[-1] != piece.entry.key.split(".")[-1] and _AS_IT_IS.issuperset(
            filled.expr.operations()
        ):
            square.append((hole, filled, own))
    for hole, filled, own in square:
        if votes[True] and not votes[False]:
            filled.expr = ex.transpose(filled.expr)
        elif not votes[False] and not any(doubt.reason.topic is Topic.TURNED for doubt in filled.doubts):
            # as a rule, code multiplies with its own parameters from the right; `F.linear` takes a `weight`, and those
            # of experts are as often taken by it, one after the other
            scores = _as_scores(filling.unit_of[hole][0].pieces[hole.role]) is not None
            from_the_right = len(own.shape) != 3 and not own.leaf.endswith("_weight") and not scores
            reason = Reason.SQUARE_SCORES if scores else Reason.INPUTS_FIRST
            filled.ask(reason, options=[ex.transpose(filled.expr)], exchange=from_the_right)


def _turned_squares(filling: Filling) -> None:
    """Transpose, keep or ask about square matrices of layers whose rows may be inputs instead of outputs.

    Most code has outputs first. Graph convolutions and layers from TensorFlow have inputs first, which other tensors of
    the same name (`kin`) show by their sizes: the square is transposed if all of these are stored in the other way than
    the model stores the square, and kept if one is not. If there is no such tensor, ask about the matrices that the
    model stores with inputs first, or holds as bare parameters that its forward pass does not use, unless it is asked
    already whether they are transposed; the transpose is the option, or is taken for a layer `conv` that the model
    stores with inputs first. Bare parameters of the source, and tensors whose layout the file or their name states, are
    left as they are.
    """
    votes: dict[str, Counter[bool]] = defaultdict(Counter)
    square = []
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece = t.pieces.get(hole.role)
        own = next((p for p in s.pieces.values() if p.expr == filled.expr), None)
        if piece is None or own is None or len(own.shape) < 2:
            continue
        turned = is_turned(filling.target, piece)
        if own.shape[-1] != own.shape[-2]:
            if not is_bare(own):  # a parameter of its own is laid out as its code likes, and no kin of a layer
                votes[kin(own)][turned != ex.is_transposed(own.expr)] += 1
        elif own.expr.is_copy and not own.placed and own.leaf not in table().inputs_first and not is_bare(own):
            unseen = piece.entry.used is None and is_bare(piece) and piece.entry.module != "Embedding"
            square.append((filled, own, turned, turned or unseen))
    for filled, own, turned, is_open in square:
        said = votes[kin(own)]
        if said[not turned] and not said[turned]:
            filled.expr = ex.transpose(filled.expr)
        elif is_open and not said and not any(doubt.reason.topic is Topic.TURNED for doubt in filled.doubts):
            name = cut(kin(own).removesuffix("s"))
            of_graph = (
                turned and label(table().group("purpose"), name) == "conv"
            )  # no layer of torch: a graph's, mostly
            filled.ask(Reason.INPUTS_FIRST, options=[ex.transpose(filled.expr)], exchange=of_graph)


def _arranged(filling: Filling) -> None:
    """Ask about tensors that hold several projections on both sides, if no name shows how their rows are arranged
    (`other_arrangement`); the question has no options. Nothing is asked if the two sides have the same names, or about
    tensors that are not taken whole.
    """
    if filling.same_names:
        return
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        if not _AS_IT_IS.union({"transpose"}).issuperset(filled.expr.operations()):
            continue
        reason = other_arrangement(t.main, s.main)
        if reason is not None:
            filled.ask(reason)


def _rotary(filling: Filling) -> None:
    """Ask how the rows of queries and keys are paired by rotary embeddings, if the model turns them and the names or
    libraries do not show that both codes pair them in one way. The option is the tensor in the model's order; it is
    taken if the source's name or code shows the other order, and the two do not have the same code.

    If both codes show it, the rows are kept or (if whole heads are turned) reordered without an open question. Nothing
    is asked about norms of queries and keys whose layer needs no question, learned queries, models without rotary
    embeddings, and under the same names if the source's code does not show it.
    """
    anywhere = filling.target.signature.rotary
    if anywhere is None or (filling.same_names and not filling.source.signature.traced):
        return
    seen = any(entry.facts.rotary for entry in filling.target.signature.entries.values())
    settled: set[tuple[tuple[str, ...], str]] = set()  # projections about which there is no doubt
    for hole, filled in sorted(filling.holes.items(), key=lambda item: len(filling.unit_of[item[0]][0].main.shape) < 2):
        t, s = filling.unit_of[hole]
        kind: str | None = anywhere
        if seen:  # what the model turns is known of what was followed, and nothing of the rest
            kind = "unknown" if t.main.entry.used is None else t.main.entry.facts.rotary
        if kind == "unknown" and (own := _rotary_by_name(t.path)) is not None and own.sure:
            kind = own.kind
        if kind is None:
            continue  # other parts of the model turn theirs
        which = part_label(t.path) or part_label(s.path)
        if which not in ("q", "k") or (t.last.endswith("norm") and hole.role in ("weight", "bias")):
            continue
        if len(t.main.shape) < 2 and (t.path[:-1], which) in settled:
            continue  # norms of queries are turned as those are
        piece = t.pieces[hole.role]
        if kind == "unknown" and _are_queries(piece):
            continue
        heads = heads_of(t.main.entry)
        shown = s.main.entry.facts.rotary
        if shown in _PAIRS and kind in _PAIRS and shown == kind:
            filled.learn(filled.expr, Reason.ROTARY, shows=_PAIRS[shown])
            settled.add((t.path[:-1], which))
            continue
        turned = None
        if heads and piece.shape and piece.shape[0] % (2 * heads) == 0:
            turned = ex.rotary(filled.expr, heads, kind if kind != "unknown" else "half")
        if turned is not None and shown in _PAIRS and kind in _PAIRS and _turn_all(t, s, heads):
            filled.learn(turned, Reason.ROTARY, shows=_PAIRS[shown])
            continue
        if filling.same_names and shown not in _PAIRS:
            continue
        library = of_library(filling.source, s.path)
        theirs = _rotary_by_name(s.path) if library is None else library.rotary
        otherwise = kind != "unknown" and (shown in _PAIRS or (theirs is not None and theirs.kind != kind))
        same_code = filling.same_code(t, s)
        if not otherwise and (same_code or (theirs is not None and theirs.sure and theirs.kind == kind)):
            settled.add((t.path[:-1], which))
            continue
        exchange = turned is not None and otherwise and not same_code
        filled.ask(Reason.ROTARY, options=[] if turned is None else [turned], exchange=exchange)


#: How code turns queries and keys, as an answer.
_PAIRS: dict[str | None, str] = {"half": "pairs halves", "interleaved": "pairs neighbours"}


def _turn_all(t: Unit, s: Unit, heads: int) -> bool:
    """Return whether both codes rotate every element of a head, not only a part of it: the number of rotated elements
    of both is the rows of T divided by HEADS, the number of heads of T.
    """
    widths = {u.main.entry.facts.turned for u in (t, s)}
    return widths == {t.main.shape[0] // heads}


def _are_queries(piece: Piece) -> bool:
    """Return whether PIECE holds learned queries, one per row, and is not a layer that computes queries: it is a
    parameter called `query` or `queries`, and no square matrix.
    """
    bare = piece.last == piece.entry.key.split(".")[-1] in ("query", "queries")
    return bare and squeezed(piece.shape)[:1] != squeezed(piece.shape)[1:]


def _heads_of_channels(filling: Filling) -> None:
    """Ask whether heads are the outer or the inner index of queries, keys, values and of the inputs of the output
    layer, where the source computes these by 1d convolutions of size 1, and the model has two heads or more.

    Code with channels first often splits the channels into (width, heads), as SuperGlue does, whose layers are a list;
    these are reordered, and the plain tensors are the options. For other names, the reordered tensors are the options.
    Layers that have `conv` in their name (`conv_q`) are those of Glow-TTS, with heads outside: nothing is asked.
    """
    split: dict[tuple[str, ...], tuple[int, bool]] = {}  # path of an attention -> its heads, and whether it is a list
    for t, s in filling.matching.pairs:
        if part_label(t.path) == "q" and _is_pointwise(s.main) and "conv" not in cut(s.last):
            split[t.path[:-1]] = heads_of(t.main.entry), s.last.isdecimal()
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        shape = t.pieces[hole.role].shape
        heads, listed = split.get(t.path[:-1], (0, False))
        if heads < 2 or not _is_pointwise(s.main) or hole.role not in ("weight", "bias"):
            continue
        if part_label(t.path) in ("q", "k", "v"):
            apart, order = (shape[0] // heads, heads, *shape[1:]), (1, 0, 2)[: len(shape) + 1]
        elif "o" in (label_of(t, "attention"), label_of(s, "attention")) and hole.role == "weight":
            apart, order = (shape[0], shape[1] // heads, heads), (0, 2, 1)
        else:
            continue
        if prod(apart) == prod(shape):
            moved = ex.reshape(ex.permute(ex.reshape(filled.expr, apart), *order), shape)
            filled.ask(Reason.HEADS_INSIDE, options=[moved], exchange=listed)


def _is_pointwise(piece: Piece) -> bool:
    """Return whether PIECE is the kernel of a 1d convolution of size 1."""
    return len(piece.shape) == 3 and piece.shape[2] == 1


def _flatten(filling: Filling) -> None:
    """Reorder, with a question, the columns of linear layers after feature maps that the two codes seem to flatten in
    different orders; the plain tensor is the option. If both forward passes show the orders, they are reordered without
    an open question.

    The model's order is that of its forward pass. The source's is channels last if its framework or the name of the
    weight says so, else channels first. For a model with an order that no framework has and a source with channels
    first, the plain tensor stays, and the reordered one is the option. Layers of the same code are only reordered if
    both forward passes show the orders.
    """
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece = t.pieces.get(hole.role)
        if piece is None or piece.role != "weight" or len(piece.shape) != 2:
            continue
        flattened = piece.entry.facts.flattened
        shown = s.main.entry.facts.flattened
        known = shown is not None and flattened is not None and shown[1:] == flattened[1:] and filled.expr.is_copy
        if flattened is None or (not known and filling.same_code(t, s)):
            continue
        layout, c, h, w = flattened
        theirs = "nhwc" if holds_channels_last(s.main, filling.source.signature.framework) else "nchw"
        theirs = shown.order if shown is not None and known else theirs
        if layout != theirs and squeezed(piece.shape)[-1] == c * h * w:
            if not {layout, theirs} <= {"nchw", "nhwc"}:
                sizes = {"c": c, "h": h, "w": w}
                apart = ex.reshape(filled.expr, (piece.shape[0], *(sizes[letter] for letter in theirs[1:])))
                made = ex.reshape(ex.permute(apart, *map(theirs.index, layout)), piece.shape)
            else:
                made = ex.flatten(filled.expr, c, h, w, layout)
            own, other = layout.upper(), theirs.upper()
            if known:
                filled.learn(made, Reason.FLATTENED, own, other, shows=f"flattens {other}")
                continue
            if layout in _USUAL or theirs != "nchw":
                filled.ask(Reason.FLATTENED, own, other, options=[made], exchange=True)
            else:  # nobody turns maps so but for weights that came like this
                filled.ask(Reason.FLATTENED_AS_HERE, own, other, options=[made])


#: The orders in which frameworks hold feature maps.
_USUAL = frozenset({"nchw", "nhwc"})


def _concatenated(filling: Filling) -> None:
    """Ask about layers that take concatenated branches: only the source's code shows the order of the branches.

    Code usually concatenates branches in the order in which it registers them. If the source registers the branches in
    another order than the model concatenates them, the channels are reordered, as a guess; without a question if the
    source's forward pass shows its order. If the model's code does not keep to the rule either, the reordered channels
    are only the option. If the branches are two or more tables, and one has another name on the two sides, the layer is
    asked about even if the orders agree, with the opposite order as the option: code takes inputs in any order,
    whatever it registers first. So are layers whose branches have a question. Without a trace of the source, nothing is
    asked if the sides have the same names, if the source's keys are not in order, or about a layer of the same code
    whose branches have the same names in one order.
    """
    told = filling.source.signature.traced
    if not told and (filling.same_names or not filling.matcher.sequences.ordered):
        return
    weights = {p.entry.key: p for p in filling.target.pieces.values() if p.name in filling.unit_of}
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece = t.pieces.get(hole.role)
        joined = piece.entry.facts.joined if piece is not None else ()
        if piece is None or not joined or not all(key in weights for key, _ in joined):
            continue
        units = [filling.unit_of[weights[key].name] for key, _ in joined]
        named_so = all(a.path[-2:] == b.path[-2:] for a, b in (*units, (t, s)))
        in_one_order = sorted(units, key=lambda u: u[0].order) == sorted(units, key=lambda u: u[1].order)
        if not told and named_so and in_one_order and filling.same_code(t, s):
            continue  # of one code, with the same branches in the same order
        dim = 1 if len(piece.shape) > 1 else 0
        sizes = [n for _, n in joined]
        if len(piece.shape) <= dim or piece.shape[dim] != sum(sizes):
            continue
        theirs = _joined_by(s.pieces.get(piece.role))
        known = None if theirs is None else [theirs.get(u.main.entry.key) for _, u in units]
        order = [u.order for _, u in units] if known is None or None in known else [int(n or 0) for n in known]
        stored = sorted(range(len(units)), key=order.__getitem__)
        if any(filling.holes[weights[key].name].doubts for key, _ in joined):
            filled.ask(Reason.BRANCHES_GUESSED)
        tables = {u.main.entry.how for u, _ in units} == {"embedding"} and len(units) > 1
        in_order = stored == list(range(len(units)))
        if in_order and tables and known is None and any(u.last != v.last for u, v in units):
            stored.reverse()
        elif in_order or len(set(order)) < len(order):
            continue
        starts = {place: sum(sizes[i] for i in stored[:at]) for at, place in enumerate(stored)}
        moved = ex.cat(dim, *(ex.part(filled.expr, dim, starts[i], starts[i] + n) for i, n in enumerate(sizes)))
        if theirs is not None and known is not None and None not in known:
            filled.expr = moved
            continue
        own = [u.order for u, _ in units]
        reason = Reason.TABLES_JOINED if in_order else Reason.BRANCHES_JOINED
        filled.ask(reason, options=[moved], exchange=not in_order and own == sorted(own))


def _centred_norms(filling: Filling) -> None:
    """Ask about norm weights around 0 (more than 25 percent are negative) if the model does not add 1 to them, and
    around 1 (less than 2 percent are negative) if it does. The option is the weight with 1 added or subtracted; it is
    taken where a norm without a bias needs 1 added. All norms of the model that add, and all that do not, are judged
    together, by the values of 24.

    A model that adds 1 may have trained all weights above 0. Under equal names such weights are certain, unless they
    all lie close to 1; under other names they are a guess. Norms without a bias and without another doubt that only the
    source calls `gamma` are asked about if the model adds nothing.
    Batch norms and norms about which both forward passes say what is added (`_added_in_code`) are left out. Nothing is
    asked if no values may be read.
    """
    told = _added_in_code(filling)
    if filling.values is None:
        return
    norms = []
    for t, s in filling.matching.pairs:
        piece = t.pieces.get("weight")
        if piece is None or len(piece.shape) != 1 or piece.name not in filling.holes:
            continue
        if piece.name in told or ("norm" not in t.main.entry.module.lower() and label_of(t, "purpose") != "norm"):
            continue
        leaf = piece.entry.key.rpartition(".")[2]
        if "running_var" in t.pieces or leaf in table().beside_bias or not filling.holes[piece.name].expr.is_copy:
            continue
        norms.append((t, s, piece))
    by_use: dict[bool, list[Any]] = defaultdict(list)
    for item in norms:
        by_use[_adds(item[2])].append(item)
    for adds_one, members in by_use.items():
        keys = [filling.holes[p.name].expr.key for _, _, p in members[:24]]
        share = _share_of_negatives(filling.values, keys)
        if share is None:
            continue
        if not adds_one and share > 0.25:
            amount, reason = 1.0, Reason.NORMS_AROUND_0
        elif adds_one and share < 0.02 and (_are_near_1(filling.values, keys) or not _same_names(members)):
            amount, reason = -1.0, Reason.NORMS_AROUND_1
        else:
            continue
        for t, _, piece in members:
            filled = filling.holes[piece.name]
            # code that adds 1 has as a rule no bias; weights that are above 0 may be so after 1 was taken from them
            likely = not adds_one and "bias" not in t.pieces
            filled.ask(reason, options=[ex.shift(filled.expr, amount)], exchange=likely)
    for t, s, piece in norms:
        leaf, filled = s.pieces["weight"].leaf if "weight" in s.pieces else "", filling.holes[piece.name]
        unlike = leaf in _MAY_ADD and leaf != piece.leaf and not ({"bias"} & {*t.pieces, *s.pieces})
        if unlike and not _adds(piece) and not filled.doubts:
            filled.ask(Reason.MAY_ADD_1, leaf, options=[ex.shift(filled.expr, 1.0)])


#: What code that adds 1 calls a norm weight without a bias, and torch does not.
_MAY_ADD = frozenset({"gamma"})


def _added_in_code(filling: Filling) -> set[Name]:
    """Return the holes of vectors for which both forward passes show which number the code adds to them (0 for none),
    the variances of batch norms excepted. If the numbers differ, the difference is added to the source's tensor,
    without an open question.
    """
    told = set()
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece, own = t.pieces.get(hole.role), s.pieces.get(hole.role)
        if piece is None or own is None or len(squeezed(piece.shape)) != 1 or not filled.expr.is_copy:
            continue
        if hole.role == "running_var" and "batch_norm" in (piece.entry.how, own.entry.how):
            continue  # torch adds eps inside the operation: a setting, which a proof compares, as of two norms of torch
        here, there = piece.entry.facts.plus, own.entry.facts.plus
        if here is None or there is None:
            continue
        told.add(hole)
        if here != there:
            made = ex.shift(filled.expr, there - here)
            filled.learn(made, Reason.PLUS_IN_CODE, f"{there:g}", f"{here:g}", shows=f"adds {there:g} to it")
    return told


def _same_names(members: Sequence[tuple[Unit, Unit, Piece]]) -> bool:
    return all(t.path == s.path or t.told_by(Kind.NAME) for t, s, _ in members)


def _are_near_1(values: Values, keys: Sequence[str]) -> bool:
    """Return whether the norm weights KEYS lie so close to 1 that the source's code cannot add 1 to them: the mean of
    the values of all of them is less than 0.3 from 1, and the standard deviation of these is less than 0.3. False if no
    values can be read.

    Weights of code that adds 1 start at 0. If training moved all of them above 0, it moved them far apart.
    """
    found = [value.astype("float64") for key in keys if (value := values(key)) is not None]
    total = sum(value.size for value in found)
    if not total:
        return False
    mean = sum(float(value.sum()) for value in found) / total
    spread = sum(float(((value - mean) ** 2).sum()) for value in found) / total
    return bool(abs(mean - 1) < _NEAR and spread < _NEAR**2)


#: How far from 1 the mean of norm weights may be, and how far apart they are, that nothing is added to.
_NEAR = 0.3


def _adds(piece: Piece) -> bool:
    """Return whether the model adds something to the tensor PIECE before it uses it."""
    return piece.entry.how in ("add", "__add__", "__radd__")


def _joined_by(piece: Piece | None) -> dict[str, int] | None:
    """Return key of a branch -> its place, from 0, in the concatenation that the layer PIECE of the source takes; None
    if that is not known, or without PIECE.
    """
    joined = piece.entry.facts.joined if piece is not None else ()
    return {key: place for place, (key, _) in enumerate(joined)} if joined else None


def _as_matrix(piece: Piece) -> Shape | None:
    """Return the shape [outputs, inputs] of the convolution PIECE if its kernel has size 1, or the shape of PIECE if it
    has two or more dimensions, and the model multiplies with it or it belongs to a `Linear`; None for other tensors.
    """
    how, module = piece.entry.how, piece.entry.module
    if len(piece.shape) > 2 and (how.startswith("conv") or module.startswith("Conv")):
        return piece.shape[:2] if not squeezed(piece.shape[2:]) else None
    return piece.shape if (how in PRODUCTS or module == "Linear") and len(piece.shape) > 1 else None


def _as_scores(piece: Piece) -> Shape | None:
    """Return the shape of PIECE if it is a trained bare parameter of the sizes [n, n], with n > 1, and no `Embedding`,
    from which code takes single numbers, or which it adds, such as scores from class to class; None for other pieces.
    """
    of_own_code = is_bare(piece) and piece.entry.parameter and piece.entry.module != "Embedding"
    is_square = len(piece.shape) == 2 and piece.shape[0] == piece.shape[1] > 1
    return piece.shape if of_own_code and is_square and piece.entry.how in _TAKES else None


#: How code takes numbers out of a matrix, or adds all of them.
_TAKES = frozenset("__getitem__ gather index_select add __add__ __radd__ unsqueeze".split())


def _share_of_negatives(values: Values, keys: Sequence[str]) -> float | None:
    negative = total = 0
    for key in keys:
        found = values(key)
        if found is None:
            continue
        negative += int((found < 0).sum())
        total += int(found.size)
    return negative / total if total else None


def _rotary_by_name(path: Sequence[str]) -> Rotary | None:
    """Return how code with the name PATH pairs queries and keys in rotary embeddings, by the longest known phrase at
    the end of the last two components of PATH, or of PATH without its last component; None if no phrase is known.

    The table does not have `Wqkv`, `qkv`, `to_q` and `query_key_value`, because some code with these names pairs halves
    and some neighbours.
    """
    for end in (len(path), len(path) - 1):  # what was taken out of a fused projection has its name behind it
        words = words_of(path[max(end - 2, 0) : end])
        for start in range(len(words)):
            if words[start:] in table().rotary:
                return table().rotary[words[start:]]
    return None


#: What code may do in two ways, of which nothing in the file shows which.
CONVENTIONS: tuple[Rule[Callable[[Filling], None]], ...] = in_order(
    Rule(
        "square parameters",
        10,
        "The rows of a square parameter may be its inputs or its outputs.",
        "Other parameters of the file that are not square show it; without any, this is a question.",
        _bare_squares,
        Strength.OPEN,
    ),
    Rule(
        "square matrices",
        20,
        "The model stores this square matrix with inputs as rows, so it may have to be transposed.",
        "Other matrices of this name that are not square show it; without any, this is a question.",
        _turned_squares,
        Strength.OPEN,
    ),
    Rule(
        "arrangement of projections",
        30,
        "Two codes may store the parts of one tensor in different orders, if the tensor has another name in each.",
        "Queries, keys and values are stored one after the other or head by head; the gate is first or second.",
        _arranged,
        Strength.OPEN,
    ),
    Rule(
        "rotary embeddings",
        40,
        "Rotary embeddings pair the rows of queries and keys in one of two ways.",
        "Row i goes with row i + half (GPT-NeoX) or with row i + 1 (GPT-J); names of known code show which.",
        _rotary,
        Strength.OPEN,
    ),
    Rule(
        "heads of channels",
        45,
        "Heads may be the outer or the inner index of channels that 1d convolutions compute.",
        "SuperGlue and code after it have heads inside, and Glow-TTS and code after it have heads outside.",
        _heads_of_channels,
        Strength.OPEN,
        when="the model has linear layers, and the source's layers have no `conv` in their names",
    ),
    Rule(
        "flattened features",
        50,
        "A linear layer takes feature maps that code flattens in one of two orders.",
        "Torch has channels first, TensorFlow channels last.",
        _flatten,
        Strength.OPEN,
    ),
    Rule(
        "branches side by side",
        60,
        "A layer takes concatenated branches, in an order that only code shows.",
        "Most code concatenates branches in the order in which it registers them.",
        _concatenated,
        Strength.OPEN,
        when="the model joins them in another order than the file holds them, they are rows of tables with other names "
        "on the two sides, or some are guesses",
    ),
    Rule(
        "scale and shift",
        70,
        "The output of a layer is split into scale and shift, in an order that only code shows.",
        "As a rule, the shift is first if the layer is beside a norm, and the scale is first if the layer is inside "
        "a norm.",
        doubt_modulation,
        Strength.OPEN,
    ),
    Rule(
        "gate and value",
        80,
        "The output of a layer is split into a gate and the value that the gate is multiplied with, in an order "
        "that only code shows.",
        "As a rule, a gate with silu as its activation is first, and any other gate is second.",
        doubt_gates,
        Strength.OPEN,
    ),
    Rule(
        "a part that passes",
        85,
        "One of the equal parts of a layer's channels passes unchanged, and only code shows which.",
        "Of a Res2Net, code leaves out the first part or the last one; the layers around it have this order.",
        doubt_bypasses,
        Strength.OPEN,
    ),
    Rule(
        "thirds of an output",
        87,
        "The output of a layer is cut into three parts of one size for three uses, in an order that only code shows.",
        "Each code has an order of its own, unless both call the parts by the same names; and if it cuts so, it may "
        "join tensors in an order of its own in the same module.",
        doubt_thirds,
        Strength.OPEN,
    ),
    Rule(
        "norms around 0 or 1",
        90,
        "One of the two codes adds 1 to its norm weights.",
        "The file's values lie around 0 and the model's are used around 1, or the other way round.",
        _centred_norms,
        Strength.OPEN,
    ),
    Rule(
        "equalised learning rates",
        100,
        "The file's weights have the spread of weights that code multiplies by a factor on every call.",
        "Most code starts with weights of spread 1 / sqrt(inputs); if all weights are much wider, their code "
        "applies this factor later.",
        equalised,
        Strength.OPEN,
    ),
    Rule(
        "scaled tables",
        105,
        "Code may multiply the rows of a word embedding by the square root of their width.",
        "Transformers with computed positions do so, and their tables have small values; the model does not do it.",
        scaled_tables,
        Strength.OPEN,
        when="the file's values have about that spread",
    ),
    Rule(
        "factors in the code",
        110,
        "One of the two codes multiplies a tensor by a number on every call.",
        "The forward passes show the numbers. The model may have the same factor at another place.",
        multiplied_in_code,
        Strength.OPEN,
        when="both codes were traced",
    ),
)
