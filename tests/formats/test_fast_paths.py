"""What is read in a quick way is read as it would be in the slow one, and refused in the same words."""

import json
import struct
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same import graph
from strategies import checkpoints, flat_checkpoints, tensor_of

from ckptool.checkpoint import Checkpoint, StateDict
from ckptool.disk.composing import Gap
from ckptool.disk.files import Buffer, File
from ckptool.disk.writing import write_pieces
from ckptool.errors import CheckpointError
from ckptool.formats import torch_zip
from ckptool.formats._records import storages_of
from ckptool.formats._torch import StorageForm
from ckptool.formats.flat import header, safetensors
from ckptool.formats.pickle import writer
from ckptool.formats.zip import archive, columns, layout
from ckptool.passes import rekeying
from ckptool.tensor import Storage
from ckptool.tree import Dict, List


def told(read, *args):
    """What reading gives, or the error."""
    try:
        return read(*args)
    except CheckpointError as error:
        return type(error), str(error), error.hint


def an_archive(count, sizes=(16,), extra=()):
    payloads = {f"data/{n}": bytes([n % 251]) * sizes[n % len(sizes)] for n in range(count)}
    records = [("data.pkl", b"\x80\x02}."), *payloads.items(), *extra]
    pieces = layout.lay_out("top", [layout.Record(name, Buffer(data), None) for name, data in records])
    return b"".join(bytes(piece.read(0, piece.length)) for piece in pieces)


def members_of(path, any_layout):
    opened = archive.open_archive(File(path), any_layout=any_layout)
    return opened.top, opened.directory, list(opened.members.items())


def both_ways(monkeypatch, path):
    quick = [told(members_of, path, any_layout) for any_layout in (False, True)]
    with monkeypatch.context() as patch:
        patch.setattr(columns, "FEWEST", 1 << 40)
        return quick, [told(members_of, path, any_layout) for any_layout in (False, True)]


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(columns, "FEWEST", 1)


@pytest.mark.parametrize("count", [300, 2_500])
def test_an_archive_in_columns_holds_what_one_of_objects_does(few, monkeypatch, tmp_path, count):
    path = tmp_path / "a"
    path.write_bytes(
        an_archive(count, sizes=(16, 0, 5000), extra=[("version", b"3\n"), (".data/serialization_id", b"1" * 40)])
    )
    for any_layout in (False, True):
        assert isinstance(archive.open_archive(File(path), any_layout=any_layout).members, columns.Members)
    quick, slow = both_ways(monkeypatch, path)
    assert quick == slow
    assert [len(members) for _, _, members in quick] == [count + 3, count + 3]
    members = archive.open_archive(File(path)).members
    assert f"data/{count - 1}" in members
    odd = [f"data/{count}", "data/-1", "data/01", "data/٣", "data/", "data", "data/0x", "data/+1", "data/1_0"]
    assert [name for name in odd if name in members] == []


@pytest.mark.parametrize("name", ["DATA/3", "data/3.", "Data.PKL", "data/x", "a/b/c"])
def test_other_names_beside_numbered_records_are_told_alike(few, monkeypatch, tmp_path, name):
    stands_for = "_" * len(name)  # some of these names cannot be written
    path = tmp_path / "a"
    path.write_bytes(an_archive(5, extra=[(stands_for, b"x")]).replace(stands_for.encode(), name.encode()))
    quick, slow = both_ways(monkeypatch, path)
    assert quick == slow


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_archive_is_told_alike(few, monkeypatch, tmp_path, seed):
    random = Random(seed)
    whole = an_archive(8, sizes=(16, 0, 70), extra=[("version", b"3\n")])
    path = tmp_path / "a"
    begin = whole.index(b"PK\1\2")
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(random.choice((1, 1, 2, 4))):
            at = random.randrange(begin, len(data)) if random.random() < 0.7 else random.randrange(len(data))
            kind = random.random()
            if kind < 0.6:
                data[at] = random.choice((0, 1, 8, 0x10, 0xFF, data[at] ^ (1 << random.randrange(8))))
            elif kind < 0.8:
                other = random.randrange(begin, len(data))
                data[at : at + 12] = data[other : other + 12]
            else:
                data[at : at + 4] = struct.pack("<I", random.choice((0, 1, begin, len(data), 0xFFFFFFFF)))
        path.write_bytes(data)
        quick, slow = both_ways(monkeypatch, path)
        assert quick == slow


def test_a_record_behind_four_gigabytes_is_found_in_columns(few, monkeypatch, tmp_path):
    path = tmp_path / "a"
    records = [
        layout.Record("data.pkl", Buffer(b"\x80\x02}."), None),
        layout.Record("data/0", Gap((1 << 32) - 300), 0x12345678),
    ]
    records += [layout.Record(f"data/{n}", Buffer(bytes([n]) * 9), None) for n in range(1, 8)]
    with path.open("wb") as out:
        write_pieces(out, layout.lay_out("top", records))
    assert isinstance(archive.open_archive(File(path)).members, columns.Members)
    quick, slow = both_ways(monkeypatch, path)
    assert quick == slow
    assert any(member.header > 1 << 32 for _, member in quick[0][2])


# -- headers of safetensors

NAMES = st.text(st.characters(codec="utf-8"), max_size=6)


def a_file(tmp_path, raw, data):
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def entries_of(path):
    found = safetensors.open_safetensors(File(path))
    return graph(found.root), found.metadata, found.order_preserved, found.warnings, found.tied_names


def both_readers(monkeypatch, path):
    quick = told(entries_of, path)
    with monkeypatch.context() as patch:
        patch.setattr(header, "_read_usual", lambda raw: None)
        return quick, told(entries_of, path)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_header_read_by_the_pattern_is_the_one_that_json_tells(tmp_path_factory, data):
    tmp_path = tmp_path_factory.mktemp("h")
    monkeypatch = pytest.MonkeyPatch()
    shapes = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=5))
    names = data.draw(st.lists(NAMES, min_size=len(shapes), max_size=len(shapes), unique=True))
    entries, at = {}, 0
    if data.draw(st.booleans()):
        entries["__metadata__"] = data.draw(st.dictionaries(NAMES, NAMES, max_size=2))
    for name, shape in zip(names, shapes, strict=True):
        size = int(np.prod(shape, dtype=int)) * 4
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(
        entries,
        ensure_ascii=data.draw(st.booleans()),
        separators=data.draw(st.sampled_from([(",", ":"), (", ", ": ")])),
    )
    changed = list(text)
    for _ in range(data.draw(st.integers(0, 2))):
        where = data.draw(st.integers(0, len(changed) - 1))
        changed[where] = data.draw(st.sampled_from(['"', "{", "}", ",", "0", "9", "[", "\\", " ", "F", "", "-", "\t"]))
    raw = "".join(changed).encode("utf-8", "surrogatepass")
    with monkeypatch.context() as patch:
        patch.setattr(header, "_AT_ONCE", data.draw(st.sampled_from([1, 90, 1 << 20])))
        quick, slow = both_readers(patch, a_file(tmp_path, raw, bytes(at)))
    assert quick == slow


@pytest.mark.parametrize("space", ["", " "])
def test_a_header_with_or_without_spaces_is_read_by_the_pattern_part_by_part(monkeypatch, space):
    monkeypatch.setattr(header, "_AT_ONCE", 100)
    entries = {f"a{n}": {"dtype": "F32", "shape": [n, 2], "data_offsets": [8 * n, 16 * n]} for n in range(50)}
    for extra in ({}, {"__metadata__": {"format": "pt"}}):
        text = json.dumps({**extra, **entries}, separators=(f",{space}", f":{space}"))
        found = header._read_usual(text.encode().ljust(8000))
        assert list(found.names) == list(entries)
        assert found.begins == [8 * n for n in range(50)]
        assert [kind.shape for kind in found.kinds] == [(n, 2) for n in range(50)]


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}{"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        '{"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"__metadata__":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}',
        '{"__metadata__":{"x":"1","x":"2"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"__metadata__":{"x":1},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"__metadata__":{"x":"1"}"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}',
        '{"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}',
        '{"b":{"dtype":"F4","shape":[16],"data_offsets":[0,8]}}',
        '{"b":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}',
        "{}",
    ],
)
def test_an_odd_header_is_told_alike(monkeypatch, tmp_path, text):
    quick, slow = both_readers(monkeypatch, a_file(tmp_path, text.encode(), bytes(8)))
    assert quick == slow


# -- pickles that are written

WRITTEN = st.one_of(checkpoints(), flat_checkpoints()).map(lambda ckpt: ckpt.root)


class Slow(writer._Emitter):
    @property
    def _last(self):
        return None

    @_last.setter
    def _last(self, value):
        pass


def pickled(root):
    return writer.write_pickle(root, torch_zip._Keys(keep=False))


@given(st.lists(WRITTEN, min_size=1, max_size=3), st.booleans())
def test_dicts_of_tensors_are_written_as_their_entries_one_by_one(roots, twice):
    root = Dict([(f"x{number}", one) for number, one in enumerate([*roots, *roots[:1]] if twice else roots)])
    quick = pickled(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "holds_tensors_alone", lambda node: False)
        patch.setattr(writer, "_Emitter", Slow)
        assert pickled(root) == quick


def test_a_tensor_that_stands_in_several_places_of_a_dict_is_written_once():
    one, other = (tensor_of("float32", (2,)) for _ in range(2))
    root = Dict([("a", one), ("b", other), ("c", one), ("d", Dict([("e", one), ("f", other)]))])
    assert writer._repeated(root)[0] == {id(one), id(other)}
    assert writer._repeated(Dict([("a", one), ("b", other)])) == (set(), set())


def test_a_key_that_stands_in_several_places_is_written_once():
    key, other = "layers.0.weight", "layers.0.bias"
    held = [Dict([(key, tensor_of("float32", (2,))), (other, tensor_of("float32", (2,)))]) for _ in range(2)]
    root = Dict([("model", held[0]), ("ema", held[1]), ("names", List([other]))])
    assert writer._repeated(root) == (set(), {key, other})
    assert pickled(root).count(key.encode()) == pickled(root).count(other.encode()) == 1


KEYS = st.sampled_from(["a", "b", "module.a", "module.b", "c.d", "x\ny"])


@given(st.lists(KEYS, min_size=1, max_size=5), st.dictionaries(KEYS, st.one_of(KEYS, KEYS, st.none()), max_size=4))
def test_keys_that_are_renamed_at_once_are_those_renamed_one_by_one(names, renamed):
    root = Dict([(name, tensor_of("float32", (2,))) for name in names])

    def entries():
        ckpt = rekeying.rekey(Checkpoint(root), StateDict(root, ""), renamed)
        return [(key, id(value)) for key, value in ckpt.root.entries], ckpt.history

    quick = told(entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rekeying, "holds_tensors_alone", lambda node: False)
        assert told(entries) == quick


def origins(path, change):
    """Whether the storages of an archive, changed, are in its order: in columns, and as objects."""
    found = []
    for fewest in (1, 1 << 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "FEWEST", fewest)
            opened = archive.open_archive(File(path))
        storage = storages_of(opened, "data/{}")
        storages = [
            storage(name[5:], StorageForm(None, "cpu", source.length)) for name, source in opened.sources("data/")
        ]
        found.append(torch_zip._in_order(opened, change(storages)))
    return found


CHANGES = {
    "nothing": lambda found: found,
    "nothing of the bytes": lambda found: [*found[:3], found[3].changed(location="cuda:0"), *found[4:]],
    "nothing but the objects": lambda found: [Storage(one.source, key=one.key) for one in found],
    "one less": lambda found: found[:-1],
    "turned round": lambda found: found[::-1],
    "one more": lambda found: [*found, found[-1]],
    "another key": lambda found: [*found[:3], Storage(found[3].source, key="7"), *found[4:]],
    "another place": lambda found: [*found[:3], Storage(found[4].source, key="3"), *found[4:]],
    "a part": lambda found: [*found[:3], Storage(found[3].source.part(0, 8), key="3"), *found[4:]],
    "in memory": lambda found: [*found[:3], Storage(Buffer(bytes(16)), key="3"), *found[4:]],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("extra", [(), (("data/x", b"1"),)])
def test_the_order_of_storages_is_told_alike_in_columns(tmp_path, change, extra):
    path = tmp_path / "a"
    path.write_bytes(an_archive(8, extra=extra))
    assert origins(path, CHANGES[change]) == [change.startswith("nothing")] * 2
