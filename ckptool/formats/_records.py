"""Records of torch's zip archives: pickles, storages and small texts. Each format has other names for them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping

from ..disk.files import File, FileRange, Window
from ..errors import Malformed, printable
from ..tensor import NumberedStorage, Storage, StorageKind, kind_of
from ._torch import StorageForm
from .zip.archive import Archive
from .zip.columns import Members
from .zip.structure import DEFLATED

#: Largest pickle that is read. The biggest real ones (optimizer states, 100,000 tensors) are some tens of megabytes.
LARGEST_PICKLE = 1 << 30


def read_pickle(archive: Archive, name: str) -> bytes:
    """The bytes of a pickle. A compressed one that grows more than a hundredfold is a bomb."""
    member = archive.members.get(name)
    packed = member is not None and member.method == DEFLATED
    limit = max(1 << 20, 100 * member.compressed) if member is not None and packed else LARGEST_PICKLE
    return archive.read(name, limit)


def small(archive: Archive, name: str, default: bytes) -> bytes:
    """The bytes of a record that has few, or DEFAULT where it is not there."""
    return archive.read(name, 4096) if name in archive.members else default


def is_big_endian(archive: Archive) -> bool:
    """Whether the storages of an archive are in big-endian order, as its `byteorder` says."""
    order = small(archive, "byteorder", b"little").strip()
    if order not in (b"little", b"big"):
        raise Malformed(f"its byteorder is {printable(repr(order))}, neither little nor big", where=archive.file.path)
    return order == b"big"


class _Numbered:
    """The storages of an archive whose records are in columns."""

    def __init__(self, file: File | Window, columns: Members) -> None:
        self.file = file
        self.columns = columns
        self.sizes = columns.sizes

    def key(self, number: int) -> str:
        """Its name, which is its number."""
        return str(number)

    def source(self, number: int) -> FileRange:
        """Where its bytes are."""
        columns = self.columns
        return self.file.range(columns.starts[number], columns.sizes[number], columns.crcs[number] or None)

    def crc(self, number: int) -> int | None:
        """CRC-32 as recorded, or None; 0 of no bytes."""
        return self.columns.crcs[number] or (None if self.columns.sizes[number] else 0)


def is_numbered_in(columns: Members, storage: Storage) -> bool:
    """Whether a storage is one of the archive with these columns, under the number of its record."""
    return type(storage) is NumberedStorage and getattr(storage.table, "columns", None) is columns


def unrecorded_in(archive: Archive, storages: Mapping[str, Storage]) -> int:
    """How many of these storages of an archive have bytes whose checksum was not recorded."""
    columns = archive.members
    if isinstance(columns, Members) and 0 not in columns.crcs and all(m.crc for m in columns.odd()):
        return 0
    return sum(storage.crc is None for storage in storages.values())


def storages_of(archive: Archive, pattern: str, *, big_endian: bool = False) -> Callable[[str, StorageForm], Storage]:
    """Makes the storages that persistent ids speak of, from the records whose names follow PATTERN ("data/{}")."""
    where = archive.file.path
    before, _, behind = pattern.partition("{}")

    columns = archive.members if isinstance(archive.members, Members) and not behind else None
    if columns is not None and columns.head != before:
        columns = None
    sizes = array("Q") if columns is None else columns.sizes
    table = None if columns is None else _Numbered(archive.file, columns)
    following = 0  # mostly, storages have the numbers 0, 1, 2 …, and thousands of one form follow each other
    latest: StorageForm | None = None
    kind: StorageKind | None = None

    def storage(key: str, form: StorageForm) -> Storage:
        nonlocal following, latest, kind
        number = following
        if number >= len(sizes) or key != str(number):
            number = -1 if columns is None else columns.number_behind(key)
        if table is not None and number >= 0 and not form.rest and sizes[number] == form.nbytes:
            if kind is None or form is not latest:
                latest, kind = form, kind_of(form.location, form.dtype, big_endian=big_endian)
            following = number + 1
            return NumberedStorage(table, number, kind)
        name = f"{before}{key}{behind}"
        member = archive.members.get(name)
        if member is None:
            raise Malformed(f"the storage {printable(name)} is missing", where=where)
        if form.rest:
            raise Malformed(f"the storage {printable(key)} is a view, which only legacy files have", where=where)
        if member.size != form.nbytes:
            raise Malformed(
                f"the storage {printable(name)} has {member.size:,} bytes; its tensors need {form.nbytes:,}",
                where=where,
            )
        crc = member.crc if member.crc or not member.size else None
        return Storage(archive.payload(member), form.location, form.dtype, key, crc, big_endian)

    return storage
