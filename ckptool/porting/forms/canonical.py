"""Bring both sides into the common form: no wrappers in names, roles for leaf names, projections split, torch's layout.

The same steps are taken on the source and on the target. A projection that is fused on one side only is split there; a
projection that is fused on both sides comes out as a copy.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from ... import keys as names
from ...keys.known_buffers import COUNTERS, Holds, named
from ...model_code.signature import Entry, Signature
from .. import expression as ex
from ..matching.units import template
from ..words import cut, label, table, words_of
from .pieces import Canon, Piece, squeezed
from .roles import components, divided, numbered, role_of
from .step_table import bring_together


def canonical(source: Signature, target: Signature, *, lora_scale: float | None = None) -> tuple[Canon, Canon]:
    """Return (SOURCE, TARGET) in the common form, each as a new `Canon`, after all steps. Masks of attentions that only
    the source has are left out before the steps (`_leave_out_masks`). Layers whose names count from 1 on the target and
    from 0 in the source, or the reverse, get the source's numbers in the paths of the target (`_counted_otherwise`).
    LORA_SCALE is the factor of the source's low-rank adapters, None if the file does not state it.
    """
    s, t = _named(source, is_target=False), _named(target, is_target=True, counted=_counted_otherwise(target, source))
    s.adapter_scale = lora_scale
    _leave_out_masks(s, t)
    bring_together(s, t)
    return s, t


#: What code calls masks of attentions, which it computes.
_MASKS = named(Holds.MASK) | {"mask"}


def _leave_out_masks(source: Canon, target: Canon) -> None:
    """Remove the masks of attentions from SOURCE: tensors with the name of a mask that are square without sizes of 1
    ([1, 1, n, n]), if no tensor with such a name in TARGET has these sizes. Left in, they would count among the weights
    of their sizes.
    """
    wanted = {squeezed(p.shape) for p in target.pieces.values() if p.leaf in _MASKS}
    for piece in list(source.pieces.values()):
        shape = squeezed(piece.shape)
        if piece.leaf in _MASKS and len(shape) == 2 and shape[0] == shape[1] and shape not in wanted:
            del source.pieces[piece.name]


def _counted_otherwise(one: Signature, other: Signature) -> dict[str, int]:
    """Return name of layers without its number -> number to add in ONE to get the numbers of OTHER: -1 for names that
    ONE counts from 1 and OTHER from 0 (`norm1`, `norm2` for `norm0`, `norm1`), 1 for the reverse. Other names are left
    out.

    In every module of ONE with such names, these have to begin with that number. The sets of numbers in the modules of
    ONE (`_numbers`) have to be exactly those of OTHER after the change, and some module has two or more such layers.
    """
    own, theirs = _numbers(one), _numbers(other)
    found = {}
    for stem, rows in own.items():
        if max(map(len, rows)) < 2:
            continue
        for n in (-1, 1):
            if (
                all(min(row) == (n < 0) for row in rows)
                and {frozenset(at + n for at in row) for row in rows} == theirs[stem]
            ):
                found[stem] = n
    return found


def _numbers(signature: Signature) -> dict[str, set[frozenset[int]]]:
    """Return name of layers without its number -> every set of numbers that it has in one module: `norm` -> {{1, 2}}
    for `norm1`, `norm2`. Only names of letters and "_" before a single digit count, and no last components of keys.
    """
    rows: dict[tuple[str, str], set[int]] = defaultdict(set)
    for key in signature.entries:
        path = components(key)[:-1]
        for at, component in enumerate(path):
            if (counted := _COUNTED.match(component)) is not None:
                rows[".".join(path[:at]), counted[1]].add(int(counted[2]))
    found: dict[str, set[frozenset[int]]] = defaultdict(set)
    for (_, stem), numbers in rows.items():
        found[stem].add(frozenset(numbers))
    return found


#: The name of one of several layers, with its number.
_COUNTED = re.compile(r"([A-Za-z][A-Za-z_]*?_?)(\d)\Z")


def _named(signature: Signature, *, is_target: bool, counted: Mapping[str, int] | None = None) -> Canon:
    """Return one side in the common form before any step: each tensor as a piece with a path (`_split`) and a role
    (`_roles`), in the order of the keys, but for some norms (`_norms_before`).

    Left out are keys that are tied to an earlier one, the second copy of a weight that is stored twice (`_kept_raw`:
    the raw one stays), and counters of batch norms, which `counters` of the result has. A tensor with a name that is
    taken gets "again" behind its path. In a side without modules whose names count blocks (`stage1_unit2_conv1`), the
    paths get a module for each block (`divided`). The words of a piece are those of its path (`_counted_from_one`),
    after those of another key of the tensor, if these say the kind of an embedding (`_other_name`). In `assembly`, each
    key of a target that is a piece has its own hole, and the second copy of a weight that of the raw one (or of the key
    that the raw one is tied to).

    Args:
        signature: the side's keys and shapes.
        is_target: whether it is the target.
        counted: name of layers without its number -> number to add to the number, as `_counted_otherwise` gives it.
    """
    kept = _kept_raw(signature)
    canon = Canon(signature, is_target, dropped=kept)
    entries = [e for e in signature.entries.values() if e.tied is None and e.key not in kept.values()]
    split = _split(entries, kept, counted or {})
    siblings: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in split.values():
        for at, component in enumerate(path):
            siblings[path[:at]].add(component)
    beside = {path: _Beside(held) for path, held in siblings.items()}
    more = _with_more(siblings)
    aliases: dict[str, list[str]] = defaultdict(list)
    for entry in signature.entries.values():
        if entry.tied is not None:
            aliases[entry.tied].append(entry.key)
    roles = _roles(entries, split, siblings)
    flat = divided({path for path, _ in roles.values()})
    before = _norms_before(split)
    for place, entry in enumerate(entries):
        order = before.get(entry.key, place)
        path, role = roles[entry.key]
        path = flat.get(path, path)
        if role in COUNTERS:
            canon.counters[entry.key] = path
            continue
        words = _counted_from_one(path, beside, more)  # without the leaf: two things with a mean are not alike
        words = (*_other_name(entry.key, words, aliases), *words)
        piece = Piece(path, role, entry.shape, ex.of(entry.key), order, entry.used, words, entry)
        piece = canon.put(piece)
        if is_target:
            canon.assembly[entry.key] = piece.expr
    if is_target:
        first = {key: signature.entries[key].tied or key for key in kept}
        canon.assembly.update((copy, canon.assembly[first[key]]) for key, copy in kept.items())
    return canon


def _split(entries: Sequence[Entry], kept: Mapping[str, str], counted: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return key -> components of the key, with the last one ("weight"), for ENTRIES: without wrappers around all keys
    (`module.`), and without the name of a collection at the beginning (`params`), if all keys begin with one. In files
    with "/" in some key, or with a `kernel`, a module `conv` beside `conv_1` becomes `conv_0` (`numbered`).

    KEPT has key of a raw weight -> key of its copy: the raw weight gets the components of the copy. COUNTED has name of
    layers without its number -> number to add to the number.
    """
    short = names.unwrap([*(entry.key for entry in entries), *kept.values()])
    in_collections = {components(key)[0] for key in short.values()} <= table().collections
    split = {}
    for entry in entries:
        path = components(short[kept.get(entry.key, entry.key)])
        if in_collections and len(path) > 1:
            path = path[1:]
        split[entry.key] = tuple(_moved(component, counted) for component in path)
    kernels = any(path[-1] in table().inputs_first for path in split.values() if path)
    if kernels or any("/" in entry.key for entry in entries):
        return dict(zip(split, numbered(split.values()), strict=True))
    return split


def _roles(
    entries: Sequence[Entry], split: Mapping[str, tuple[str, ...]], siblings: Mapping[tuple[str, ...], set[str]]
) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return key -> (path of its module, role there), for ENTRIES, by the last component (`_path_and_role`). `gamma`
    and `beta` directly in a module around a layer with a matrix (`_around_layers`) are weights, with the whole path.

    A tensor whose name only begins with that of a module (`fc_bias` beside `fc.bias`) keeps its whole path, if the
    module has a tensor of that role of its own. SPLIT has key -> path with the last component, SIBLINGS path of a
    module -> names in it.
    """
    around = _around_layers(entries, split)
    roles = {}
    for entry in entries:
        path = split[entry.key]
        of_block = path[-1] in _FACTORS and path[:-1] in around
        roles[entry.key] = (path, "weight") if of_block else _path_and_role(entry, path, siblings)
    held = {roles[key] for key, path in split.items() if roles[key][0] == path[:-1]}
    for key, path in split.items():
        if roles[key] in held and roles[key][0] != path[:-1]:
            roles[key] = path, roles[key][1]
    return roles


def _norms_before(split: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    """Return key -> new place in the state dict, for the tensors directly in a module called `norm` that comes after a
    module called `fn` in the same module: directly before the first tensor of `fn`, in the order that they have. Other
    keys are left out. Code that wraps a function so normalizes the input of the function, but registers the function
    first. SPLIT has key -> path with the last component, in the order of the state dict.
    """
    first: dict[tuple[str, ...], int] = {}
    for place, path in enumerate(split.values()):
        for at in range(1, len(path)):
            first.setdefault(path[:at], place)
    found = {}
    for place, (key, path) in enumerate(split.items()):
        start = first.get((*path[:-2], "fn"), place) if path[-2:-1] == ("norm",) else place
        if start < place:
            found[key] = start - 1 / (place + 1)
    return found


def _around_layers(entries: Sequence[Entry], split: Mapping[str, tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the paths of all modules around a layer with a matrix or kernel: `a` and `a.b` for `a.b.fc.weight`. The
    layer itself and the outermost module are left out. `gamma` and `beta` directly in such a module are not the scale
    and shift of a norm. SPLIT has key -> path with the last component.
    """
    found: set[tuple[str, ...]] = set()
    for entry in entries:
        module = split[entry.key][:-1]
        if len(squeezed(entry.shape)) > 1:
            found.update(module[:at] for at in range(1, len(module)))
    return found


def _moved(component: str, by: Mapping[str, int]) -> str:
    """Return COMPONENT with BY[name without number] added to its number: `norm0` for `norm1`, if BY has {"norm": -1}.
    Return COMPONENT as it is if BY does not have its name, or if it is no name with a single digit at the end.
    """
    found = _COUNTED.match(component)
    return f"{found[1]}{int(found[2]) + by[found[1]]}" if found is not None and found[1] in by else component


def _path_and_role(
    entry: Entry, split: tuple[str, ...], siblings: Mapping[tuple[str, ...], set[str]]
) -> tuple[tuple[str, ...], str]:
    """Return (path of the module, role there) of ENTRY with the path SPLIT, by its last component (`role_of`).

    But a tensor with two or more dimensions above 1 that is called `NAME_bias` is a "weight" with its whole path, a
    table that is added (of relative positions, say), if there is a module `NAME` beside it, or nothing else beside it
    has a name that begins with NAME. SIBLINGS has path of a module -> names in it, of modules and tensors.
    """
    beside = siblings[split[:-1]]
    path, role = role_of(split, beside)
    lone = role == "bias" and len(squeezed(entry.shape)) > 1 and split[-1].endswith("_bias")
    if lone and (path in siblings or sum(other.startswith(path[-1]) for other in beside) == 1):
        return split, "weight"
    return path, role


#: Scale and shift of a norm, or what a block multiplies with, where it holds other layers.
_FACTORS = frozenset({"gamma", "beta"})
#: What code that drops out weights calls those that it learns, beside the copy that was left by its last pass.
_RAW = "_raw"


def _kept_raw(signature: Signature) -> dict[str, str]:
    """Return key of a raw weight -> key of its copy of equal size, for weights that WeightDrop stores twice: raw as
    `rnn.weight_hh_l0_raw`, and with dropout as `rnn.module.weight_hh_l0` or, if there is no such key of equal size, as
    `rnn.weight_hh_l0`. Names that do not begin with "weight" are left out, and so are raw weights that are tied to such
    a copy.
    """
    found = {}
    for key, entry in signature.entries.items():
        head, _, leaf = key.removesuffix(_RAW).rpartition(".")
        dropped = key.endswith(_RAW) and leaf.startswith("weight")  # other values may have a raw form of their own
        for copy in (f"{head}.module.{leaf}", f"{head}.{leaf}") if dropped else ():
            if copy in signature.entries and signature.entries[copy].shape == entry.shape:
                found[key] = copy
                break
    copies = {*found.values()}
    return {raw: copy for raw, copy in found.items() if signature.entries[raw].tied not in copies}


def _other_name(key: str, words: tuple[str, ...], aliases: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the words of the module of the tensor KEY, by another key that is tied to KEY, if only these words say
    which kind of embedding the tensor is (word, position): ("word", "embeddings") for `word_embeddings.weight`. () if
    WORDS, those by KEY itself, say a kind, if no other key says one, or if none is tied to KEY.

    ALIASES has key -> the keys that are tied to it; the first of them that says a kind counts. Its words are those of
    its last component but one.
    """
    group = table().group("embedding")
    if key not in aliases or label(group, words) is not None:
        return ()
    others = [words_of(components(other)[-2:-1]) for other in aliases[key]]
    return next((other for other in others if label(group, other) is not None), ())


class _Beside:
    """The names in one module, of modules and tensors, and what they show about each other.

    Attributes:
        counted: name without the number at its end -> how many names are this one with a number.
        from_zero: the names in `counted` that are there with the number 0.
        behind: the names of norms that begin with "post", if there are two or more, and no name begins with "pre" or
            "input": `post_attention_norm` beside `post_mlp_norm`. A single one is the norm between the attention and
            the next part, and usually belongs to the next part.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        stems = [name.rstrip("0123456789") for name in names]
        self.counted = Counter(stem for stem, name in zip(stems, names, strict=True) if stem != name)
        self.from_zero = {stem for stem in self.counted if f"{stem}0" in names}
        first = {name: cut(name)[:1] for name in names}
        purposes = table().group("purpose")
        after = {name for name, word in first.items() if word == ("post",) and label(purposes, cut(name)) == "norm"}
        before = any(word in (("pre",), ("input",)) for word in first.values())
        self.behind = after if len(after) > 1 and not before else set()


_ALONE = _Beside()


def _counted_from_one(
    path: tuple[str, ...],
    siblings: Mapping[tuple[str, ...], _Beside],
    more: Collection[tuple[tuple[str, ...], str]],
) -> tuple[str, ...]:
    """Return the words of PATH, with these changes to its last component:

      - a norm in `_Beside.behind` loses its "post_", and nothing else is changed;
      - a number at its end is raised by one, if this name counts from 0 in the module (`ln0` is read as `ln1`, the
        first), unless the name is that of a part of a projection (`wi_0`), or is in MORE;
      - the number is left out, if the module has this name with three or more numbers, and the number changes which
        part of a feed-forward block the name means (`fc1`, the first of two).

    Args:
        path: the path of a module.
        siblings: path of a module -> names in it.
        more: names that equal blocks count from 1 (see `_with_more`): their numbers are not raised.
    """
    last = path[-1] if path else ""
    beside = siblings.get(path[:-1], _ALONE)
    if last in beside.behind and (part := last.partition("_")[2]):
        return words_of((*path[:-1], part))
    stem = last.rstrip("0123456789")
    if stem in ("", last):
        return words_of(path)
    numbered = stem in beside.from_zero and (template(path[:-1]), stem) not in more
    if numbered and cut(last) not in table().parts:  # whose numbers are names
        path = (*path[:-1], f"{stem}{int(last[len(stem) :]) + 1}")
    words, plain = words_of(path), words_of((*path[:-1], stem))
    neck = table().group("neck")
    return plain if beside.counted[stem] > 2 and label(neck, words) != label(neck, plain) else words


def _with_more(siblings: Mapping[tuple[str, ...], Collection[str]]) -> set[tuple[tuple[str, ...], str]]:
    """Return (path of a module with `{}` for its numbers, name without number), for names in a module that count from
    1: the module has this name with 2, and not with 0 (`norm1`, `norm2`). If an equal module also has a `norm0`, that
    is an extra layer, and the numbers of `norm` are not to be raised. SIBLINGS has path of a module -> names in it.

    A single layer, 1, does not show it: the layer before it may be missing.
    """
    return {
        (template(path), stem)
        for path, held in siblings.items()
        for name in held
        if (stem := name.rstrip("0123456789")) and stem != name and f"{stem}0" not in held and f"{stem}2" in held
    }
