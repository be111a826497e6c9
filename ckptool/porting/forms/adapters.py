"""Merge low-rank adapters into the weights that they adapt, or ask about them if that is not possible.

Written from the sources of loralib, of peft (its LoRA and DoRA layers), and of the scripts that store `lora_down`,
`lora_up` and `alpha` with every layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

from .. import expression as ex
from ..expression import Expr
from ..questions import Question, Reason, ask
from ..words import table
from .pieces import Canon, Name, Piece, unchanged

_Path = tuple[str, ...]

#: Words that the name of an adapter has at most before the path that it spells.
_MOST_PREFIX = 4


@dataclass(slots=True)
class _Adapter:
    """The tensors of the adapters of one weight: name of the adapter -> role ("up", "down", "alpha", "magnitude",
    "bias", "other", "turned_up", "turned_down") -> tensor. Most files have one adapter, with the name "".
    """

    parts: dict[str, dict[str, Piece]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def pieces(self) -> list[Piece]:
        """Return all tensors of the adapters."""
        return [piece for named in self.parts.values() for piece in named.values()]


def merge_adapters(source: Canon, target: Canon) -> None:
    """Merge the low-rank adapters of the source into the weights that they adapt, and their biases into the biases
    beside these, and remove all their tensors; nothing is merged or removed if the target has adapters, too. A weight
    whose adapter cannot be merged stays, and gets a question (`_merged`: several adapters, a tensor of an unknown kind,
    a missing factor, or factors whose sizes do not fit); if the adapter has a bias, so does the bias of the layer. The
    tensors of an adapter of which no weight is found (`_base_of`) are removed without a question.

    The scale is alpha / rank, of the `alpha` beside the factors, or else the scale that the file states, or else 1,
    with a question. If anything was merged, the source gets a note. In any case, on both sides, wrappers of adapted
    modules (`base_layer`) are removed from paths, and trained copies of modules replace their originals.
    """
    own, theirs = _adapters(source), _adapters(target)
    _only_trained(source, target)
    for canon, found in ((source, own), (target, theirs)):
        for base in found:
            _without_wrapper(canon, base)
    if not own or theirs:
        return
    bases = {base: _base_of(source, base) for base in own}
    turned = _all_turned(source, own, bases)
    for base, adapter in own.items():
        name = bases[base]
        weight = None if name is None else source.pieces[name]
        why = None if weight is None else _merged(source, weight, adapter, source.adapter_scale, turned)
        for piece in adapter.pieces:
            source.pieces.pop(piece.name, None)
        if why is not None and weight is not None:
            biased = any("bias" in parts for parts in adapter.parts.values())
            for name in (weight.name, *([weight.name.beside("bias")] if biased else [])):
                if name in source.pieces:
                    source.pieces[name] = source.pieces[name].asked(why)
    if any({"lora", "lora_alpha"} & set(piece.expr.operations()) for piece in source.pieces.values()):
        source.notes.append("low-rank adapters are merged into the weights that they adapt")


def _adapters(canon: Canon) -> dict[_Path, _Adapter]:
    """Return path of a module that is adapted -> its adapters, for the tensors of CANON with a component in their path,
    not the first one, that the vocabulary has for a part of an adapter (`lora_A`). The components before the first such
    one, `alpha` left out, are the path of the module; those after it, with dots between, are the name of the adapter:
    `fc.lora_A.default` is of the adapter "default" of `fc`. A bias of the factor "up" is the adapter's "bias"; that of
    another part is of an unknown kind. Of several tensors with one role in one adapter, the last counts.

    An `alpha` belongs to all adapters of its module, if there are any and it has one value; else it is left out.
    """
    found: dict[_Path, _Adapter] = defaultdict(_Adapter)
    alphas = []
    for piece in canon.pieces.values():
        roles = {at: role for at, c in enumerate(piece.path) if at and (role := table().adapters.get(c)) is not None}
        at = next((at for at, role in roles.items() if role != "alpha"), None)
        if at is None:
            alphas += [(piece, piece.path[:at]) for at in roles]  # which is the name of much else
            continue
        role = roles[at] if piece.role != "bias" else "bias" if roles[at] == "up" else "other"
        found[piece.path[:at]].parts[".".join(piece.path[at + 1 :])][role] = piece
    for piece, base in alphas:
        if base in found and prod(piece.shape) == 1:
            for named in found[base].parts.values():
                named["alpha"] = piece
    return found


def _only_trained(source: Canon, target: Canon) -> None:
    """Make one tensor of each two that a side holds as original and as trained copy of a module (`modules_to_save`),
    with the path of the module (`fc` for `fc.modules_to_save.default` and `fc.original_module`): on the source the
    copy; the target gets it in both places. If a module has several trained copies, the first one counts, and the
    others stay, as do copies without an original. Nothing is done if both sides have such modules.
    """
    own, theirs = _trained(target), _trained(source)
    for canon, pairs in ((source, theirs), (target, own)) if not own or not theirs else ():
        for copy, original, path in pairs:
            canon.merge([copy, original], replace(copy, path=path), lambda trained, _: trained, [unchanged, unchanged])


def _trained(canon: Canon) -> list[tuple[Piece, Piece, _Path]]:
    """Return (trained copy, original, path of the two without the component for the kind) for each tensor of CANON that
    is stored as both: the path is `fc` for `fc.modules_to_save.default.weight` and `fc.original_module.weight`. If an
    original has several copies, only the first is returned; copies without an original are left out.
    """
    found: dict[Name, tuple[Piece, Piece, _Path]] = {}
    for copy, original in table().trained_instead.items():
        for piece in [p for p in canon.pieces.values() if copy in p.path]:
            base = piece.path[: piece.path.index(copy)]
            inner = piece.path[len(base) + 2 :]
            old = canon.pieces.get(Name((*base, original, *inner), piece.role))
            if old is not None:
                found.setdefault(old.name, (piece, old, (*base, *inner)))
    return list(found.values())


def _without_wrapper(canon: Canon, base: _Path) -> None:
    """Remove from paths below the module BASE the component that marks the original weight of an adapted module
    (`base_layer`), unless BASE itself has a tensor with this role. The words of the component are also removed from the
    words of these tensors.
    """
    for piece in [p for p in canon.pieces.values() if p.path[: len(base)] == base and len(p.path) > len(base)]:
        if piece.path[len(base)] in table().adapted and Name(base, piece.role) not in canon.pieces:
            path = (*base, *piece.path[len(base) + 1 :])
            words = tuple(w for w in piece.words if w not in piece.path[len(base)].split("_"))
            canon.change(piece, replace(piece, path=path, words=words))


def _base_of(source: Canon, base: _Path) -> Name | None:
    """Return the name of the weight that the adapter at the path BASE adapts: the weight of the module BASE, if it has
    one. Else the last component of BASE has to spell the path of the weight with "_" for dots: `lora_unet_down_0` for
    `down.0`. Its first word is one of the vocabulary's (`lora`); one to three words are skipped. If there are weights
    with just such a path, the one with the fewest skipped words counts. Else the weight counts that is the only one
    whose path ends in this way, again with the fewest skipped words.

    None if there is no such weight. Weights with less than two dimensions are left out, but for that of BASE itself.
    """
    name = Name(base, "weight")
    if name in source.pieces:
        return name
    said = base[-1].split("_")
    if said[0] not in table().adapter_prefixes:
        return None
    weights = {"_".join(p.path): p.name for p in source.pieces.values() if p.role == "weight" and len(p.shape) >= 2}
    spelt = ["_".join(said[skipped:]) for skipped in range(1, min(len(said), _MOST_PREFIX))]
    exact = [weights[flat] for flat in spelt if flat in weights]
    ending = [[name for known, name in weights.items() if known.endswith("_" + flat)] for flat in spelt]
    return next(iter(exact), None) or next((found[0] for found in ending if len(found) == 1), None)


def _factors(parts: dict[str, Piece]) -> tuple[Piece, Piece, bool] | None:
    """Return (factor that takes the inputs, factor that gives the outputs, whether their product is transposed) of an
    adapter; None if one of the two factors is missing. PARTS has role -> tensor. Factors "down" and "up" come before
    "turned_down" and "turned_up", whose product is transposed.
    """
    for prefix in ("", "turned_"):
        if f"{prefix}down" in parts and f"{prefix}up" in parts:
            return parts[f"{prefix}down"], parts[f"{prefix}up"], bool(prefix)
    return None


def _ways(weight: Piece, a: Piece, b: Piece) -> set[bool]:
    """Return the ways in which the product of the factors A [rank, inputs] and B [outputs, rank] of an adapter has the
    sizes of WEIGHT: a set with False (as it is), True (transposed), both, or neither. It is also empty if a factor has
    less than two dimensions, or if their ranks differ.

    For a WEIGHT that has not two dimensions (a kernel), it is {False} if it has as many elements as the product, and
    the number of its outputs (its first size) divides the number of rows of B.
    """
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[0] != prod(b.shape[1:]):
        return set()
    rows, columns = b.shape[0], prod(a.shape[1:])
    if len(weight.shape) == 2:
        fits = {False: (rows, columns), True: (columns, rows)}
        return {turned for turned, shape in fits.items() if weight.shape == shape}
    outputs = weight.shape[0] if weight.shape else 0
    return {False} if outputs and prod(weight.shape) == rows * columns > 0 == rows % outputs else set()


def _all_turned(source: Canon, adapters: dict[_Path, _Adapter], bases: dict[_Path, Name | None]) -> bool:
    """Return whether the adapted weights of the file have inputs first, so that a square one, whose sizes do not show
    it, is taken to have inputs first, too. True if the product of at least one adapter fits its weight only transposed
    (`_ways`), and that of none only as it is. Adapters whose product is transposed by the names of its factors, and
    those of no known weight, do not count.

    ADAPTERS has path -> adapters, BASES path -> name of the adapted weight, or None.
    """
    votes: Counter[bool] = Counter()
    for base, adapter in adapters.items():
        name = bases[base]
        for parts in adapter.parts.values():
            found = _factors(parts)
            if name is not None and found is not None and not found[2]:
                ways = _ways(source.pieces[name], found[0], found[1])
                votes.update(ways if len(ways) == 1 else ())
    return votes[True] > 0 and not votes[False]


def _merged(
    source: Canon, weight: Piece, adapter: _Adapter, scale: float | None, all_turned: bool
) -> Question[Expr] | None:
    """Merge ADAPTER into WEIGHT in SOURCE, and its bias into the bias beside WEIGHT, and return None; or change
    nothing, and return the question why this was not possible: there are several adapters, a tensor is of an unknown
    kind, a factor is missing, or the sizes of the factors do not fit. A bias of the adapter is of an unknown kind if
    there is no bias of its sizes beside WEIGHT, or if the adapter has an alpha or magnitudes. The merged weight
    replaces WEIGHT and the other tensors of the adapter.

    SCALE is that of all adapters, None if the file has none; an alpha of the adapter comes before it. Without both, the
    scale is 1, and what was merged has a question. The weight also has one if it is not sure along which dimension the
    magnitudes of the adapter are. ALL_TURNED says whether a square weight has inputs first, unless the names of the
    factors say it.
    """
    if len(adapter.parts) > 1:
        return ask(Reason.SEVERAL_ADAPTERS, str(len(adapter.parts)), ", ".join(sorted(adapter.parts)))
    (parts,) = adapter.parts.values()
    factors = _factors(parts)
    if "other" in parts or factors is None:
        return ask(Reason.UNKNOWN_ADAPTER, parts.get("other", adapter.pieces[0]).entry.key)
    alpha, magnitude, added = (parts.get(role) for role in ("alpha", "magnitude", "bias"))
    bias = source.pieces.get(weight.name.beside("bias"))
    if added is not None and (alpha or magnitude or bias is None or bias.shape != added.shape):
        return ask(Reason.UNKNOWN_ADAPTER, added.entry.key)
    a, b, by_name = factors
    ways = _ways(weight, a, b)
    if not ways:
        return ask(Reason.UNFIT_ADAPTER, a.entry.key)
    turned = by_name or all_turned if len(ways) == 2 else True in ways
    asked = scale is None and alpha is None
    scale = 1.0 if scale is None else scale
    made = weight.asking(Reason.ADAPTER_SCALE) if asked else weight
    if magnitude is not None and not _along_rows(magnitude, weight):
        made = made.asking(Reason.ADAPTER_MAGNITUDES)
    olds = [weight, a, b, *(p for p in (alpha, magnitude) if p is not None)]
    source.merge(olds, made, partial(_product, scale=scale, turned=turned, alpha=alpha, magnitude=magnitude), [])
    if bias is not None and added is not None:
        made = bias.asking(Reason.ADAPTER_SCALE) if asked else bias
        source.merge([bias, added], made, lambda own, more: ex.add(own, ex.scale(more, scale)), [])
    return None


def _along_rows(magnitude: Piece, weight: Piece) -> bool:
    """Return whether the tensor MAGNITUDE of an adapter surely has one number for each row of WEIGHT: all its numbers
    are along one dimension, they are as many as WEIGHT has rows, and either MAGNITUDE is a plain vector, or no other
    size of WEIGHT equals the number of rows. False for a WEIGHT with one row.
    """
    sizes = [n for n in magnitude.shape if n != 1]
    return sizes == [weight.shape[0]] and (weight.shape[0] not in weight.shape[1:] or len(magnitude.shape) == 1)


def _product(
    w: Expr, a: Expr, b: Expr, *more: Expr, scale: float, turned: bool, alpha: object, magnitude: Piece | None
) -> Expr:
    """Return the expression of the weight W plus SCALE times the product B A of the factors of an adapter.

    MORE has the expression of alpha, if ALPHA is not None, and then that of the magnitudes, if MAGNITUDE is not None.
    With alpha, alpha / rank is used in place of SCALE; with magnitudes, the sum is scaled to have them as the norms of
    its rows, or of its columns if they are [1, columns] (`weight_norm`). Magnitudes [1, n, 1 …] with three or more
    dimensions are of rows. If TURNED, W is transposed before all this, and the result is transposed back.
    """
    rest = list(more)
    w = ex.transpose(w) if turned else w
    made = ex.lora_alpha(w, a, b, rest.pop(0)) if alpha else ex.lora(w, a, b, scale)
    if magnitude is not None:
        norms = rest.pop(0)
        if len(magnitude.shape) > 2 and magnitude.shape[0] == 1:  # stored along the second dimension, though of rows
            norms = ex.reshape(norms, (prod(magnitude.shape),))
        made = ex.weight_norm(norms, made)
    return ex.transpose(made) if turned else made
