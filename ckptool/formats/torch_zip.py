"""torch-zip: what torch.save writes since 1.6, a zip archive without compression.

    TOP/data.pkl             the tree; storages are persistent ids ('storage', class, KEY, location, numel)
    TOP/.format_version      "1": storages stand in the order of the pickle, with predictable gaps    (since 2.7 or so)
    TOP/.storage_alignment   "64"
    TOP/byteorder            "little" or "big"                                                        (since 2.1)
    TOP/data/KEY             the bytes of storage KEY
    TOP/version              "3"
    TOP/.data/serialization_id

Written, a checkpoint that came from such a file keeps all its bytes but the pickle and two checksums, when the new
pickle fits into the place of the old one and every storage is still there. Else the archive is laid out anew and the
storages are moved by the kernel. `.format_version` is a promise (torch computes offsets from it instead of looking them
up), which both ways keep: storages are numbered and laid out in the order in which the pickle names them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat, zip_longest
from operator import attrgetter, eq
from typing import Any, cast

from ..checkpoint import Checkpoint, little_endian_throughout
from ..disk.composing import Crc32Of, Piece
from ..disk.documents import read_json
from ..disk.files import Buffer, File, FileRange
from ..errors import Malformed, UnknownFormat, counted, printable
from ..inert.decode import check_all
from ..records import record
from ..tensor import LazyTensor, Storage, TensorColumn
from ..tree import Dict, Pairs, value_column
from ._records import is_big_endian, is_numbered_in, read_pickle, small, storages_of, unrecorded_in
from ._torch import TorchReader
from .base import Draft, Format
from .foreign import describe_zip
from .pickle.writer import fit, write_pickle
from .zip.archive import Archive, holds_record, open_archive
from .zip.columns import Members, odd_members
from .zip.layout import CRC_IN_DESCRIPTOR, CRC_IN_ENTRY, Record, lay_out
from .zip.structure import FOLLOWS, STORED, looks_like_zip

#: Among the warnings of an archive that torch refuses for want of this record.
NO_VERSION = "its record 'version' is missing, without which torch does not load it"
_LARGEST_RECORD = 1 << 26
#: Entries of the root among which weights are looked for: trainers save few things beside them.
_MOST_BESIDE = 64
#: What other archives of torch have at their top, which are formats of their own.
_RELATIVES = ("constants.pkl", ".data/extern_modules", "archive_format")
_NOTE = ".ckptool/metadata.json"
_KNOWN = ("data.pkl", ".format_version", ".storage_alignment", "byteorder", "version", ".data/serialization_id", _NOTE)


@record(frozen=True, slots=True)
class _Origin:
    """The archive that a checkpoint came from, for writing it back with little change."""

    archive: Archive
    big_endian: bool


def open_zip(file: File) -> Checkpoint:
    """Open a torch zip archive: its directory and its pickle are read, no storage is."""
    archive = open_archive(file)
    _refuse_relatives(archive)
    where = file.path
    big_endian = is_big_endian(archive)
    version = _version(archive)
    if version.isdigit() and not 1 <= int(version[:9]) <= 10:
        raise Malformed(f"its version is {printable(version.decode())}; torch reads 1 to 10", where=where)

    storage = storages_of(archive, "data/{}", big_endian=big_endian)
    reader = TorchReader(read_pickle(archive, "data.pkl"), where, storage)
    root = reader.load()
    _put_in_column(root)
    warnings, lost = [*check_all(reader.others, where)], []
    if not version.isdigit():
        shown = printable(repr(version)[1:], 40)
        lost.append(f"its version, which is not a number, so that torch cannot read it: {shown}")
    if reader.position < len(reader.data):
        lost.append(f"{len(reader.data) - reader.position:,} bytes that follow the end of its pickle")
    if archive.count("data/") > len(reader.storages):  # each of these is the record of its name
        unused = [name for name in archive.members if name.startswith("data/") and name[5:] not in reader.storages]
        lost.append(f"{counted(len(unused), 'storage')} that no tensor uses: {printable(', '.join(unused[:5]))}")
    unrecorded = unrecorded_in(archive, reader.storages)
    if "version" not in archive.members:
        warnings.append(NO_VERSION)
    if unrecorded:
        warnings.append(f"the checksums of {counted(unrecorded, 'storage')} were not recorded")
    return Checkpoint(
        root,
        "torch-zip",
        where,
        file.size,
        metadata=_read_note(archive),
        origin=None if archive.far else _Origin(archive, big_endian),
        warnings=(*warnings, *lost),
        lost_content=reader.lost_content(),
        lost_form=tuple(lost),
    )


def _put_in_column(root: Any) -> None:
    """Of a state dict at the root or one below it that has all of the archive's storages, each in one tensor and in
    order, let what many tensors have in common be asked once.
    """
    within = value_column(root.entries)[:_MOST_BESIDE] if isinstance(root, Dict) else []
    for node in (root, *within):
        if isinstance(node, Dict) and isinstance(node.entries, Pairs) and node.entries.tensors_alone:
            column = TensorColumn.holding(cast("list[LazyTensor]", node.entries.value_column))
            if column is not None:
                node.entries = Pairs(node.entries.key_column, column)


def saved_as(ckpt: Checkpoint) -> str:
    """The name of the file that torch.save wrote, without its ending, as its archive notes it; "" if it does not.

    What is saved through a buffer is called "archive".
    """
    return ckpt.origin.archive.top if isinstance(ckpt.origin, _Origin) else ""


def _version(archive: Archive) -> bytes:
    return small(archive, "version", b"3").strip()


def _refuse_relatives(archive: Archive) -> None:
    """Say what other zip archives are that torch makes, or that look like torch's."""
    members, where = archive.members, archive.file.path
    if "data.pkl" in members:
        return
    if "version" in members:
        what = "a torch zip archive without data.pkl, as a failed torch.save leaves behind"
    else:
        what = describe_zip(list(members))
    raise UnknownFormat(f"not a checkpoint that can be read: {what}", where=where)


def _read_note(archive: Archive) -> dict[str, str]:
    """Text that came from the header of a safetensors file and travels with the archive."""
    if _NOTE not in archive.members:
        return {}
    try:
        note = read_json(archive.read(_NOTE, _LARGEST_RECORD))
    except Malformed:
        return {}
    return {k: v for k, v in note.items() if isinstance(v, str)} if isinstance(note, dict) else {}


def draft_zip(ckpt: Checkpoint) -> Draft:
    """Lay out a checkpoint as a torch zip archive: the old archive patched where possible, else a new one."""
    return _patched(ckpt) or _laid_out(ckpt)


class _Keys:
    """Gives names to storages, and remembers these in the order in which the pickle names them."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.numbers: dict[Storage, int] = {}

    def __call__(self, storage: Storage) -> str:
        number = self.numbers.setdefault(storage, len(self.numbers))
        return storage.key if self.keep else str(number)

    @property
    def storages(self) -> list[Storage]:
        """The storages that the pickle names."""
        return list(self.numbers)


def _patched(ckpt: Checkpoint) -> Draft | None:
    """The archive that CKPT came from with another pickle in it, or None if that cannot be."""
    if not isinstance(ckpt.origin, _Origin):
        return None
    archive = ckpt.origin.archive
    member = archive.members["data.pkl"]
    stored = all(m.method == STORED for m in odd_members(archive.members))
    findable = member.descriptor is not None or not member.flags & FOLLOWS  # else its second checksum is hidden
    if not stored or not findable or not _version(archive).isdigit():
        return None
    keys = _Keys(keep=True)
    pickle = write_pickle(ckpt.root, keys)
    storages = keys.storages
    if _misread(storages):
        return None
    if not fit(pickle, member.size) or _read_note(archive) != dict(ckpt.metadata):
        return None
    if not _in_order(archive, storages):
        whole = {name: source for name, source in archive.sources("data/") if isinstance(source, FileRange)}
        kept = {f"data/{s.key}": s.source for s in storages}
        in_order = [f"data/{s.key}" for s in storages] == sorted(whole, key=lambda n: whole[n].offset)
        if kept != whole or len(kept) != len(storages) or (".format_version" in archive.members and not in_order):
            return None
    pickle_piece = Buffer(memoryview(pickle))
    crc = Crc32Of(pickle_piece)
    second = member.header + 14 if member.descriptor is None else member.descriptor + CRC_IN_DESCRIPTOR
    patches: list[tuple[int, Piece]] = [
        (member.start, pickle_piece),
        (member.directory + CRC_IN_ENTRY, crc),
        (second, crc),
    ]
    assert isinstance(archive.file, File)
    return Draft(overlay(archive.file, patches), how="the old file with its pickle replaced", checksums=True)


def _in_order(archive: Archive, storages: Sequence[Storage]) -> bool:
    """Whether STORAGES are those of the archive, one after the other as they stand in it and in its directory."""
    members = archive.members
    if isinstance(members, Members) and all(map(is_numbered_in, repeat(members), storages)):
        whole = members.head == "data/" and archive.count("data/") == len(members.sizes) == len(storages)
        return whole and all(map(eq, map(attrgetter("number"), storages), range(len(storages))))
    last = -1
    for found, storage in zip_longest(archive.sources("data/"), storages):
        if found is None or storage is None or found != (f"data/{storage.key}", storage.source):
            return False
        source = found[1]
        if not isinstance(source, FileRange) or source.offset < last:
            return False
        last = source.offset
    return True


def _misread(storages: Sequence[Storage]) -> int:
    """How many storages torch reads as if they were little-endian: big-endian ones without a type of their own."""
    return sum(storage.big_endian and storage.dtype is None and storage.nbytes > 0 for storage in storages)


def overlay(file: File, patches: Sequence[tuple[int, Piece]]) -> list[Piece]:
    """All of FILE, with PATCHES (offset, piece) instead of what stood there."""
    pieces: list[Piece] = []
    position = 0
    for offset, piece in sorted(patches, key=lambda patch: patch[0]):
        pieces += [FileRange(file, position, offset - position), piece]
        position = offset + piece.length
    pieces.append(FileRange(file, position, file.size - position))
    return [piece for piece in pieces if piece.length]


def _laid_out(ckpt: Checkpoint) -> Draft:
    """A new archive. Unknown members of the old one are carried along."""
    keys = _Keys(keep=False)
    pickle = write_pickle(ckpt.root, keys)
    storages = keys.storages
    orders = {storage.big_endian for storage in storages}
    misread = _misread(storages)
    if misread or len(orders) > 1:  # the file says it once for all
        they = counted(misread, "big-endian storage", "big-endian storages")
        form = (f"the bytes of {they} are turned round, which torch would not do for their types",) if misread else ()
        return replace(_laid_out(little_endian_throughout(ckpt)), form=form)
    archive = ckpt.origin.archive if isinstance(ckpt.origin, _Origin) else None
    texts = {
        ".format_version": "1",
        ".storage_alignment": "64",
        "byteorder": "big" if orders == {True} else "little",
    }
    if ckpt.metadata:
        texts[_NOTE] = json.dumps(dict(ckpt.metadata))
    records = [Record("data.pkl", Buffer(memoryview(pickle)), None)]
    records += [Record(name, Buffer(text.encode()), None) for name, text in texts.items()]
    records += [Record(f"data/{i}", storage.source, storage.crc) for i, storage in enumerate(storages)]
    records += _carried(archive) if archive else []
    version = _version(archive) if archive else b"3"
    records.append(Record("version", Buffer((version if version.isdigit() else b"3") + b"\n"), None))
    top = archive.top if archive else "archive"
    return Draft(lay_out(top, records), how="a new archive, tensors copied as they are", checksums=True)


def extra_members(ckpt: Checkpoint) -> tuple[str, ...]:
    """Members of the archive that CKPT came from which no other format can hold."""
    if not isinstance(ckpt.origin, _Origin):
        return ()
    return tuple(f"the member {printable(name, 80)} of the archive" for name in _others(ckpt.origin.archive))


def _others(archive: Archive) -> list[str]:
    return [name for name in archive.members if name not in _KNOWN and not name.startswith("data/")]


def _carried(archive: Archive) -> list[Record]:
    records = []
    for name in _others(archive):
        member = archive.members[name]
        records.append(Record(name, archive.source(name), member.crc or None))
    return records


FORMAT = Format(
    name="torch-zip",
    aliases=("zip", "torch"),
    suffixes=(".pth", ".pt", ".bin", ".ckpt", ".tar", ".pkl", ".model", ".pyth"),
    summary="what torch.save writes since 1.6",
    carries="everything: nested entries, objects, ties, strides, locations, order, _metadata",
    pickles=True,
    sniff=lambda head, file: looks_like_zip(head) and not any(holds_record(file, name) for name in _RELATIVES),
    open=open_zip,
    draft=draft_zip,
    checksums=True,
    archive=True,
    keeps_members=True,
)
