"""Files that hold several copies of a model, a larger model that contains it, or a layer twice.

Code that registers a layer twice gives it two names. In torch files both names share one storage. In other files, and
if the weights were copied, only the values show it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import prod

from ...model_code.signature import Signature
from ...tensor import LazyTensor
from ...weights import variable_of_slot
from ..expression import Expr, Shape, of
from ..holes.filling import Filling
from ..mapping import Mapping as Mapping_
from ..questions import Question, Reason, ask
from ..words import cut, label, labels, table
from .gates import are_gates
from .pieces import substituted

_Path = tuple[str, ...]


def copies(source: Signature, target: Signature) -> tuple[dict[str, str], set[str]]:
    """Return (key of a further copy of the model -> the same key in the preferred copy, keys to leave out because they
    belong to other parts of a larger model, or to target networks or optimizers, which training alone needs
    (`_followers`, `_behind_tensors`)). Both are empty for a file without any of these.

    Copies are modules of SOURCE, directly in one module and with paths of at most three components, that hold the same
    four or more tensors by names and sizes, whatever their values (`_alike`), and are more than TARGET holds
    (`_Sizes.too_many`), unless names say that they are parts of one model (`_parts_by_name`). The preferred copy is the
    first in the order of the vocabulary's `copies` (`_preference`).

    If the names of such modules mean different sides of a model (encoder, decoder, or neither), the modules are no
    copies. If some mean neither, and no name in the keys of TARGET means encoder or decoder, the keys of those called
    encoder or decoder are in the second result.

    Copies are also single tensors behind the names of others, such as averages (`_behind_tensors`).
    """
    below = _below(source)
    sizes = _Sizes(source, target)
    names = {component for key in target.entries for component in key.split(".")[:-1]}
    found: dict[str, str] = {}
    left: set[str] = set()
    for inner, prefixes in _alike(below):
        around = len(below.get(prefixes[0][:-1], source.entries))
        shapes = [shape for _, shape in inner]
        if not sizes.too_many(shapes, len(prefixes), around) or _parts_by_name([p[-1] for p in prefixes], names):
            continue
        sides = {_side(p[-1]) for p in prefixes}
        if len(sides) == 1:
            first, *others = sorted(prefixes, key=lambda p: _preference(p[-1]))
            found.update((".".join(other + tail), ".".join(first + tail)) for other in others for tail in below[other])
        elif None in sides and not any(_side(part) for key in target.entries for part in key.split(".")):
            left.update(".".join(p + tail) for p in prefixes if _side(p[-1]) is not None for tail in below[p])
    averages, slots = _behind_tensors(source, target)
    return {**averages, **found}, left | slots | _followers(source, target)


def _behind_tensors(source: Signature, target: Signature) -> tuple[dict[str, str], set[str]]:
    """Return (key -> key of the tensor whose name it continues, keys of the state of optimizers), for the keys of
    SOURCE that are the key of another tensor and one more name behind it: `fc/weights/ExponentialMovingAverage` and
    `fc/weights/RMSProp` for `fc/weights`. No module is inside of a tensor, so training keeps such a tensor for the
    other one.

    Names that optimizers of TensorFlow use (`variable_of_slot`) are in the second result. Others are in the first, if
    both tensors have equal sizes. The first is {} if TARGET needs these tensors: it has more tensors of one of their
    sizes than SOURCE has without all of them (sizes in any order, without those of 1). Both results are empty if TARGET
    has a key that continues another one.
    """
    behind = _continued(source)
    if not behind or _continued(target):
        return {}, set()
    slots = {key for key, of in behind.items() if variable_of_slot(key) == of}
    shapes = {key: entry.shape for key, entry in source.entries.items()}
    kept = {key: of for key, of in behind.items() if key not in slots and shapes[key] == shapes[of]}
    wanted = Counter(_in_any_order(entry.shape) for entry in target.entries.values())
    have = Counter(_in_any_order(shape) for key, shape in shapes.items() if key not in kept and key not in slots)
    needed = any(wanted[size] > have[size] for size in {_in_any_order(shapes[key]) for key in kept})
    return {} if needed else kept, slots


def _in_any_order(shape: Shape) -> Shape:
    """Return the sizes SHAPE above 1, sorted."""
    return tuple(sorted(n for n in shape if n > 1))


def _continued(side: Signature) -> dict[str, str]:
    """Return key of SIDE -> the key of SIDE that it continues with one more name, behind a "/" or "."."""
    found = ((key, key[: max(key.rfind("/"), key.rfind("."), 0)]) for key in side.entries)
    return {key: of for key, of in found if of in side.entries}


def _followers(source: Signature, target: Signature) -> set[str]:
    """Return the keys of SOURCE that are of target networks (`_target_Qs.0.weight` beside `_Qs.0.weight`), for a model
    without target networks. They are copies that training alone needs, and as stacks they would make lists of layers
    look twice as long.

    The result is empty if a key of TARGET has the word "target", if a key of SOURCE with this word has no twin of equal
    sizes, a key with the same words without "target", or if TARGET has more tensors of such sizes than SOURCE has
    without them: then they may be of the target language.
    """
    followers = [key for key in source.entries if "target" in _words(key)]
    if not followers or any("target" in _words(key) for key in target.entries):
        return set()
    twins = {_without_target(key): entry for key, entry in source.entries.items() if "target" not in _words(key)}
    for key in followers:
        twin = twins.get(_without_target(key))
        if twin is None or twin.shape != source.entries[key].shape:
            return set()
    wanted = Counter(entry.shape for entry in target.entries.values())
    have = Counter(entry.shape for entry in twins.values())
    needed = any(wanted[source.entries[key].shape] > have[source.entries[key].shape] for key in followers)
    return set() if needed else set(followers)


def _below(source: Signature) -> dict[_Path, dict[_Path, Shape]]:
    """Return path of a module of SOURCE, of up to three components -> path in it -> sizes of the tensor there."""
    below: dict[_Path, dict[_Path, Shape]] = defaultdict(dict)
    for key, entry in source.entries.items():
        parts = tuple(key.split("."))
        for depth in range(1, min(len(parts), 4)):
            below[parts[:depth]][parts[depth:]] = entry.shape
    return below


def _alike(below: Mapping[_Path, Mapping[_Path, Shape]]) -> list[tuple[frozenset[tuple[_Path, Shape]], list[_Path]]]:
    """Return (set of (path inside, sizes), paths of the modules with exactly these tensors) for each group of two or
    more modules that are directly in one module and hold tensors of equal names and sizes. A module has four tensors or
    more, and a name that is no number. The groups with most tensors in each module come first. BELOW has path of a
    module -> path inside -> sizes (`_below`).
    """
    groups: dict[tuple[_Path, frozenset[tuple[_Path, Shape]]], list[_Path]] = defaultdict(list)
    for prefix, inner in below.items():
        if len(inner) >= 4 and not prefix[-1].isdecimal():
            groups[prefix[:-1], frozenset(inner.items())].append(prefix)
    several = [(inner, prefixes) for (_, inner), prefixes in groups.items() if len(prefixes) > 1]
    return sorted(several, key=lambda group: -len(group[0]))


class _Sizes:
    """How many tensors of each size the source and the target have."""

    def __init__(self, source: Signature, target: Signature) -> None:
        self._have = Counter(entry.shape for entry in source.entries.values())
        self._wanted = Counter(entry.shape for entry in target.entries.values())
        self._elements = sum(entry.numel for entry in target.entries.values() if entry.tied is None)

    def too_many(self, shapes: Sequence[Shape], count: int, around: int) -> bool:
        """Return whether COUNT modules of the source, each with tensors of the sizes SHAPES, are more than the target
        holds. AROUND is the number of tensors in the module around them. True if all of these hold:

          - the COUNT modules have at least 70 % of AROUND, or the target has exactly the tensors of one, by sizes;
          - the target has at most 1.5 times as many tensors as one module;
          - SHAPES has a matrix or kernel, and of the sizes of each of these, the target has fewer tensors than the
            source;
          - the target has a tensor of the sizes of one of these, or fewer elements than the COUNT modules together.
        """
        most = Counter(shapes) == self._wanted or count * len(shapes) >= 0.7 * around
        matrices = [shape for shape in shapes if len(shape) >= 2]
        if not most or not matrices or self._wanted.total() > 1.5 * len(shapes):
            return False
        if any(self._wanted[shape] >= self._have[shape] for shape in matrices):
            return False
        return any(self._wanted[shape] for shape in matrices) or count * sum(map(prod, shapes)) > self._elements


def _parts_by_name(members: Sequence[str], names: Collection[str]) -> bool:
    """Return whether modules with the names MEMBERS are parts of one model by their names, and not copies of it. NAMES
    are those of the modules of the target. One of these is enough:

      - MEMBERS are the names of all gates of a recurrent cell (`are_gates`).
      - Exactly one of MEMBERS is in NAMES, words for copies (`ema`) and names without a meaning (`model`) left out.
      - MEMBERS have two or more meanings (`encoder` and `decoder`, or `encoder` and a name without a meaning), and some
        name in NAMES has one of their meanings.
    """
    if are_gates(members) or len((set(names) - {*table().copies, *table().empty}).intersection(members)) == 1:
        return True
    said = {_role_word(member) for member in members}
    return len(said) > 1 and not said.isdisjoint({_role_word(name) for name in names} - {None})


def target_networks(source: Signature, target: Signature) -> dict[str, str]:
    """Return key of a target network of the model (`critic_target.0.weight`) -> key of the network that it follows
    (`critic.0.weight`), for a file without target networks. A target network is a copy that training alone needs.

    The result is {} unless all of these hold: no key of SOURCE has the word "target" in it; each key of TARGET with
    this word has a twin of equal sizes, a key with the same words without "target"; of each of these sizes, SOURCE has
    at most as many tensors as TARGET has without its target networks.
    """

    have = Counter(entry.shape for entry in source.entries.values())
    wanted = Counter(entry.shape for entry in target.entries.values())
    networks = {_without_target(key): key for key in target.entries if "target" not in _words(key)}
    found = {
        key: twin
        for key, entry in target.entries.items()
        if "target" in _words(key) and (twin := networks.get(_without_target(key)))
        if target.entries[twin].shape == entry.shape
    }
    for shape, count in Counter(target.entries[key].shape for key in found).items():
        if have[shape] + count > wanted[shape]:
            return {}
    said = any("target" in _words(key) for key in source.entries)
    return {} if said or len(found) < sum("target" in _words(key) for key in target.entries) else found


def _without_target(key: str) -> tuple[tuple[str, ...], ...]:
    """Return the words in each component of KEY, without the word "target"."""
    return tuple(tuple(word for word in cut(name) if word != "target") for name in key.split("."))


def _words(key: str) -> set[str]:
    """Return the words in all components of KEY."""
    return {word for name in key.split(".") for word in cut(name)}


def with_target_networks(made: Mapping_, target: Signature, twins: Mapping[str, str]) -> Mapping_:
    """Return the mapping MADE, which lacks the keys of target networks, with an entry for each of these keys. TWINS has
    key of a target network (`critic_target.0.weight`) -> key of the network that it follows (`critic.0.weight`), as
    `target_networks` gives it. The new entry is that of the second key under the first key: it has the same expression,
    and one more question if it has an expression. All entries are in the order of the keys of TARGET.
    """
    by_key = {entry.target: entry for entry in made.entries}
    entries = []
    for key in target.entries:
        if key in twins:
            own = by_key[twins[key]]
            asked: list[Question[Expr]] = [] if own.expr is None else [ask(Reason.TARGET_NETWORK, twins[key])]
            entries.append(replace(own, target=key, questions=(*own.questions, *asked)))
        else:
            entries.append(by_key[key])
    return made.with_entries(entries)


def _role_word(name: str) -> str | None:
    """Return what NAME means by a word of a group whose labels exclude each other ("encoder"), None if it has none."""
    return next(iter(labels(cut(name), hard=True).values()), None)


def _side(name: str) -> str | None:
    """Return the side of a model ("encoder", "decoder") that NAME means, or None."""
    return label(table().group("side"), cut(name))


def _preference(name: str) -> tuple[int, str]:
    """Return (place of NAME in the vocabulary's `copies`, NAME), by which copies are sorted, the preferred one first.
    The place is that of the whole name, or else the last of the places of its words, or else the middle of the list.
    """
    order = table().copies
    words = cut(name)
    said = [i for i, word in enumerate(order) if word == "_".join(words)] or [
        i for i, word in enumerate(order) if word in words
    ]
    return max(said, default=len(order) // 2), name


def doubt_copies(filling: Filling, copies: Mapping[str, str]) -> None:
    """Add a question to every hole in FILLING whose expression reads the preferred one of several copies. It has an
    option for each further copy: the same expression over the keys of that copy. The expression stays. COPIES has key
    of a further copy -> the same key in the preferred copy; if it is empty, nothing changes.
    """
    others: dict[str, list[str]] = defaultdict(list)
    for other, key in copies.items():
        others[key].append(other)
    for filled in filling.holes.values() if copies else ():
        keys, options = filled.expr.keys(), []
        for n in range(max((len(others[k]) for k in keys if k in others), default=0)):
            swap = {k: of(others[k][n]) for k in keys if len(others.get(k, ())) > n}
            options.append(substituted(filled.expr, swap))
        if options:
            behind = any(key.startswith((f"{k}/", f"{k}.")) for k in keys for key in others.get(k, ()))
            filled.ask(Reason.AVERAGE_OF_IT if behind else Reason.SEVERAL_COPIES, options=options)


#: So many bytes from the start tell most tensors apart.
_SAMPLE = 64
#: A layer of vectors alone (a norm) is one with another if so many of them, that are not one value, are equal.
_VECTORS = 3


def doubles(tensors: Mapping[str, LazyTensor], keys: Collection[str]) -> dict[str, str]:
    """Return key -> the key of another tensor with the same values, for the tensors of layers that a file holds twice
    (`_repeated_layers`: the second layer), and for matrices and biases of layers that repeat a tensor that is alone in
    its module, such as an embedding table (`_of_tables`). {} if nothing is repeated.

    Args:
        tensors: the state dict. The first bytes are read of tensors with equal sizes, all bytes if these are equal.
        keys: the keys to compare.
    """
    layers: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        layers[key.rpartition(".")[0]].append(key)
    content = _contents(tensors, keys)
    found = _repeated_layers(tensors, layers, content)
    return found | _of_tables(tensors, layers, content, found)


def _contents(tensors: Mapping[str, LazyTensor], keys: Collection[str]) -> dict[str, bytes]:
    """Return key -> digest of all bytes of its tensor, for those of KEYS whose tensor has the same sizes, type and
    first 64 bytes as that of another of KEYS. Equal digests mean equal bytes. Other keys are left out.
    """
    alike: dict[object, list[str]] = defaultdict(list)
    for key in keys:
        alike[(tensors[key].shape, tensors[key].dtype.name)].append(key)
    content: dict[str, bytes] = {}
    for group in alike.values():
        starts: dict[bytes, list[str]] = defaultdict(list)
        for key in group if len(group) > 1 else ():
            starts[_start(tensors[key])].append(key)
        for same in starts.values():
            content.update((key, _digest(tensors[key])) for key in same if len(same) > 1)
    return content


def _repeated_layers(
    tensors: Mapping[str, LazyTensor], layers: Mapping[str, Sequence[str]], content: Mapping[str, bytes]
) -> dict[str, str]:
    """Return key -> the key with the same last name in an earlier layer, for the keys of each layer that repeats one:
    both hold tensors with the same names and, for each name, the same bytes, type and sizes. LAYERS has path of a
    module -> keys in it, in the order of the file, CONTENT key -> digest (`_contents`).

    Vectors of ones are always equal, so such a layer counts only if it has a matrix or kernel whose values are not all
    equal, or three or more tensors with such values (a norm with its statistics). Only the first 64 bytes are looked at
    for that.
    """
    found: dict[str, str] = {}
    first: dict[object, str] = {}
    for path, inside in layers.items():
        if any(key not in content for key in inside):
            continue
        if not any(_tells(tensors[key]) for key in inside) and sum(_varies(tensors[key]) for key in inside) < _VECTORS:
            continue
        held = ((key, tensors[key]) for key in inside)
        look = frozenset((key.rpartition(".")[2], t.dtype.name, t.shape, content[key]) for key, t in held)
        earlier = first.setdefault(look, path)
        if earlier != path:
            found.update((key, ".".join(filter(None, (earlier, key.rpartition(".")[2])))) for key in inside)
    return found


def _of_tables(
    tensors: Mapping[str, LazyTensor],
    layers: Mapping[str, Sequence[str]],
    content: Mapping[str, bytes],
    repeated: Mapping[str, str],
) -> dict[str, str]:
    """Return key in a layer of two or more tensors -> key of a tensor with the same bytes and sizes that is alone in
    its module, before or after the layer (the last, if there are several): `decoder.weight` -> `embed.weight`, if the
    output layer `decoder.weight`, `decoder.bias` has the matrix of the table `embed`.

    A matrix or kernel counts if its values are not all equal (`_tells`). A vector, such as the bias, counts only if its
    values are not all equal and another tensor of its layer is known to repeat one, here or in REPEATED. REPEATED has
    the keys that are known to repeat a tensor already, which are left out; LAYERS and CONTENT are as in
    `_repeated_layers`.
    """
    alone = {
        content[one]: one for (one, *more) in layers.values() if not more and one in content if one not in repeated
    }
    found: dict[str, str] = {}
    for inside in layers.values():
        for key in sorted(inside, key=lambda one: -len(tensors[one].shape)) if len(inside) > 1 else ():
            other = alone.get(content.get(key, b""))
            if other is None or key in repeated or tensors[other].shape != tensors[key].shape:
                continue
            beside = any(one in repeated or one in found for one in inside)
            if _tells(tensors[key]) or (beside and _varies(tensors[key])):
                found[key] = other
    return found


def are_equal(tensors: Sequence[LazyTensor]) -> bool:
    """Return whether TENSORS, of one size and type, have the same bytes; False if there are none. Tensors that differ
    early are not read to the end.
    """
    return len({_start(tensor) for tensor in tensors}) == 1 and len({_digest(tensor) for tensor in tensors}) == 1


def _start(tensor: LazyTensor) -> bytes:
    """Return the first 64 bytes of TENSOR, all if it has fewer."""
    return bytes(tensor.source().read(0, min(_SAMPLE, tensor.nbytes)))


def _digest(tensor: LazyTensor) -> bytes:
    digest = hashlib.sha256()
    for chunk in tensor.source().chunks():
        digest.update(chunk)
    return digest.digest()


def _tells(tensor: LazyTensor) -> bool:
    """Return whether TENSOR has two or more sizes above 1, and unequal values in its first 64 bytes, so that an equal
    tensor is a copy of it.
    """
    return sum(n > 1 for n in tensor.shape) > 1 and _varies(tensor)


def _varies(tensor: LazyTensor) -> bool:
    """Return whether TENSOR has unequal values in its first 64 bytes; False for an empty tensor."""
    start = _start(tensor)
    size = tensor.dtype.itemsize
    return start != start[:size] * (len(start) // size)


def called_as_in(source: Signature, target: Signature) -> Signature:
    """Return SOURCE in which, of two keys under which a block holds one tensor, the key that TARGET has, too, is that
    tensor's own key. In SOURCE, the later keys of such a tensor are tied to its first key; in the result, the later
    key that TARGET has is tied to none, and the other keys of the tensor are tied to it.

    This is done for two keys in one block (`_in_one_block`) if TARGET has a tensor of this size with the last three
    components of the later key, and none with those of the first key. Code may register a norm as a part of the block,
    and again in a list of layers.
    """
    ends = {(tuple(key.split(".")[-_END:]), entry.shape) for key, entry in target.entries.items()}
    entries = dict(source.entries)
    for key, entry in source.entries.items():
        first = entry.tied
        if first is None or entries[first].tied is not None or not _in_one_block(key, first):
            continue
        own, earlier = ((tuple(name.split(".")[-_END:]), entry.shape) in ends for name in (key, first))
        if own and not earlier:
            entries |= {k: replace(e, tied=key) for k, e in entries.items() if e.tied == first}
            entries |= {key: replace(entry, tied=None), first: replace(entries[first], tied=key)}
    return replace(source, entries=entries)


#: So many last components of a key are the name of a layer in its block.
_END = 3


def _in_one_block(one: str, other: str) -> bool:
    """Return whether the keys ONE and OTHER are of one block: they begin with equal components, among them a number,
    and neither has more than three components behind these. True for `h.3.norm.weight` and `h.3.layers.0.weight`.
    """
    a, b = one.split("."), other.split(".")
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    return any(component.isdecimal() for component in a[:same]) and max(len(a), len(b)) - same <= _END
