"""Containers that are only read: TorchScript, packages, exported programs, tar files, plain pickles.

torch writes them where it still can, and judges what we read; tar files are put together by hand.
"""

import io
import json
import pickle
import random
import struct
import tarfile
import warnings
import zipfile

import pytest
from assemble import Call, Name, Ordered, Stored, pickled
from contract import everything_in

import ckptool
from ckptool.errors import CheckpointError
from ckptool.formats import FORMATS
from ckptool.formats.torchscript import _QUOTED
from ckptool.reports.inspect import describe

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


# ------------------------------------------------------------------------------------------------- tar, by hand


def tar_of(members, form=tarfile.PAX_FORMAT, kinds=None):
    """A tar archive of MEMBERS {name: bytes}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1485000000.25  # a fraction: PAX then has a header for every member
            info.type, info.linkname = (kinds or {}).get(name, tarfile.REGTYPE), "elsewhere"
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


FLOATS = struct.pack("<6f", *range(6))


def storage_entry(number, numel, data, kind="FloatStorage", location="cpu"):
    return pickled((number, location, Name(f"torch.{kind}"))) + struct.pack("<q", numel) + data


def tensor_entry(number, storage, shape, stride, offset=0, kind="FloatTensor"):
    numbers = struct.pack(f"<ii{2 * len(shape) + 1}q", len(shape), 12345, *shape, *stride, offset)
    return pickled((number, storage, Name(f"torch.{kind}"))) + numbers


def old_members(**changes):
    """What torch 0.1 wrote for {"w": …, "tied": the same, "view": of a part, "t": transposed, "epoch": 3}."""
    storages = [storage_entry(101, 6, FLOATS, location="cuda:1"), storage_entry(102, 3, b"\1\2\3", "ByteStorage")]
    tensors = [
        tensor_entry(1, 101, (2, 3), (3, 1)),
        tensor_entry(2, 103, (2,), (1,), 1),
        tensor_entry(3, 101, (3, 2), (1, 3)),
        tensor_entry(4, 102, (), ()),
    ]
    ids = {"w": "1", "tied": "1", "view": "2", "t": "3", "byte": "4"}
    tree = Ordered({name: Stored(number) for name, number in ids.items()})
    members = {
        "sys_info": pickled({"protocol_version": 1000, "little_endian": True}),
        "pickle": pickled({"state_dict": tree, "epoch": 3}),
        "tensors": pickled(len(tensors)) + b"".join(tensors),
        "storages": pickled(len(storages)) + b"".join(storages) + pickled([(103, 101, 2, 4)]),
    }
    return members | changes


@pytest.fixture
def old(tmp_path):
    (tmp_path / "old.pth").write_bytes(tar_of(old_members()))
    return tmp_path / "old.pth"


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_of_torch_0_1_is_read_in_place(tmp_path, form):
    path = tmp_path / "old.pth"
    path.write_bytes(tar_of(old_members(), form))
    ckpt = ckptool.open(path)
    assert ckptool.detect(path) == ckpt.format == "torch-tar"
    weights = ckpt.state_dict()
    assert {key: t.shape for key, t in weights.items()} == {
        "w": (2, 3),
        "tied": (2, 3),
        "view": (2,),
        "t": (3, 2),
        "byte": (),
    }
    assert weights.ties() == [["w", "tied"]]
    assert weights["view"].storage is weights["w"].storage
    assert weights["view"].offset == 3
    assert (weights["w"].location, weights["byte"].dtype.name) == ("cuda:1", "uint8")
    assert everything_in(ckpt)[2] == FLOATS[12:20]
    assert list(tmp_path.iterdir()) == [path]


def test_a_tar_is_what_torch_makes_of_it(old, tmp_path, torch):
    ckpt = ckptool.map_location(ckptool.open(old), "cpu")
    theirs = torch.load(old, map_location="cpu", weights_only=False)
    assert list(theirs) == ["state_dict", "epoch"]
    ckptool.save(ckpt, tmp_path / "new.pth")
    assert ckptool.detect(tmp_path / "new.pth") == "torch-zip"
    ours = torch.load(tmp_path / "new.pth", weights_only=True)
    for key, value in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][key], value)
        assert (ours["state_dict"][key].dtype, ours["state_dict"][key].stride()) == (value.dtype, value.stride())
    mine = ours["state_dict"]
    assert mine["w"].data_ptr() == mine["tied"].data_ptr() == mine["view"].data_ptr() - 12


WRONG = {
    "a member that is missing": ({"storages": None}, {}, "without the member 'storages'"),
    "a link": ({}, {"tensors": tarfile.SYMTYPE}, "is not a regular file"),
    "a pipe": ({}, {"pickle": tarfile.FIFOTYPE}, "is not a regular file"),
    "too many storages": ({"storages": pickled(1 << 60)}, {}, "a number of storages or tensors that is none"),
    "a storage that is cut": ({"storages": pickled(1) + storage_entry(101, 7, FLOATS)}, {}, "is cut short"),
    "a storage of no type": ({"storages": pickled(1) + storage_entry(101, 1, FLOATS, "X")}, {}, "torch does not write"),
    "a view beyond": (
        {"storages": pickled(1) + storage_entry(101, 6, FLOATS) + pickled([(103, 101, 5, 4)])},
        {},
        "a view of elements 5 to 9 beyond its storage",
    ),
    "a tensor beyond": ({"tensors": pickled(1) + tensor_entry(1, 101, (7,), (1,))}, {}, "reaches to byte 28"),
    "too many dimensions": ({"tensors": pickled(1) + pickled((1, 101, Name("t.T"))) + b"\xff" * 8}, {}, "dimensions"),
    "a tensor that is not there": ({"pickle": pickled(Stored("9"))}, {}, "refers to the object '9'"),
    "a number in other digits": ({"pickle": pickled(Stored("²"))}, {}, "which is not in the archive"),
    "a number with a sign": ({"pickle": pickled(Stored("-1"))}, {}, "which is not in the archive"),
    "a truth for a number": ({"pickle": pickled(Stored(True))}, {}, "which is not in the archive"),
    "a tuple for a number": ({"pickle": pickled(Stored((((),),)))}, {}, "refers to the object of a tuple"),
    "a call among numbers": ({"storages": pickled(Call("os.system", "true"))}, {}, "a number of storages"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tar_that_contradicts_itself_is_refused(tmp_path, name):
    changes, kinds, message = WRONG[name]
    members = {member: data for member, data in old_members(**changes).items() if data is not None}
    (tmp_path / "x").write_bytes(tar_of(members, kinds=kinds))
    with pytest.raises(ckptool.Malformed, match=message):
        ckptool.open(tmp_path / "x")


@pytest.mark.parametrize("digits", [b"-0000000777", b"0000_000_01", b"+0000000777", b"0o000000777"])
def test_a_tar_header_holds_nothing_but_octal_digits(tmp_path, digits):
    raw = bytearray(tar_of(old_members(), tarfile.USTAR_FORMAT))
    raw[124:135] = digits
    raw[148:156] = b"%06o\0 " % (sum(raw[:148]) + 8 * 32 + sum(raw[156:512]))
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(ckptool.Malformed, match="tar header at byte 0 is damaged"):
        ckptool.open(tmp_path / "x", format="torch-tar")


def test_an_extended_tar_header_holds_nothing_but_decimal_digits(tmp_path):
    info = tarfile.TarInfo("x")
    info.pax_headers = {"size": "²"}
    record = info.tobuf(tarfile.PAX_FORMAT)[:1024]  # the extended header alone: it goes before the first member
    (tmp_path / "x").write_bytes(record + tar_of(old_members(), tarfile.USTAR_FORMAT))
    with pytest.raises(ckptool.Malformed, match="has a size that is none"):
        ckptool.open(tmp_path / "x", format="torch-tar")


def test_a_compressed_resource_of_a_package_is_not_inflated_to_see_what_it_is(tmp_path, monkeypatch):
    """A few kilobytes can hold gigabytes of zeros, which would go to a temporary file."""
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/.data/extern_modules", "")
        archive.writestr("x/m/m.pkl", pickled({"epoch": 3}))
        archive.writestr("x/m/data.bin", bytes(64 << 20), zipfile.ZIP_DEFLATED)
        archive.writestr("x/m/other.pkl", pickled({"epoch": 4}), zipfile.ZIP_DEFLATED)
    monkeypatch.setattr("tempfile.TemporaryFile", None)
    root = ckptool.open(tmp_path / "x.pt").root
    assert root.get("m/data.bin") == "67108864 bytes"
    assert root.get("m/other.pkl").get("epoch") == 4


def test_members_of_others_are_not_touched_and_named(tmp_path):
    (tmp_path / "x").write_bytes(tar_of(old_members() | {"../../evil": b"x"}))
    ckpt = ckptool.open(tmp_path / "x")
    assert ckpt.lost_form == ("the member ../../evil",)


def test_other_tar_archives_are_named_for_what_they_are(tmp_path):
    (tmp_path / "x.pth.tar").write_bytes(tar_of({"model.pth": b"data"}))
    with pytest.raises(ckptool.UnknownFormat, match="a tar archive"):
        ckptool.open(tmp_path / "x.pth.tar")


# ---------------------------------------------------------------------------------------------- plain pickles


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles_of_any_protocol_are_read_with_the_tensors_in_them(tmp_path, torch, protocol):
    import numpy as np

    value = {
        "state_dict": {
            "w": torch.arange(6.0).reshape(2, 3).t(),
            "n": np.arange(3),
            "p": torch.nn.Parameter(torch.ones(2)),
        },
        "text": "é",
        "number": 1 << 70,
    }
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(value, protocol))
    assert ckptool.detect(tmp_path / "x.pkl") == "pickle"
    ckpt = ckptool.open(tmp_path / "x.pkl")
    ckptool.save(ckptool.extract(ckpt), tmp_path / "y.safetensors")
    back = ckptool.load(tmp_path / "y.safetensors")
    assert torch.equal(back["w"], value["state_dict"]["w"])
    assert torch.equal(back["p"], value["state_dict"]["p"].detach())
    assert back["n"].tolist() == [0, 1, 2]
    ckptool.save(ckpt, tmp_path / "y.pth")
    again = torch.load(tmp_path / "y.pth", weights_only=False)
    assert (again["text"], again["number"]) == ("é", 1 << 70)
    assert torch.equal(again["state_dict"]["w"], value["state_dict"]["w"])


def test_tensors_of_a_plain_pickle_stay_in_the_file(tmp_path, torch):
    from ckptool.disk.files import FileRange

    (tmp_path / "x.pkl").write_bytes(pickle.dumps([torch.ones(1000), torch.zeros(1000)], 4))
    storages = ckptool.open(tmp_path / "x.pkl").storages()
    assert all(isinstance(storage.source, FileRange) for storage in storages)
    assert [bytes(storage.source.read(0, 4)) for storage in storages] == [b"\0\0\x80\x3f", bytes(4)]


# ------------------------------------------------------------------------------- what torch writes, for the laws


def network(torch):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn, self.head = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2)
            self.tied = nn.Linear(2, 2)
            self.tied.weight = self.head.weight
            self.register_buffer("scale", torch.ones(2))
            self.plain = torch.ones(3)

        def forward(self, x):
            return self.tied(self.head(self.bn(self.conv(x)).mean((2, 3)) * self.scale)) + torch.tensor([1.0, 2.0])

    torch.manual_seed(0)
    return Net().eval()


def write_scripted(torch, path):
    torch.jit.script(network(torch)).save(str(path), _extra_files={"note.txt": "hi"})


def write_traced(torch, path):
    torch.jit.trace(network(torch), torch.ones(1, 1, 8, 8)).save(str(path))


def write_mobile(torch, path):
    torch.jit.script(network(torch))._save_for_lite_interpreter(str(path))


def write_frozen(torch, path):
    torch.jit.freeze(torch.jit.script(network(torch))).save(str(path))


def write_package(torch, path):
    from torch import nn
    from torch.package import PackageExporter

    with PackageExporter(str(path)) as out:
        out.extern("torch.**")
        out.save_pickle("model", "model.pkl", nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
        out.save_text("model", "note.txt", "hello")
        out.save_binary("model", "raw.bin", b"\x80\x02no pickle")


def write_exported(torch, path):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(2, 3)
            self.b.weight = self.a.weight
            self.register_buffer("shift", torch.ones(2))
            self.small = nn.Parameter(torch.ones(3).half())

        def forward(self, x):
            inner = self.b(self.a(x + self.shift).sum() + torch.ones(2))
            return inner + self.small.float() + torch.tensor([5.0, 6.0, 7.0])

    torch.export.save(torch.export.export(Net(), (torch.ones(1, 2),)), str(path))


def write_tar(torch, path):
    path.write_bytes(tar_of(old_members()))


def write_pickle(torch, path):
    path.write_bytes(pickle.dumps({"w": torch.arange(3.0), "b": torch.ones(2)}))


WRITERS = {
    "scripted": ("torchscript", write_scripted),
    "traced": ("torchscript", write_traced),
    "mobile": ("torchscript", write_mobile),
    "frozen": ("torchscript", write_frozen),
    "package": ("torch-package", write_package),
    "exported": ("pt2", write_exported),
    "tar": ("torch-tar", write_tar),
    "pickle": ("pickle", write_pickle),
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory, torch):
    folder = tmp_path_factory.mktemp("containers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (_, write) in WRITERS.items():
            write(torch, folder / f"{name}.pt")
    return folder


each_container = pytest.mark.parametrize("name", WRITERS)


@each_container
def test_each_is_recognised_and_opened(samples, name):
    path = samples / f"{name}.pt"
    assert ckptool.detect(path) == WRITERS[name][0] == ckptool.open(path).format
    assert describe(ckptool.open(path)).tensors


@pytest.mark.parametrize("name", ["scripted", "traced", "mobile"])
def test_weights_of_a_torchscript_archive_are_those_of_torch_jit(samples, tmp_path, torch, name):
    expected = torch.jit.load(str(samples / f"{name}.pt"))
    ckptool.save(ckptool.extract(ckptool.open(samples / f"{name}.pt")), tmp_path / "x.pth")
    ours = torch.load(tmp_path / "x.pth", weights_only=True)
    theirs = expected.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert ours["head.weight"].data_ptr() == ours["tied.weight"].data_ptr()


def test_weights_of_a_frozen_module_are_its_constants(samples, torch):
    ckpt = ckptool.open(samples / "frozen.pt")
    assert ckpt.state_dict().path == "constants"
    values = [bytes(t.source().read(0, t.nbytes)) for t in ckpt.state_dict().tensors.values()]
    assert network(torch).head.bias.detach().numpy().tobytes() in values


def test_weights_of_a_package_are_those_of_its_importer(samples, tmp_path, torch):
    expected = torch.package.PackageImporter(str(samples / "package.pt")).load_pickle("model", "model.pkl").state_dict()
    ckptool.save(ckptool.extract(ckptool.open(samples / "package.pt")), tmp_path / "x.pth")
    ours = torch.load(tmp_path / "x.pth", weights_only=True)
    assert list(ours) == list(expected)
    assert all(torch.equal(ours[key], expected[key]) for key in expected)
    assert ours._metadata == expected._metadata


def test_weights_of_an_exported_program_are_those_of_torch_export(samples, tmp_path, torch):
    expected = _exported(torch, samples / "exported.pt")
    ckptool.save(ckptool.extract(ckptool.open(samples / "exported.pt")), tmp_path / "x.safetensors")
    ours = ckptool.load(tmp_path / "x.safetensors")
    assert list(ours) == list(expected.state_dict)
    assert all(torch.equal(ours[key], expected.state_dict[key]) for key in ours)
    held = ckptool.open(samples / "exported.pt").state_dict("constants")
    assert set(held) == set(expected.constants)


def _exported(torch, path):
    copy = path.with_suffix(".pt2")  # torch goes by the suffix
    copy.write_bytes(path.read_bytes())
    return torch.export.load(str(copy))


@pytest.mark.parametrize("name", ["scripted", "package", "exported"])
def test_keys_that_a_program_names_are_not_changed_and_the_reason_is_said(samples, tmp_path, name):
    ckpt = ckptool.open(samples / f"{name}.pt")
    with pytest.raises(ckptool.RuleError, match=r"(?s)(its program|the code|names its weights).*extract-weights"):
        ckptool.add_prefix(ckpt)
    with pytest.raises(ckptool.CannotCarry, match=r"(?s)(its program|the code|names its weights).*extract-weights"):
        ckptool.save(ckpt, tmp_path / "x.pt")
    renamed = ckptool.add_prefix(ckptool.extract(ckpt))
    ckptool.save(renamed, tmp_path / "x.pt")
    assert all(key.startswith("module.") for key in ckptool.open(tmp_path / "x.pt").state_dict())


@each_container
def test_opening_one_imports_nothing_heavy(samples, in_new_python, name):
    program = """
import sys, ckptool
print(len(list(ckptool.open(sys.argv[1]).tensors())) > 0)
print(*{"torch", "numpy", "ml_dtypes", "click", "rich", "yaml", "safetensors"} & set(sys.modules))
"""
    assert in_new_python(program, samples / f"{name}.pt") == "True"


@each_container
def test_one_that_is_cut_short_is_refused(samples, tmp_path, name):
    whole = (samples / f"{name}.pt").read_bytes()
    for length in random.Random(1).sample(range(len(whole)), 150):
        if name == "tar" and length > len(whole) - 10240:
            continue  # padding at the end of the archive
        (tmp_path / "x").write_bytes(whole[:length])
        with pytest.raises((ckptool.Malformed, ckptool.UnknownFormat)):
            everything_in(ckptool.open(tmp_path / "x"))


@each_container
def test_flipped_bytes_end_in_our_errors_or_in_a_checkpoint(samples, tmp_path, name):
    whole = (samples / f"{name}.pt").read_bytes()
    chance = random.Random(20)
    refused = []
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(len(whole))] = chance.randrange(256)
        (tmp_path / "x").write_bytes(damaged)
        try:
            ckpt = ckptool.open(tmp_path / "x")
            describe(ckpt)
            everything_in(ckpt)
            ckptool.plan(ckptool.extract(ckpt), tmp_path / "y.safetensors", allow_loss=True)
        except CheckpointError as error:
            refused.append(str(error))
    assert len(refused) < 150
    assert not [message for message in refused if "\x1b" in message]


def test_formats_that_are_only_read_are_not_written(tmp_path, samples):
    ckpt = ckptool.open(samples / "pickle.pt")
    for format_ in FORMATS:
        if format_.draft is None:
            with pytest.raises(ckptool.RuleError, match="does not write it"):
                ckptool.save(ckpt, tmp_path / "x", format=format_.name)


def with_record(source, target, ending, change):
    """A copy of an archive in which CHANGE made another of the record whose name has that ENDING."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith(ending) else data)
    return target


def changed_config(samples, tmp_path, change):
    def changed(data):
        config = json.loads(data)["config"]
        return json.dumps({"config": change(config)}).encode()

    return with_record(samples / "exported.pt", tmp_path / "changed.pt2", "_weights_config.json", changed)


def with_device(device):
    def change(config):
        for entry in config.values():
            entry["tensor_meta"]["device"] = device
        return config

    return change


@pytest.mark.parametrize(
    "device",
    [
        {"type": "cuda", "index": float("inf")},
        {"type": "cuda", "index": -1},
        {"type": "cuda", "index": "3"},
        {"type": "cuda:0", "index": 1},
        {"type": "\x1b[31mcuda", "index": None},
        {"type": [1], "index": None},
        {"type": None, "index": None},
    ],
)
def test_an_exported_tensor_is_on_a_device_that_torch_has_or_refused(samples, tmp_path, device):
    with pytest.raises(
        ckptool.Malformed, match=r"is not (a )?(list of )?tensors?|is not JSON"
    ):  # infinity is not a JSON number
        ckptool.open(changed_config(samples, tmp_path, with_device(device)))


def test_an_exported_tensor_on_a_numbered_cpu_loads(samples, tmp_path, torch):
    path = changed_config(samples, tmp_path, with_device({"type": "cpu", "index": 0}))
    assert ckptool.load(path)["state_dict"]["shift"].tolist() == [1, 1]


def test_keys_of_an_exported_program_are_text(samples, tmp_path):
    path = changed_config(samples, tmp_path, lambda config: [[1, next(iter(config.values()))]])
    with pytest.raises(ckptool.Malformed, match="the key 1 is not text"):
        ckptool.open(path)


@pytest.mark.parametrize("name", ["scripted", "mobile", "package", "exported"])
def test_no_part_of_a_program_is_taken_for_what_is_whole_of_it(samples, tmp_path, name):
    damaged = with_record(samples / f"{name}.pt", tmp_path / "damaged.pt", "_weights_config.json", lambda data: b"{")
    for path in (samples / f"{name}.pt", damaged):
        with pytest.raises(ckptool.CannotCarry, match="cannot be repaired"):
            ckptool.salvage(path)


@pytest.mark.parametrize("dtype", [True, 7.0, "7"])
def test_the_type_of_an_exported_tensor_is_a_number(samples, tmp_path, dtype):
    def change(config):
        for entry in config.values():
            entry["tensor_meta"]["dtype"] = dtype
        return config

    with pytest.raises(ckptool.Malformed, match="is not a tensor"):
        ckptool.open(changed_config(samples, tmp_path, change))


def test_integers_that_say_to_need_gradients_load_without(samples, tmp_path, torch):
    def change(config):
        for entry in config.values():
            entry["tensor_meta"] |= {"dtype": 1, "requires_grad": True}
        return config

    found = ckptool.load(changed_config(samples, tmp_path, change))["state_dict"]
    assert {tensor.dtype for tensor in found.values()} == {torch.uint8}
    assert not any(tensor.requires_grad for tensor in found.values())


def test_names_that_nobody_closes_are_looked_for_once():
    for end in ("", "\\"):  # some hours, if every quote began another search
        assert _QUOTED.findall('"weight", ' + '\\"' * 400_000 + end)[0] == "weight"
