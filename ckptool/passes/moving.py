"""Where storages say they are: `map_location`, for every storage in a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Any

from ..checkpoint import Checkpoint, map_storages
from ..disk.files import shell_quote
from ..errors import NoMatch, counted, printable, require
from ..tensor import LazyTensor, Storage, locations
from ..tree import Paths, Trail, component_text, holds_tensors_alone, key_column, value_column, walk
from ._plain import AnyCheckpoint, Missing
from .locations import LocationRule, Rules, kept_on_cpu, mentions, new_location, parse_rules, some_kept_on_cpu


def map_location(ckpt: AnyCheckpoint, rules: Rules, *, missing: Missing = "error") -> AnyCheckpoint:
    """Change where storages say they are: "cpu", "cuda:1->cuda:0", "cuda:*=cpu", {"cuda:1": "cuda:0"}, several at once.

    Every storage in the file is reached, also in optimizers and pickled objects. On the CPU stay the states of random
    number generators and the `step` of Adam, which torch refuses elsewhere. Other places where a device is written
    down (torch.device objects, texts) are listed in the history and left as they are.

    On a plain dict of torch tensors the tensors themselves are moved, as torch.load would; ties stay ties.

    Raises:
        NoMatch: no storage is at a location that a rule names, and not all are where it should bring them.
        RuleError: a word is no location.
    """
    parsed = parse_rules(rules)
    moved: Any
    if isinstance(ckpt, Checkpoint):
        moved = _relocate(ckpt, parsed, missing)
    else:
        require("moving tensors in memory", "torch", extra="torch")
        from ..torch_bridge import devices, move

        _require_match(parsed, Counter(devices(ckpt)), devices(ckpt), missing, "")
        moved = move(ckpt, lambda device: new_location(device, parsed))
    return moved  # type: ignore[no-any-return]


def _relocate(ckpt: Checkpoint, parsed: Sequence[LocationRule], missing: Missing) -> Checkpoint:
    held = _held_on_cpu(ckpt)
    before = locations(ckpt.storages())
    movable = set(locations(storage for storage in ckpt.storages() if id(storage) not in held))
    _require_match(parsed, before, movable, missing, ckpt.where)
    moved: Counter[tuple[str, str]] = Counter()
    new_of = cache(lambda location: new_location(location, parsed))

    def change(storage: Storage) -> Storage:
        old = storage.location
        new = new_of(old)
        if new is None or new == old or (id(storage) in held and new != "cpu"):
            return storage
        moved[old, new] += 1
        return storage.changed(location=new)

    done = map_storages(ckpt, change)
    total = sum(before.values())
    lines = [
        f"map-location {printable(old)} -> {new}: {count:,} of {counted(total, 'storage')}"
        for (old, new), count in moved.items()
    ]
    if not lines:
        there = "; all are where they should be" if movable <= {rule.target for rule in parsed} and movable else ""
        lines = [f"map-location: 0 of {counted(total, 'storage')} changed{there}"]
    if held and any(rule.takes("cpu") and rule.target != "cpu" for rule in parsed):
        stay = counted(len(held), "storage stays", "storages stay")
        lines.append(f"note: {stay} on cpu (random number generators, steps of Adam)")
    written = mentions(done.root)
    lines += [
        f"note: {printable(place, 60) or 'the root'} also names a device ({printable(text, 40)}); left as it is"
        for place, text in written[:_MENTIONS_SHOWN]
    ]
    if len(written) > _MENTIONS_SHOWN:
        lines.append(f"note: {len(written) - _MENTIONS_SHOWN:,} more places name a device; left as they are")
    return done.noting(*lines)


_MENTIONS_SHOWN = 8


def _require_match(
    rules: Sequence[LocationRule], before: Counter[str], movable: set[str], missing: Missing, where: str
) -> None:
    """Refuse a rule that speaks of no storage, unless all that can move are already where it brings them."""
    for rule in rules:
        idle = rule.source is not None and not any(map(rule.takes, before)) and movable != {rule.target}
        if idle and missing == "error" and before:
            raise NoMatch(
                f"no storage is on {rule.source}",
                where=where,
                evidence=[", ".join(f"{printable(place)}: {counted(n, 'storage')}" for place, n in before.items())],
                hint=_other_rule(rule, sorted(movable)),
            )


def _other_rule(rule: LocationRule, places: Sequence[str]) -> str:
    source = next((place for place in places if place != rule.target), None)
    if source is None:
        return "--if-present lets rules match nothing"
    return f"--map-location {shell_quote(f'{source}={rule.target}', 200)}"


def _held_on_cpu(ckpt: Checkpoint) -> set[int]:
    """The storages on the CPU that must stay there; one that a weight shares is not held."""
    held: dict[int, bool] = {}
    paths = Paths()
    for trail, node in walk(ckpt.root, holds_tensors_alone):
        for storage, stays in _storages_at(node, trail, paths):
            if storage.location == "cpu":
                held[id(storage)] = held.get(id(storage), True) and stays
    return {key for key, stays in held.items() if stays}


def _storages_at(node: Any, trail: Trail, paths: Paths) -> Iterable[tuple[Storage, bool]]:
    """The storage that a node is or uses, or those of a dict that holds tensors alone, each with whether it stays on
    the CPU by its place.
    """
    if isinstance(node, LazyTensor | Storage):
        return [(node.storage if isinstance(node, LazyTensor) else node, kept_on_cpu(paths.of(trail)))]
    if not holds_tensors_alone(node):
        return []
    above, keys = paths.below(trail), key_column(node.entries)
    storages = map(attrgetter("storage"), value_column(node.entries))
    if not some_kept_on_cpu(above, keys):
        return zip(storages, repeat(False), strict=False)
    return zip(storages, (kept_on_cpu(above + component_text(key)) for key in keys), strict=True)


#: The name of the command.
remap = map_location
