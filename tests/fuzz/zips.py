"""Mutants of zip archives: records, directory, end records, and what is in the records, with checksums that fit."""

import contextlib
import struct
import zipfile
import zlib
from io import BytesIO

from . import pickles, texts
from .bytes import anyhow, cut, field, shuffle, sprinkle

_LOCAL = (4, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2)
_ENTRY = (4, 2, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2, 2, 2, 2, 4, 4)
_END = (4, 2, 2, 2, 2, 4, 4, 2)
_END64 = (4, 8, 2, 2, 4, 4, 8, 8, 8, 8)
_LOCATOR = (4, 4, 8, 4)
_DESCRIPTOR = (4, 4, 4, 4)
_KINDS = {
    b"PK\3\4": _LOCAL,
    b"PK\1\2": _ENTRY,
    b"PK\5\6": _END,
    b"PK\6\6": _END64,
    b"PK\6\7": _LOCATOR,
    b"PK\7\10": _DESCRIPTOR,
}


def fields_of(data):
    """[(offset, size)] of every number in every header of an archive, found by their signatures."""
    found = []
    at = data.find(b"PK")
    while at >= 0:
        place = at
        for size in _KINDS.get(data[at : at + 4], ()):
            found.append((place, size))
            place += size
        at = data.find(b"PK", at + 1)
    return [(at, size) for at, size in found if at + size <= len(data)]


def records_of(data):
    """[(name, payload)] of a valid archive."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def built(rng, records, *, like_torch=True):
    """An archive of RECORDS, as torch lays it out or as other programs do."""
    wide, aligned = (rng.random() < 0.7, 64) if like_torch else (rng.random() < 0.1, 1)
    follows = like_torch or rng.random() < 0.2
    out, directory = bytearray(), bytearray()
    for name, payload in records:
        raw = name.encode("utf-8", "surrogatepass")
        packed, method = payload, 0
        if not like_torch and rng.random() < 0.5:
            packer = zlib.compressobj(9, zlib.DEFLATED, -15)
            packed, method = packer.compress(payload) + packer.flush(), 8
        if method and rng.random() < 0.05:  # what all headers say, and what is not so
            payload = payload + bytes(rng.choice((1, 1, 8, 300))) if rng.random() < 0.5 else payload[1:]
        crc, header, flags = zlib.crc32(payload), len(out), 0x0808 if follows else 0
        said = (0, 0, 0) if follows else (crc, len(packed), len(payload))
        gap = -(header + 30 + len(raw) + 4) % aligned
        extra = struct.pack("<2sH", b"FB", gap) + b"Z" * gap if aligned > 1 else b""
        out += (
            struct.pack("<4s5H3I2H", b"PK\3\4", 0, flags, method, 0, 0, *said, len(raw), len(extra))
            + raw
            + extra
            + packed
        )
        if follows and payload:
            out += struct.pack("<4s3I", b"PK\7\10", crc, len(packed), len(payload))
        entry = (b"PK\1\2", 0, 0, flags, method, 0, 0, crc, len(packed), len(payload), len(raw), 0, 0, 0, 0, 0, header)
        directory += struct.pack("<4s6H3I5H2I", *entry) + raw
    begin, count = len(out), len(records)
    out += directory
    if wide:
        end64 = len(out)
        out += struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 0, 0, 0, 0, count, count, len(directory), begin)
        out += struct.pack("<4sIQI", b"PK\6\7", 0, end64, 1)
    return bytes(
        out + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count & 0xFFFF, count & 0xFFFF, len(directory), begin, 0)
    )


def _payload(rng, name, data, others):
    """The payload of a record, changed after its kind."""
    if data[:1] in (b"{", b"["):
        return texts.json_text(rng, data)
    if data[:1] == b"\x80" or name.endswith((".pkl", "version")):
        return pickles.mutated(rng, data, others)
    if len(data) < 32 and rng.random() < 0.5:
        return rng.choice(
            (b"", b"0", b"3", b"3\n", b"-1", b"99999999999", b"little", b"big", b"BIG", b"\xff", b"x" * 3000)
        )
    return anyhow(rng, data)


def contents(rng, data, others=(), *, like_torch=True, wanted=None):
    """An archive whose records are changed, while the archive itself holds together."""
    records = records_of(data)
    chosen = [n for n, (name, _) in enumerate(records) if wanted is None or wanted(name)] or [0]
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.choice(chosen)
        name, payload = records[at]
        records[at] = name, _payload(rng, name, payload, others)
    return built(rng, records, like_torch=like_torch or rng.random() < 0.5)


def layout(rng, data):
    """An archive of other records: lost, repeated, renamed, moved, with names that lead elsewhere."""
    records = records_of(data)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(records)) if records else 0
        way = rng.randrange(7)
        if not records or way == 0:
            records.insert(at, (rng.choice(("archive/new", "x", "archive/", "other/x", "__MACOSX/._x")), b""))
        elif way == 1:
            del records[at]
        elif way == 2:
            records.append((records[at][0], rng.choice((records[at][1], b"", b"x"))))
        elif way == 3:
            top = records[at][0].split("/")[0]
            new = (
                "data.pkl",
                "data/0",
                "DATA.PKL",
                "../x",
                "a//b",
                ".",
                "a\0b",
                "a\\b",
                "version",
                "byteorder",
                "é",
                "\ud800",
            )
            records[at] = (
                f"{top}/{rng.choice((*new, 'constants.pkl', 'model.json', '.data/version', 'x' * 400))}",
                records[at][1],
            )
        elif way == 4:
            records[at] = rng.choice(("", "/", "/data.pkl", "data.pkl", "a/" * 300)), records[at][1]
        elif way == 5:
            records.insert(rng.randrange(len(records)), records.pop(at))
        else:
            records[at] = records[at][0], records[at][1] * rng.choice((0, 2, 3))
    return built(rng, records, like_torch=rng.random() < 0.7)


def structure(rng, data):
    """An archive whose headers contradict each other or the file."""
    if rng.random() < 0.3:
        with contextlib.suppress(zipfile.BadZipFile, zlib.error):  # it may say what is not so already
            data = built(rng, records_of(data), like_torch=rng.random() < 0.5)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        fields = fields_of(data)
        if not fields or rng.random() < 0.15:
            data = rng.choice((shuffle, cut, sprinkle))(rng, data)
        else:
            data = field(rng, data, *rng.choice(fields))
    return data


def zip_archive(rng, data, others=()):
    """A mutant of an archive: of its headers mostly, of its records else."""
    way = rng.random()
    if way < 0.5:
        return structure(rng, data)
    if way < 0.7:
        return layout(rng, data)
    made = contents(rng, data, others, like_torch=rng.random() < 0.6)
    return structure(rng, made) if way > 0.95 else made
