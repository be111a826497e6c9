"""JSON inside of files: whatever it says, the file opens or is refused with a message, soon."""

import io
import json
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import state_dict_of, tensor_of

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.errors import CheckpointError, Malformed
from ckptool.reports.manifests import read_manifest
from ckptool.tree import Dict, List

DEEP = "[" * 900 + "]" * 900
DEEPER = "[" * 100_000
DIGITS = "9" * 5000


def safetensors(header, data=bytes(8)):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def zipped(members):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"x/{name}", data)
    return made.getvalue()


def entry(text):
    """One tensor as a header of safetensors has it, with a field of JSON in place of `@`."""
    return ('{"w": ' + text + "}").encode()


#: A header, and what is said of it.
HEADERS = {
    "dtype of lists": (
        entry('{"dtype": ' + "[" * 60 + "]" * 60 + ', "shape": [2], "data_offsets": [0, 8]}'),
        "a list of",
    ),
    "dtype too deep": (entry('{"dtype": ' + DEEP + ', "shape": [2], "data_offsets": [0, 8]}'), "more than 64"),
    "dtype without end": (entry('{"dtype": ' + DEEPER), "more than 64"),
    "dtype of many letters": (entry('{"dtype": "' + "F" * 10**6 + '", "shape": [2], "data_offsets": [0, 8]}'), "FFF…'"),
    "size of many digits": (entry('{"dtype": "F32", "shape": [' + DIGITS + '], "data_offsets": [0, 8]}'), "not JSON"),
    "size of lists": (
        entry('{"dtype": "F32", "shape": ' + "[" * 60 + "]" * 60 + ', "data_offsets": [0, 8]}'),
        "are none",
    ),
    "size of infinity": (entry('{"dtype": "F32", "shape": [1e999], "data_offsets": [0, 8]}'), "are none"),
    "size of nothing": (entry('{"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}'), "NaN is not a JSON number"),
    "metadata of lists": (entry('{"dtype": "F32"}, "__metadata__": {"a": [1]}'), "not a map of texts"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_refused_in_few_words(tmp_path, name):
    header, said = HEADERS[name]
    (tmp_path / "x.safetensors").write_bytes(safetensors(header))
    with pytest.raises(Malformed) as caught:
        ckptool.open(tmp_path / "x.safetensors")
    assert said in caught.value.what
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "note",
    [
        DEEPER,
        DEEP,
        f'{{"a": {DEEP}}}',
        f'{{"a": {DIGITS}}}',
        '{"a": "\\ud800"',
        '{"a": "b", "a": "c"}',
        "[]",
        '{"a": ["b"]}',
        '"a"',
        b"\xff",
    ],
    ids=range(10),
)
def test_a_note_in_a_zip_archive_that_is_none_is_passed_over(tmp_path, note):
    members = {"data.pkl": b"\x80\x02}q\x00.", "version": b"3", ".ckptool/metadata.json": note}
    (tmp_path / "x.pt").write_bytes(zipped(members))
    assert ckptool.open(tmp_path / "x.pt").metadata == {}


META = {
    "dtype": 7,
    "sizes": [{"as_int": 2}],
    "strides": [{"as_int": 1}],
    "storage_offset": {"as_int": 0},
    "layout": 7,
    "device": {"type": "cpu", "index": None},
    "requires_grad": False,
}


def exported(config):
    members = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little"}
    folder = "data/weights/"
    return zipped({**members, f"{folder}model_weights_config.json": config, f"{folder}weight_0": bytes(8)})


def config(part="", value="", **fields):
    meta = {**META, part: "@"} if part in META else META
    made = {"path_name": "weight_0", "is_param": True, "use_pickle": False, "tensor_meta": meta}
    if part and part not in META:
        made[part] = "@"
    return json.dumps({"config": {"w": made}}).replace('"@"', value).encode()


def test_an_exported_program_made_by_hand_is_read(tmp_path):
    (tmp_path / "x.pt2").write_bytes(exported(config()))
    assert ckptool.open(tmp_path / "x.pt2").state_dict()["w"].shape == (2,)


FIELDS = [*META, "path_name", "use_pickle", "tensor_meta", "is_param"]
VALUES = [
    "null",
    "1e999",
    "-1",
    "true",
    "[]",
    "{}",
    '"x"',
    "7.0",
    '[{"as_int": true}]',
    '[{"as_int": 1e999}]',
    '{"type": "cuda", "index": 1e999}',
    '{"type": "cuda", "index": "1"}',
    '{"type": [1], "index": null}',
    '{"as_int": 123456789012345678901234567890}',
    "[" * 60 + "]" * 60,
    DEEP,
    DEEPER,
    f'"{DIGITS}"',
    DIGITS,
]


@pytest.mark.parametrize("field", FIELDS)
def test_an_exported_program_with_odd_fields_is_read_or_refused(tmp_path, field):
    for value in VALUES:
        (tmp_path / "x.pt2").write_bytes(exported(config(field, value)))
        try:
            said = str(ckptool.open(tmp_path / "x.pt2").warnings)
        except CheckpointError as error:
            said = str(error)
        assert len(said) < 1000


def test_an_exported_program_on_a_device_without_end_is_refused(tmp_path):
    (tmp_path / "x.pt2").write_bytes(exported(config("device", '{"type": "cuda", "index": 1e999}')))
    with pytest.raises(Malformed, match="the entry of 'w' is not a tensor"):
        ckptool.open(tmp_path / "x.pt2")


INDEX = f'{{"metadata": {DEEP}, "weight_map": {{"w": "x.safetensors"}}}}'


@pytest.mark.parametrize("text", [DEEPER, DEEP, INDEX, DIGITS])
def test_an_index_too_deep_or_too_long_is_refused(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(Malformed) as caught:
        ckptool.open(tmp_path)
    assert len(str(caught.value)) < 400


BESIDE = f'{{"version": 1, "crc": 0, "dicts": {DEEP}}}'


@pytest.mark.parametrize("text", [DEEPER, BESIDE, '{"version": 1}', "[]", DIGITS])
def test_a_note_beside_slices_that_is_none_is_named(tmp_path, text):
    ckptool.save(state_dict_of({"a": tensor_of("float32")}, {"": 2}), tmp_path / "x", format="dcp")
    (tmp_path / "x" / ".ckptool-note.json").write_text(text)
    with pytest.raises(Malformed, match="is damaged: it holds what ckptool cannot store"):
        ckptool.open(tmp_path / "x")


@pytest.mark.parametrize(
    "text", [DEEPER, DIGITS, "1", '{"ckptool-manifest": 1, "digest": "", "tensors": ' + DEEP + "}"]
)
def test_a_manifest_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(Malformed, match="is not a ckptool manifest"):
        read_manifest(tmp_path / "m.json")


def test_a_manifest_of_an_absurd_size_is_not_read(tmp_path):
    with (tmp_path / "m.json").open("wb") as out:
        out.truncate(1 << 30)
    with pytest.raises(Malformed, match="1,073,741,824 bytes"):
        read_manifest(tmp_path / "m.json")


# -- what a pickle keeps beside its keys becomes JSON in other formats


def beside(value):
    """A state dict with VALUE in its `_metadata`."""
    weights = state_dict_of({"a": tensor_of("float32")}, {"": 2})
    found = weights.root.attributes.get("_metadata")
    found.entries[0][1].entries.append(("extra", value))
    return weights


def tuples_in_tuples(times):
    value = 1
    for _ in range(times):
        value = (value, value)
    return value


def lists_in_lists(times):
    value = List([1])
    for _ in range(times):
        value = List([value, value])
    return value


@pytest.mark.parametrize("format_", ["safetensors", "dcp"])
@pytest.mark.parametrize("made", [tuples_in_tuples, lists_in_lists])
def test_values_that_stand_in_many_places_are_left_out_and_named(tmp_path, format_, made):
    done = ckptool.save(beside(made(40)), tmp_path / "x", format=format_)
    assert any("_metadata" in line for line in done.form)
    assert list(ckptool.open(tmp_path / "x").state_dict()) == ["a"]


@pytest.mark.parametrize("made", [tuples_in_tuples, lists_in_lists])
def test_values_that_stand_in_many_places_become_one_slice(tmp_path, made):
    tree = Dict([("model", state_dict_of({"a": tensor_of("float32")}).root), ("extra", made(40))])
    ckptool.save(Checkpoint(tree), tmp_path / "x", format="dcp")
    assert list(ckptool.open(tmp_path / "x").state_dict()) == ["a"]


@pytest.mark.parametrize("made", [tuples_in_tuples, lists_in_lists])
def test_values_that_stand_in_many_places_are_compared_once(tmp_path, made):
    for name, times in (("a", 40), ("b", 40), ("c", 39)):
        ckptool.save(beside(made(times)), tmp_path / f"{name}.pth")
    same, other = (ckptool.diff(tmp_path / "a.pth", tmp_path / f"{name}.pth") for name in "bc")
    assert not any("_metadata" in line for line in same.form)
    assert any("_metadata" in line for line in other.form)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_what_json_can_say_comes_back_through_safetensors(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "beside.safetensors"
    node = List(value) if isinstance(value, list) and not any(isinstance(one, list) for one in value) else str(value)
    path.unlink(missing_ok=True)
    ckptool.save(beside(node), path)
    found = ckptool.open(path).state_dict().metadata
    assert found[""]["extra"] == (value if isinstance(node, List) else str(value))


def test_a_checkpoint_of_nothing_but_a_dict_is_as_before(tmp_path):
    ckptool.save(Checkpoint(Dict([("a", tensor_of("float32"))])), tmp_path / "x.safetensors")
    assert ckptool.open(tmp_path / "x.safetensors").state_dict().metadata is None
