"""Whether a checkpoint is whole, as a value: every byte read once, and checked against what the file says of itself."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..disk.addresses import is_url
from ..disk.composing import Joined, nested
from ..disk.files import File, FileRange, Source, StrPath, reason
from ..disk.inside import listed
from ..disk.urls import look
from ..dtypes import DType, NotFinite
from ..errors import CheckpointError, NotInstalled, counted, printable
from ..formats import format_of
from ..formats.tiles import Tiled
from ..formats.zip.archive import Archive, Inflated, open_archive
from ..formats.zip.structure import Member, looks_like_zip
from ..ranks import Group
from ..records import record
from ..tensor import LazyTensor, Storage
from ..tree import Trail, address, walk
from .comparing import numbers as values
from .comparing.contents import contents_of
from .comparing.ranked import in_ranks, open_alike
from .manifests import against_manifest, read_manifest, total_digest
from .unread import unread_files, with_all_states

if TYPE_CHECKING:
    from .comparing.diff import Diff

_PAGE = 4096
#: Bytes that are looked at at once: few enough to be in the cache at the second look, and not so few that threads do
#: little but hand the interpreter over to each other.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Verification:
    """What reading every byte of a checkpoint showed.

    Attributes:
        path: the checkpoint.
        format: the name of its format.
        bytes: its size.
        read: bytes that were read.
        damage: what is broken; the checkpoint is not what was saved.
        doubts: what may be right and often is not: NaN, infinite values, pages of zeros between other values.
        notes: what could not be checked, and what else is worth knowing.
        checksums: how many agree, and how many were not recorded.
        digest: that of all weights, if it was asked for: the same weights have the same in every format.
        digests: those of the weights, by name.
        against: the comparison with another file, if that was asked for.
    """

    path: str
    format: str
    bytes: int
    read: int
    damage: list[str]
    doubts: list[str]
    notes: list[str]
    checksums: tuple[int, int]
    digest: str | None = None
    digests: dict[str, str] = field(default_factory=dict)
    against: Diff | None = None

    @property
    def sound(self) -> bool:
        """Whether nothing is broken, and the other file, if there is one, has the same weights."""
        return self.verdict() == "sound"

    def verdict(self, *, strict: bool = False, fits: bool = True) -> str:
        """What it comes to in a word or two: "sound", or what keeps it from that.

        Args:
            strict: what is perhaps wrong counts.
            fits: whether it fits the model that it should fit.
        """
        if self.damage:
            return "DAMAGED"
        if self.against is not None and not self.against.same:
            return "NOT THE SAME"
        if strict and self.doubts:
            return "PERHAPS WRONG"
        return "sound" if fits else "DOES NOT FIT"

    def as_json(self) -> dict[str, Any]:
        """The document that `ckptool verify --json` prints for one file."""
        whole = asdict(self)
        del whole["against"]
        against = self.against.as_json() if self.against else None
        return {"sound": self.sound, **whole, "against": against}


def verify(
    path: StrPath | Checkpoint,
    *,
    against: StrPath | None = None,
    manifest: StrPath | None = None,
    digest: bool = False,
    progress: Callable[[int], None] | None = None,
    ranks: Group | None = None,
) -> Verification:
    """Read every byte of a checkpoint once and check it against what the file says of itself.

    Structure, sizes and the rules of the format are checked by opening it; then checksums, and values.

    Args:
        path: the checkpoint, which may be open already.
        against: another one, which should have the same weights.
        manifest: a file with the digests that its weights should have (see `ckptool.reports.manifests`).
        digest: compute the digests of the weights.
        progress: called with the number of bytes that were read, each time.
        ranks: this process and others that check the same file together; each reads a share of it.

    Raises:
        CheckpointError: it cannot be opened, since it is no checkpoint or contradicts itself; or the manifest cannot.
    """
    expected = read_manifest(manifest) if manifest is not None else None
    ckpt = open_alike(path, ranks)
    unread = unread_files(ckpt)
    damage, doubts, read, matched, unknown = [*unread.damage], [], 0, 0, 0
    regions = chain(_regions(with_all_states(ckpt)), _regions_of(unread.parts))
    looked = in_ranks(lambda one: astuple(_looked_at(one)), regions, _length, ranks, progress)
    for region, counts in looked:
        found = _Found(*counts)
        read += region.source.length
        if found.failure:
            damage.append(f"{region.name}: {found.failure}")
        elif region.crc is None:
            unknown += not region.within
        elif found.crc != region.crc:
            damage.append(f"{region.name}: its CRC-32 is {found.crc:08x}, recorded was {region.crc:08x}")
        else:
            matched += 1
        doubts += [f"{region.name}: {text}" for text in found.doubts()]
    digests = digests_of(ckpt, ranks) if digest or expected is not None else {}
    if expected is not None:
        damage += against_manifest(digests, expected)
    compared = None
    if against is not None:
        from .comparing.diff import diff

        compared = diff(ckpt.where, against, weights=True, ranks=ranks)
    notes = list(ckpt.warnings)
    if unread.parts:
        notes.append(f"read as well, though no weight is made of it: {listed(list(unread.parts))}")
    if unknown and (kind := format_of(ckpt)) and kind.checksums:
        notes.append(f"for {counted(unknown, 'record')} no checksum was recorded")
    elif not matched:
        notes.append(f"{ckpt.format} has no checksums: changed bytes in a tensor would not show")
    return Verification(
        ckpt.where,
        ckpt.format,
        unread.nbytes,
        read,
        damage,
        doubts,
        notes,
        (matched, unknown),
        total_digest(digests) if digests else None,
        digests,
        compared,
    )


# -- what is read


@record(frozen=True, slots=True)
class _Held:
    """What a storage holds: the first of the tensors that are views of it, how many more there are, and their type."""

    trail: Trail
    more: int
    dtype: DType | None


@record(frozen=True, slots=True)
class _Region:
    """A run of bytes: where it is, its checksum if one is recorded, and what it holds.

    `place` is where its first tensor stands in the tree, or the name of a record or storage; `file` and `chunk` tell
    regions of one place apart; `skip` bytes at the beginning of `source` are a header.
    """

    place: Trail | str
    source: Source
    crc: int | None
    held: _Held | None = None
    big_endian: bool = False
    chunk: int = 0
    file: str = ""
    skip: int = 0

    @property
    def dtype(self) -> DType | None:
        """The type of all numbers in it, if they are of one."""
        return self.held.dtype if self.held else None

    @property
    def within(self) -> bool:
        """Whether it is a part of a record whose checksum is compared as a whole."""
        return self.crc is None and any(_is_recorded(part) for part in nested(self.source))

    @property
    def name(self) -> str:
        """What it is called in messages. Few are asked for it, and the path of a place deep in a tree is long."""
        place = self.place if isinstance(self.place, str) else address(self.place)
        more = f" and {self.held.more:,} more" if self.held and self.held.more else ""
        return f"{self.file}{printable(place, 80)}{more}" + (f", chunk {self.chunk:,}" if self.chunk else "")


@dataclass(slots=True)
class _Found:
    crc: int = 0
    failure: str = ""
    nan: int = 0
    infinite: int = 0
    pages: int = 0
    zero_pages: int = 0
    first_zero: int | None = None
    only_zeros: bool = True

    def doubts(self) -> Iterator[str]:
        """What may be wrong with the values."""
        if self.nan:
            yield f"{self.nan:,} NaN"
        if self.infinite:
            yield counted(self.infinite, "infinite value")
        if self.zero_pages and not self.only_zeros:
            yield (
                f"{counted(self.zero_pages, 'page')} of {_PAGE:,} bytes hold zeros only, the first at byte "
                f"{self.first_zero:,}"
            )


def _regions(ckpt: Checkpoint) -> Iterator[_Region]:
    """Everything in the files of a checkpoint: the records of archives, the storages of other files."""
    held: dict[int, _Held] = {}
    storages: dict[int, Storage] = {}
    for trail, node in walk(ckpt.root):
        if isinstance(node, LazyTensor):
            storage = node.storage
            known = held.get(id(storage))
            if known is None:
                held[id(storage)] = _Held(trail, 0, node.dtype)
            else:
                dtype = known.dtype if known.dtype == node.dtype else None
                held[id(storage)] = _Held(known.trail, known.more + 1, dtype)
        elif isinstance(node, Storage):
            storage = node
        else:
            continue
        storages.setdefault(id(storage), storage)
    files: dict[int, File] = {}
    inside: dict[int, dict[int, Storage]] = {}  # file -> the storages in it, by where they begin
    alone: list[Storage] = []
    headers: dict[int, int] = {}  # storage -> bytes of its record that stand before its values
    for storage in storages.values():
        source, header = _record_of(storage.source)
        if header:
            headers[id(storage)] = header
        if not isinstance(source, FileRange | Inflated):
            alone.append(storage)
            chunks = isinstance(source, Joined | Tiled)
            parts = (part for part in nested(source) if isinstance(part, FileRange) and (part.whole or not chunks))
            files.update((id(part.file), part.file) for part in parts if _is_recorded(part))
            continue
        file, at = source.file.located(source.offset) if isinstance(source, FileRange) else _packed(source)
        files[id(file)] = file
        inside.setdefault(id(file), {})[at] = storage

    def told(storage: Storage) -> Iterator[_Region]:
        used = held.get(id(storage))
        place = used.trail if used else storage.key
        source = storage.source
        if isinstance(source, Joined | Tiled):  # chunks with checksums of their own
            for number, (chunk, crc) in enumerate(source.stored(), 1):
                yield _Region(place, chunk, crc, used, storage.big_endian, number)
        else:
            yield _Region(place, source, storage.crc, used, storage.big_endian)

    if not files and ckpt.path is not None and (is_url(ckpt.path) or ckpt.path.is_file()):  # an archive without tensors
        alone_in = look(ckpt.path)
        if isinstance(alone_in, File):
            files[id(alone_in)] = alone_in
    for number, file in files.items():
        mine = inside.get(number, {})
        archive = _archive(file)
        if archive is None:
            for storage in mine.values():
                yield from told(storage)
            continue
        prefix = f"{printable(file.path.name, 60)}: " if len(files) > 1 else ""
        for name, member in archive.members.items():
            here = mine.get(member.start) if member.size else None
            source = archive.source(name)
            region = next(told(here)) if here else _Region(name, source, None)
            skip = headers.get(id(here), 0)
            values_of = region.held if skip % 16 == 0 else None  # else pieces of the record would cut numbers in two
            yield replace(region, file=prefix, source=source, crc=_recorded(member), skip=skip, held=values_of)
    for storage in alone:
        yield from told(storage)


def _regions_of(others: dict[str, Checkpoint]) -> Iterator[_Region]:
    """The same of files beside it."""
    for name, part in others.items():
        yield from (replace(region, file=f"{name}: ") for region in _regions(part))


def _record_of(source: Source) -> tuple[Source, int]:
    """The record that a storage is the rest of, and how many bytes stand before it there: arrays have a header."""
    whole: Any = getattr(source, "whole", None)
    if whole is None:
        return source, 0
    skip = source.offset - whole.offset if isinstance(source, FileRange) else whole.length - source.length
    return (whole, skip) if skip + source.length == whole.length else (source, 0)


def _length(region: _Region) -> int:
    return region.source.length


def _is_recorded(source: object) -> bool:
    """Whether it is a record with a checksum, or a part of one."""
    return isinstance(source, FileRange) and (source.crc is not None or source.whole is not None)


def _packed(source: Inflated) -> tuple[File, int]:
    return source.packed.file, source.packed.offset


def _archive(file: File) -> Archive | None:
    """A file as a zip archive. One with several archives in a row (of torch.distributed.checkpoint) is none."""
    if not looks_like_zip(file.read(0, min(4, file.size))):
        return None
    try:
        return open_archive(file, any_layout=True)
    except CheckpointError:
        return None


def _recorded(member: Member) -> int | None:
    """The checksum of a record; a 0 over some bytes means that none was recorded."""
    return member.crc if member.crc or not member.size else None


def _looked_at(region: _Region) -> _Found:
    """Read a region once."""
    found = _Found()
    start = region.source.offset if isinstance(region.source, FileRange) else None
    rule = region.dtype.not_finite if region.dtype else None
    at = 0
    try:
        for piece in _pieces(region.source):
            if region.crc is not None:
                found.crc = zlib.crc32(piece, found.crc)
            values = memoryview(piece)[region.skip - at :] if at < region.skip else piece
            if rule is not None:
                _count_odd(found, values, rule, region.big_endian)
            if start is not None and region.dtype is not None:
                _count_pages(found, piece, start + at)
            at += len(piece)
    except NotInstalled:  # a package that computes the values
        raise
    except CheckpointError as error:
        found.failure = error.what
    except OSError as error:  # of the disk
        found.failure = f"cannot be read ({reason(error)})"
    return found


def _pieces(source: Source) -> Iterator[bytes | bytearray | memoryview]:
    """All bytes, in pieces that hold whole numbers; those of a file through one buffer."""
    if not isinstance(source, FileRange):
        left = b""
        for chunk in source.chunks():
            whole = left + bytes(chunk) if left else chunk
            cut = len(whole) - len(whole) % 16
            left = bytes(whole[cut:])
            yield whole[:cut]
        if left:
            yield left
        return
    buffer = bytearray(min(_PIECE, source.length))
    for at in range(0, source.length, _PIECE):
        if len(buffer) > source.length - at:
            buffer = bytearray(source.length - at)
        source.file.read_into(memoryview(buffer), source.offset + at)
        yield buffer


def _count_odd(found: _Found, piece: Any, rule: NotFinite, big_endian: bool) -> None:
    import numpy as np

    kind, mask, value = rule.kind, rule.mask, rule.value
    order, size = ">" if big_endian else "<", int(kind[1:])
    words = np.frombuffer(piece, f"{order}{kind}", len(piece) // size)
    if size > 2:  # the sum of finite numbers is finite, or too large, which the mask then tells
        with np.errstate(all="ignore"):
            if np.isfinite(words.view(f"{order}f{size}").sum()):
                return
    elif mask == value and np.bitwise_and(words, mask).max(initial=0) != value:
        return
    odd = (words & mask) == value
    if not odd.any():
        return
    rest = words[odd]
    sign = 1 << (8 * size - 1)
    ends = int(np.count_nonzero((rest & ~np.array(mask | sign, kind)) == 0)) if rule.infinite else 0
    found.infinite += ends
    found.nan += len(rest) - ends


def _count_pages(found: _Found, piece: Any, at: int) -> None:
    """Pages of the file that hold zeros only. The first word of a page tells most of them apart."""
    import numpy as np

    skip = -at % _PAGE
    count = (len(piece) - skip) // _PAGE
    if count <= 0:
        found.only_zeros = found.only_zeros and not any(piece)
        return
    pages = np.frombuffer(piece, np.uint8, count * _PAGE, skip).reshape(count, _PAGE)
    empty = np.flatnonzero(~pages[:, :8].any(axis=1))
    empty = empty[~pages[empty].any(axis=1)]
    found.pages += count
    found.zero_pages += len(empty)
    if len(empty) and found.first_zero is None:
        found.first_zero = at + skip + int(empty[0]) * _PAGE
    if len(empty) < count:
        found.only_zeros = False


# -- digests


def digests_of(ckpt: Checkpoint, ranks: Group | None = None) -> dict[str, str]:
    """The digest of each of the weights, by key if there is one state dict, else by path.

    It is SHA-256 over type, shape and values (see `ckptool.reports.comparing.numbers.digest`), so it does not depend on
    the container, on the order or on what else is in the file.
    """
    found = ckpt.state_dicts()
    weights = contents_of(ckpt, found, by_key=len(found) == 1).weights

    def one(item: tuple[str, LazyTensor]) -> str:
        return values.digest(item[1])

    made = in_ranks(one, weights.items(), lambda item: item[1].nbytes, ranks)
    return {name: digest for (name, _), digest in made}
