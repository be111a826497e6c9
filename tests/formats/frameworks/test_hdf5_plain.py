"""HDF5 files that are read without the library: as it reads them, and left to it where anything is in doubt."""

import json
import random
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptool
from ckptool.disk.files import File
from ckptool.errors import Malformed
from ckptool.formats.frameworks import apart, hdf5
from ckptool.formats.frameworks.hdf5_plain import plain

HERE = Path(__file__).parents[3] / "fixtures" / "frameworks"
H5 = sorted(HERE.rglob("*.h5"))
KERAS = sorted(HERE.rglob("*.keras"))


def told(path):
    file = File(path)
    return plain(file, 0, file.size)


@pytest.mark.parametrize("path", [*H5, *KERAS], ids=lambda path: path.relative_to(HERE).as_posix())
def test_files_of_keras_start_no_process(monkeypatch, path):
    monkeypatch.setattr(apart, "_started", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(apart, "_SERVERS", {})
    assert list(ckptool.open(path).tensors())
    ckptool.scan(path)


@pytest.mark.parametrize("name", ["keras.weights.h5", "packed.h5"])
def test_a_file_that_is_cut_short_is_left_to_the_library(tmp_path, name):
    raw = (HERE / name).read_bytes()
    for length in range(0, len(raw), 97):
        (tmp_path / "a.h5").write_bytes(raw[:length])
        assert told(tmp_path / "a.h5") is None


def test_a_group_within_itself_is_left_to_the_library(tmp_path):
    raw = bytearray((HERE / "keras.weights.h5").read_bytes())
    (root,) = struct.unpack_from("<Q", raw, 64)
    node = raw.index(b"SNOD")
    struct.pack_into("<Q", raw, node + 16, root)
    (tmp_path / "a.h5").write_bytes(raw)
    assert told(tmp_path / "a.h5") is None


def test_one_heap_for_all_groups_is_not_read_for_each(tmp_path):
    """Or a file of 100 MB could ask for a million times as much."""
    raw = bytearray((HERE / "keras.weights.h5").read_bytes())
    heaps = [at for at in range(len(raw)) if raw.startswith(b"HEAP", at)]
    (first,) = struct.unpack_from("<Q", raw, heaps[0] + 24)
    for heap in heaps[1:]:
        struct.pack_into("<Q", raw, heap + 24, first)
    (tmp_path / "a.h5").write_bytes(raw)
    assert told(tmp_path / "a.h5") is None


h5py = pytest.importorskip("h5py")
import numpy as np


def library(path):
    """What the library tells of a file; None if it refuses it."""
    try:
        return apart.asked(hdf5._CHILD, "h5py", "an HDF5 file", File(path))
    except Malformed:
        return None


def assert_as_the_library_has_it(found, path):
    expected = library(path)
    assert json.loads(json.dumps(found)) == expected
    assert list(found["groups"]) == list(expected["groups"])  # and in the same order


@pytest.mark.parametrize("path", [*H5, *KERAS], ids=lambda path: path.relative_to(HERE).as_posix())
def test_files_of_keras_are_read_as_the_library_reads_them(tmp_path, path):
    if path.suffix == ".keras":
        path = Path(zipfile.ZipFile(path).extract("model.weights.h5", tmp_path))
    assert_as_the_library_has_it(told(path), path)


TYPES = ["f4", "f2", "f8", ">f4", ">f8", "i8", ">i2", "u1", "i1", "?", "u4", ">u8"]
ATTRIBUTES = [
    *("text" * 50, "", "ä", np.bytes_(b"fixed"), np.array([b"ab", b"cde"]), ["x", "", "yé"], [], 0.1, np.float32(0.1)),
    *(7, True, np.arange(3), np.arange(2.0, dtype=">f4"), np.array([True, False])),
]


def made(path, seed):
    """A file with groups, attributes and datasets of every kind that is read without the library."""
    some = random.Random(seed)
    with h5py.File(path, "w") as file:
        groups = [file]
        for number in range(some.choice([0, 1, 5, 40])):
            one = some.choice(groups)
            name = f"{some.choice('abcd')}{some.randrange(1000)}_{number}"
            kind = some.randrange(8)
            if kind < 2:
                groups.append(one.create_group(name))
            elif kind == 2:
                one[name] = some.choice(["text", ["a", "", "bc"], ""])
            else:
                dataset(one, name, some)
            if number % 3 == 0:
                for name, value in enumerate(some.sample(ATTRIBUTES, some.choice([1, 2, 12]))):
                    some.choice([one, file]).attrs[f"{number} {name}"] = value


def dataset(group, name, some):
    shape = tuple(some.choice([0, 1, 2, 3, 8, 9]) for _ in range(some.randrange(4)))
    kind, options = some.choice(TYPES), {}
    if shape and all(shape) and some.random() < 0.5:
        options["chunks"] = tuple(some.randrange(1, length + 1) for length in shape)
        options |= some.choice([{}, {"compression": 4, "shuffle": True}, {"fletcher32": True}, {"maxshape": None}])
        options["maxshape"] = (None,) * len(shape) if "maxshape" in options else None
    if some.random() < 0.3:
        options["fillvalue"] = np.ones((), kind)[()]
    if some.random() < 0.8:
        options["data"] = np.arange(int(np.prod(shape))).reshape(shape).astype(kind)
    group.create_dataset(name, shape, kind, **options)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=settings.default.max_examples)
def test_what_the_library_writes_is_read_as_the_library_reads_it(tmp_path_factory, seed):
    path = tmp_path_factory.mktemp("made") / "a.h5"
    made(path, seed)
    assert_as_the_library_has_it(told(path), path)


def test_a_changed_byte_makes_no_difference_between_it_and_the_library(tmp_path):
    """Where it answers at all. What the library refuses besides is damage that shows only when values are read."""
    made(tmp_path / "made.h5", 5)
    seeds = [(HERE / "keras.weights.h5").read_bytes(), (HERE / "packed.h5").read_bytes()]
    seeds.append((tmp_path / "made.h5").read_bytes())
    some, answered, path = random.Random(1), 0, tmp_path / "a.h5"
    for number in range(4 * settings.default.max_examples):
        raw = bytearray(seeds[number % 3])
        at = some.choice([at for at in range(8, len(raw)) if raw[at]])
        raw[at] = (raw[at] + some.choice([1, 255, 8, 16, some.randrange(1, 256)])) % 256
        path.write_bytes(raw)
        if (found := told(path)) is not None:
            expected = library(path)
            assert expected is None or json.loads(json.dumps(found)) == expected, (number % 3, at, raw[at])
            answered += expected is not None
    assert answered > settings.default.max_examples


def external(file):
    file["w"] = h5py.ExternalLink("other.h5", "/w")


def virtual(file):
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "w", (4,))
    file.create_virtual_dataset("w", layout)


def twice(file):
    file["b"] = file.create_group("a")


@pytest.mark.parametrize(
    "make",
    [
        external,
        virtual,
        twice,
        lambda file: file.create_dataset("w", (4,), "f8", external=[("other.bin", 0, 32)]),
        lambda file: file.__setitem__("w", h5py.SoftLink("/x")),
        lambda file: file.__setitem__("w", np.dtype("f8")),
        lambda file: file.__setitem__("w", h5py.Empty("f8")),
        lambda file: file.create_group("g", track_order=True),
        lambda file: file.create_dataset("w", data=np.zeros(2, [("a", "f4"), ("b", "i4")])),
        lambda file: file.attrs.create("a", np.zeros((2, 2))),
        lambda file: file.create_group("ä"),
    ],
    ids="external virtual twice storage soft type empty ordered fields square letters".split(),
)
def test_anything_else_is_left_to_the_library(tmp_path, make):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    assert told(tmp_path / "a.h5") is None


@pytest.mark.parametrize("options", [{"libver": "latest"}, {"userblock_size": 512}, {"track_order": True}])
def test_a_file_in_another_layout_is_left_to_the_library(tmp_path, options):
    with h5py.File(tmp_path / "a.h5", "w", **options) as file:
        file["w"] = np.ones(2)
    assert told(tmp_path / "a.h5") is None
