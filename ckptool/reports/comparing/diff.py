"""How two checkpoints differ, as a value: keys, shapes, types, values, other entries, and form. In bounded memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from operator import itemgetter
from typing import Any, Literal

from ... import keys
from ...checkpoint import Checkpoint, StateDict
from ...disk.files import StrPath
from ...errors import counted, printable
from ...ranks import Group
from ...records import record
from ...tensor import LazyTensor
from ...tree import metadata_of
from . import numbers as values
from .contents import Contents, contents_of, told_apart
from .numbers import Difference
from .ranked import in_ranks, open_alike
from .renames import alike, rename_command

Status = Literal["equal", "close", "moved", "perhaps moved", "type", "values", "shape", "only left", "only right"]
#: From what differs most to what does not.
STATUSES: tuple[Status, ...] = (
    "only left", "only right", "shape", "perhaps moved", "moved", "type", "values", "close", "equal",
)  # fmt: skip


@record(frozen=True, slots=True)
class Side:
    """A tensor on one side: its name there (the key in a state dict, else the path), and what it is."""

    name: str
    dtype: str
    shape: list[int]
    location: str
    parameters: int
    weight: bool


@record(frozen=True, slots=True)
class Pair:
    """A tensor on the left and the one that it is checked against on the right; None where there is none.

    Attributes:
        left, right: the two.
        status: "equal" (in all bits, or two NaN), "close" (within the tolerance), "values", "type" (another element
            type, whether or not the numbers are equal), "shape", "moved" (equal, under another name), "perhaps moved"
            (of equal shape and place in the order, but not equal), "only left", "only right".
        values: how the values differ, where that was computed.
    """

    left: Side | None
    right: Side | None
    status: Status
    values: Difference | None = None

    @property
    def name(self) -> str:
        """The name, on the left if it is there."""
        side = self.left or self.right
        return side.name if side else ""


@dataclass(frozen=True, slots=True)
class Diff:
    """How two checkpoints differ.

    Attributes:
        left: the first file.
        right: the second file.
        formats: the names of their formats.
        pairs: every tensor of both, those that differ most first.
        entries: (path, text on the left, text on the right) of other entries that differ; None where there is none.
        form: what differs in form: devices, order, ties, `_metadata`.
        suggestions: (command, what for).
        parts: which of the two is a part of a checkpoint in several files.
    """

    left: str
    right: str
    formats: tuple[str, str]
    pairs: list[Pair]
    entries: list[tuple[str, str | None, str | None]]
    form: list[str]
    suggestions: list[tuple[str, str]]
    parts: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether both hold the same: every tensor equal or close, and every other entry."""
        return not self.entries and all(pair.status in ("equal", "close") for pair in self.pairs)

    def count(self, status: Status) -> int:
        """How many pairs have a status."""
        return sum(pair.status == status for pair in self.pairs)

    def coverage(self, side: Literal["left", "right"]) -> tuple[int, int, int, int]:
        """Of the tensors on one side: how many have a partner of the same shape, all, and the same in parameters."""
        mine = [pair for pair in self.pairs if getattr(pair, side) is not None]
        met = [pair for pair in mine if pair.left and pair.right and pair.status != "shape"]

        def size(pairs: list[Pair]) -> int:
            return sum(getattr(pair, side).parameters for pair in pairs)

        return len(met), len(mine), size(met), size(mine)

    def as_json(self) -> dict[str, Any]:
        """The document that `ckptool diff --json` prints."""
        document: dict[str, Any] = {"same": self.same, **asdict(self)}
        for pair in document["pairs"]:
            numbers = pair["values"] or {}
            for name, number in numbers.items():
                if isinstance(number, float) and (isnan(number) or number == float("inf")):
                    numbers[name] = None  # which JSON has no word for
        return document


def diff(
    left: StrPath | Checkpoint,
    right: StrPath | Checkpoint,
    *,
    at: str | None = None,
    weights: bool = False,
    rtol: float = 0.0,
    atol: float = 0.0,
    detect_renames: bool = False,
    strict: bool = False,
    progress: Callable[[int], None] | None = None,
    ranks: Group | None = None,
) -> Diff:
    """Compare two checkpoints of any formats. Tensors are read in pieces, so memory does not grow with the files.

    If each holds one state dict, the two are compared key by key, wherever they stand in their files. All else is
    compared by its path.

    Args:
        left: the first file; differences are those of LEFT from RIGHT.
        right: the second file.
        at: path of the state dict, in the files that have several.
        weights: compare the state dicts only.
        rtol: the relative tolerance: values are close if |a - b| <= atol + rtol * |b|.
        atol: the absolute tolerance.
        detect_renames: look for tensors that only have another name, by their content and then by shape and order.
        strict: count differences in form as entries that differ.
        progress: called with the number of bytes of the left file that were compared, each time.
        ranks: this process and others that compare the same two files together; each reads a share of them.

    Raises:
        CheckpointError: a file cannot be read.
    """
    one, other = open_alike(left, ranks), open_alike(right, ranks)
    sides = [_state_dicts(ckpt, at) for ckpt in (one, other)]
    by_key = all(len(found) == 1 for found in sides)
    mine, its = (contents_of(ckpt, found, by_key=by_key) for ckpt, found in zip((one, other), sides, strict=True))
    if weights:
        mine, its = (replace(found, others={}, entries={}, layers={}) for found in (mine, its))
    if mine.layers and its.layers:  # else one of them is a state dict, which has none
        mine, its = (replace(found, entries=found.entries | found.layers) for found in (mine, its))
    pairs = _paired(mine.weights, its.weights, True) + _paired(mine.others, its.others, False)
    if detect_renames:
        pairs = _with_renames(pairs, ranks)
    compared = _compared(pairs, rtol, atol, progress, ranks)
    entries = [
        (name, mine.entries.get(name), its.entries.get(name))
        for name in dict.fromkeys([*mine.entries, *its.entries])
        if mine.entries.get(name) != its.entries.get(name)
    ]
    form = list(_form(sides[0], sides[1], mine, its, (one, other)))
    if strict:
        entries += [(f"(form) {line}", None, None) for line in form]
        form = []
    return Diff(
        one.where or "in memory" if isinstance(left, Checkpoint) else str(left),
        str(right),
        (one.format, other.format),
        sorted(compared, key=_rank),
        entries,
        form,
        _suggestions(one, compared),
        [f"{printable(ckpt.where, 200)}: it is {ckpt.part_of}" for ckpt in (one, other) if ckpt.part_of],
    )


@record(frozen=True, slots=True)
class _Match:
    """A pair that still has its tensors."""

    left: tuple[str, LazyTensor] | None
    right: tuple[str, LazyTensor] | None
    weight: bool
    found: Status | None = None  # how it came to be one, if not by name


def _state_dicts(ckpt: Checkpoint, at: str | None) -> list[StateDict]:
    found = ckpt.state_dicts()
    if at is None or (len(found) == 1 and found[0].path != at and not at):
        return found
    return found if len(found) == 1 and found[0].path == "" else [ckpt.state_dict(at)]


def _paired(left: dict[str, LazyTensor], right: dict[str, LazyTensor], weight: bool) -> list[_Match]:
    return [
        _Match(
            (name, left[name]) if name in left else None,
            (name, right[name]) if name in right else None,
            weight,
        )
        for name in dict.fromkeys([*left, *right])
    ]


# -- renames


def _with_renames(pairs: list[_Match], ranks: Group | None) -> list[_Match]:
    """Join tensors that are on one side only, if they are equal, or stand in the same place of the order."""
    kept = [pair for pair in pairs if pair.left and pair.right]
    left = [(pair.left, pair.weight) for pair in pairs if pair.left and not pair.right]
    right = [(pair.right, pair.weight) for pair in pairs if pair.right and not pair.left]
    shapes = {_kind(one[1]) for one, _ in left if one} & {_kind(one[1]) for one, _ in right if one}
    asked = [one for one, _ in [*left, *right] if one and _kind(one[1]) in shapes]
    digested = in_ranks(lambda one: values.digest(one[1]), asked, lambda one: one[1].nbytes, ranks)
    digests = {id(one[1]): digest for one, digest in digested}
    where: dict[str, list[int]] = defaultdict(list)
    for number, (one, _) in enumerate(right):
        if one and id(one[1]) in digests:
            where[digests[id(one[1])]].append(number)
    joined: dict[int, tuple[int, Status]] = {}
    for number, (one, _) in enumerate(left):
        candidates = where.get(digests.get(id(one[1]), ""), []) if one else []
        if one and candidates:
            best = max(candidates, key=lambda at: alike(one[0], _name(right[at][0])))
            candidates.remove(best)
            joined[number] = (best, "moved")
    taken = {at for at, _ in joined.values()}
    rest = [n for n, (_, weight) in enumerate(left) if n not in joined and weight]
    free = [n for n, (_, weight) in enumerate(right) if n not in taken and weight]
    if rest and [_signature(left[n][0]) for n in rest] == [_signature(right[n][0]) for n in free]:
        joined |= {n: (at, "perhaps moved") for n, at in zip(rest, free, strict=True)}
        taken |= set(free)
    for number, (one, weight) in enumerate(left):
        at, status = joined.get(number, (None, None))
        kept.append(_Match(one, right[at][0] if at is not None else None, weight, status))
    kept += [_Match(None, one, weight) for number, (one, weight) in enumerate(right) if number not in taken]
    return kept


def _kind(tensor: LazyTensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype.name, tensor.shape


def _name(one: tuple[str, LazyTensor] | None) -> str:
    return one[0] if one else ""


def _signature(one: tuple[str, LazyTensor] | None) -> tuple[str, tuple[int, ...]]:
    """What two tensors have in common that may be one: the last part of the name, and the shape."""
    assert one is not None
    return one[0].rpartition(".")[2], one[1].shape


# -- values


def _compared(
    pairs: list[_Match],
    rtol: float,
    atol: float,
    progress: Callable[[int], None] | None,
    ranks: Group | None,
) -> list[Pair]:
    """Compare the values of all pairs of one shape: first by their bits, then those that differ as numbers."""
    work = [
        (number, at, length)
        for number, pair in enumerate(pairs)
        if pair.left and pair.right and _same_bytes_possible(pair.left[1], pair.right[1])
        for at, length in values.shares(pair.left[1].source().length)  # refused where it is endless
    ]
    unequal: set[int] = set()

    def check(item: tuple[int, int, int]) -> bool:
        number, at, length = item
        if number in unequal:
            return False
        left, right = pairs[number].left, pairs[number].right
        assert left is not None
        assert right is not None
        return values.equal_bits(left[1].source(), right[1].source(), at, length)

    for (number, _, _), equal in in_ranks(check, work, itemgetter(2), ranks, progress):
        if not equal:
            unequal.add(number)
    to_do = [n for n, pair in enumerate(pairs) if pair.left and pair.right and _numbers_wanted(pair, n in unequal)]
    differences = _differences(pairs, to_do, rtol, atol, ranks)
    return [_pair(pair, number in unequal, differences.get(number)) for number, pair in enumerate(pairs)]


def _same_bytes_possible(left: LazyTensor, right: LazyTensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape


def _numbers_wanted(pair: _Match, unequal: bool) -> bool:
    assert pair.left is not None
    assert pair.right is not None
    left, right = pair.left[1], pair.right[1]
    comparable = values.can_be_compared(left.dtype) and values.can_be_compared(right.dtype)
    return comparable and left.shape == right.shape and (unequal or left.dtype != right.dtype)


def _differences(
    pairs: list[_Match], numbers: list[int], rtol: float, atol: float, ranks: Group | None
) -> dict[int, Difference]:
    sums: dict[int, list[Any]] = {number: [] for number in numbers}

    def work() -> Iterator[tuple[int, Callable[[], Any]]]:
        for number in numbers:
            left, right = pairs[number].left, pairs[number].right
            assert left is not None
            assert right is not None
            for part in values.compare(left[1], right[1], rtol, atol):
                yield number, part

    def size(item: tuple[int, Any]) -> int:
        left = pairs[item[0]].left
        return left[1].nbytes if left else 0

    for (number, _), found in in_ranks(lambda item: item[1](), work(), size, ranks):
        sums[number].append(found)
    return {number: values.total(parts) for number, parts in sums.items()}


def _pair(pair: _Match, unequal: bool, found: Difference | None) -> Pair:
    left, right = _side(pair.left, pair.weight), _side(pair.right, pair.weight)
    if left == right:
        right = left  # most are, where there are many
    if pair.left is None or pair.right is None:
        return Pair(left, right, "only left" if right is None else "only right")
    if pair.left[1].shape != pair.right[1].shape:
        return Pair(left, right, "shape")
    if pair.left[1].dtype != pair.right[1].dtype:
        return Pair(left, right, "type", found)
    if found is not None and not found.different:
        unequal, found = False, None  # NaN of other bits, or -0.0
    if pair.found:
        return Pair(left, right, pair.found, found)
    if not unequal:
        return Pair(left, right, "equal")
    return Pair(left, right, "close" if found is not None and not found.beyond else "values", found)


def _side(one: tuple[str, LazyTensor] | None, weight: bool) -> Side | None:
    if one is None:
        return None
    name, t = one
    return Side(name, t.dtype.name, list(t.shape), t.location, t.numel, weight)


def _rank(pair: Pair) -> tuple[int, float]:
    """What differs most comes first; equals keep the order of the file."""
    return STATUSES.index(pair.status), -pair.values.distance if pair.values else 0.0


# -- form


def _form(
    left: Sequence[StateDict],
    right: Sequence[StateDict],
    mine: Contents,
    its: Contents,
    ckpts: tuple[Checkpoint, Checkpoint],
) -> Iterator[str]:
    """What differs without being content."""
    moved: Counter[tuple[str, str]] = Counter()
    for here, there in ((mine.weights, its.weights), (mine.others, its.others)):
        if len({t.location for side in (here, there) for t in side.values()}) > 1:
            both = ((here[name].location, there[name].location) for name in here if name in there)
            moved.update((old, new) for old, new in both if old != new)
    for (old, new), count in moved.most_common():
        yield f"{counted(count, 'tensor')} on {printable(old, 30)} at the left, on {printable(new, 30)} at the right"
    one, other = mine.weights, its.weights
    if [name for name in one if name in other] != [name for name in other if name in one]:
        known = all(ckpt.order_preserved for ckpt in ckpts)
        yield "the keys stand in another order" + ("" if known else ", which one of the two files does not keep")
    ties = [{tuple(group) for one in side for group in one.ties()} for side in (left, right)]
    for alone, word in ((ties[0] - ties[1], "left"), (ties[1] - ties[0], "right")):
        for group in sorted(alone)[:6]:
            yield f"tied at the {word} only: {' = '.join(printable(key, 60) for key in group)}"
    if len(left) == len(right) == 1:
        a, b = (told_apart(metadata_of(side[0].node)) for side in (left, right))
        if a != b:
            yield "`_metadata`, which torch keeps beside the keys, differs"


# -- what to type


def _suggestions(left: Checkpoint, pairs: list[Pair]) -> list[tuple[str, str]]:
    """The command that gives the tensors on the left the names that they have on the right."""
    missing = [pair.left.name for pair in pairs if pair.left and pair.left.weight and not pair.right]
    wanted = {pair.right.name for pair in pairs if pair.right and pair.right.weight and not pair.left}
    renamed = {
        pair.left.name: pair.right.name
        for pair in pairs
        if pair.status in ("moved", "perhaps moved") and pair.left and pair.right and pair.left.weight
    }
    if not renamed:
        unwrapped = keys.unwrap(missing)
        renamed = {key: new for key, new in unwrapped.items() if new != key and new in wanted}
        wrapped = {key: f"module.{key}" for key in missing if f"module.{key}" in wanted}
        renamed = renamed or wrapped
    command = rename_command(left.where, [p.left.name for p in pairs if p.left and p.left.weight], renamed)
    return [(command, "to give the tensors at the left the names that they have at the right")] if command else []
