"""The passes that change values, or how they share memory: cast, untie, compact, average.

As all passes they return a new checkpoint and read no tensor; values are computed in bounded pieces when the result is
written.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from ..checkpoint import Checkpoint, StateDict, settle_ties
from ..disk.files import Source
from ..disk.paths import shell_path, shell_quote
from ..dtypes import BY_NAME, UINT8, DType
from ..errors import CannotCarry, RuleError, counted, printable
from ..keys import Pattern
from ..signs import Negated, require_resolvable
from ..tensor import LazyTensor, Storage, contiguous_stride, little_endian
from ..tree import rebuild, walk, with_entries
from ._words import TIES
from .by_key import Missing, patterns_for
from .casting import Cast, Tally, castable, convert, numpy_type
from .envelopes import extract
from .packed import Packed, packed_in, unknown_in
from .side_files import with_dtype


def cast(
    ckpt: Checkpoint,
    dtype: str,
    *,
    keep: str | Sequence[str] = (),
    at: str | None = None,
    missing: Missing = "error",
) -> Checkpoint:
    """Cast the floating point tensors of the weights to DTYPE ("bf16", "float16", "e4m3"), as `torch.Tensor.to` does.

    A complex DTYPE ("complex64") casts the complex tensors instead. Weights that are packed over several tensors
    (bitsandbytes, GPTQ, AWQ, float8 with scales …) are left as they are, with their scales, and named; see
    `ckptool.passes.packed`. Integers, booleans and numbers of the other kind stay, and so does what stands around the
    weights. Tensors that share memory are cast together; lazily negated ones are negated before, so they share no
    memory with others any more. How many values overflow, become 0 or are NaN is counted when they are written.

    Args:
        ckpt: the checkpoint.
        dtype: the new type.
        keep: patterns of keys whose tensors stay as they are, with all that are tied to them.
        at: path of the state dict.
        missing: "ok" lets patterns match nothing.

    Raises:
        RuleError: there is no such type.
        NoMatch: a pattern of KEEP matches no key.
        CannotCarry: a storage is used as several types, a lazily negated tensor has a type without negative numbers, or
            a weight looks packed in a way that is not known, and KEEP does not match what belongs to it.
    """
    new = castable(dtype)
    weights = ckpt.state_dict(at)
    patterns = patterns_for(weights, keep, ckpt, missing)
    tensors = weights.tensors
    kept = {t.storage.identity for key, t in tensors.items() if any(pattern.matches(key) for pattern in patterns)}
    packed = packed_in(weights)
    together = {key for one in packed for key in one.keys}
    _require_known(ckpt, tensors, together, patterns)
    held_back = kept | {tensors[key].storage.identity for key in together}
    seen: dict[int, set[DType]] = defaultdict(set)
    for _, tensor in ckpt.tensors():
        seen[id(tensor.storage)].add(tensor.dtype)
    tally = Tally()
    made: dict[tuple[int, bool], Storage] = {}
    changed = negated = 0
    for key, tensor in tensors.items():
        old, storage = tensor.dtype, tensor.storage
        castable_too = old.is_complex if new.is_complex else old.is_floating and old.numpy is not None
        if not castable_too or storage.identity in held_back or (old == new and not tensor.neg):
            continue
        if len(seen[id(storage)]) > 1:
            raise CannotCarry("tensors of several types share a storage, which cannot be cast", where=ckpt.where)
        changed += 1
        negated += tensor.neg
        if (id(storage), tensor.neg) not in made:
            plain = little_endian(storage, old)
            source = plain.source
            if tensor.neg:
                require_resolvable(old, ckpt.where)
                source = Negated(source, old)
            made[id(storage), tensor.neg] = plain.changed(
                source=source if old == new else Cast(source, old, new, tally, key),
                dtype=new if new.storage else None,
                crc=None,
            )

    def leaf(node: LazyTensor | Storage) -> LazyTensor | Storage:
        if isinstance(node, LazyTensor) and (id(node.storage), node.neg) in made:
            return node.changed(storage=made[id(node.storage), node.neg], dtype=new, neg=False)
        return node

    if packed and not changed:
        families = ", ".join(dict.fromkeys(one.family for one in packed))
        what = f"has packed weights ({families}), which a cast leaves alone, and nothing else to cast to {new.name}"
        hint = "--dequantize   # makes plain weights of them first"
        raise CannotCarry(what, where=ckpt.where, hint=hint)
    before = sum(t.nbytes for t in tensors.values())
    done = with_dtype(replace(ckpt, root=rebuild(ckpt.root, leaf=leaf)), new.name)
    mine = (t for t in tensors.values() if (id(t.storage), t.neg) in made)
    after = before + sum(t.numel * (new.itemsize - t.dtype.itemsize) for t in mine)
    held = sum(t.storage.identity in kept for t in tensors.values())
    line = f"cast to {new.name}: {changed:,} of {counted(len(tensors), 'tensor')}, {before:,} bytes -> {after:,}"
    note = counted(negated, "lazily negated tensor is stored as its", "lazily negated tensors are stored as their")
    lines = [line + (f"; {held:,} kept" if patterns else ""), *([f"note: {note} values"] if negated else [])]
    return done.noting(*lines, *_packed_lines(packed))


def _require_known(
    ckpt: Checkpoint, tensors: Mapping[str, LazyTensor], known: set[str], patterns: Sequence[Pattern]
) -> None:
    """Refuse to cast what may be the scale of a packed weight, unless somebody said that it is to be kept."""
    unknown = [
        (key, beside)
        for key, beside in unknown_in(tensors, known)
        if not any(pattern.matches(beside) for pattern in patterns)
    ]
    if unknown:
        last = re.escape(unknown[0][1].rpartition(".")[2])
        raise CannotCarry(
            f"{counted(len(unknown), 'weight looks', 'weights look')} packed in a way that is not known:",
            where=ckpt.where,
            evidence=[
                f"{printable(key, 80)} ({tensors[key].dtype.name}) beside {printable(beside, 80)}"
                for key, beside in unknown[:5]
            ],
            hint=f"--cast-keep {shell_quote(f're:{last}$', 200)}   # leaves these alone",
        )


def _packed_lines(packed: Sequence[Packed]) -> Iterator[str]:
    families: dict[str, list[Packed]] = {}
    for one in packed:
        families.setdefault(one.family, []).append(one)
    for family, ones in families.items():
        count = sum(len(one.keys) for one in ones)
        names = ", ".join(printable(one.name, 80) for one in ones[:3]) + (", …" if ones[3:] else "")
        weights = counted(len(ones), "packed weight")
        yield f"note: {weights} ({family}) left as they are, {counted(count, 'tensor')} with their scales: {names}"


def untie(ckpt: Checkpoint, *, at: str | None = None) -> Checkpoint:
    """Give each key of the weights a tensor of its own where several share one. Other sharing stays."""
    weights = ckpt.state_dict(at)
    apart: dict[str, LazyTensor] = {}
    for group in weights.ties():
        for key in group:
            apart[key] = _alone(weights.tensors[key])
    entries = [(key, apart.get(key, value) if isinstance(key, str) else value) for key, value in weights.node.entries]
    done = with_other_entries(ckpt, weights, entries)
    return done.noting(f"untie: {counted(len(apart), 'key')} in {counted(len(weights.ties()), 'tie')}")


def ties(ckpt: Checkpoint, how: str, *, at: str | None = None) -> Checkpoint:
    """Say what becomes of keys that share one tensor where a format cannot share memory.

    Args:
        ckpt: the checkpoint.
        how: "keep" stores it for each of them and notes the tie, "drop" stores it once and notes the other names in the
            header, as `save_model` of safetensors does and `load_model` wants it, "clone" unties them.
        at: path of the state dict.

    Raises:
        RuleError: HOW is none of these.
    """
    if how not in TIES:
        raise RuleError(f"{printable(repr(how), 40)} is none of {', '.join(TIES)}", where="--ties", hint="--ties keep")
    count = len(ckpt.state_dict(at).ties())
    if how == "clone":
        return replace(untie(ckpt, at=at), ties="keep")
    return replace(ckpt, ties=how).noting(
        f"ties: {how}, of {counted(count, 'tensor with several keys', 'tensors with several keys')}"
    )


def _alone(tensor: LazyTensor) -> LazyTensor:
    """The same values over a storage of their own, in C order."""
    storage = Storage(tensor.source(), tensor.location, tensor.dtype if tensor.dtype.storage else None)
    return tensor.changed(storage=storage, stride=contiguous_stride(tensor.shape), offset=0, conj=False, neg=False)


def with_other_entries(ckpt: Checkpoint, weights: StateDict, entries: list[tuple[Any, Any]]) -> Checkpoint:
    """CKPT with other entries in a state dict."""
    if weights.model is not None:
        raise RuleError("its weights are in a whole pickled model", where=ckpt.where, hint="add --extract")
    return replace(ckpt, root=rebuild(ckpt.root, instead={id(weights.node): with_entries(weights.node, entries)}))


def compact(ckpt: Checkpoint) -> Checkpoint:
    """Leave behind the parts of storages that no tensor uses, wherever they are in the file.

    A slice no longer brings its whole storage along. Tensors that overlap keep sharing memory; strides stay.
    """
    extents: dict[int, list[tuple[int, int]]] = defaultdict(list)
    storages: dict[int, Storage] = {}
    bare: set[int] = set()
    for _, node in walk(ckpt.root):
        if isinstance(node, Storage):
            bare.add(id(node))
        elif isinstance(node, LazyTensor):
            storages[id(node.storage)] = node.storage
            extents[id(node.storage)] += [_extent(node)] if node.numel else []
    made: dict[int, list[tuple[int, int, Storage]]] = {}
    for number, storage in storages.items():
        parts = _merged(extents[number])
        if number not in bare and parts != [(0, storage.nbytes)] and storage.nbytes:
            made[number] = [(low, high, _part(storage, low, high)) for low, high in parts]
    empty: dict[int, Storage] = {}

    def leaf(node: LazyTensor | Storage) -> LazyTensor | Storage:
        if not isinstance(node, LazyTensor) or id(node.storage) not in made:
            return node
        if not node.numel:
            storage = empty.setdefault(id(node.storage), _part(node.storage, 0, 0))
            return node.changed(storage=storage, offset=0)
        parts = made[id(node.storage)]  # in order, without overlap
        low, _, storage = parts[bisect_right(parts, _extent(node)[0], key=itemgetter(0)) - 1]
        return node.changed(storage=storage, offset=node.offset - low // node.dtype.itemsize)

    before = sum(storage.nbytes for storage in storages.values())
    left = before - sum(storages[number].nbytes - sum(h - lo for lo, h, _ in parts) for number, parts in made.items())
    line = f"compact: {len(made):,} of {counted(len(storages), 'storage')}, {before:,} bytes -> {left:,}"
    return replace(ckpt, root=rebuild(ckpt.root, leaf=leaf)).noting(line)


def _extent(tensor: LazyTensor) -> tuple[int, int]:
    """First byte and end of a tensor that is not empty; the first at a multiple of 16, which suits every type."""
    item = tensor.dtype.itemsize
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride, strict=True))
    start = tensor.offset * item
    return start - start % 16, (last + 1) * item


def _merged(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(extents):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _part(storage: Storage, low: int, high: int) -> Storage:
    source = LazyTensor(Storage(storage.source), UINT8, (high - low,), (1,), low).source()
    return storage.changed(source=source, crc=None, tie=None)


# -- several checkpoints


def average(ckpts: Sequence[Checkpoint], *, ratios: Sequence[float] | None = None, at: str | None = None) -> Checkpoint:
    """The mean of the weights of several checkpoints (of a run, or of runs from one start).

    Floating point and complex tensors are summed in float64, and rounded to their own type at the end (as casts do it).
    Integers, booleans and other values are those of the last checkpoint, and so are order and types. What stands around
    the weights is left behind.

    Args:
        ckpts: at least one.
        ratios: how much each counts, divided by their sum. None: all the same. One of 0 is left out, whatever it holds.
        at: path of the state dict in each.

    Raises:
        RuleError: the numbers of RATIOS and checkpoints differ, or they sum to 0.
        CannotCarry: keys, shapes or types differ, or weights are packed.
    """
    factors = _factors(len(ckpts), ratios)
    ckpts = list(map(settle_ties, ckpts))  # what a note calls tied may not be, any more
    found = [ckpt.state_dict(at) for ckpt in ckpts]
    for ckpt, other in zip(ckpts, found, strict=True):
        if packed := packed_in(other):
            what = (
                f"has packed weights ({packed[0].family}), whose numbers have no mean: {printable(packed[0].name, 80)}"
            )
            raise CannotCarry(what, where=ckpt.where)
        _require_same(ckpt, other, ckpts[-1], found[-1])
    counting = [number for number, factor in enumerate(factors) if factor]
    taken, last, last_ckpt = [found[number] for number in counting], found[counting[-1]], ckpts[counting[-1]]
    made: dict[tuple[Any, ...], LazyTensor] = {}
    entries: list[tuple[Any, Any]] = []
    count = 0
    for key, value in last.node.entries:
        if isinstance(value, LazyTensor) and (value.dtype.is_floating or value.dtype.is_complex) and value.dtype.numpy:
            tensors = [other.tensors[str(key)] for other in taken]
            alike = tuple(tensor.identity for tensor in tensors)  # tied in all: tied in the mean
            if alike not in made:
                made[alike] = value if len(tensors) == 1 else _mean(tensors, [factors[n] for n in counting])
            entries.append((key, made[alike]))
            count += 1
        else:
            entries.append((key, value))
    history = tuple(dict.fromkeys(line for ckpt in ckpts for line in ckpt.history))
    done = extract(replace(with_other_entries(last_ckpt, last, entries), history=history), at=last.path)
    of = f" weighted {', '.join(f'{factor:.4g}' for factor in factors)}" if ratios is not None else ""
    line = f"average of {counted(len(ckpts), 'checkpoint')}{of}: {count:,} of {counted(len(last.tensors), 'tensor')}"
    notes = ["note: the others are those of the last"] if count < len(last.tensors) else []
    zero = len(ckpts) - len(counting)
    notes += [f"note: {counted(zero, 'checkpoint')} with a ratio of 0 left out"] if zero else []
    return done.noting(line, *notes)


def _mean(tensors: Sequence[LazyTensor], factors: Sequence[float]) -> LazyTensor:
    """The weighted mean of tensors of one type and shape, in C order, with all else as the last has it."""
    last = tensors[-1]
    source = Mean(tuple(tensor.source() for tensor in tensors), last.dtype, tuple(factors))
    storage = Storage(source, last.location, last.dtype if last.dtype.storage else None)
    return last.changed(storage=storage, stride=contiguous_stride(last.shape), offset=0, conj=False, neg=False)


def _factors(count: int, ratios: Sequence[float] | None) -> tuple[float, ...]:
    if not count:
        raise RuleError("there is nothing to average")
    ratios = [1.0] * count if ratios is None else [float(ratio) for ratio in ratios]
    total = sum(ratios)
    if len(ratios) != count:
        raise RuleError(f"{counted(len(ratios), 'ratio')} for {counted(count, 'checkpoint')}", where="--ratios")
    if not total or not abs(total) < float("inf"):
        raise RuleError(f"the ratios sum to {total:g}", where="--ratios", hint="--ratios 0.5,0.3,0.2")
    return tuple(ratio / total for ratio in ratios)


def _require_same(ckpt: Checkpoint, other: StateDict, last_ckpt: Checkpoint, last: StateDict) -> None:
    missing = [key for key in last if key not in other]
    more = [key for key in other if key not in last]
    differ = [
        f"{printable(key, 80)}: {_shown(other[key])} and {_shown(last[key])}"
        for key in last
        if key in other and _shown(other[key]) != _shown(last[key])
    ]
    if missing or more or differ:
        evidence = [f"lacks {printable(key, 80)}" for key in missing[:3]]
        evidence += [f"has {printable(key, 80)}, which the other lacks" for key in more[:3]] + differ[:4]
        raise CannotCarry(
            f"is not of the same model as {printable(last_ckpt.where)}:",
            where=ckpt.where,
            evidence=evidence,
            hint=f"ckptool diff {shell_path(ckpt.where)} {shell_path(last_ckpt.where)}",
        )


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, LazyTensor) else "no tensor"


@dataclass(frozen=True, eq=False, slots=True)
class Mean:
    """The weighted mean of tensors of one type and shape, computed in pieces when it is read."""

    sources: tuple[Source, ...]
    dtype: DType
    factors: tuple[float, ...]
    step: int = 1 << 20

    @property
    def length(self) -> int:
        """Bytes of all values."""
        return self.sources[0].length

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET."""
        import numpy as np

        # a complex number is two: times 0.5 + 0i, an infinite part would make NaN of the other
        part = BY_NAME[f"float{4 * self.dtype.itemsize}"] if self.dtype.is_complex else self.dtype
        item = part.itemsize
        first, last = offset // item, -(-(offset + length) // item)
        total = np.full(last - first, -0.0)  # to which 0 and -0 can be added
        with np.errstate(all="ignore"):  # the mean of infinities of both signs is NaN
            for source, factor in zip(self.sources, self.factors, strict=True):
                values = np.frombuffer(source.read(first * item, (last - first) * item), numpy_type(part))
                total += factor * values.astype(np.float64)
        return memoryview(convert(total, part).view(np.uint8).data)[offset - first * item :][:length]

    def chunks(self) -> Iterator[memoryview]:
        """All values, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))
