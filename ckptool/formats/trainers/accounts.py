"""What became of every byte that the files of a run hold for tensors: used, left behind, or beside what is used.

The sum is taken over what is stored and over what the result is made of, not over what a reader counted: a part that a
reader forgot shows as left behind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.composing import Joined, nested, part_of
from ...disk.files import FileRange, Source
from ...errors import counted, printable
from ...records import record
from ...tensor import LazyTensor, Storage
from ...tree import Dict, List, Object
from ..tiles import Tiled

_SHOWN = 6
#: A file, or a source that is none, and a range of its bytes.
Range = tuple[int, int, int]


@record(frozen=False, slots=True)
class Account:
    """The storages of a run's files.

    Attributes:
        held: storage -> (its bytes, where in its file it stands).
    """

    held: dict[int, tuple[Range, str]] = field(default_factory=dict)
    _sources: list[Any] = field(default_factory=list)

    def hold(self, parts: Iterable[Checkpoint]) -> None:
        """Take up what files hold, as they were opened."""
        for part in parts:
            for trail, storage in _storages(part.root):
                if storage.nbytes:
                    self.held[id(storage)] = (_range(storage.source), "/".join(trail))
                    self._sources.append(storage)  # as long as it lives, nothing else has its number

    def lines(self, root: Any) -> list[str]:
        """For the receipt: what became of the bytes, where ROOT is what was made of the files."""
        used = _merged(one for node in _stored(root) for one in _ranges(node))
        taken = beside = 0
        left: Counter[str] = Counter()
        for (place, start, end), trail in dict(reversed(self.held.values())).items():
            inside = sum(max(min(b, end) - max(a, start), 0) for a, b in used.get(place, ()))
            taken += inside
            if inside:
                beside += end - start - inside
            else:
                left[trail] += end - start
        stored = taken + beside + sum(left.values())
        if not stored:
            return []
        most = left.most_common(_SHOWN)
        shown = [f"{_shown(count)} at {printable(trail, 60) or 'the root'}" for trail, count in most]
        if len(left) > _SHOWN:
            shown.append(f"{_shown(sum(left.values()) - sum(count for _, count in most))} elsewhere")
        if beside:
            shown.append(f"{_shown(beside)} beside what is used, in the same storages")
        rest = f"; left behind are {', '.join(shown)}" if shown else ", and nothing is left behind"
        return [f"of {_shown(stored)} of tensors in the files that were read, {taken:,} are used{rest}"]


def _shown(count: int) -> str:
    return counted(count, "byte")


def _storages(root: Any) -> Iterator[tuple[tuple[str, ...], Storage]]:
    """The storages below ROOT, each with the names of the first two dicts around it."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), root)]
    seen: set[int] = set()
    while pending:
        trail, node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, LazyTensor | Storage):
            yield trail, node.storage if isinstance(node, LazyTensor) else node
        elif isinstance(node, Dict):
            for key, value in node.entries:
                inner = isinstance(value, Dict | List | Object | tuple) and not _is_tensor(value)
                pending.append(((*trail, str(key)) if len(trail) < 2 and inner else trail, value))
        elif isinstance(node, List | tuple):
            pending += [(trail, one) for one in (node.items if isinstance(node, List) else node)]
        elif isinstance(node, Object):
            pending += [(trail, node.args), (trail, node.state)]


def _is_tensor(node: Any) -> bool:
    """Whether an object is what torch rebuilds a tensor from."""
    return isinstance(node, Object) and node.class_name.startswith(("torch._tensor.", "torch._utils."))


def _stored(root: Any) -> Iterator[LazyTensor | Storage]:
    """The tensors below ROOT, and the storages in calls that make tensors."""
    pending, seen = [root], set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, LazyTensor | Storage):
            yield node
        elif isinstance(node, Dict):
            pending += [value for _, value in node.entries]
        elif isinstance(node, List | tuple):
            pending += node.items if isinstance(node, List) else node
        elif isinstance(node, Object):
            pending += [node.args, node.state]


def _ranges(tensor: LazyTensor | Storage) -> Iterator[Range]:
    """The bytes of files that the values of a tensor are made of."""
    if isinstance(tensor, Storage):
        yield _range(tensor.source)
        return
    if not tensor.numel:
        return
    source = tensor.storage.source
    if isinstance(source, Tiled):
        for tile in source.tiles:
            yield from _ranges(tile.values)
        return
    if tensor.is_contiguous:
        source = part_of(source, tensor.offset * tensor.dtype.itemsize, tensor.nbytes)
    found = [one for one in nested(source) if isinstance(one, FileRange)]
    records = {id(one.whole) for one in found}  # which those are cut from, and no more than that
    yield from (_range(one) for one in found if id(one) not in records)
    if not isinstance(source, FileRange | Joined):
        yield _range(tensor.storage.source)


def _range(source: Source) -> Range:
    if isinstance(source, FileRange):
        return id(source.file), source.offset, source.offset + source.length
    return id(source), 0, source.length


def _merged(ranges: Iterable[Range]) -> dict[int, list[tuple[int, int]]]:
    """file -> ranges that do not overlap, in order."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for place, start, end in ranges:
        found[place].append((start, end))
    merged: dict[int, list[tuple[int, int]]] = {}
    for place, several in found.items():
        out: list[tuple[int, int]] = []
        for start, end in sorted(several):
            if out and start <= out[-1][1]:
                out[-1] = out[-1][0], max(end, out[-1][1])
            else:
                out.append((start, end))
        merged[place] = out
    return merged
