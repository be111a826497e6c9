import contextlib
import errno
import os
import random
import socket
import stat
import struct
import threading
import zlib
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptool import tensor
from ckptool.disk import writing
from ckptool.disk.checksums import crc32_of
from ckptool.disk.composing import Crc32Of, is_computed
from ckptool.disk.files import CHUNK, Buffer, File, FileRange, beside, same_bytes
from ckptool.disk.targets import check_target, replacing
from ckptool.disk.writing import write_pieces
from ckptool.dtypes import BY_NAME
from ckptool.errors import CheckpointError, Malformed, OutputExists, Unreadable, Unwritable
from ckptool.formats import tiles
from ckptool.passes import casting, values

pytestmark = pytest.mark.same_without_torch

#: The sizes at which copying changes its ways: a page, a write, what the kernel copies at once.
EDGES = [0, 1, 4095, 4096, 4097, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (1 << 19) + 5000, 9 << 20]


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Two input files of 20 MB that differ everywhere, and their bytes."""
    folder = tmp_path_factory.mktemp("pool")
    found = []
    for number in range(2):
        data = random.Random(number).randbytes(20 << 20)
        (folder / f"{number}").write_bytes(data)
        found.append((File(folder / f"{number}"), data))
    return found


@dataclass(frozen=True)
class Chunked:
    """A source that gives its bytes in odd pieces."""

    data: bytes
    step: int

    @property
    def length(self):
        return len(self.data)

    def read(self, offset, length):
        return self.data[offset : offset + length]

    def chunks(self):
        for at in range(0, len(self.data), self.step):
            yield self.data[at : at + self.step]


# ------------------------------------------------------------------------------------------------- reading


def test_a_file_is_read_at_any_offset(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(256)))
    file = File(tmp_path / "x")
    assert (file.size, file.read(10, 3), file.read(256, 0)) == (256, b"\n\x0b\x0c", b"")
    assert file.identity == File(tmp_path / "x").identity


@pytest.mark.parametrize(("offset", "length"), [(250, 7), (257, 0), (-1, 2), (0, -1), (1 << 62, 1), (0, 1 << 62)])
def test_bytes_that_are_not_there_are_not_read(tmp_path, offset, length):
    (tmp_path / "x").write_bytes(bytes(256))
    with pytest.raises(Malformed, match="ends at byte 256"):
        File(tmp_path / "x").read(offset, length)


def test_a_file_that_shrinks_while_it_is_read_is_noticed(tmp_path):
    (tmp_path / "x").write_bytes(bytes(1000))
    file = File(tmp_path / "x")
    os.truncate(tmp_path / "x", 500)
    assert file.read(0, 500) == bytes(500)
    with pytest.raises(Malformed, match="became shorter"):
        file.read(400, 200)


def no_file(tmp_path):
    return tmp_path / "absent"


def a_folder(tmp_path):
    return tmp_path


def a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def a_socket(tmp_path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(tmp_path / "s"))
    return tmp_path / "s"


def a_device(tmp_path):
    return "/dev/zero"


def a_loop_of_links(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    return tmp_path / "a"


def a_name_with_a_nul(tmp_path):
    return f"{tmp_path}/a\0b"


def a_name_too_long(tmp_path):
    return tmp_path / ("x" * 300)


@pytest.mark.parametrize(
    "make", [no_file, a_folder, a_pipe, a_socket, a_device, a_loop_of_links, a_name_with_a_nul, a_name_too_long]
)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, make, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = make(tmp_path)
    with pytest.raises(Unreadable) as caught:
        File(path)
    assert caught.value.where == str(path)
    assert isinstance(caught.value, OSError)


def test_what_the_system_does_not_read_is_named(tmp_path):
    (tmp_path / "x").write_bytes(b"bytes")
    file = File(tmp_path / "x", os.open(tmp_path / "x", os.O_WRONLY))
    for read in (lambda: file.read(0, 5), lambda: file.read_into(memoryview(bytearray(5)), 0)):
        with pytest.raises(Unreadable, match="bad file descriptor") as caught:
            read()
        assert caught.value.where == str(tmp_path / "x")


def test_a_closed_file_is_closed_once(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    file = File(tmp_path / "x")
    fd = file.fd
    file.close()
    with open(tmp_path / "x", "rb") as other:
        assert other.fileno() == fd  # taken again by somebody else
        file.close()
        assert other.read() == b"x"


def test_ranges_and_buffers_have_the_same_parts(tmp_path):
    data = bytes(range(100))
    (tmp_path / "x").write_bytes(data)
    of_file, in_memory = FileRange(File(tmp_path / "x"), 10, 50), Buffer(data[10:60])
    for source in (of_file, in_memory):
        assert source.length == 50
        assert source.read(5, 10) == data[15:25]
        assert source.part(5, 20).read(1, 2) == data[16:18]
        assert b"".join(source.chunks()) == data[10:60]
        assert crc32_of(source) == zlib.crc32(data[10:60])
    assert same_bytes(of_file, in_memory)
    assert not same_bytes(of_file, in_memory.part(0, 49))
    assert not same_bytes(of_file, Buffer(data[11:61]))


def test_sources_of_many_chunks_are_compared_to_the_end():
    data = bytearray(2 * CHUNK + 10)
    one = Buffer(bytes(data))
    data[-1] = 1
    assert not same_bytes(one, Buffer(bytes(data)))
    assert same_bytes(one, Buffer(bytes(2 * CHUNK + 10)))


# ------------------------------------------------------------------------------------------------- writing


def written(tmp_path, pieces, progress=None):
    with open(tmp_path / "out", "wb", buffering=0) as out:
        write_pieces(out, pieces, progress)
    return (tmp_path / "out").read_bytes()


@st.composite
def pieces(draw):
    """Pieces as (kind, which input, offset, length)."""
    sizes = st.sampled_from(EDGES) | st.integers(0, 3 << 18)
    kinds = st.sampled_from(["range", "range", "range", "buffer", "chunks"])
    offsets = st.sampled_from([0, 4096, 1 << 18]) | st.integers(0, 5 << 20)
    return draw(st.lists(st.tuples(kinds, st.integers(0, 1), offsets, sizes), min_size=1, max_size=6))


def made(pool, plan):
    result, expected = [], []
    for kind, which, offset, length in plan:
        file, data = pool[which]
        expected.append(data[offset : offset + length])
        if kind == "range":
            result.append(FileRange(file, offset, length))
        else:
            result.append(Buffer(expected[-1]) if kind == "buffer" else Chunked(expected[-1], 70_001))
    return result, expected


def refuse(*_):
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("thread", [True, False])
@pytest.mark.parametrize("kernel", [True, False])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=pieces())
def test_pieces_are_written_one_after_the_other(tmp_path, pool, kernel, thread, plan):
    sources, expected = made(pool, plan)
    with pytest.MonkeyPatch.context() as patch:
        if thread:
            patch.setattr(writing, "_MUCH", 0)
        if not kernel and hasattr(os, "copy_file_range"):
            patch.setattr(os, "copy_file_range", refuse)  # what the kernel says between two filesystems
        assert written(tmp_path, sources) == b"".join(expected)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=pieces())
def test_progress_adds_up_to_what_was_written(tmp_path, pool, plan):
    seen = []
    sources, expected = made(pool, plan)
    written(tmp_path, sources, seen.append)
    assert sum(seen) == sum(map(len, expected))


@pytest.mark.parametrize("size", [0, 1, 100, 3 << 18, CHUNK + 1, 3 * CHUNK])
def test_checksums_are_those_of_what_was_copied(tmp_path, pool, size):
    sources, expected = made(pool, [("range", 0, 7, size), ("buffer", 1, 3, size), ("chunks", 0, 11, size)])
    mixed = [piece for source in sources for piece in (source, Crc32Of(source))]
    sums = [struct.pack("<I", zlib.crc32(data)) for data in expected]
    assert written(tmp_path, mixed) == b"".join(part for pair in zip(expected, sums, strict=True) for part in pair)


def test_a_checksum_may_come_before_what_it_is_of_and_twice(tmp_path, pool):
    (source,), (data,) = made(pool, [("range", 0, 0, CHUNK * 2)])
    check = struct.pack("<I", zlib.crc32(data))
    assert written(tmp_path, [Crc32Of(source), source, Crc32Of(source)]) == check + data + check


def test_a_file_that_is_patched_keeps_all_else(tmp_path, pool):
    file, data = pool[0]
    patch = Buffer(b"patched!")
    plan = [FileRange(file, 0, 1000), patch, FileRange(file, 1008, file.size - 1008)]
    seen = []
    assert written(tmp_path, plan, seen.append) == data[:1000] + b"patched!" + data[1008:]
    assert sum(seen) == file.size


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_a_kernel_that_cannot_copy_is_done_without(tmp_path, pool, monkeypatch, error):
    calls = []

    def cannot(*_):
        calls.append(1)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "copy_file_range", cannot, raising=False)
    file, data = pool[0]
    assert written(tmp_path, [FileRange(file, 4096, 2 << 20)]) == data[4096 : 4096 + (2 << 20)]
    assert len(calls) == 1


def test_a_kernel_that_copies_little_at_a_time_is_asked_again(tmp_path, pool, monkeypatch):
    if not hasattr(os, "copy_file_range"):
        pytest.skip("no copy_file_range here")
    real = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", lambda a, b, n, x, y: real(a, b, min(n, 12_345), x, y))
    file, data = pool[0]
    assert written(tmp_path, [FileRange(file, 0, 3 << 20)]) == data[: 3 << 20]


def test_an_input_that_shrinks_while_it_is_copied_is_noticed(tmp_path):
    (tmp_path / "x").write_bytes(bytes(4 << 20))
    file = File(tmp_path / "x")
    os.truncate(tmp_path / "x", 1 << 20)
    with pytest.raises(Malformed, match="became shorter"):
        written(tmp_path, [FileRange(file, 0, 4 << 20)])


@pytest.mark.parametrize("most", [1 << 20, 5 << 20])  # before a thread writes, and then
@pytest.mark.parametrize("offset", [0, 17])  # by the kernel, and through buffers
def test_a_disk_that_is_full_is_an_error_and_not_a_short_file(tmp_path, most, offset):
    resource = pytest.importorskip("resource")
    (tmp_path / "in").write_bytes(bytes(12 << 20))
    file = File(tmp_path / "in")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(Unwritable, match="too large"), replacing(tmp_path / "x") as out:
            write_pieces(out, [FileRange(file, offset, 11 << 20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == [tmp_path / "in"]


@pytest.mark.parametrize("stops", [KeyboardInterrupt, None])
def test_a_thread_that_writes_ends_with_the_writing_and_closes_what_it_opened(tmp_path, stops):
    (tmp_path / "in").write_bytes(bytes(range(256)) * (40 << 10))
    file = File(tmp_path / "in")
    threads, there, seen = set(), os.listdir("/dev/fd"), []

    def progress(length):
        seen.append(length)
        threads.update(one.name for one in threading.enumerate())
        if stops and sum(seen) > 7 << 20:
            raise stops

    with contextlib.suppress(KeyboardInterrupt):
        assert written(tmp_path, [FileRange(file, 1, file.size - 1)], progress) == file.read(1, file.size - 1)
    assert "write" in threads
    assert "write" not in {one.name for one in threading.enumerate()}
    assert os.listdir("/dev/fd") == there
    assert sum(seen) == file.size - 1 or stops


def test_what_is_behind_the_first_byte_that_a_disk_refuses_is_not_written(tmp_path, monkeypatch):
    places = []

    def full(fd, data, place):
        places.append(place)
        if place >= 6 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)

    monkeypatch.setattr(os, "pwrite", full)
    (tmp_path / "in").write_bytes(bytes(12 << 20))
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path, [FileRange(File(tmp_path / "in"), 1, 11 << 20)])
    assert max(places) == 6 << 20


# ----------------------------------------------------------------------------------------------- replacing


def replace_with(path, data, **options):
    with replacing(path, **options) as out:
        out.write(data)


def test_a_new_file_appears_when_it_is_whole(tmp_path):
    with replacing(tmp_path / "x") as out:
        out.write(b"new")
        assert not (tmp_path / "x").exists()
        assert len(list(tmp_path.iterdir())) == 1
    assert (tmp_path / "x").read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path):
    for mask in (0o022, 0o077):
        before = os.umask(mask)
        try:
            replace_with(tmp_path / f"{mask}", b"")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / f"{mask}").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640, 0o755, 0o444])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, mode):
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "x").chmod(mode)
    replace_with(tmp_path / "x", b"new", overwrite=True)
    assert (tmp_path / "x").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("far/real")
    replace_with(tmp_path / "link", b"new", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "real").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["far", "link", "real"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_link_that_leads_nowhere_is_refused(tmp_path, overwrite):
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(Unwritable, match="is a link to real, which does not exist"):
        replace_with(tmp_path / "link", b"new", overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("exists", [True, False])
def test_whatever_goes_wrong_the_old_file_stays_and_nothing_else(tmp_path, error, exists):
    if exists:
        (tmp_path / "x").write_bytes(b"old")

    def fail(out):
        out.write(b"new")
        raise error

    with pytest.raises(type(error)), replacing(tmp_path / "x", overwrite=True, backup=".bak") as out:
        fail(out)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"] * exists


def test_an_error_of_the_system_is_one_of_ours(tmp_path):
    with pytest.raises(Unwritable, match="no space left on device"), replacing(tmp_path / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_ours_stays_what_it_is(tmp_path):
    with pytest.raises(Malformed, match="inner"), replacing(tmp_path / "x"):
        raise Malformed("inner")
    with pytest.raises(Unreadable), replacing(tmp_path / "x"):
        File(tmp_path / "absent")


def test_a_file_that_exists_is_not_replaced_unless_asked(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(OutputExists, match="--overwrite"):
        replace_with(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_file_that_appears_meanwhile_is_not_replaced_either(tmp_path):
    with pytest.raises(OutputExists, match="meanwhile"), replacing(tmp_path / "x"):
        (tmp_path / "x").write_bytes(b"theirs")
    assert (tmp_path / "x").read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_of_many_writers_at_once_exactly_one_makes_the_file(tmp_path):
    start = threading.Barrier(8)
    outcomes = []

    def write(number):
        start.wait()
        try:
            with replacing(tmp_path / "x") as out:
                out.write(bytes([number]) * 1000)
            outcomes.append(number)
        except OutputExists:
            outcomes.append(None)

    threads = [threading.Thread(target=write, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number in outcomes if number is not None]
    assert (tmp_path / "x").read_bytes() == bytes([winner]) * 1000
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_the_old_file_is_kept_under_the_suffix_that_was_asked_for(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    replace_with(tmp_path / "x", b"new", overwrite=True, backup=".bak")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert (tmp_path / "x.bak").read_bytes() == b"old"


def test_a_backup_that_is_there_is_never_replaced(tmp_path):
    (tmp_path / "x").write_bytes(b"second")
    (tmp_path / "x.bak").write_bytes(b"first")
    with pytest.raises(OutputExists, match=r"x\.bak exists already"):
        replace_with(tmp_path / "x", b"third", overwrite=True, backup=".bak")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"second", "x.bak": b"first"}


def test_there_is_no_backup_of_a_file_that_was_not_there(tmp_path):
    replace_with(tmp_path / "x", b"new", backup=".bak")
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_without_hard_links_it_is_done_by_renaming(tmp_path, monkeypatch):
    def cannot(*_, **__):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", cannot)
    replace_with(tmp_path / "x", b"old")
    replace_with(tmp_path / "x", b"new", overwrite=True, backup=".bak")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"new", "x.bak": b"old"}


def test_a_planted_link_at_the_temporary_name_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "victim").write_bytes(b"precious")
    monkeypatch.setattr(os, "urandom", lambda n: bytes(n))
    (tmp_path / f".x.{bytes(4).hex()}.ckptool-tmp").symlink_to("victim")
    with pytest.raises(Unwritable):
        replace_with(tmp_path / "x", b"new")
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_very_long_name_is_written_too(tmp_path):
    name = "x" * 255
    replace_with(tmp_path / name, b"new")
    assert (tmp_path / name).read_bytes() == b"new"


def test_the_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order = []
    real_fsync, real_link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), real_fsync(fd))[1])
    monkeypatch.setattr(os, "link", lambda *args, **options: (order.append("name"), real_link(*args, **options))[1])
    replace_with(tmp_path / "x", b"new")
    assert order == ["sync", "name", "sync"]


def test_more_than_the_disk_can_hold_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(Unwritable, match="no room"), replacing(tmp_path / "x", size=1 << 60):
        raise AssertionError("never begins")
    assert list(tmp_path.iterdir()) == []


REFUSED = {
    "a folder": (lambda folder: folder, "is a folder"),
    "a name that ends like a folder": (lambda folder: f"{folder}/new/", "is a folder"),
    "no such folder": (lambda folder: folder / "no" / "x", "the folder no does not exist"),
    "a folder that is a file": (lambda folder: _touch(folder / "file") / "x", None),
    "a device": (lambda folder: "/dev/null", "not a regular file"),
    "a pipe": (lambda folder: a_pipe(folder), "not a regular file"),
    "a link to a device": (lambda folder: _link(folder / "null", "/dev/null"), "not a regular file"),
    "a loop of links": (lambda folder: a_loop_of_links(folder), None),
    "a name with a NUL": (lambda folder: a_name_with_a_nul(folder), None),
    "a name that is too long": (lambda folder: a_name_too_long(folder), None),
}


def _touch(path):
    path.write_bytes(b"")
    return path


def _link(path, target):
    path.symlink_to(target)
    return path


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_target_that_cannot_be_written_is_refused_before_any_work(tmp_path, name, overwrite):
    make, message = REFUSED[name]
    path = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for attempt in (check_target, lambda path, **options: replacing(path, **options).__enter__()):
        with pytest.raises(CheckpointError, match=message) as caught:
            attempt(path, overwrite=overwrite)
        assert isinstance(caught.value, OSError)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_folder_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(Unwritable) as caught:
        check_target(tmp_path / "a b" / "c" / "x.pt")
    assert caught.value.hint == f"mkdir -p '{tmp_path}/a b/c'"


def test_a_source_that_is_computed_says_pieces_that_are_worth_a_thread():
    modules = [tensor, tiles, casting, values]
    classes = {name: cls for module in modules for name, cls in vars(module).items() if hasattr(cls, "step")}
    assert set(classes) >= {"Gathered", "Swapped", "Tiled", "Cast", "Mean"}
    storage = tensor.Storage(Buffer(bytes(1 << 20)), big_endian=True)
    source = tensor.LazyTensor(storage, BY_NAME["float32"], (1 << 18,), (1,)).source()
    assert is_computed(source)
    assert source.step >= 1 << 20


@pytest.mark.parametrize(
    ("path", "out"),
    [("x.pth.tar", "x-fixed.pth.tar"), ("a.b.pth", "a.b-fixed.pth"), ("x", "x-fixed"), (".pth", ".pth-fixed")],
)
def test_the_name_of_an_output_beside_a_file_keeps_its_ending(path, out):
    assert beside(path, "fixed") == out
