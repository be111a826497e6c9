import gc
import json
import os
import re
import struct
import weakref
import zipfile
from dataclasses import replace

import pytest
from assemble import Call, Name, Ordered, Stored, body, pickled
from contract import PickleContract, everything_in, sample, weights_of
from same import graph
from strategies import checkpoints, state_dict_of, tensor_of

import ckptool
from ckptool.disk.files import File
from ckptool.formats.zip.archive import open_archive
from ckptool.tree import Dict, Object

PATCHED = "the old file with its pickle replaced"
NEW = "a new archive, tensors copied as they are"


def records_in(path):
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


def names_in(path):
    return [record.filename for record in records_in(path)]


class TestTorchZip(PickleContract):
    name = "torch-zip"
    checkpoints = checkpoints()

    def test_an_archive_has_the_records_of_torch_in_the_order_of_torch(self, tmp_path):
        self.save(sample(), tmp_path / "x")
        names = names_in(tmp_path / "x")
        assert names == [
            "archive/data.pkl",
            "archive/.format_version",
            "archive/.storage_alignment",
            "archive/byteorder",
            *(f"archive/data/{n}" for n in range(4)),
            "archive/version",
        ]

    def test_every_payload_is_aligned_and_its_checksum_true(self, tmp_path):
        self.save(sample(), tmp_path / "x")
        with zipfile.ZipFile(tmp_path / "x") as archive:
            assert archive.testzip() is None
        members = open_archive(File(tmp_path / "x")).members.values()
        assert {member.start % 64 for member in members} == {0}


# ----------------------------------------------------------------------------------- patching, or laying out anew


@pytest.fixture
def origin(tmp_path):
    """A path to an archive with long keys, as torch would have written it."""
    path = tmp_path / "origin"
    ckptool.save(sample(), path, format="torch-zip")
    return path


def test_a_shorter_pickle_is_patched_into_the_old_archive(tmp_path, origin):
    ckpt = ckptool.strip_prefix(ckptool.open(origin), "module.")
    done = ckptool.save(ckpt, tmp_path / "x", format="torch-zip")
    assert done.how == PATCHED
    old, new = origin.read_bytes(), (tmp_path / "x").read_bytes()
    assert len(new) == len(old)
    with zipfile.ZipFile(tmp_path / "x") as archive:
        assert archive.testzip() is None
    start = old.index(b"\x80\x02")
    changed = [at for at in range(len(old)) if old[at] != new[at]]
    pickle = records_in(origin)[0]
    outside = [at for at in changed if not start <= at < start + pickle.file_size]
    assert len(outside) <= 8  # the checksum, in two places
    assert weights_of(ckptool.open(tmp_path / "x")) == weights_of(ckpt)


def test_a_longer_pickle_makes_a_new_archive(tmp_path, origin):
    ckpt = ckptool.add_prefix(ckptool.open(origin), "very.long.prefix.")
    done = ckptool.save(ckpt, tmp_path / "x", format="torch-zip")
    assert done.how == NEW
    assert weights_of(ckptool.open(tmp_path / "x")) == weights_of(ckpt)


def test_a_dropped_storage_makes_a_new_archive_without_it(tmp_path, origin):
    ckpt = ckptool.drop(ckptool.open(origin), ["module.steps"])
    done = ckptool.save(ckpt, tmp_path / "x", format="torch-zip")
    assert done.how == NEW
    assert len([name for name in names_in(tmp_path / "x") if "/data/" in name]) == 3


def test_tensors_in_another_order_are_never_patched_into_an_archive_that_promises_an_order(tmp_path):
    entries = {f"a.rather.long.key.{n}": tensor_of("float32", (4,), bytes([n]) * 16) for n in range(4)}
    ckptool.save(state_dict_of(entries), tmp_path / "x", format="torch-zip")
    ckpt = ckptool.open(tmp_path / "x")
    turned = replace(ckpt, root=Dict(list(reversed(ckpt.root.entries))))
    done = ckptool.save(turned, tmp_path / "y", format="torch-zip")
    assert done.how == NEW
    assert weights_of(ckptool.open(tmp_path / "y")) == weights_of(turned)
    records = [n for n in records_in(tmp_path / "y") if "/data/" in n.filename]
    assert [info.filename for info in records] == [f"archive/data/{n}" for n in range(4)]


def test_unknown_records_are_carried_along(tmp_path, origin):
    with zipfile.ZipFile(origin, "a") as archive:
        archive.writestr("archive/extra/notes.txt", "hello", zipfile.ZIP_DEFLATED)
        archive.writestr("archive/.data/serialization_id", "0" * 40)
    ckpt = ckptool.open(origin)
    ckptool.save(ckptool.add_prefix(ckpt, "much.longer."), tmp_path / "x", format="torch-zip")
    with zipfile.ZipFile(tmp_path / "x") as archive:
        assert archive.read("archive/extra/notes.txt") == b"hello"
        assert archive.testzip() is None


def test_stored_checksums_are_carried_over_and_not_computed_again(tmp_path, origin):
    before = {info.filename: info.CRC for info in records_in(origin) if "/data/" in info.filename}
    ckptool.save(ckptool.add_prefix(ckptool.open(origin), "much.longer."), tmp_path / "x", format="torch-zip")
    after = {info.filename: info.CRC for info in records_in(tmp_path / "x") if "/data/" in info.filename}
    assert before == after


# ------------------------------------------------------------------------------------- archives of other writers


def remade(path, target, change=lambda name, data: data, method=lambda name: zipfile.ZIP_STORED):
    """The archive at PATH written again by Python's zipfile; CHANGE gives other bytes, or None to leave one out."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = change(name.split("/", 1)[1], old.read(name))
            if data is not None:
                new.writestr(zipfile.ZipInfo(name), data, method(name.split("/", 1)[1]))
    return target


VARIANTS = {
    "zipfile's own headers": {},
    "no .format_version": {"change": lambda name, data: None if name == ".format_version" else data},
    "no byteorder": {"change": lambda name, data: None if name == "byteorder" else data},
    "only what torch 1.6 wrote": {
        "change": lambda name, data: None if name.startswith(".") or name == "byteorder" else data
    },
    "deflated pickle": {"method": lambda name: zipfile.ZIP_DEFLATED if name == "data.pkl" else zipfile.ZIP_STORED},
    "everything deflated": {"method": lambda name: zipfile.ZIP_DEFLATED},
    "version 10": {"change": lambda name, data: b"10\n" if name == "version" else data},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_archives_that_others_made_are_opened_and_written_again(tmp_path, origin, variant):
    other = remade(origin, tmp_path / "other", **VARIANTS[variant])
    ckpt = ckptool.open(other)
    assert weights_of(ckpt) == weights_of(ckptool.open(origin))
    for number, changed in enumerate(
        [ckpt, ckptool.strip_prefix(ckpt, "module."), ckptool.add_prefix(ckpt, "a.b.c.d.e.")]
    ):
        target = tmp_path / f"out{number}"
        ckptool.save(changed, target, format="torch-zip")
        assert weights_of(ckptool.open(target)) == weights_of(changed)
        with zipfile.ZipFile(target) as archive:
            assert archive.testzip() is None


def test_storages_named_by_pointers_as_torch_1_6_named_them_are_found(tmp_path):
    """torch 1.6 named storages by their addresses and laid them out in the order of these texts."""
    storages = {key: bytes([n + 1]) * 16 for n, key in enumerate(["94873416263104", "140213", "9"])}
    ids = {key: ("storage", FLOAT, key, "cpu", 4) for key in storages}
    root = {f"key.{key}": Call("torch._utils._rebuild_tensor_v2", Stored(pid), *FITTING) for key, pid in ids.items()}
    archive_of(tmp_path / "x", root, **{f"_{key}": storages[key] for key in sorted(storages)})
    ckpt = ckptool.open(tmp_path / "x")
    assert everything_in(ckpt) == [data[:4] for data in storages.values()]
    done = ckptool.save(ckpt, tmp_path / "y", format="torch-zip")
    assert done.how == PATCHED  # nothing promises an order
    ckptool.save(ckptool.add_prefix(ckpt, "much.longer.than.before." * 9), tmp_path / "z", format="torch-zip")
    assert everything_in(ckptool.open(tmp_path / "y")) == everything_in(ckpt)
    assert everything_in(ckptool.open(tmp_path / "z")) == everything_in(ckpt)
    assert [n for n in names_in(tmp_path / "z") if "/data/" in n] == [f"a/data/{n}" for n in range(3)]


def test_checksums_that_were_not_recorded_are_no_damage(tmp_path, origin):
    data = bytearray(origin.read_bytes())
    for info in records_in(origin):
        while info.CRC and (at := data.find(struct.pack("<I", info.CRC))) >= 0:
            data[at : at + 4] = bytes(4)
    (tmp_path / "x").write_bytes(data)
    ckpt = ckptool.open(tmp_path / "x")
    assert weights_of(ckpt) == weights_of(ckptool.open(origin))
    assert any("checksums of 3 storages were not recorded" in warning for warning in ckpt.warnings)
    ckptool.save(ckptool.add_prefix(ckpt, "much.longer."), tmp_path / "y", format="torch-zip")
    with zipfile.ZipFile(tmp_path / "y") as archive:
        assert archive.testzip() is None


def test_big_endian_archives_are_copied_as_they_are(tmp_path, origin):
    big = remade(origin, tmp_path / "big", lambda name, data: b"big" if name == "byteorder" else data)
    ckpt = ckptool.open(big)
    ckptool.save(ckptool.add_prefix(ckpt, "much.longer."), tmp_path / "x", format="torch-zip")
    with zipfile.ZipFile(tmp_path / "x") as archive:
        assert archive.read("archive/byteorder") == b"big"
        assert archive.read("archive/data/0") == bytes(range(48))


# ---------------------------------------------------------------------------------------------- damage and relatives

DAMAGE = {
    "a storage that is missing": (lambda n, d: None if n == "data/0" else d, "data/0 is missing"),
    "a storage that is too short": (lambda n, d: d[:-1] if n == "data/0" else d, "has 47 bytes; its tensors need 48"),
    "a storage that is too long": (lambda n, d: d + b"x" if n == "data/0" else d, "has 49 bytes; its tensors need 48"),
    "a byteorder that is none": (lambda n, d: b"middle" if n == "byteorder" else d, "neither little nor big"),
    "version 0": (lambda n, d: b"0\n" if n == "version" else d, "torch reads 1 to 10"),
    "version 11": (lambda n, d: b"11\n" if n == "version" else d, "torch reads 1 to 10"),
    "a pickle that is cut short": (lambda n, d: d[:-1] if n == "data.pkl" else d, "cut short"),
    "a pickle of junk": (lambda n, d: b"\xff" * 50 if n == "data.pkl" else d, "no opcode 0xff"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_an_archive_that_contradicts_itself_is_refused(tmp_path, origin, name):
    change, message = DAMAGE[name]
    remade(origin, tmp_path / "x", change)
    with pytest.raises(ckptool.Malformed, match=message):
        ckptool.open(tmp_path / "x")


def test_what_reading_leaves_behind_is_said(tmp_path, origin):
    def change(name, data):
        return data + b"hidden" if name == "data.pkl" else data

    remade(origin, tmp_path / "x", change)
    with zipfile.ZipFile(tmp_path / "x", "a") as archive:
        archive.writestr("archive/data/99", b"unused")
    ckpt = ckptool.open(tmp_path / "x")
    said = ["6 bytes that follow the end of its pickle", "1 storage that no tensor uses: data/99"]
    assert list(ckpt.lost_form) == said
    assert list(ckptool.save(ckpt, tmp_path / "y", format="torch-zip").form) == said


@pytest.mark.parametrize("add", ["", "longer."], ids=["patched", "new"])
def test_a_version_that_is_no_number_is_not_passed_on(tmp_path, origin, add):
    remade(origin, tmp_path / "x", lambda name, data: b"abc" if name == "version" else data)
    ckpt = ckptool.open(tmp_path / "x")
    done = ckptool.add_prefix(ckpt, add) if add else ckpt
    receipt = ckptool.save(done, tmp_path / "y", format="torch-zip")
    assert receipt.form == ("its version, which is not a number, so that torch cannot read it: 'abc'",)
    with zipfile.ZipFile(tmp_path / "y") as archive:
        assert archive.read("archive/version") == b"3\n"


RELATIVES = {
    "model.pth": "a zip archive with a checkpoint in it",
    "version": "without data.pkl",
    "image.png": "a zip archive, but none of torch's",
}


@pytest.mark.parametrize("record", RELATIVES)
def test_other_zip_archives_are_named_for_what_they_are(tmp_path, record):
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        archive.writestr(f"top/{record}", b"3\n")
    with pytest.raises(ckptool.UnknownFormat, match=RELATIVES[record]):
        ckptool.open(tmp_path / "x")


def archive_of(path, root, **storages):
    """A torch archive whose pickle is put together by hand. STORAGES: key without its `_` -> bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickled(root))
        for key, data in storages.items():
            archive.writestr(f"a/data/{key.lstrip('_')}", data)
        archive.writestr("a/version", "3\n")


FLOAT = Name("torch.FloatStorage")
ID = ("storage", FLOAT, "0", "cpu", 4)
FITTING = (0, (1,), (1,), False, {})

#: name -> (persistent id, the arguments of _rebuild_tensor_v2 after the storage, what the message says)
REBUILDS = {
    "reaches beyond its storage": (ID, (1, (4,), (1,), False, {}), "reaches to byte 20 of a storage of 16"),
    "reaches beyond by its stride": (ID, (0, (2,), (4,), False, {}), "reaches to byte 20"),
    "negative offset": (ID, (-1, (1,), (1,), False, {}), "negative"),
    "negative stride": (ID, (3, (2,), (-1,), False, {}), "negative"),
    "negative size": (ID, (0, (-1,), (1,), False, {}), "negative"),
    "sizes and strides": (ID, (0, (2, 2), (1,), False, {}), "2 sizes but 1 strides"),
    "huge": (ID, (0, (1 << 40, 1 << 40), (0, 0), False, {}), "more elements or dimensions than any memory"),
    "text as offset": (ID, ("0", (1,), (1,), False, {}), "arguments that are none of a tensor"),
    "bool as offset": (ID, (True, (1,), (1,), False, {}), "arguments that are none of a tensor"),
    "list as shape": (ID, (0, [1], (1,), False, {}), "arguments that are none of a tensor"),
    "too few arguments": (ID, (0, (1,)), "with 3 arguments"),
    "unknown metadata": (ID, (*FITTING, {"evil": True}), "unknown metadata"),
    "metadata that are not a dict": (ID, (*FITTING, 5), "metadata that are not a dict"),
    "negative count": ((*ID[:4], -1), FITTING, "a size that is none"),
    "bool as count": ((*ID[:4], True), FITTING, "a size that is none"),
    "text as count": ((*ID[:4], "4"), FITTING, "a size that is none"),
    "location that is not text": ((*ID[:3], 5, 4), FITTING, "persistent id that torch does not write"),
    "class of another module": (
        ("storage", Name("os.FloatStorage"), *ID[2:]),
        FITTING,
        "unknown class: os.FloatStorage",
    ),
    "unknown storage class": (("storage", Name("torch.EvilStorage"), *ID[2:]), FITTING, "unknown class"),
    "another kind of id": (("tensor", *ID[1:]), FITTING, "persistent id of 5 parts"),
    "an id that is a number": (5, FITTING, "persistent id that torch does not write"),
    "an empty id": ((), FITTING, "persistent id that torch does not write"),
    "a view": ((*ID, ("v", 0, 2)), FITTING, "is a view, which only legacy files have"),
    "a key with a path": ((*ID[:2], "../0", "cpu", 4), FITTING, "data/../0 is missing"),
}


@pytest.mark.parametrize("name", REBUILDS)
def test_a_tensor_that_cannot_be_is_refused(tmp_path, name):
    pid, args, message = REBUILDS[name]
    archive_of(tmp_path / "x", {"x": Call("torch._utils._rebuild_tensor_v2", Stored(pid), *args)}, _0=bytes(16))
    with pytest.raises(ckptool.Malformed, match=re.escape(message)):
        ckptool.open(tmp_path / "x")


def test_the_tensor_that_these_are_made_from_can_be(tmp_path):
    archive_of(tmp_path / "x", {"x": Call("torch._utils._rebuild_tensor_v2", Stored(ID), *FITTING)}, _0=bytes(16))
    assert ckptool.open(tmp_path / "x").state_dict()["x"].shape == (1,)


def test_one_storage_with_two_sizes_is_refused(tmp_path):
    ids = [ID, (*ID[:4], 3)]
    root = [Call("torch._utils._rebuild_tensor_v2", Stored(pid), *FITTING) for pid in ids]
    archive_of(tmp_path / "x", root, _0=bytes(16))
    with pytest.raises(ckptool.Malformed, match="two sizes: 16 and 12 bytes"):
        ckptool.open(tmp_path / "x")


def test_tensors_of_the_oldest_rebuild_function_are_tensors(tmp_path):
    archive_of(tmp_path / "x", Call("torch._utils._rebuild_tensor", Stored(ID), 1, (2,), (1,)), _0=bytes(range(16)))
    tensor = ckptool.open(tmp_path / "x").root
    assert (tensor.dtype.name, tensor.shape, bytes(tensor.source().read(0, 8))) == (
        "float32",
        (2,),
        bytes(range(4, 12)),
    )


def test_a_shape_may_be_a_torch_size(tmp_path):
    shape = Call("torch.Size", (2, 2))
    root = Call("torch._utils._rebuild_tensor_v2", Stored(ID), 0, shape, (2, 1), False, Ordered())
    archive_of(tmp_path / "x", root, _0=bytes(16))
    assert ckptool.open(tmp_path / "x").root.shape == (2, 2)


def test_hooks_keep_a_tensor_an_object(tmp_path):
    hooks = Ordered({1: Name("os.system")})
    archive_of(tmp_path / "x", Call("torch._utils._rebuild_tensor_v2", Stored(ID), *FITTING[:4], hooks), _0=bytes(16))
    ckpt = ckptool.open(tmp_path / "x")
    assert isinstance(ckpt.root, Object)
    with pytest.raises(ckptool.CannotCarry, match="may run code"):
        ckptool.plan(ckpt, tmp_path / "y")


# -------------------------------------------------------------------------------------------------------- objects


def test_objects_that_may_run_code_are_not_written_unless_asked_for(tmp_path):
    archive_of(tmp_path / "x", {"config": Call("my.package.Config", 1), "run": Name("os.system")})
    ckpt = ckptool.open(tmp_path / "x")
    with pytest.raises(ckptool.CannotCarry, match="may run code") as caught:
        ckptool.save(ckpt, tmp_path / "y")
    assert "my.package.Config (1)" in caught.value.evidence
    assert not (tmp_path / "y").exists()
    done = ckptool.save(ckpt, tmp_path / "y", keep_objects=True)
    assert done.objects == {"my.package.Config": 1, "os.system": 1}
    assert graph(ckptool.open(tmp_path / "y").root) == graph(ckpt.root)


def test_harmless_data_classes_are_written_without_asking(tmp_path):
    names = "argparse.Namespace types.SimpleNamespace collections.deque pathlib.PosixPath datetime.datetime".split()
    archive_of(tmp_path / "x", {name: Call(name) for name in names})
    assert ckptool.save(ckptool.open(tmp_path / "x"), tmp_path / "y").objects == {}


def test_calls_that_the_pickle_throws_away_are_content_that_is_lost(tmp_path):
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        thrown_away = body(Call("os.system", "true")) + b"0"
        archive.writestr("a/data.pkl", b"\x80\x02" + thrown_away + body({"epoch": 1}) + b".")
        archive.writestr("a/version", "3\n")
    ckpt = ckptool.open(tmp_path / "x")
    with pytest.raises(ckptool.CannotCarry) as caught:
        ckptool.plan(ckpt, tmp_path / "y")
    assert caught.value.evidence == ("1 calls whose result its pickle throws away",)
    assert ckptool.plan(ckpt, tmp_path / "y", allow_loss=True).content == caught.value.evidence


# ----------------------------------------------------------------------------------------------- text metadata


def test_text_metadata_of_a_safetensors_file_travels_with_the_archive(tmp_path):
    ckpt = replace(sample(), metadata={"modelspec.title": "Ünïcode", "note": "x"})
    ckptool.save(ckpt, tmp_path / "x", format="torch-zip")
    with zipfile.ZipFile(tmp_path / "x") as archive:
        assert json.loads(archive.read("archive/.ckptool/metadata.json")) == ckpt.metadata
    back = ckptool.open(tmp_path / "x")
    assert back.metadata == ckpt.metadata
    ckptool.save(back, tmp_path / "y.safetensors")
    assert ckptool.open(tmp_path / "y.safetensors").metadata == ckpt.metadata
    with pytest.raises(ckptool.CannotCarry, match="text metadata"):
        ckptool.save(back, tmp_path / "z", format="torch-legacy")


def test_a_file_may_be_opened_by_a_path_of_any_kind(tmp_path, origin, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (origin, str(origin), "origin"):
        assert len(ckptool.open(path).state_dict()) == 5
    assert os.fspath(ckptool.open("origin").path) == "origin"


def test_a_compressed_storage_that_is_damaged_is_refused_every_time(tmp_path, origin):
    remade(origin, tmp_path / "x", method=lambda name: zipfile.ZIP_DEFLATED)
    start = open_archive(File(tmp_path / "x")).members["data/0"].start
    with open(tmp_path / "x", "r+b") as file:
        file.seek(start + 8)
        file.write(b"\xff" * 8)
    tensor = ckptool.open(tmp_path / "x").state_dict()["module.conv.weight"]
    for _ in range(2):
        with pytest.raises(ckptool.Malformed):
            tensor.source().read(0, 48)


def test_what_was_read_is_let_go_without_a_search_for_cycles(origin):
    gc.disable()
    try:
        ckpt = ckptool.open(origin)
        file = weakref.ref(ckpt.origin.archive.file)
        assert file() is not None
        del ckpt
        assert file() is None
    finally:
        gc.enable()
