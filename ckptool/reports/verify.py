"""Whether a checkpoint is whole, as a value: every byte read once, and checked against what the file says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..disk.checksums import crc32
from ..disk.files import FileRange, Source, StrPath, reason
from ..disk.inside import listed
from ..dtypes import NotFinite
from ..errors import CheckpointError, NotInstalled, counted
from ..formats import format_of
from ..ranks import Group
from ..tensor import LazyTensor
from .comparing import numbers as values
from .comparing.contents import contents_of
from .comparing.ranked import in_ranks, open_alike
from .manifests import against_manifest, read_manifest, total_digest
from .regions import PAGE, PIECE, Region, regions, regions_of, runs
from .unread import unread_files, with_all_states

if TYPE_CHECKING:
    from .comparing.diff import Diff


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
    items = runs(chain(regions(with_all_states(ckpt)), regions_of(unread.parts)))
    looked = in_ranks(_looked_at_all, items, _length, ranks, progress)
    for region, counts in ((region, counts) for run, told in looked for region, counts in zip(run, told, strict=True)):
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

        compared = diff(ckpt, against, weights=True, ranks=ranks)
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
                f"{counted(self.zero_pages, 'page')} of {PAGE:,} bytes hold zeros only, the first at byte "
                f"{self.first_zero:,}"
            )


def _length(run: list[Region]) -> int:
    return sum([region.source.length for region in run])


def _looked_at_all(run: list[Region]) -> list[tuple[Any, ...]]:
    """Read regions once, and give what `_Found` is made of for each."""
    together = _nothing_odd(run) if len(run) > 1 else None
    return together or [astuple(_looked_at(region)) for region in run]


def _nothing_odd(run: list[Region]) -> list[tuple[Any, ...]] | None:
    """The checksums of small regions that can all be read and hold nothing odd; None of others."""
    sources: list[Any] = [region.source for region in run]
    begin = sources[0].offset
    try:
        data = memoryview(sources[0].file.read(begin, sources[-1].offset + sources[-1].length - begin))
    except (CheckpointError, OSError):
        return None
    pieces = [data[source.offset - begin :][: source.length] for source in sources]
    rule = run[0].dtype.not_finite if run[0].dtype else None
    if rule is not None:
        found = _Found()
        _count_odd(found, b"".join(pieces), rule, run[0].big_endian)
        if found.nan or found.infinite:
            return None
    return [(0 if region.crc is None else crc32(piece),) for region, piece in zip(run, pieces, strict=True)]


def _looked_at(region: Region) -> _Found:
    """Read a region once."""
    found = _Found()
    start = region.source.offset if isinstance(region.source, FileRange) else None
    rule = region.dtype.not_finite if region.dtype else None
    at = 0
    try:
        for piece in _pieces(region.source):
            if region.crc is not None:
                found.crc = crc32(piece, found.crc)
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
    buffer = bytearray(min(PIECE, source.length))
    for at in range(0, source.length, PIECE):
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

    skip = -at % PAGE
    count = (len(piece) - skip) // PAGE
    if count <= 0:
        found.only_zeros = found.only_zeros and not any(piece)
        return
    pages = np.frombuffer(piece, np.uint8, count * PAGE, skip).reshape(count, PAGE)
    empty = np.flatnonzero(~pages[:, :8].any(axis=1))
    empty = empty[~pages[empty].any(axis=1)]
    found.pages += count
    found.zero_pages += len(empty)
    if len(empty) and found.first_zero is None:
        found.first_zero = at + skip + int(empty[0]) * PAGE
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
