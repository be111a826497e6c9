"""Folders of Orbax: stores of TensorStore, arrays of Zarr, folders of steps; and those that lie."""

import copy
import json
import random
import shutil
from pathlib import Path

import pytest

import ckptool
from ckptool.disk.files import FileRange
from ckptool.disk.inside import Folder
from ckptool.errors import Ambiguous, CheckpointError, Malformed, NotInstalled
from ckptool.formats.frameworks.filtered_chunks import Unfiltered
from ckptool.formats.frameworks.ocdbt import values_in

pytest.importorskip("zstandard")

HERE = Path(__file__).parents[3] / "fixtures" / "frameworks"
KINDS = ("orbax-ocdbt", "orbax-ocdbt-zarr3", "orbax-zarr", "orbax-zarr3")


def copied(name, to):
    shutil.copytree(HERE / name, to)
    return to


def test_a_store_gives_what_tensorstore_put_in():
    deleted = {f"a/{number:03}" for number in range(50, 60)}
    names = {f"{'ab'[number % 2]}/{number:03}": bytes(range(number % 40)) for number in range(120)}
    found = values_in(Folder(HERE / "ocdbt-tree"))
    assert {key: bytes(value.read(0, value.length)) for key, value in found.items()} == {
        key: value for key, value in names.items() if key not in deleted
    }
    outside = {key for key, value in found.items() if isinstance(value, FileRange)}
    assert outside == {key for key in found if len(names[key]) > 16}


@pytest.mark.parametrize("name", KINDS)
def test_every_way_of_orbax_has_the_same_arrays(name):
    assert ckptool.diff(HERE / name, HERE / "orbax-zarr").same
    assert ckptool.open(HERE / name).roles["params/dense/kernel"].axes == "IO"


def test_values_stay_in_the_data_files():
    ckpt = ckptool.open(HERE / "orbax-ocdbt")
    assert all(isinstance(tensor.storage.source, Unfiltered | FileRange) for _, tensor in ckpt.tensors())


def test_the_folder_of_a_manager_is_read_where_it_holds_one_step(tmp_path):
    for step in ("5", "20"):
        copied("orbax-ocdbt", tmp_path / "run" / step / "default")
        (tmp_path / "run" / step / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.raises(Ambiguous, match="holds 2 checkpoints of Orbax") as raised:
        ckptool.open(tmp_path / "run")
    assert raised.value.hint == f"name one: {tmp_path}/run/20/default"
    assert ckptool.diff(tmp_path / "run" / "20", HERE / "orbax-zarr").same
    shutil.rmtree(tmp_path / "run" / "5")
    assert ckptool.diff(tmp_path / "run", HERE / "orbax-zarr").same


def test_a_store_that_was_not_finished_is_said_to_be(tmp_path):
    (copied("orbax-ocdbt", tmp_path / "run") / "manifest.ocdbt").unlink()
    with pytest.raises(Malformed, match=r"has no manifest\.ocdbt: the run that wrote it did not come to its end"):
        ckptool.open(tmp_path / "run")


def test_two_values_of_one_place_are_refused(tmp_path):
    """A leaf at params/dense, below which there are others."""
    run = copied("orbax-zarr", tmp_path / "run")
    described = json.loads((run / "_METADATA").read_text())
    leaves = described["tree_metadata"]
    name = next(name for name, leaf in leaves.items() if len(leaf["key_metadata"]) > 1)
    leaf = copy.deepcopy(leaves[name])
    leaf["key_metadata"] = leaf["key_metadata"][:-1]
    described["tree_metadata"] = {**leaves, "above": leaf}
    (run / "_METADATA").write_text(json.dumps(described))
    keys = [one["key"] for one in leaf["key_metadata"]]
    shutil.copytree(run / ".".join([*keys, leaves[name]["key_metadata"][-1]["key"]]), run / ".".join(keys))
    with pytest.raises(Malformed, match="has two values at"):
        ckptool.open(run)


def test_a_data_file_that_is_missing_is_named(tmp_path):
    run = copied("ocdbt-tree", tmp_path / "run")
    shutil.rmtree(run / "d")
    with pytest.raises(Malformed, match=r"names 'd/\w+', which is not in the folder"):
        values_in(Folder(run))


def test_a_data_file_behind_a_link_is_not_followed(tmp_path):
    run = copied("ocdbt-tree", tmp_path / "run")
    (run / "d").rename(tmp_path / "elsewhere")
    (run / "d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Malformed, match="is a link, which is not followed"):
        values_in(Folder(run))


def test_a_changed_byte_of_a_node_is_told_by_its_checksum(tmp_path):
    run = copied("ocdbt-tree", tmp_path / "run")
    raw = bytearray((run / "manifest.ocdbt").read_bytes())
    raw[30] ^= 1
    (run / "manifest.ocdbt").write_bytes(raw)
    with pytest.raises(Malformed, match="CRC-32C"):
        values_in(Folder(run))


def test_without_zstandard_the_error_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(NotInstalled) as raised:
        ckptool.open(HERE / "orbax-ocdbt")
    assert raised.value.hint == "pip install zstandard"


@pytest.mark.parametrize("name", [*KINDS, "tfjs", "saved_model"])
def test_a_folder_with_a_changed_file_is_read_or_refused_in_a_line(tmp_path, name):
    made = random.Random(name)
    run = copied(name, tmp_path / "run")
    files = sorted(path for path in run.rglob("*") if path.is_file())
    target = run / "model.json" if name == "tfjs" else run
    for _ in range(60):
        one = made.choice(files)
        raw = one.read_bytes()
        changed = bytearray(raw)
        for _ in range(made.randint(1, 3)):
            at = made.randrange(len(changed) or 1)
            if made.random() < 0.8:
                changed[at : at + 1] = bytes([made.choice((0, 1, 0x7F, 0x80, 0xFF, made.randrange(256)))])
            else:
                changed = changed[:at]
        one.write_bytes(changed)
        try:
            ckptool.save(ckptool.open(target), tmp_path / "out.pth", overwrite=True, allow_loss=True)
        except CheckpointError as error:
            assert error.what  # noqa: PT017 - each is a line of its own
            assert "\n" not in error.what  # noqa: PT017
        one.write_bytes(raw)
