"""The zip container: what torch.save writes, to the byte, and nothing that contradicts itself."""

from __future__ import annotations

import io
import os
import struct
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptool.disk.composing import Crc32Of
from ckptool.disk.files import Buffer, File, FileRange
from ckptool.disk.targets import replacing
from ckptool.disk.writing import write_pieces
from ckptool.errors import CheckpointError, Malformed
from ckptool.formats.zip.archive import Archive, open_archive
from ckptool.formats.zip.layout import Record, lay_out
from ckptool.formats.zip.structure import looks_like_zip

PAYLOADS = {
    "data.pkl": b"\x80\x02}q\x00.",
    "byteorder": b"little",
    "data/0": bytes(range(64)),
    "data/1": b"",
    "version": b"3\n",
}


def joined(pieces) -> bytes:
    """What write_pieces would write, in memory."""
    parts = []
    for piece in pieces:
        if isinstance(piece, Crc32Of):
            crc = 0
            for chunk in piece.source.chunks():
                crc = zlib.crc32(chunk, crc)
            parts.append(crc.to_bytes(4, "little"))
        else:
            parts.extend(piece.chunks())
    return b"".join(parts)


def archive_bytes(payloads=PAYLOADS, top="archive", alignment=64) -> bytes:
    return joined(lay_out(top, [Record(name, Buffer(data), None) for name, data in payloads.items()], alignment))


def opened(data: bytes, folder: Path) -> Archive:
    path = folder / "file.pt"
    path.write_bytes(data)
    return open_archive(File(path))


def laid_out_again(archive: Archive, *, alignment: int = 64, known_crc: bool = True):
    records = [Record(m.name, archive.range(m.name), m.crc if known_crc else None) for m in archive.members.values()]
    return lay_out(archive.top, records, alignment)


def zipped(entries, **options) -> bytes:
    """An archive as Python's zipfile writes it."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # duplicate names are what some tests want
        with zipfile.ZipFile(out, "w", **options) as archive:
            for name, data in entries:
                archive.writestr(name, data)
    return out.getvalue()


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def storage_alignment(torch):
    config = pytest.importorskip("torch.utils.serialization.config").save  # torch 2.6 and later
    before = config.storage_alignment
    yield lambda value: setattr(config, "storage_alignment", value)
    config.storage_alignment = before


def state_of(torch):
    tied = torch.arange(1000.0)
    return {
        "weight": torch.ones(3, 5),
        "empty": torch.empty(0),
        "byte": torch.tensor([1], dtype=torch.uint8),
        "tied": [tied, tied[10:]],
        "large": torch.zeros(1 << 20, dtype=torch.bfloat16),
        "epoch": 3,
    }


# ------------------------------------------------------------------------------------------------ checked against torch


@pytest.mark.parametrize("alignment", [64, 1, 4096, 100, 32768])
@pytest.mark.parametrize("known_crc", [True, False])
def test_records_of_a_torch_file_laid_out_again_are_the_same_bytes(
    torch, storage_alignment, tmp_path, alignment, known_crc
):
    storage_alignment(alignment)
    source = tmp_path / "a.b.c.pt"
    torch.save(state_of(torch), source)
    archive = open_archive(File(source))
    target = tmp_path / "again.pt"
    with replacing(target) as out:
        write_pieces(out, laid_out_again(archive, alignment=alignment, known_crc=known_crc))
    assert archive.top == "a.b.c"
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("name", ["модель.pt", "..pt", "noext", "a b.pt"])
def test_archives_under_odd_file_names_are_the_same_bytes(torch, tmp_path, name):
    source = tmp_path / name
    torch.save({"a": torch.ones(2)}, source)
    archive = open_archive(File(source))
    assert joined(laid_out_again(archive)) == source.read_bytes()


def test_torch_files_without_checksums_open_and_keep_their_bytes(torch, tmp_path):
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always writes checksums")
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state_of(torch), tmp_path / "nocrc.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    archive = open_archive(File(tmp_path / "nocrc.pt"))
    assert archive.members["data/0"].crc == 0
    assert archive.read("version", 100) == b"3\n"
    assert joined(laid_out_again(archive)) == (tmp_path / "nocrc.pt").read_bytes()


def test_a_torch_file_past_4_gib_has_the_same_zip64_fields(torch, tmp_path):
    if not hasattr(torch.serialization, "skip_data"):
        pytest.skip("this torch cannot leave payloads out")
    source = tmp_path / "big.pt"
    with torch.serialization.skip_data():  # leaves holes instead of payloads: the file takes a few kilobytes
        big = torch.empty((4 << 30) + 100, dtype=torch.uint8)
        torch.save({"first": torch.ones(3), "big": big, "behind": torch.ones(5), "empty": torch.empty(0)}, source)
    if os.stat(source).st_blocks > 1 << 20:
        pytest.skip("this filesystem has no holes")
    archive = open_archive(File(source))
    big, behind, empty = (archive.members[f"data/{n}"] for n in (1, 2, 3))
    assert big.size == (4 << 30) + 100
    assert behind.header > 4 << 30
    assert behind.start % 64 == empty.start % 64 == 0
    position = 0
    for piece in laid_out_again(archive):
        if isinstance(piece, Buffer):
            assert archive.file.read(position, piece.length) == piece.data
        else:
            assert isinstance(piece, FileRange)
            assert piece.offset == position
        position += piece.length
    assert position == archive.file.size


def test_torch_loads_what_we_lay_out_from_memory(torch, tmp_path):
    torch.save(state_of(torch), tmp_path / "in.pt")
    source = open_archive(File(tmp_path / "in.pt"))
    records = [Record(name, Buffer(source.range(name).read(0, m.size)), None) for name, m in source.members.items()]
    for target, mmap in ((tmp_path / "plain.pt", False), (tmp_path / "mapped.pt", True)):
        with replacing(target) as out:
            write_pieces(out, lay_out("renamed", records))
        loaded = torch.load(target, mmap=mmap, weights_only=True)
        assert loaded["tied"][1].data_ptr() == loaded["tied"][0].data_ptr() + 40
        assert torch.equal(loaded["weight"], torch.ones(3, 5))


def test_the_pickle_of_a_torchscript_archive_is_read_and_its_code_inflated(torch, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), tmp_path / "script.pt")
    archive = open_archive(File(tmp_path / "script.pt"))
    code = next(m for m in archive.members.values() if "linear" in m.name and m.name.endswith(".py"))
    assert code.method == 8
    assert b"def forward" in archive.read(code.name, 1 << 20)


# ------------------------------------------------------------------------------------------- laying out, without torch


@given(
    payloads=st.dictionaries(
        st.from_regex(r"[a-zé重]{1,12}(/[a-z0-9._]{1,8}x){0,2}", fullmatch=True),
        st.binary(max_size=300),
        min_size=1,
        max_size=12,
    ).filter(lambda found: len({name.casefold() for name in found}) == len(found)),
    alignment=st.sampled_from([1, 3, 64, 100, 4096, 32768]),
    top=st.sampled_from(["archive", "a.b", "модель", "."]),
)
@settings(max_examples=settings.default.max_examples)
def test_what_is_laid_out_is_read_back(payloads, alignment, top):
    data = archive_bytes(payloads, top, alignment)
    with tempfile.TemporaryDirectory() as folder:
        archive = opened(data, Path(folder))
        assert archive.top == top
        assert {name: archive.read(name, 300) for name in archive.members} == payloads
        assert list(archive.members) == list(payloads)
        for member in archive.members.values():
            assert member.start % alignment == 0
            stated = data[member.directory + 16 : member.directory + 20]
            assert int.from_bytes(stated, "little") == member.crc == zlib.crc32(payloads[member.name])
            assert (member.descriptor is None) == (member.size == 0)
            if member.descriptor:
                assert data[member.descriptor + 4 : member.descriptor + 8] == stated
        archive.file.close()
    with zipfile.ZipFile(io.BytesIO(data)) as judge:
        assert judge.testzip() is None
        assert judge.namelist() == [f"{top}/{name}" for name in payloads]


def test_the_bytes_of_the_smallest_archive_are_these():
    header = (
        b"PK\3\4" + struct.pack("<5H3I2H", 0, 0x0808, 0, 0, 0, 0, 0, 0, 3, 4 + 27) + b"a/b" + b"FB\x1b\0" + b"Z" * 27
    )
    crc = zlib.crc32(b"xy")
    descriptor = b"PK\7\10" + struct.pack("<3I", crc, 2, 2)
    entry = b"PK\1\2" + struct.pack("<6H3I5H2I", 0, 0, 0x0808, 0, 0, 0, crc, 2, 2, 3, 0, 0, 0, 0, 0, 0) + b"a/b"
    end64 = b"PK\6\6" + struct.pack("<Q2H2I4Q", 44, 0x031E, 45, 0, 0, 1, 1, 49, 82)
    end = b"PK\6\7" + struct.pack("<IQI", 0, 131, 1) + b"PK\5\6" + struct.pack("<4H2IH", 0, 0, 1, 1, 49, 82, 0)
    assert archive_bytes({"b": b"xy"}, "a") == header + b"xy" + descriptor + entry + end64 + end


def test_headers_between_payloads_are_one_piece_each(tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(bytes(300))
    ranges = [FileRange(File(path), 100 * n, 100) for n in range(3)]
    small = Record("data.pkl", Buffer(b"."), None)
    known = lay_out("a", [small, *(Record(f"data/{n}", part, 7) for n, part in enumerate(ranges))])
    assert [type(piece) for piece in known] == [Buffer, FileRange] * 3 + [Buffer]
    computed = lay_out("a", [small, Record("data/0", ranges[0], None)])
    assert [type(piece) for piece in computed] == [Buffer, FileRange, Buffer, Crc32Of, Buffer, Crc32Of, Buffer]
    assert computed[3].source is computed[5].source is ranges[0]


def test_a_payload_past_4_gib_and_a_record_behind_it_are_read_back(tmp_path):
    sparse = tmp_path / "payload"
    sparse.touch()
    os.truncate(sparse, 5 << 30)
    huge = FileRange(File(sparse), 0, 5 << 30)
    records = [
        Record("data.pkl", Buffer(b"."), None),
        Record("data/0", huge, 0),
        Record("version", Buffer(b"3\n"), None),
    ]
    target = tmp_path / "big.pt"
    position = 0
    with open(target, "wb") as out:
        for piece in lay_out("a", records):
            if isinstance(piece, Buffer):
                out.seek(position)
                out.write(piece.data)
            position += piece.length
    archive = open_archive(File(target))
    member, behind = archive.members["data/0"], archive.members["version"]
    assert member.size == member.compressed == archive.range("data/0").length == 5 << 30
    assert behind.header > 4 << 30
    assert archive.read("version", 2) == b"3\n"
    # The two oddities of the local copy: compressed is 0 there, and the offset is repeated.
    assert archive.file.read(member.header + 30 + len("a/data/0"), 20) == struct.pack("<2H2Q", 1, 16, 5 << 30, 0)
    assert archive.file.read(behind.header + 18, 8) == bytes(8)
    assert archive.file.read(behind.header + 30 + len("a/version"), 12) == struct.pack("<2HQ", 1, 8, behind.header)
    assert archive.file.read(behind.descriptor, 24) == b"PK\7\10" + struct.pack("<I2Q", behind.crc, 2, 2)
    with zipfile.ZipFile(target) as judge:
        assert judge.getinfo("a/data/0").file_size == 5 << 30
        assert judge.read("a/version") == b"3\n"


def test_seventy_thousand_records_are_counted_in_the_zip64_record(tmp_path):
    data = archive_bytes({f"data/{n}": b"" for n in range(70_000)})
    assert data[-14:-10] == b"\xff\xff\xff\xff"
    assert len(opened(data, tmp_path).members) == 70_000


@pytest.mark.parametrize("alignment", [0, -64, 32769, 131072])
def test_an_alignment_that_a_header_cannot_hold_is_refused(alignment):
    with pytest.raises(ValueError, match="alignment must be 1 to 32768"):
        lay_out("a", [Record("b", Buffer(b""), None)], alignment)


@pytest.mark.parametrize(
    ("top", "names"),
    [
        ("", ["a"]),
        ("a", [""]),
        ("a", ["data/"]),
        ("a", ["../x"]),
        ("a", ["x\\y"]),
        ("a", ["x\0"]),
        ("..", ["x"]),
        ("a", ["x" * 65535]),
        ("__MACOSX", ["x"]),
        ("a", ["data.pkl", "DATA.pkl"]),
    ],
)
def test_a_name_that_the_reader_would_refuse_is_not_written(top, names):
    with pytest.raises(ValueError, match=r"cannot be called|same name"):
        lay_out(top, [Record(name, Buffer(b"x"), None) for name in names])


# ------------------------------------------------------------------------------------------- archives of other programs


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_that_was_zipped_again_is_read(tmp_path, compression):
    entries = [("m/", b""), ("m/data/", b""), *((f"m/{name}", data) for name, data in PAYLOADS.items())]
    archive = opened(zipped(entries, compression=compression), tmp_path)
    assert {name: archive.read(name, 64) for name in archive.members} == PAYLOADS


def test_an_archive_written_to_a_pipe_is_read(tmp_path):
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in PAYLOADS.items():
            with archive.open(f"m/{name}", "w", force_zip64=name == "data/0") as out:
                out.write(data)
    archive = opened(pipe.data, tmp_path)
    assert {name: archive.read(name, 64) for name in archive.members} == PAYLOADS
    assert all(member.descriptor for member in archive.members.values())


def test_a_comment_that_ends_with_the_file_is_read(tmp_path):
    data = archive_bytes()[:-2] + struct.pack("<H", 5) + b"hello"
    assert opened(data, tmp_path).top == "archive"


def cut(payload: bytes) -> tuple[bytes, bytearray]:
    """The records and the directory of a small archive with a pickle."""
    data = zipped([(zipfile.ZipInfo("a/data.pkl"), payload), (zipfile.ZipInfo("a/version"), b"3")])
    size, offset = struct.unpack_from("<2I", data, len(data) - 10)
    return data[:offset], bytearray(data[offset : offset + size])


def two_directories(comment: int, behind: bytes = b"") -> bytes:
    """An archive with two directories. The end record of one has that of the other as its comment."""
    (shown, first), (hidden, second) = cut(b"\x80\x02N."), cut(b"\x80\x02K\x07.")
    for entry in (0, second.index(b"PK\1\2", 1)):
        header = int.from_bytes(second[entry + 42 : entry + 46], "little")
        second[entry + 42 : entry + 46] = struct.pack("<I", header + len(shown))
    body = shown + hidden + second

    def end(directory: bytes, at: int, comment: int) -> bytes:
        return struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, len(directory), at, comment)

    last = end(second, len(shown + hidden), comment) + behind
    return body + first + end(first, len(body), len(last)) + last


CONFUSED = [(0xFFFF, b""), (1, b""), (0, b"abc"), (0xFFFF, b"abc"), (22, bytes(21)), (0, b"")]


@pytest.mark.parametrize(("comment", "behind"), CONFUSED)
def test_no_other_end_record_hides_in_the_comment_of_one(tmp_path, comment, behind):
    with pytest.raises(
        Malformed, match=r"the end of the archive is missing|something was appended|longer than its end"
    ):
        opened(two_directories(comment, behind), tmp_path)


@pytest.mark.parametrize(("comment", "behind"), CONFUSED)
def test_torch_takes_the_last_end_record_whatever_its_comment(torch, tmp_path, comment, behind):
    (tmp_path / "x.pt").write_bytes(two_directories(comment, behind))
    assert torch._C.PyTorchFileReader(str(tmp_path / "x.pt")).get_record("data.pkl") == b"\x80\x02K\x07."


def test_torch_takes_memory_that_nobody_filled_for_a_tensor_that_is_marked_as_a_folder(torch, tmp_path):
    torch.save({"w": torch.arange(4)}, tmp_path / "x.pt")
    data = bytearray((tmp_path / "x.pt").read_bytes())
    entry = data.rindex(b"PK\1\2", 0, data.rindex(b"x/data/0"))
    data[entry + 38] = 0x10
    assert data[entry + 46 :].startswith(b"x/data/0")
    found = []
    for fill in (0x41, 0x42):  # what was freed is what is given out next
        del [torch.full((32,), fill, dtype=torch.uint8) for _ in range(100)][:]
        found.append(torch.load(io.BytesIO(data), weights_only=True)["w"].tolist())
    assert [0, 1, 2, 3] not in found
    with pytest.raises(Malformed, match="marked as a folder"):
        opened(bytes(data), tmp_path)


def test_a_compressed_record_has_no_range(tmp_path):
    archive = opened(zipped([("a/data/0", bytes(1000))], compression=zipfile.ZIP_DEFLATED), tmp_path)
    with pytest.raises(Malformed, match="data/0 is compressed"):
        archive.range("data/0")


@pytest.mark.parametrize(
    ("head", "zip"),
    [
        (b"PK\3\4", True),
        (b"PK\3\4 and more", True),
        (b"PK\5\6", True),
        (b"PK\3", False),
        (b"", False),
        (b"\x80\2", False),
    ],
)
def test_a_zip_is_known_by_its_first_bytes(head, zip):
    assert looks_like_zip(head) is zip


# -------------------------------------------------------------------------------------------------- what does not hold


def edited(data: bytes, offset: int, new: bytes) -> bytes:
    offset %= len(data)
    return data[:offset] + new + data[offset + len(new) :]


GOOD = archive_bytes()
HEADER = GOOD.index(b"PK\3\4", 1)  # of "byteorder", the second record
PAYLOAD = GOOD.index(bytes(range(64)))  # of "data/0"
DIRECTORY = GOOD.index(b"PK\1\2")
ENTRY = GOOD.index(b"archive/data/0", DIRECTORY) - 46
FIRST, EMPTY = DIRECTORY, GOOD.index(b"archive/data/1", DIRECTORY) - 46
END, LOCATOR, END64 = -22, -42, -98
u16, u32, u64 = struct.Struct("<H").pack, struct.Struct("<I").pack, struct.Struct("<Q").pack

DAMAGED = {
    "empty file": (b"", "the end of the archive is missing"),
    "only the first bytes": (b"PK\3\4", "the end of the archive is missing"),
    "half": (GOOD[: len(GOOD) // 2], "the end of the archive is missing"),
    "the last byte is missing": (GOOD[:-1], "the end of the archive is missing"),
    "another kind of file": (b"\x80\x02." + GOOD, "does not start like a zip archive"),
    "no records": (zipped([]), "is an archive without records"),
    "junk behind": (GOOD + b"junk", "something was appended"),
    "junk behind a small archive": (zipped([("a/b", b"x")]) + b"junk", "something was appended"),
    "two archives joined": (GOOD + GOOD, r"bytes longer than its end records say"),
    "two small archives joined": (zipped([("a/b", b"x")]) * 2, r"bytes longer than its end records say"),
    "a hole in the middle": (GOOD[:PAYLOAD] + GOOD[PAYLOAD + 10 :], "10 bytes shorter than its end records say"),
    "another archive in the comment": (
        GOOD[:-2] + u16(22) + zipped([("x/y", b"")])[-22:],
        "longer than its end records say",
    ),
    "the comment is too long": (edited(GOOD, END + 20, u16(9)), "the end of the archive is missing"),
    "several disks": (edited(GOOD, END64 + 16, u32(1)), "contradict each other"),
    "several disks, small archive": (edited(zipped([("a/b", b"x")]), END + 4, u16(1)), "several disks"),
    "several disks, locator": (edited(GOOD, LOCATOR + 16, u32(2)), "several disks"),
    "an entry on another disk": (edited(GOOD, ENTRY + 34, u16(1)), "several disks"),
    "the locator points elsewhere": (edited(GOOD, LOCATOR + 8, u64(5)), "longer than its end records say"),
    "the locator points far away": (edited(GOOD, LOCATOR + 8, u64(2**64 - 1)), "shorter than its end records say"),
    "no zip64 record": (edited(GOOD, END64, b"PK\0\0"), "zip64 end record is damaged"),
    "a longer zip64 record": (edited(GOOD, END64 + 4, u64(45)), "zip64 end record is damaged"),
    "the end records disagree": (edited(GOOD, END + 10, u16(4)), "contradict each other"),
    "the directory is elsewhere": (
        edited(edited(GOOD, END64 + 48, u64(0)), END + 16, u32(0)),
        "longer than its end records say",
    ),
    "the directory is huge": (
        edited(edited(GOOD, END64 + 40, u64(2**63)), END + 12, u32(2**32 - 1)),
        "shorter than its end records say",
    ),
    "too many entries stated": (edited(zipped([("a/b", b"x")]), END + 8, u16(9) * 2), "directory is too small"),
    "one entry too many stated": (
        edited(edited(GOOD, END64 + 24, u64(6) * 2), END + 8, u16(6) * 2),
        "central directory is damaged",
    ),
    "too few entries stated": (
        edited(edited(GOOD, END64 + 24, u64(4) * 2), END + 8, u16(4) * 2),
        "holds more than its entries",
    ),
    "an entry without its signature": (edited(GOOD, ENTRY, b"PK\1\1"), "central directory is damaged"),
    "a name too long": (edited(GOOD, EMPTY + 28, u16(60000)), "central directory is damaged"),
    "an extra field that is none": (
        edited(edited(GOOD, EMPTY + 28, u16(11)), EMPTY + 30, u16(3)),
        "an extra field is damaged",
    ),
    "a zip64 number that is missing": (
        edited(
            edited(edited(GOOD, EMPTY + 20, u32(2**32 - 1) * 2), EMPTY + 28, u16(10) + u16(4)), EMPTY + 56, b"\1\0\0\0"
        ),
        "an extra field is damaged",
    ),
    "encrypted": (edited(GOOD, ENTRY + 8, u16(0x0809)), "is encrypted"),
    "strongly encrypted": (edited(GOOD, ENTRY + 8, u16(0x0848)), "is encrypted"),
    "encrypted directory": (edited(GOOD, ENTRY + 8, u16(0x2808)), "is encrypted"),
    "patched data": (edited(GOOD, ENTRY + 8, u16(0x0828)), "a feature of zip"),
    "lzma": (edited(GOOD, ENTRY + 10, u16(14)), "compressed with method 14"),
    "stored with two sizes": (edited(GOOD, ENTRY + 24, u32(65)), "has two sizes"),
    "a bomb": (edited(edited(GOOD, ENTRY + 10, u16(8)), ENTRY + 24, u32(10**6)), "more than deflate can do"),
    "a payload past the directory": (edited(GOOD, ENTRY + 20, u32(10**6) * 2), "reaches into the central directory"),
    "a payload into the next header": (edited(GOOD, ENTRY + 20, u32(81) * 2), "two records overlap"),
    "a header behind the directory": (edited(GOOD, ENTRY + 42, u32(2**31)), "begins behind the last possible place"),
    "a header in a payload": (edited(GOOD, ENTRY + 42, u32(PAYLOAD)), "there is no record where"),
    "two entries for one record": (edited(GOOD, ENTRY + 42, u32(HEADER)), "contradicts its entry"),
    "another name in the record": (edited(GOOD, 30, b"archive/data.pkx"), "contradicts its entry"),
    "another method in the record": (edited(GOOD, 8, u16(8)), "contradicts its entry"),
    "other flags in the record": (edited(GOOD, 6, u16(0x0800)), "contradicts its entry"),
    "another CRC in the record": (edited(GOOD, 14, u32(1)), "contradicts its entry"),
    "another size in the record": (edited(GOOD, 22, u32(1)), "contradicts its entry"),
    "zip64 sizes in the record that are not there": (edited(GOOD, 22, u32(2**32 - 1)), "contradicts its entry"),
    "a local header without signature": (edited(GOOD, HEADER, b"PK\3\5"), "there is no record where"),
    "another CRC in the directory": (edited(GOOD, ENTRY + 16, u32(1)), "the checksum or the sizes behind it"),
    "the first record is not listed": (
        zipped([("a/b", b"x")])[:34] + zipped([("a/b", b"x")]),
        "longer than its end records say",
    ),
    "names not in a folder": (zipped([("data.pkl", b"x"), ("data/0", b"y")]), "not in one folder"),
    "zipped by macOS": (zipped([("a/data.pkl", b"x"), ("__MACOSX/a/._data.pkl", b"y")]), "zipped again by macOS"),
    "two top folders": (zipped([("a/data.pkl", b"x"), ("b/data.pkl", b"y")]), "several top folders"),
    "a name twice": (zipped([("a/data.pkl", b"x"), ("a/data.pkl", b"y")]), "same name"),
    "a name twice but for case": (zipped([("a/data.pkl", b"x"), ("a/DATA.PKL", b"y")]), "same name"),
    "a name twice but for empty components": (zipped([("a/data.pkl", b"x"), ("a///data.pkl", b"y")]), "same name"),
    "a name twice but for an empty component": (zipped([("a/data.pkl", b"x"), ("a//data.pkl", b"y")]), "same name"),
    "a parent folder": (zipped([("a/../b", b"x")]), "component"),
    "a folder above": (zipped([("../b", b"x")]), "component"),
    "an absolute name": (zipped([("/a/b", b"x")]), "component"),
    "an empty component at the end": (zipped([("a//", b"x")]), "component"),
    "a dot": (zipped([("a/./b", b"x")]), "component"),
    "a backslash": (zipped([("a/b", b"x")]).replace(b"a/b", b"a\\b"), "backslash"),
    "a NUL": (zipped([("a/bc", b"x")]).replace(b"a/bc", b"a/b\0"), "NUL"),
    "no UTF-8": (zipped([("a/bc", b"x")]).replace(b"a/bc", b"a/b\xff"), "not text"),
    "a payload that is marked as a folder": (edited(GOOD, ENTRY + 38, b"\x10"), "marked as a folder"),
    "a folder with content": (zipped([("a/b", b"x")]).replace(b"a/b", b"ab/"), "folder of the archive has content"),
}


@pytest.mark.parametrize(("data", "what"), DAMAGED.values(), ids=DAMAGED)
def test_an_archive_that_contradicts_itself_is_refused(tmp_path, data, what):
    with pytest.raises(Malformed, match=what) as caught:
        opened(data, tmp_path)
    assert caught.value.where == str(tmp_path / "file.pt")
    assert caught.value.what == caught.value.what[:1].lower() + caught.value.what[1:]
    assert not caught.value.what.endswith(".")
    assert all(caught.value.evidence)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


def test_the_first_record_must_be_at_the_first_byte(tmp_path):
    # What an edit at the end of the file leaves behind: the old first record, which no entry lists.
    data = zipped([("a/b", b"x"), ("a/c", b"y")])
    second = data.index(b"PK\1\2", data.index(b"PK\1\2") + 1)
    first = data.index(b"PK\1\2")
    end = edited(edited(data[-22:], 8, u16(1) * 2), 12, u32(second - first))
    end = edited(end, 16, u32(first))
    with pytest.raises(Malformed, match="does not begin with its first record"):
        opened(data[:first] + data[second:-22] + end, tmp_path)


def test_records_that_share_bytes_are_refused(tmp_path):
    # "a/b" states so long a payload that it holds the whole record "a/c", header included.
    inner = zipped([("a/c", b"y" * 10)])
    inner = inner[: inner.index(b"PK\1\2")]
    data = zipped([("a/b", inner), ("a/c", b"y" * 10)])
    entry = data.rindex(b"PK\1\2")
    with pytest.raises(Malformed, match="two records overlap") as caught:
        opened(edited(data, entry + 42, u32(data.index(inner))), tmp_path)
    assert "b and c share bytes" in caught.value.evidence[0]


def test_gaps_between_records_are_no_fault(tmp_path):
    data = zipped([("a/b", b"x"), ("a/gone", b"z"), ("a/c", b"y")])
    at = data.index(b"PK\1\2", data.index(b"PK\1\2") + 1)
    cut = data.index(b"PK\1\2", at + 1)
    end = edited(edited(data[-22:], 8, u16(2) * 2), 12, u32(len(data) - 22 - data.index(b"PK\1\2") - (cut - at)))
    assert list(opened(data[:at] + data[cut:-22] + end, tmp_path).members) == ["b", "c"]


DEFLATED = zlib.compressobj(9, zlib.DEFLATED, -15)
STREAM = DEFLATED.compress(bytes(1000)) + DEFLATED.flush()


def deflated(stream: bytes, size: int) -> bytes:
    """An archive with one record a/b: STREAM, said to be SIZE bytes of zeros."""
    fixed = struct.pack("<2H3I", 0, 0, zlib.crc32(bytes(size)), len(stream), size)
    local = b"PK\3\4" + struct.pack("<3H", 20, 0, 8) + fixed + struct.pack("<2H", 3, 0) + b"a/b" + stream
    entry = b"PK\1\2" + struct.pack("<4H", 20, 20, 0, 8) + fixed + struct.pack("<5H2I", 3, 0, 0, 0, 0, 0, 0) + b"a/b"
    return local + entry + b"PK\5\6" + struct.pack("<4H2IH", 0, 0, 1, 1, len(entry), len(local), 0)


@pytest.mark.parametrize(
    ("stream", "size", "what"),
    [
        (STREAM, 1000, None),
        (STREAM, 999, "does not inflate to the 999 bytes"),
        (STREAM, 1001, "does not inflate to the 1,001 bytes"),
        (STREAM, 0, "does not inflate to the 0 bytes"),
        (STREAM[:-1], 1000, "does not inflate|cannot be inflated"),
        (STREAM + b"\0", 1000, "does not inflate"),
        (STREAM * 2, 1000, "does not inflate"),
        (b"\xff" * 40, 1000, "cannot be inflated"),
        (b"", 0, "does not inflate"),
    ],
)
def test_a_compressed_record_inflates_to_what_it_states_or_is_refused(tmp_path, stream, size, what):
    archive = opened(deflated(stream, size), tmp_path)
    if what is None:
        assert archive.read("b", size) == bytes(size)
    else:
        with pytest.raises(Malformed, match=what):
            archive.read("b", 5000)


def test_a_record_is_read_only_up_to_the_limit(tmp_path):
    archive = opened(GOOD, tmp_path)
    assert len(archive.read("data/0", 64)) == 64
    with pytest.raises(Malformed, match="data/0 is too large: 64 bytes, where 63 are plenty"):
        archive.read("data/0", 63)


def test_a_damaged_payload_is_refused_when_it_is_read(tmp_path):
    archive = opened(edited(GOOD, PAYLOAD + 5, b"\xff"), tmp_path)
    assert archive.read("version", 10) == b"3\n"
    with pytest.raises(Malformed, match="checksum does not match"):
        archive.read("data/0", 64)


def test_a_checksum_of_zero_means_unknown(tmp_path):
    data = joined(lay_out("a", [Record("b", Buffer(b"payload"), 0)]))
    assert opened(data, tmp_path).read("b", 7) == b"payload"


def test_a_missing_record_is_named(tmp_path):
    archive = opened(GOOD, tmp_path)
    for ask in (lambda: archive.read("data/7", 9), lambda: archive.range("data/7")):
        with pytest.raises(Malformed, match="the record data/7 is missing"):
            ask()


def test_an_archive_cut_anywhere_is_refused_and_raises_nothing_else(tmp_path):
    for length in range(len(GOOD)):
        with pytest.raises(Malformed):
            opened(GOOD[:length], tmp_path)


def test_an_archive_without_its_first_bytes_is_refused(tmp_path):
    for start in range(1, len(GOOD)):
        with pytest.raises(Malformed):
            opened(GOOD[start:], tmp_path)


SEEDS = [GOOD, zipped([("a/", b""), *((f"a/{n}", d) for n, d in PAYLOADS.items())], compression=zipfile.ZIP_DEFLATED)]


@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=6),
    near_end=st.booleans(),
)
@settings(max_examples=10 * settings.default.max_examples)
def test_random_damage_is_refused_or_leaves_a_consistent_archive(seed, changes, near_end):
    data = bytearray(seed)
    for place, value in changes:
        at = place % (400 if near_end else len(data))
        data[-1 - at if near_end else at] = value
    with tempfile.TemporaryDirectory() as folder:
        try:
            archive = opened(bytes(data), Path(folder))
            contents = {name: archive.read(name, 1 << 16) for name in archive.members}
        except CheckpointError:
            return
        for name, member in archive.members.items():
            assert len(contents[name]) == member.size
            assert member.header < member.start <= member.start + member.compressed <= archive.directory
        archive.file.close()
