"""Renaming and dropping keys of a state dict, with everything that must follow them: `_metadata` and optimizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint, StateDict
from ..errors import KeyCollision, RuleError, printable
from ..tree import (
    Dict,
    Mapped,
    Pairs,
    Paths,
    attributes_of,
    holds_tensors_alone,
    key_column,
    metadata_of,
    rebuild,
    value_column,
    walk,
    with_entries,
)
from .optimizers import follow
from .packed import packed_in


def rekey(ckpt: Checkpoint, weights: StateDict, renamed: Mapping[str, str | None], what: str = "") -> Checkpoint:
    """Rename keys of a state dict: RENAMED gives the new key of each old one, or None to drop it.

    Keys that RENAMED does not mention and entries whose key is no string stay as they are; order is kept, and
    `_metadata` and the states of optimizers follow the keys. WHAT says in messages how the new keys came about.

    The tensors of a packed weight go together: what belongs to one that is renamed follows it.

    Raises:
        KeyCollision: two keys would become one.
        RuleError: a packed weight would be taken apart.
    """
    path, node = weights.path, weights.node
    if any(new != key for key, new in renamed.items()):
        renamed = _kept_together(ckpt, weights, renamed)
    quick = _renamed_at_once(node, renamed)
    taken: dict[str, str] = {}
    entries: list[tuple[Any, Any]] = []
    for key, value in node.entries if quick is None else ():
        if isinstance(key, str):
            new = renamed.get(key, key)
            if new is None:
                continue
            if new in taken:
                raise KeyCollision(
                    f"two keys would become {printable(repr(new))}:",
                    where=ckpt.where,
                    evidence=[
                        f"{printable(old)}   ({'unchanged' if old == new else what or 'renamed'})"
                        for old in (taken[new], str(key))
                    ],
                    hint="rename or drop one of them in a run of its own before",
                )
            taken[new] = str(key)
            if new != key:
                key = new
        entries.append((key, value))
    done = entries if quick is None else quick
    changes = any(old != new for old, new in renamed.items())
    instead: dict[int, Any] = {id(node): with_entries(node, done)}
    metadata = metadata_of(node)
    if metadata is not None and changes:
        moved = [(str(key), renamed.get(key, key)) for key, _ in node.entries if isinstance(key, str)]
        # in attributes of its own: another state dict may share the old ones
        modules = Dict(_moved_metadata(metadata, moved), metadata.ordered, metadata.attributes)
        attributes = Dict([(k, modules if v is metadata else v) for k, v in attributes_of(node).entries])
        instead[id(node)] = with_entries(node, done, attributes)
    notes: list[str] = []
    if changes and node is not ckpt.root:
        followed = follow(ckpt, weights, renamed)
        instead |= followed.instead
        changed = {str(old) for old, new in renamed.items() if old != new}
        notes = [*followed.lines, *_named_elsewhere(ckpt.root, path, changed, followed.within)]
    notes = [note for note in notes if note not in ckpt.history]  # of several passes, each would say it
    roles = ckpt.roles
    if roles:
        roles = {**roles, **{new: roles[old] for old, new in renamed.items() if new and old in roles}}
    return replace(ckpt, root=rebuild(ckpt.root, instead=instead), history=(*ckpt.history, *notes), roles=roles)


def _renamed_at_once(node: Mapped, renamed: Mapping[str, str | None]) -> Pairs | None:
    """The entries of NODE under their new keys, where it holds tensors alone, none of which is dropped, and no two keys
    become one; else None.
    """
    if not holds_tensors_alone(node):
        return None
    keys = key_column(node.entries)
    in_step = len(renamed) == len(keys) and list(renamed) == keys  # as a pass that renames all keys gives them
    new = list(renamed.values()) if in_step else list(map(renamed.get, keys, keys))
    distinct = set(new)  # the dict that `Pairs.names` makes would stay
    whole = len(distinct) == len(keys) and None not in distinct
    return Pairs(new, value_column(node.entries)) if whole else None


def _kept_together(ckpt: Checkpoint, weights: StateDict, renamed: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """RENAMED with what belongs to packed weights following them, where no rule names it."""
    further: dict[str, str | None] = {}
    for one in packed_in(weights):
        new = {key: renamed.get(key, key) for key in one.keys}
        gone = [key for key, name in new.items() if name is None]
        if len(gone) == len(new):
            continue
        if gone:
            kept = next(key for key, name in new.items() if name is not None)
            raise _apart(ckpt, one.family, one.name, f"{printable(gone[0], 80)} goes, {printable(kept, 80)} stays")
        weight = str(new[one.name])
        for key, name in new.items():
            shared = next((at for at, (a, b) in enumerate(zip(one.name, key, strict=False)) if a != b), len(one.name))
            shared = min(shared, len(key))
            tail = one.name[shared:]
            follows = weight[: len(weight) - len(tail)] + key[shared:]
            if name == key and follows != key and weight.endswith(tail):
                further[key] = follows
            elif name != follows or not weight.endswith(tail):
                to = f"becomes {printable(weight, 80)}, {printable(key, 80)} {printable(str(name), 80)}"
                said = f"{printable(one.name, 80)} {to}"
                raise _apart(ckpt, one.family, one.name, said)
    return {**renamed, **further} if further else renamed


def _apart(ckpt: Checkpoint, family: str, name: str, said: str) -> RuleError:
    what = f"this would take apart the packed weight {printable(name, 80)} ({family}), whose tensors go together:"
    return RuleError(what, where=ckpt.where, evidence=[said], hint="name what is before their last component alone")


def _moved_metadata(metadata: Dict, moved: Sequence[tuple[str, str | None]]) -> list[tuple[Any, Any]]:
    """The entries of `_metadata` after keys MOVED (old, new or None).

    Each entry belongs to the module at a dotted path, "" the root. It follows the keys below that path: when
    `module.conv.weight` becomes `conv.weight`, the module at `module` is now the root and the old root, a wrapper, is
    gone. Modules without keys (a ReLU) follow the nearest one above them. Where two modules meet, the one with keys
    that did not change stays, else the inner one takes the place of its wrapper.
    """
    paths = {str(path) for path, _ in metadata.entries}
    stays: set[str] = set()
    votes: dict[str, Counter[str]] = {}
    for old, new in moved:
        parts, target = old.split("."), (new or "").split(".")
        places = _places(parts, target) if new is not None else [None] * len(parts)
        for depth, place in enumerate(places):
            path = ".".join(parts[:depth])
            if path in paths:
                vote = votes.setdefault(path, Counter())
                if new == old:
                    stays.add(path)
                if place is not None:
                    vote[".".join(target[:place])] += 1
    after: dict[str, str | None] = {}
    for path in sorted(paths, key=len):
        if path in stays or (not path and len(votes.get(path, ())) > 1):
            after[path] = path
        elif path in votes:
            after[path] = max(votes[path], key=votes[path].__getitem__, default=None)
        else:
            above = path
            while above and above not in votes:
                above = above.rpartition(".")[0]
            base = after.get(above) if above in votes else above
            tail = path[len(above) :].lstrip(".")
            after[path] = None if base is None else ".".join(part for part in (base, tail) if part)
    kept: dict[str, Any] = {}
    came_from: dict[str, str] = {}
    for key, value in metadata.entries:
        path = str(key)
        new = after[path]
        if new is None:
            continue
        rival = came_from.get(new)
        if rival is None or (rival not in stays and (path in stays or len(path) > len(rival))):
            kept[new], came_from[new] = value, path
    if kept and "" not in kept:  # a prefix was added: the new wrapper has an entry of its own, as DataParallel's
        prefix = min(kept, key=len)
        wrappers = ["", *(prefix[:at] for at, char in enumerate(prefix) if char == ".")]
        kept = {**{wrapper: Dict([("version", 1)]) for wrapper in wrappers if wrapper not in kept}, **kept}
    return list(kept.items())


def _places(old: Sequence[str], new: Sequence[str]) -> list[int | None]:
    """Where modules are when the key OLD becomes NEW: for the one above each component of OLD, its depth in NEW.

    None for one that is no more. Names are compared from the right: a component that is gone was a wrapper, and what
    was inside stands in its place; one that is new is a wrapper around what was there.
    """
    if len(old) == len(new):
        return list(range(len(old)))
    places: list[int | None] = [None] * len(old)
    place = len(new)
    for depth in reversed(range(len(old))):
        if place and old[depth] == new[place - 1]:
            place -= 1
        elif len(old) < len(new):
            found = next((i for i in reversed(range(place)) if new[i] == old[depth]), None)
            if found is None:
                break
            place = found
        places[depth] = place
    else:
        if len(old) < len(new) or not place:
            return places
    # Neither one nor the other: only the parts that agree on the left and on the right are sure.
    right = next((n for n in range(min(len(old), len(new))) if old[-1 - n] != new[-1 - n]), 0)
    left = next((n for n in range(min(len(old), len(new))) if old[n] != new[n]), 0)
    return [
        len(new) - (len(old) - depth) if len(old) - depth <= right else depth if depth <= left else None
        for depth in range(len(old))
    ]


def _named_elsewhere(root: Any, path: str, changed: set[str], known: Sequence[str]) -> list[str]:
    """Notes on other places that name the keys that changed (learning rates by parameter name). Those below
    the paths KNOWN follow, or are spoken of already."""
    found: Counter[Any] = Counter()
    parents: dict[Any, Any] = {}
    for trail, node in walk(root):
        if trail is not None and ((isinstance(node, str) and node in changed) or trail[1] in changed):
            parents.setdefault(id(trail[0]), trail[0])
            found[id(trail[0])] += 1
    paths = Paths()
    places = ((paths.of(parents[parent]), count) for parent, count in found.items())
    return [
        f"note: {printable(place)} names {count} of the old keys; left as it is"
        for place, count in places
        if place != path
        and not place.startswith(f"{path}/@state" if path else "@state")
        and not any(place.startswith(f"{other}/") for other in known)
    ]
