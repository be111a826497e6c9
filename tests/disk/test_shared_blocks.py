"""Bytes that are not copied but shared, and each way of copying where they cannot be."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys

import pytest
from strategies import state_dict_of, tensor_of

import ckptool
from ckptool.disk import writing
from ckptool.disk.composing import Crc32Of
from ckptool.disk.files import Buffer, File, FileRange
from ckptool.disk.writing import write_pieces

linux = pytest.mark.skipif(sys.platform != "linux", reason="these calls are of Linux")
MEBI = 1 << 20
#: Filesystem -> how one is made in an image, and bytes of the image.
IMAGES = {"btrfs": (["mkfs.btrfs", "-q"], 192 * MEBI), "xfs": (["mkfs.xfs", "-q", "-m", "reflink=1"], 320 * MEBI)}


@pytest.fixture(scope="module", params=IMAGES)
def sharing_disk(request, tmp_path_factory):
    """A folder on a filesystem that shares blocks, in an image; skipped where nobody may mount one."""
    make, size = IMAGES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    image, place = folder / "image", folder / "mounted"
    place.mkdir()
    with image.open("wb") as made:
        made.truncate(size)
    try:
        subprocess.run([*make, image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, place], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no {request.param} can be made and mounted here: {error}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        image.unlink()


def free(folder):
    os.sync()
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def large(path, prefix="module.", count=8, **options):
    """A checkpoint of 32 MiB."""
    data = [os.urandom(4 * MEBI) for _ in range(count)]
    tensors = {f"{prefix}l{n}": tensor_of("float32", (1024, 1024), one) for n, one in enumerate(data)}
    ckptool.save(state_dict_of(tensors), path, **options)
    return path


def values_of(path):
    return {
        key: bytes(tensor.source().read(0, tensor.nbytes)) for key, tensor in ckptool.open(path).state_dict().items()
    }


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
@pytest.mark.parametrize("in_place", [False, True], ids=["OUT", "in place"])
def test_a_rewrite_that_keeps_the_places_of_tensors_shares_their_blocks(sharing_disk, name, in_place):
    path = large(sharing_disk / name)
    out = path if in_place else path.with_name(f"b-{name}")
    before, there = values_of(path), free(sharing_disk)
    ckptool.save(ckptool.strip_prefix(ckptool.open(path)), out, overwrite=in_place)
    assert there - free(sharing_disk) < 3 * MEBI  # the pickle or header, and metadata of the filesystem
    assert values_of(out) == {key.removeprefix("module."): value for key, value in before.items()}
    for one in (path, out):
        one.unlink(missing_ok=True)


def test_what_moves_by_whole_blocks_is_shared_too(sharing_disk):
    """A header of safetensors grows by pages, and the data behind it keep their places within blocks."""
    path = large(sharing_disk / "a.safetensors")
    out = path.with_name("b.safetensors")
    before, there = values_of(path), free(sharing_disk)
    prefix = "a.prefix.that.is.longer.than.the.room.of.a.header." * 20
    ckptool.save(ckptool.add_prefix(ckptool.open(path), prefix), out)
    assert (out.stat().st_size - path.stat().st_size) % 4096 == 0
    assert out.stat().st_size > path.stat().st_size
    assert there - free(sharing_disk) < 3 * MEBI
    assert values_of(out) == {prefix + key: value for key, value in before.items()}
    path.unlink()
    out.unlink()


def test_a_file_that_shares_its_blocks_needs_no_room(sharing_disk):
    path = large(sharing_disk / "a.pt")
    filler = sharing_disk / "filler"
    with filler.open("wb") as made:
        os.posix_fallocate(made.fileno(), 0, free(sharing_disk) - 24 * MEBI)
    assert free(sharing_disk) < path.stat().st_size
    ckptool.save(ckptool.strip_prefix(ckptool.open(path)), path, overwrite=True)
    assert sorted(values_of(path)) == [f"l{n}" for n in range(8)]
    filler.unlink()
    path.unlink()


# -- each way of copying


def refuse(monkeypatch, number, *names):
    """Let calls fail as a kernel that cannot."""

    def refused(*_):
        raise OSError(number, os.strerror(number))

    for name in names:
        if name == "ioctl":
            monkeypatch.setattr("fcntl.ioctl", refused)
        else:
            monkeypatch.setattr(os, name, refused)


def counting(monkeypatch, name):
    """Count the calls of a function of `os` that do something."""
    real, calls = getattr(os, name), []

    def call(*args):
        done = real(*args)
        calls.append(done)
        return done

    monkeypatch.setattr(os, name, call)
    return calls


WAYS = {
    "copy_file_range": ["ioctl"],
    "sendfile": ["ioctl", "copy_file_range"],
    "preadv": ["ioctl", "copy_file_range", "sendfile"],
}
PLACES = ["one filesystem", "two filesystems"]


@pytest.fixture(params=PLACES)
def two_places(request, tmp_path):
    """A folder to read from and one to write to: of one filesystem, or of two."""
    if request.param == PLACES[0]:
        yield tmp_path, tmp_path
        return
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second filesystem")
    there = tmp_path.parent / tmp_path.name
    shm = f"/dev/shm/ckptool-test-{os.getpid()}"
    os.mkdir(shm)
    try:
        yield type(there)(shm), tmp_path
    finally:
        shutil.rmtree(shm)


@linux
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_copying_gives_the_same_bytes(two_places, monkeypatch, way):
    copied_in_every_way(*two_places, monkeypatch, way, errno.EXDEV)


@linux
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_whatever_a_kernel_says_that_cannot_the_next_way_is_taken(tmp_path, monkeypatch, number):
    copied_in_every_way(tmp_path, tmp_path, monkeypatch, "preadv", number)


def copied_in_every_way(source, target, monkeypatch, way, number):
    data = os.urandom(3 * MEBI + 12345)
    (source / "in").write_bytes(data)
    file = File(source / "in")
    rest = FileRange(file, 4096, len(data) - 4096)
    small = FileRange(file, 77, 4096)
    pieces = [Buffer(b"x" * 4096), rest, small, Crc32Of(small)]
    expected = b"x" * 4096 + data[4096:] + data[77 : 77 + 4096]
    refuse(monkeypatch, number, *WAYS[way])
    calls = counting(monkeypatch, way)
    with (target / "out").open("wb", buffering=0) as out:
        write_pieces(out, pieces)
    if (way, source == target) != ("copy_file_range", False):  # between two filesystems, some kernels do not
        assert sum(calls) > 2 * MEBI
    assert (target / "out").read_bytes()[:-4] == expected
    file.close()


@linux
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_a_file_with_tensors_of_all_sizes_is_rewritten_in_every_way(two_places, monkeypatch, way, name):
    source, target = two_places
    data = {"k": os.urandom(4096), "m": os.urandom(2 * MEBI), "s": b"\x01\x02\x03\x04"}
    tensors = {f"module.{key}": tensor_of("float32", (len(one) // 4,), one) for key, one in data.items()}
    ckptool.save(state_dict_of(tensors), source / name)
    refuse(monkeypatch, errno.EXDEV, *WAYS[way])
    ckptool.save(ckptool.strip_prefix(ckptool.open(source / name)), target / f"out-{name}")
    assert values_of(target / f"out-{name}") == data


@linux
@pytest.mark.parametrize("way", [None, *WAYS])
def test_a_tensor_of_a_gibibyte_that_is_a_hole_stays_one(two_places, monkeypatch, way):
    source, target = two_places
    size = 1 << 30
    header = b'{"module.w":{"dtype":"F32","shape":[268435456],"data_offsets":[0,1073741824]}}'
    header = header.ljust(4088)
    with (source / "a.safetensors").open("wb") as made:
        made.write(len(header).to_bytes(8, "little") + header)
        made.truncate(4096 + size)
        made.seek(4096 + size - 4)
        made.write(b"last")
    if way is not None:
        refuse(monkeypatch, errno.EXDEV, *WAYS[way])
    out = target / "out.safetensors"
    ckptool.save(ckptool.strip_prefix(ckptool.open(source / "a.safetensors")), out)
    assert out.stat().st_size == 4096 + size
    assert out.stat().st_blocks * 512 < 2 * MEBI
    tensor = ckptool.open(out).state_dict()["w"]
    assert tensor.source().read(size - 8, 8) == b"\0\0\0\0last"


@linux
def test_an_error_of_the_disk_is_none_of_the_kernel_that_cannot(tmp_path, monkeypatch):
    (tmp_path / "in").write_bytes(bytes(MEBI))
    refuse(monkeypatch, errno.EIO, "copy_file_range")
    file = File(tmp_path / "in")
    with (tmp_path / "out").open("wb", buffering=0) as out, pytest.raises(OSError, match="Input/output"):
        write_pieces(out, [Buffer(b"x" * 4096), FileRange(file, 0, MEBI)])
    file.close()


@linux
def test_whole_blocks_are_asked_for_and_no_others(tmp_path, monkeypatch):
    """What a filesystem that shares would be asked for: places that are multiples of a block, to the end."""
    import fcntl
    import struct

    asked, size = [], 2 * MEBI + 100
    (tmp_path / "in").write_bytes(os.urandom(size))
    file = File(tmp_path / "in")

    def ioctl(fd, request, what):
        if request == writing._FICLONERANGE:
            source, offset, length, position = struct.unpack("=qQQQ", what)
            asked.append((offset, length, position))
            os.pwrite(fd, os.pread(source, length, offset), position)
            return
        raise OSError(errno.EOPNOTSUPP, "not")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with (tmp_path / "out").open("wb", buffering=0) as out, contextlib.closing(file):
        write_pieces(out, [Buffer(b"h" * 8192), FileRange(file, 4096, size - 4096), Buffer(b"tail")])
        write_pieces(out, [])
    assert (tmp_path / "out").read_bytes() == b"h" * 8192 + (tmp_path / "in").read_bytes()[4096:] + b"tail"
    assert len(asked) == 1
    offset, length, position = asked[0]
    assert offset % 4096 == position % 4096 == 0
    assert offset + length == size
    assert length > MEBI
