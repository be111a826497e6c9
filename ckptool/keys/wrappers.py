"""Components that wrappers around a module put into keys (`module.`, `_orig_mod.`), and keys without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Literal, TypeAlias

from ..records import record
from .listing import outline
from .prefixes import common_prefix


@record(frozen=True, slots=True)
class Wrapper:
    """A component that a wrapper around a module puts into the names of everything below it.

    Attributes:
        component: the component.
        producer: who puts it there.
        where: "anywhere" if no model has an attribute of that name, so that it goes wherever it stands;
            "sole" if one might, so that it goes only where its parent has no other child.
    """

    component: str
    producer: str
    where: Literal["anywhere", "sole"]


#: The wrappers that `unwrap` removes.
WRAPPERS: tuple[Wrapper, ...] = (
    Wrapper("_orig_mod", "torch.compile", "anywhere"),
    Wrapper("_fsdp_wrapped_module", "FullyShardedDataParallel", "anywhere"),
    Wrapper("_checkpoint_wrapped_module", "activation checkpointing", "anywhere"),
    Wrapper("_forward_module", "Lightning with DeepSpeed or FSDP", "sole"),
    Wrapper("_module", "Opacus GradSampleModule", "sole"),
    Wrapper("module", "DataParallel, DistributedDataParallel, AveragedModel, DeepSpeed", "sole"),
)
_ANYWHERE = frozenset(w.component for w in WRAPPERS if w.where == "anywhere")
_SOLE = frozenset(w.component for w in WRAPPERS if w.where == "sole")

#: The counter that AveragedModel keeps beside `module.`, which is the only child of the root all the same.
AVERAGED_COUNTER = "n_averaged"

# A tree of components. A node where a key ends has the entry ".", which no component can be.
_Node: TypeAlias = "dict[str, _Node]"
_END = "."
_LEAF: _Node = {_END: {}}


def find_wrappers(keys: Iterable[str], outlined: str | None = None) -> dict[str, int]:
    """Return what `unwrap` would remove and from how many keys: `{"module.": 161, "_orig_mod.": 3}`.

    OUTLINED is the outline of the keys, where it is at hand.
    """
    keys = list(keys)
    outer, others = _around_all(keys, outlined)
    if not others:
        return {f"{component}.": len(keys) for component in outer.split(".")[:-1]}
    counts: Counter[str] = Counter()
    for _, _, removed in _unwrapped_one_by_one(keys):
        for component in removed:
            counts[component] += 1
    return {f"{component}.": count for component, count in counts.most_common()}


def unwrap(keys: Iterable[str], outlined: str | None = None) -> dict[str, str]:
    """Return the name of each key without wrappers: `_orig_mod.module.w` becomes `w`, `b._orig_mod.w` `b.w`.

    All keys are in the result, in their order, changed or not. The last component of a key always stays. Two
    keys may get the same name (`b._orig_mod.w` beside `b.w`): that is for the caller to refuse, as it is for
    the caller to say what becomes of `n_averaged`, which is no weight. OUTLINED is the outline of the keys, where it is
    at hand.
    """
    keys = list(keys)
    outer, others = _around_all(keys, outlined)
    if not others:
        text = "\n".join(["", *keys])
        if text.count("\n") == len(keys):  # many keys are cut at once
            return dict(zip(keys, text.replace("\n" + outer, "\n").split("\n")[1:], strict=True))
        return {key: key[len(outer) :] for key in keys}
    return {key: new for key, new, _ in _unwrapped_one_by_one(keys)}


def _around_all(keys: list[str], outlined: str | None) -> tuple[str, bool]:
    """The wrappers that all keys begin with, and whether there may be others. In most files there are none."""
    lines = (outline(keys) if outlined is None else outlined).split("\n")[1:-1]
    components = takewhile((_ANYWHERE | _SOLE).__contains__, common_prefix(lines).split("."))
    outer = "".join(f"{component}." for component in components)
    return outer, any(wrapper.component in line[len(outer) :] for line in lines for wrapper in WRAPPERS)


def _unwrapped_one_by_one(keys: list[str]) -> Iterator[tuple[str, str, set[str]]]:
    """Yield each key, its name without wrappers, and the components that were removed, where some keys have wrappers of
    their own.
    """
    split = {key: key.split(".") for key in keys}
    # The certain ones go first, so that the others are judged by the children that a parent has without them.
    short = {key: [c for c in parts[:-1] if c not in _ANYWHERE] + parts[-1:] for key, parts in split.items()}
    tree: _Node = {}
    wrappers: set[int] = set()
    if not all(_SOLE.isdisjoint(parts[:-1]) for parts in short.values()):
        for parts in short.values():
            node = tree
            for component in parts[:-1]:
                below = node.get(component)
                if below is None or below is _LEAF:
                    below = node[component] = dict(below or {})
                node = below
            last = node.setdefault(parts[-1], _LEAF)
            if last is not _LEAF:
                last[_END] = {}
        wrappers = _sole_wrappers(tree)
    for key, parts in short.items():
        kept = parts
        removed = set() if len(parts) == len(split[key]) else {c for c in split[key][:-1] if c in _ANYWHERE}
        if wrappers and not _SOLE.isdisjoint(parts):
            kept, node = [], tree
            for component in parts:
                node = node[component]
                if id(node) in wrappers:
                    removed.add(component)
                else:
                    kept.append(component)
        yield key, ".".join(kept) if removed else key, removed


def _sole_wrappers(tree: _Node) -> set[int]:
    """Return the ids of the nodes of TREE that are wrappers because their parent has no other child."""
    found: set[int] = set()
    todo = [tree]
    while todo:
        parent = todo.pop()
        at_root = parent is tree
        # A wrapper that goes hands its children to the parent, where the next may now be the only one.
        while True:
            others = [
                (name, child)
                for name, child in parent.items()
                if name != _END and not (at_root and name == AVERAGED_COUNTER and child.keys() == {_END})
            ]
            if len(others) != 1 or others[0][0] not in _SOLE or _END in others[0][1]:
                break
            parent = others[0][1]
            found.add(id(parent))
        todo.extend(child for _, child in others)
    return found
