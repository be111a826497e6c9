"""Join batch norms of which the source stores the statistics and the scale and shift in two layers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from math import prod

from ...keys.known_buffers import STATISTICS
from ..words import words_of
from .pieces import Canon, Piece, squeezed

_Path = tuple[str, ...]
#: What of a name is one word on the side of the statistics and another, or one more, on that of the factors.
_Change = tuple[str, str]


def join_affine(one: Canon, other: Canon) -> None:
    """Move the scale and shift of batch norms of ONE, which it stores in a layer beside the statistics (as Caffe does),
    to the path of the statistics, as weight and bias of the norm. Nothing is done if OTHER has norms that hold only
    statistics, too.

    Such a layer has a weight and a bias as long as the statistics, and no other tensors. Its name differs from the name
    of the statistics by one word that is the same in the whole model (`_by_name`), or else it is the next layer, in the
    same module (`_next`). Norms without such a layer stay as they are, and so does a weight or bias whose shape is not
    just that of the statistics (`[1, c]` for `[c]`).
    """
    layers = one.modules()
    bare = [path for path, held in layers.items() if _has_only_statistics(held)]
    if not bare or any(_has_only_statistics(held) for held in other.modules().values()):
        return
    free = {path: prod(held["weight"].shape) for path, held in layers.items() if _is_scale_and_shift(held)}
    found = _by_name(bare, free, layers)
    for path in bare:
        if path not in found and (near := _next(path, free.keys() - found.values(), layers)) is not None:
            found[path] = near
    for path, own in found.items():
        shape = layers[path]["running_var"].shape
        for piece in [piece for piece in layers[own].values() if piece.shape == shape]:
            one.change(piece, replace(piece, path=path))


def divide_pairs(one: Canon, other: Canon) -> None:
    """Make a parameter of its own (`act.alpha`, `act.beta`) of each of two vectors that ONE has as weight and bias of a
    module because they are called `alpha` and `beta`, as those of an activation are. This is done for all such pairs of
    one size, if ONE has no other weight and bias of this size, OTHER has none at all, and OTHER has more single vectors
    of this size (without a bias) than ONE, by exactly as many as the pairs hold.
    """
    pairs, lone = ({side: _vectors(canon, kind) for side, canon in enumerate((one, other))} for kind in (True, False))
    for shape, found in pairs[0].items():
        named = [held for held in found if (_leaf(held["weight"]), _leaf(held["bias"])) == _ACTIVATION]
        wanted = len(lone[1].get(shape, ())) - len(lone[0].get(shape, ()))
        if len(named) == len(found) and shape not in pairs[1] and wanted == 2 * len(found):
            for piece in [piece for held in found for piece in held.values()]:
                one.change(piece, replace(piece, path=(*piece.path, _leaf(piece)), role="weight"))


#: The two parameters of activations such as SnakeBeta (Lee et al., "BigVGAN", 2022).
_ACTIVATION = ("alpha", "beta")


def _leaf(piece: Piece) -> str:
    return piece.entry.key.rpartition(".")[2]


def _vectors(canon: Canon, paired: bool) -> dict[tuple[int, ...], list[dict[str, Piece]]]:
    """Return sizes, without those of 1 -> the modules of CANON that hold vectors of these sizes, each as role ->
    tensor: modules with exactly a weight and a bias of equal sizes if PAIRED, else modules with a weight and nothing
    else.
    """
    found: dict[tuple[int, ...], list[dict[str, Piece]]] = defaultdict(list)
    for held in canon.modules().values():
        sizes = {squeezed(piece.shape) for piece in held.values()}
        if held.keys() == ({"weight", "bias"} if paired else {"weight"}) and len(sizes) == 1 and len(min(sizes)) == 1:
            found[min(sizes)].append(held)
    return found


def _has_only_statistics(held: dict[str, Piece]) -> bool:
    """Return whether a layer with the tensors HELD, role -> tensor, has the statistics of a batch norm (running mean
    and variance), and no weight; it may have a bias.
    """
    return held.keys() >= STATISTICS and "weight" not in held


def _is_scale_and_shift(held: dict[str, Piece]) -> bool:
    """Return whether the tensors HELD of a layer are exactly a weight and a bias, and the weight is a vector or a
    single number, sizes of 1 left out. The sizes of the bias do not matter.
    """
    return held.keys() == {"weight", "bias"} and len(squeezed(held["weight"].shape)) <= 1


def _by_name(bare: list[_Path], free: dict[_Path, int], layers: dict[_Path, dict[str, Piece]]) -> dict[_Path, _Path]:
    """Return path of statistics -> path of their scale and shift, by one word in which the names of the two differ, the
    same word in the whole model: "scale" in place of "bn" for `bn1` and `scale1`, "scale" more for `bn1` and
    `bn1_scale`. It is the word in which most pairs differ, the first of equally frequent ones. Both layers have equally
    many values.

    {} if there are fewer pairs with this word than half of the statistics. Statistics that have several such layers are
    left out, and layers that several statistics have.

    BARE are the paths of the statistics. FREE has path -> number of values of the layers that may be a scale and shift.
    LAYERS has path -> role -> tensor.
    """
    size = {path: prod(layers[path]["running_var"].shape) for path in bare}
    words = {path: words_of(path) for path in (*bare, *free)}
    ways: Counter[_Change] = Counter()
    fitting: dict[tuple[_Path, _Change], list[_Path]] = defaultdict(list)
    by_length: dict[tuple[int, int], list[_Path]] = defaultdict(list)
    for own in free:
        by_length[free[own], len(words[own])].append(own)
    for path in bare:
        for longer in (0, 1):
            for own in by_length[size[path], len(words[path]) + longer]:
                change = _change(words[path], words[own])
                if change is not None:
                    ways[change] += 1
                    fitting[path, change].append(own)
    found: dict[_Path, _Path] = {}
    if ways:
        best, count = ways.most_common(1)[0]
        if count >= max(len(bare) / 2, 1):
            found = {path: fits[0] for path in bare if len(fits := fitting[path, best]) == 1}
    taken = Counter(found.values())
    return {path: own for path, own in found.items() if taken[own] == 1}


def _change(one: tuple[str, ...], other: tuple[str, ...]) -> _Change | None:
    """Return how two names, given as the words ONE and OTHER, differ in one word: ("bn", "scale") for a word in ONE and
    the word in its place in OTHER, ("", "scale") for a word that only OTHER has. None if the names are equal, differ in
    several words, or only in a number. OTHER has as many words as ONE, or one more.
    """
    if len(one) == len(other):
        changes = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
        return changes[0] if len(changes) == 1 and not "".join(changes[0]).isdecimal() else None
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return ("", other[at]) if one[at:] == other[at + 1 :] and not other[at].isdecimal() else None


def _next(path: _Path, free: set[_Path], layers: dict[_Path, dict[str, Piece]]) -> _Path | None:
    """Return the path of the layer directly after the statistics at PATH, if it may be their scale and shift: it is in
    FREE, in the same module, and its weight has the shape of the statistics; else None. "After" is in the order of
    execution, or in that of the state dict if it is not known when the statistics are used. LAYERS has path -> role ->
    tensor.
    """
    mean = layers[path]["running_mean"]
    firsts = {own: next(iter(held.values())) for own, held in layers.items() if own != path}
    here = mean.order if mean.used is None else mean.used
    places = {own: piece.order if mean.used is None else piece.used for own, piece in firsts.items()}
    after = [(place, own) for own, place in places.items() if place is not None and place > here]
    nearest = min(after, default=None)
    if nearest is None or nearest[1] not in free or nearest[1][:-1] != path[:-1]:
        return None
    same = layers[nearest[1]]["weight"].shape == layers[path]["running_var"].shape
    return nearest[1] if same else None
