"""HDF5 files: what refers to others, what lies, and what the library crashes on; and the names that Keras gives."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptool
from ckptool.disk.files import FileRange
from ckptool.errors import CannotCarry, Malformed, NotInstalled
from ckptool.formats.frameworks import apart, hdf5

HERE = Path(__file__).parents[3] / "fixtures" / "frameworks"


def test_without_h5py_the_package_is_named(monkeypatch, tmp_path):
    (tmp_path / "a.h5").write_bytes(hdf5.SIGNATURE + bytes(100))
    (tmp_path / "h5py.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NotInstalled, match="needs h5py, which is not installed") as raised:
        ckptool.open(tmp_path / "a.h5")
    assert raised.value.hint == "pip install h5py"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
        ("import os; os._exit(3)", "failed with status 3"),
        ("import time; time.sleep(60)", "took more than"),
        ("while True: pass", "took more than"),
    ],
)
def test_a_crash_or_a_hang_of_the_library_is_one_line(monkeypatch, tmp_path, code, said):
    if sys.platform == "win32":
        pytest.skip("needs signals")
    (tmp_path / "a.h5").write_bytes(hdf5.SIGNATURE + bytes(100))
    (tmp_path / "h5py.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(apart, "SECONDS", -9 if "sleep" in code or "while" in code else 60)
    with pytest.raises(Malformed, match="cannot be read as an HDF5 file") as raised:
        ckptool.open(tmp_path / "a.h5")
    assert said in str(raised.value)


#: In place of h5py: what the process that reads a file does, by the size of the file.
READERS = """
import os, signal, time
class File:
    def __init__(self, part, mode):
        part.seek(0, 2)
        size = part.tell()
        if size == 101: os.kill(os.getpid(), signal.SIGSEGV)
        if size == 102: time.sleep(60)
        if size == 103: os._exit(3)
        raise ValueError(f"read by {os.getpid()}, a child of {os.getppid()}")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_each_file_is_read_by_a_process_of_its_own_of_one_that_imported_the_library(monkeypatch, tmp_path):
    (tmp_path / "h5py.py").write_text(READERS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def told(size, seconds=60):
        (tmp_path / "a.h5").write_bytes(hdf5.SIGNATURE + bytes(size - len(hdf5.SIGNATURE)))
        monkeypatch.setattr(apart, "SECONDS", seconds)
        with pytest.raises(Malformed, match="cannot be read as an HDF5 file") as raised:
            ckptool.open(tmp_path / "a.h5")
        return str(raised.value)

    def pids(size):
        return re.search(r"read by (\d+), a child of (\d+)", told(size)).groups()

    first, second = pids(100), pids(100)
    assert first[0] != second[0]
    assert first[1] == second[1]  # one import for all
    assert "was ended by SIGSEGV" in told(101)
    assert "failed with status 3" in told(103)
    assert pids(100)[1] == first[1]  # which a crash does not end
    assert "took more than" in told(102, seconds=-9)
    os.kill(int(pids(100)[1]), 9)
    assert pids(100)[1] != first[1]  # and which is started anew where it ended


h5py = pytest.importorskip("h5py")


def _reader(monkeypatch, tmp_path, size=100):
    (tmp_path / "a.h5").write_bytes(hdf5.SIGNATURE + bytes(size - len(hdf5.SIGNATURE)))
    (tmp_path / "h5py.py").write_text(READERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "a.h5"


def test_more_than_1024_open_descriptors_do_not_matter(monkeypatch, tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1300:
        pytest.skip("may not open so many files")
    file = _reader(monkeypatch, tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1300), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with pytest.raises(Malformed, match="read by"):
            ckptool.open(file)
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_was_forked_while_another_thread_read_a_file_can_read_one(monkeypatch, tmp_path):
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(tmp_path)!r})
import ckptool
from ckptool.formats.frameworks import apart
def read():
    try:
        ckptool.open({str(_reader(monkeypatch, tmp_path))!r})
    except ckptool.Malformed as error:
        return "read by" in str(error)
assert read()
with apart._LOCK:
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        os._exit(0 if read() else 1)
assert os.waitpid(pid, 0)[1] == 0
assert read()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("make", ["link", "storage", "virtual"])
def test_what_refers_to_another_file_is_refused(tmp_path, make):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["key"] = np.arange(4.0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["w"] = np.ones(2)
        if make == "link":
            file["stolen"] = h5py.ExternalLink(str(secret), "/key")
        elif make == "storage":
            file.create_dataset("stolen", (4,), "f8", external=[(str(secret), 0, 32)])
        else:
            layout = h5py.VirtualLayout((4,), "f8")
            layout[:] = h5py.VirtualSource(str(secret), "key", (4,))
            file.create_virtual_dataset("stolen", layout)
    with pytest.raises(Malformed, match="refers to other files") as raised:
        ckptool.open(tmp_path / "a.h5")
    assert "stolen" in raised.value.evidence[0]


def test_contiguous_values_stay_in_the_file():
    weights = ckptool.open(HERE / "keras.weights.h5").state_dict()
    assert all(isinstance(tensor.source(), FileRange) for tensor in weights.tensors.values())


def test_a_damaged_chunk_is_found_when_it_is_read(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=np.arange(100.0), chunks=(100,), fletcher32=True)
    with h5py.File(path) as file:
        at = file["w"].id.get_chunk_info(0).byte_offset
    raw = bytearray(path.read_bytes())
    raw[at + 5] ^= 1
    path.write_bytes(raw)
    assert "Fletcher-32" in ckptool.verify(path).damage[0]
    with pytest.raises(Malformed):
        ckptool.save(ckptool.open(path), tmp_path / "out.pth")
    assert not (tmp_path / "out.pth").exists()


OPTIONS = {"plain": {}, "gzip": {"compression": 9}, "shuffled": {"shuffle": True}, "summed": {"fletcher32": True}}


@pytest.mark.parametrize("version", [None, "latest"])
def test_every_layout_has_the_values_that_the_library_reads(tmp_path, version):
    made = {}
    with h5py.File(tmp_path / "a.h5", "w", libver=version) as file:
        for shape in [(1,), (17,), (5, 7), (3, 4, 5), (0, 3), ()]:
            for name, options in OPTIONS.items():
                for kind in ("f4", ">i8", "u1", "c8", "f2"):
                    values = np.arange(int(np.prod(shape))).reshape(shape).astype(kind)
                    if options and (not shape or 0 in shape):
                        continue
                    chunks = tuple(-(-n // 2) for n in shape) if options else None
                    key = f"{name}/{kind}/{len(made)}"
                    file.create_dataset(key, data=values, chunks=chunks, **options)
                    made[key] = values
    found = ckptool.open(tmp_path / "a.h5").state_dict()
    assert set(found) == set(made)
    for key, values in made.items():
        assert found[key].shape == values.shape
        assert found[key].numpy().tobytes() == values.astype(values.dtype.newbyteorder("=")).tobytes(), key


def test_an_unknown_filter_is_refused_with_what_to_do(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("w", data=np.arange(100.0), compression="lzf")
    with pytest.raises(CannotCarry, match="packed with the filter lzf"):
        ckptool.open(tmp_path / "a.h5")


def test_a_cut_or_changed_file_is_read_or_refused_in_a_line(tmp_path):
    raw = (HERE / "packed.h5").read_bytes()
    random = np.random.default_rng(0)
    path, said = tmp_path / "a.h5", []
    for number in range(8):
        changed = bytearray(raw[: random.integers(100, len(raw))] if number % 2 else raw)
        for at in random.integers(8, len(changed), 6):
            changed[at] = random.integers(256)
        path.write_bytes(changed)
        try:
            ckpt = ckptool.open(path)
            for _, tensor in ckpt.tensors():
                tensor.source().read(0, min(tensor.nbytes, 1 << 16))
        except ckptool.CheckpointError as error:
            said.append(str(error))
    assert all(len(text.splitlines()) < 14 for text in said)


def test_roles_and_axes_are_those_of_the_layers():
    for name in ("keras.keras", "keras.weights.h5", "keras.h5"):
        roles = ckptool.open(HERE / name).roles
        assert roles["stem/kernel"].axes == "HWIO"
        assert roles["deep/kernel"].axes == "HWIM"
        assert roles["head/kernel"].axes == "IO"
        assert roles["norm/moving_mean"].part == "moving_mean"
        assert ckptool.open(HERE / name).framework == "keras"


def test_a_compressed_keras_archive_is_read_too(tmp_path):
    import zipfile

    with zipfile.ZipFile(HERE / "keras.keras") as old, zipfile.ZipFile(tmp_path / "a.keras", "w", 8) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert ckptool.diff(tmp_path / "a.keras", HERE / "keras.keras").same


@pytest.mark.parametrize("kind", [">f4", "<f4", ">i2", ">f8"])
@pytest.mark.parametrize("chunks", [None, (2,)])
def test_values_that_were_never_written_are_the_fill_value_in_either_order(tmp_path, kind, chunks):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("w", (4,), kind, fillvalue=3, chunks=chunks)
        if chunks:
            made[:2] = [1, 2]
        expected = made[:]
    found = ckptool.open(tmp_path / "a.h5").state_dict()["w"].numpy()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("told", [True, False])
def test_two_opaque_bytes_without_a_type_are_a_guess(monkeypatch, tmp_path, told):
    (tmp_path / "a.h5").write_bytes(hdf5.SIGNATURE + bytes(100))
    one = {"path": "w", "dtype": "|V2", "shape": [2], "bytes": 4, "values": "0102803f"}
    one |= {"attributes": {"dtype": "bfloat16"}} if told else {}
    monkeypatch.setattr(hdf5, "plain", lambda *_: {"datasets": [one]})
    opened = ckptool.open(tmp_path / "a.h5")
    assert opened.state_dict()["w"].dtype.name == "bfloat16"
    assert any("taken for bfloat16" in line for line in opened.warnings) != told
