"""A plan cut into parts: each byte in one of them, whatever pieces it is made of."""

import zlib
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ckptool.disk import parts as module
from ckptool.disk.checksums import key_of
from ckptool.disk.composing import Crc32Of, Joined, Verify, Zeros
from ckptool.disk.files import Buffer, File, FileRange
from ckptool.disk.parts import Parts

MIB = 1 << 20


@dataclass(frozen=True, eq=False)
class Counting:
    """Computed bytes: each tells its place."""

    length: int
    step: int = 1000

    def read(self, offset, length):
        return bytes(n % 251 for n in range(offset, offset + length))

    def chunks(self):
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))


@dataclass(frozen=True, eq=False)
class Packed:
    """What can only be read from its beginning."""

    length: int
    crc: int | None = None
    seen: int | None = None

    def read(self, offset, length):
        raise AssertionError("is read whole")

    def chunks(self):
        yield bytes(self.length)


def content(source):
    return b"".join(bytes(chunk) for chunk in source.chunks())


def pieces(path):
    """Strategies of pieces over a file of random bytes."""
    file = File(path)
    ranges = st.tuples(st.integers(0, 400), st.integers(0, 400)).map(lambda t: FileRange(file, *t))
    sources = (
        ranges
        | st.binary(max_size=300).map(Buffer)
        | st.integers(0, 300).map(Zeros)
        | st.integers(0, 400).map(Counting)
        | st.lists(ranges, min_size=1, max_size=3).map(lambda some: Joined(tuple(some)))
    )
    return st.lists(sources, max_size=8).flatmap(
        lambda some: st.lists(st.sampled_from([*some, Buffer(b"")]), max_size=3).map(
            lambda asked: [*some, *map(Crc32Of, asked)]
        )
    )


@given(data=st.data())
def test_the_parts_of_a_plan_are_all_its_bytes_once(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("parts") / "in"
    path.write_bytes(bytes(n * 7 % 256 for n in range(1000)))
    files = data.draw(st.dictionaries(st.sampled_from("abc"), pieces(path), min_size=1))
    least = module._LEAST
    module._LEAST = data.draw(st.sampled_from([16, 64, 1000]))
    try:
        parts = Parts(files)
    finally:
        module._LEAST = least
    sums = []
    written = dict.fromkeys(files, b"")
    for part in parts.all:
        made, crcs = b"", []
        for number, source, wanted in parts.pieces_of(part):
            one = content(source)
            assert len(one) == source.length
            made += one
            if wanted:
                crcs.append((number, zlib.crc32(one)))
        assert len(made) == part.length > 0
        sums.append((part, crcs))
        if parts.is_written(part):
            assert len(written[parts.names[part.file]]) == part.begin
            written[parts.names[part.file]] += made
    for name, some in files.items():
        expected = b"".join(bytes(4) if isinstance(piece, Crc32Of) else content(piece) for piece in some)
        assert written[name] == expected
    found = parts.checksums(sums)
    for some in files.values():
        for piece in some:
            if isinstance(piece, Crc32Of) and piece.source.length:
                assert found[key_of(piece.source)] == zlib.crc32(content(piece.source))


def test_where_parts_begin_does_not_depend_on_the_ranks_and_they_are_small():
    total = 3 << 40
    parts = Parts({None: [Zeros(total)]})
    assert max(part.length for part in parts.all) == 256 * MIB
    assert all(part.begin % MIB == 0 for part in parts.all)
    assert max(part.length for part in Parts({None: [Zeros(MIB * 3 // 2)]}).all) == MIB


def test_a_number_is_never_in_two_parts():
    parts = Parts({None: [Buffer(b"12345"), Counting(3 * MIB)]})
    assert [(part.begin - 5) % 16 for part in parts.all[1:]] == [0, 0, 0]


def test_what_is_packed_is_read_by_one_rank():
    parts = Parts({None: [Buffer(b"12345"), Packed(5 * MIB), Zeros(10)]})
    assert [(part.begin, part.end) for part in parts.all] == [(0, 5), (5, 5 + 5 * MIB), (5 + 5 * MIB, 15 + 5 * MIB)]


def test_bytes_that_are_only_compared_stand_beside_what_is_made_of_them(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(bytes(8 * MIB))
    file = File(path)
    records = [file.range(at * MIB, MIB, crc=1) for at in range(8)]
    halves = [Counting(MIB // 2) for _ in records]
    parts = Parts(
        {None: [one for pair in zip(halves, (Verify(r, None) for r in records), strict=True) for one in pair]}
    )
    kinds = [parts.is_written(part) for part in parts.all]
    runs = "".join("w" if written else "r" for written in kinds)
    assert runs.count("r") == 8
    assert "rrrr" not in runs
