import json
import os
import re
import subprocess

import pytest
from contract import FolderContract, PickleContract, bytes_at, in_one_folder, sample, weights_of
from hypothesis import given
from hypothesis import strategies as st
from strategies import flat_checkpoints, state_dict_of, tensor_of
from test_safetensors import TestSafetensors as OneFile

import ckptool
from ckptool.disk.door import Directory
from ckptool.disk.work import Work
from ckptool.formats.flat import dividing

INDEX = "model.safetensors.index.json"


class TestSafetensorsShards(FolderContract):
    name = "sharded-safetensors"
    checkpoints = OneFile.checkpoints
    dtypes = OneFile.dtypes

    def held(self, ckpt):
        return weights_of(ckpt)

    @in_one_folder
    @given(data=st.data())
    def test_what_was_read_is_written_again_byte_for_byte(self, tmp_path, data):
        """All but the total size of an index: a slice counts with its whole storage, and is stored without it."""
        self.save(data.draw(self.checkpoints), tmp_path / "x")
        self.save(ckptool.open(tmp_path / "x"), tmp_path / "y")
        first, again = bytes_at(tmp_path / "x"), bytes_at(tmp_path / "y")
        if INDEX in first:
            one, other = json.loads(first.pop(INDEX)), json.loads(again.pop(INDEX))
            assert list(one.pop("metadata")) == list(other.pop("metadata")) == ["total_size"]
            assert one == other
        assert first == again


class TestBinShards(FolderContract):
    name = "sharded-bin"
    checkpoints = flat_checkpoints()

    def held(self, ckpt):
        return weights_of(ckpt)

    def test_big_endian_values_are_never_taken_for_little_endian_ones(self, tmp_path):
        tensor = tensor_of("float32")
        ckpt = state_dict_of({"x": tensor.changed(storage=tensor.storage.changed(big_endian=True))})
        self.save(ckpt, tmp_path / "x")
        assert ckptool.open(tmp_path / "x").state_dict()["x"].storage.big_endian

    def test_what_no_tensor_is_stays_in_the_dict(self, tmp_path):
        entries = {"w": tensor_of("float32"), "_extra_state": "text", "n": 3, "v": tensor_of("int64")}
        self.save(state_dict_of(entries), tmp_path / "x")
        assert dict(ckptool.open(tmp_path / "x").state_dict())["_extra_state"] == "text"


def test_the_contract_of_pickles_is_about_files():
    assert not issubclass(TestBinShards, PickleContract)  # a shard is flat: envelopes have no place in it


# -- reading what others wrote


@pytest.fixture
def shards(tmp_path):
    """A directory of three shards."""
    entries = {f"layer.{n}.weight": tensor_of("float32", (4, n + 1)) for n in range(5)}
    ckptool.save(state_dict_of(entries), tmp_path / "in", max_shard_size=100, format="shards")
    return tmp_path / "in"


def edit(path, change):
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def refused(folder, kind=ckptool.Malformed):
    with pytest.raises(kind) as caught:
        ckptool.open(folder)
    return str(caught.value)


def test_shards_become_one_file_and_shards_again(tmp_path, shards):
    ckptool.save(ckptool.open(shards), tmp_path / "one.safetensors")
    ckptool.save(ckptool.open(tmp_path / "one.safetensors"), tmp_path / "two", format="shards", max_shard_size=100)
    assert bytes_at(tmp_path / "two") == bytes_at(shards)


def test_keys_are_renamed_in_the_shards_and_in_the_index(tmp_path, shards):
    ckpt = ckptool.rename(ckptool.open(shards), {"layer.{}": "block.{}"})
    ckptool.save(ckpt, tmp_path / "out")
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    before = json.loads((shards / INDEX).read_text())
    assert index["weight_map"] == {k.replace("layer", "block"): v for k, v in before["weight_map"].items()}
    assert index["metadata"] == before["metadata"]
    assert weights_of(ckptool.open(tmp_path / "out")) == weights_of(ckpt)


def test_shards_stay_divided_as_they_were_unless_a_size_is_given(tmp_path, shards):
    names = sorted(os.listdir(shards))
    ckpt = ckptool.open(shards)
    ckptool.save(ckpt, tmp_path / "same")
    assert sorted(os.listdir(tmp_path / "same")) == names
    ckptool.save(ckpt, tmp_path / "other", max_shard_size="1KB")
    assert sorted(os.listdir(tmp_path / "other")) == ["model.safetensors"]
    fewer = ckptool.select(ckpt, "layer.4")
    ckptool.save(fewer, tmp_path / "fewer")
    assert sorted(os.listdir(tmp_path / "fewer")) == ["model.safetensors"]


def test_shards_may_be_links_as_in_a_cache(tmp_path, shards):
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    for number, name in enumerate(sorted(os.listdir(shards))):
        blob = tmp_path / "blobs" / f"{number}"
        os.rename(shards / name, blob)
        (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
    ckpt = ckptool.open(snapshot)
    assert len(ckpt.state_dict()) == 5
    ckptool.save(ckptool.add_prefix(ckpt, "a."), tmp_path / "out")
    assert next(iter(ckptool.open(tmp_path / "out").state_dict())) == "a.layer.0.weight"


def test_a_link_to_a_folder_is_no_shard(tmp_path, shards):
    name = "model-00001-of-00003.safetensors"
    os.remove(shards / name)
    (shards / "sub").mkdir()
    (shards / name).symlink_to("sub")
    assert "is a folder" in refused(shards, ckptool.Unreadable)


@pytest.mark.parametrize("name", [INDEX, "model-00002-of-00003.safetensors"])
def test_a_shard_or_an_index_that_is_a_link_out_of_the_folder_is_refused_with_a_way_on(tmp_path, shards, name):
    (shards / name).rename(tmp_path / "elsewhere")
    (shards / name).symlink_to("../elsewhere")
    message = refused(shards, ckptool.Unreadable)
    assert message.startswith(f"{shards / name}: is a link out of the folder, and is not followed:\n")
    copied = re.search("Hint: (cp -rL .*) puts files in the place of links", message)
    subprocess.run(copied[1], shell=True, check=True)
    assert len(ckptool.open(f"{shards}-copy").state_dict()) == 5


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "C:x.safetensors", "..\\x.safetensors"]
)
def test_an_index_that_leaves_its_folder_is_refused(shards, name):
    edit(shards / INDEX, lambda index: index["weight_map"].update({"layer.0.weight": name}))
    message = refused(shards)
    assert INDEX in message
    assert "not a plain file name" in message


def test_a_missing_shard_is_named(shards):
    os.remove(shards / "model-00002-of-00003.safetensors")
    message = refused(shards)
    assert "names 'model-00002-of-00003.safetensors', which is not in the folder" in message
    assert "Hint: the download or copy did not finish" in message
    os.remove(shards / INDEX)
    message = refused(shards)
    assert "lacks 1 of 3 shards" in message
    assert "model-00002-of-00003.safetensors" in message


def test_an_index_that_disagrees_with_its_shards_is_refused_with_the_keys(shards):
    def change(index):
        index["weight_map"]["ghost"] = "model-00001-of-00003.safetensors"
        index["weight_map"]["layer.0.weight"] = "model-00003-of-00003.safetensors"
        del index["weight_map"]["layer.1.weight"]

    edit(shards / INDEX, change)
    message = refused(shards)
    assert "the index disagrees with its shards about 3 keys" in message
    assert "layer.0.weight: model-00003-of-00003.safetensors by the index, really in model-00001-of-00003" in message
    assert "ghost: model-00001-of-00003.safetensors by the index, but not there" in message
    assert "layer.1.weight: in model-00001-of-00003.safetensors, but not in the index" in message


def test_a_key_in_two_shards_is_refused(tmp_path, shards):
    os.remove(shards / INDEX)
    ckptool.save(state_dict_of({"layer.0.weight": tensor_of("float32")}), shards / "y.safetensors")
    os.replace(shards / "y.safetensors", shards / "model-00003-of-00003.safetensors")
    assert "the key 'layer.0.weight' is in two shards" in refused(shards)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "is not JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "has no weight_map"),
        ('{"weight_map": {}}', "has an empty weight_map"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "names 'a' twice"),
        ('{"weight_map": {"a": "x.exe"}}', "not a .safetensors file"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_an_index_that_is_none_is_refused(shards, text, what):
    (shards / INDEX).write_text(text)
    assert what in refused(shards)


def test_numbered_shards_are_read_without_an_index(shards):
    os.remove(shards / INDEX)
    ckpt = ckptool.open(shards)
    assert list(ckpt.state_dict()) == [f"layer.{n}.weight" for n in range(5)]
    assert "its shards have no index; all of them were read" in ckpt.warnings


def test_a_variant_is_read_and_written(tmp_path, shards):
    ckpt = ckptool.open(shards)
    ckptool.save(ckpt, tmp_path / "v", max_shard_size=100, variant="fp16")
    assert sorted(os.listdir(tmp_path / "v"))[0] == "model.fp16-00001-of-00003.safetensors"
    assert "model.safetensors.index.fp16.json" in os.listdir(tmp_path / "v")
    assert weights_of(ckptool.open(tmp_path / "v")) == weights_of(ckpt)


def test_of_several_sets_of_weights_the_plain_safetensors_are_read(tmp_path, shards):
    ckptool.save(state_dict_of({"x": tensor_of("float32")}), shards / "pytorch_model.bin")
    ckpt = ckptool.open(shards)
    assert len(ckpt.state_dict()) == 5
    assert ckpt.warnings == ("the folder also holds other weights, which are not read: pytorch_model.bin",)
    ckptool.save(state_dict_of({"x": tensor_of("float32")}), shards / "model.safetensors")
    message = refused(shards, ckptool.Ambiguous)
    assert "holds several sets of weights" in message
    assert len(ckptool.open(shards / INDEX).state_dict()) == 5
    assert len(ckptool.open(shards / "model.safetensors").state_dict()) == 1


def test_a_folder_without_weights_says_what_it_holds(tmp_path):
    assert "it is empty" in refused(tmp_path, ckptool.UnknownFormat)
    (tmp_path / "notes.txt").write_text("x")
    message = refused(tmp_path, ckptool.UnknownFormat)
    assert "it holds notes.txt" in message


@pytest.mark.parametrize("options", [{"format": "dcp"}, {"format": "shards"}, {"max_shard_size": "1KB"}])
def test_a_folder_does_not_get_the_name_of_a_file_by_mistake(tmp_path, shards, options):
    with pytest.raises(ckptool.RuleError) as caught:
        ckptool.save(ckptool.open(shards), tmp_path / "out.safetensors", **options)
    assert "is the name of a file, and what is asked for is a folder" in str(caught.value)
    assert caught.value.hint == "name it out/"
    ckptool.save(ckptool.open(shards), f"{tmp_path}/out.safetensors/", **options)
    assert (tmp_path / "out.safetensors").is_dir()
    with pytest.raises(ckptool.RuleError, match="goes with the names of shards"):
        ckptool.save(ckptool.open(shards), tmp_path / "d", format="dcp", variant="fp16")


# -- the directory that is written


def test_what_lies_beside_the_weights_goes_along(tmp_path, shards):
    (shards / "config.json").write_text("{}")
    (shards / "empty.txt").touch()
    (shards / "tf_model.h5").write_text("other weights")
    planned = ckptool.save(ckptool.open(shards), tmp_path / "out")
    assert (tmp_path / "out" / "config.json").read_text() == "{}"
    assert (tmp_path / "out" / "empty.txt").exists()
    assert not (tmp_path / "out" / "tf_model.h5").exists()
    assert planned.form[0] == "copied along, as they are: config.json, empty.txt"
    assert planned.form[1] == "other weights beside them are not copied: tf_model.h5"
    single = ckptool.save(ckptool.open(shards), tmp_path / "one.safetensors")
    assert "left behind beside the weights: config.json, empty.txt, tf_model.h5" in single.form


@pytest.mark.parametrize("options", [{}, {"format": "dcp"}, {"format": "bin"}])
def test_what_lies_beside_the_weights_is_not_followed_out_of_the_folder(tmp_path, shards, options):
    (tmp_path / "secret").write_text("KEY")
    (shards / "config.json").symlink_to("../secret")
    (shards / "tokenizer.json").symlink_to(tmp_path / "secret")
    (shards / "real.json").write_text("{}")
    (shards / "vocab.json").symlink_to("real.json")
    ckpt = ckptool.open(shards)
    said = "not followed: config.json, tokenizer.json, links out of the folder"
    assert said in ckpt.warnings
    planned = ckptool.save(ckpt, tmp_path / "out", **options)
    assert not {"config.json", "tokenizer.json"} & set(os.listdir(tmp_path / "out"))
    assert (tmp_path / "out" / "vocab.json").read_text() == "{}"
    assert not (tmp_path / "out" / "vocab.json").is_symlink()
    assert said in planned.form
    assert "copied along, as they are: real.json, vocab.json" in planned.form
    single = ckptool.save(ckpt, tmp_path / "one.safetensors")
    assert said in single.form
    assert "left behind beside the weights: real.json, vocab.json" in single.form


def test_a_file_beside_the_weights_that_became_a_link_meanwhile_is_not_copied(tmp_path, shards):
    (tmp_path / "secret").write_text("KEY")
    (shards / "config.json").write_text("{}")
    ckpt = ckptool.open(shards)
    (shards / "config.json").unlink()
    (shards / "config.json").symlink_to("../secret")
    with pytest.raises(ckptool.Unreadable, match="a link out of the folder"):
        ckptool.save(ckpt, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_copied_file_has_the_mode_that_cp_would_give_it(tmp_path, shards):
    (shards / "run.sh").write_text("echo")
    (shards / "run.sh").chmod(0o4777)
    (shards / "private.json").write_text("{}")
    (shards / "private.json").chmod(0o600)
    before = os.umask(0o027)
    try:
        ckptool.save(ckptool.open(shards), tmp_path / "out")
    finally:
        os.umask(before)
    modes = {name: (tmp_path / "out" / name).stat().st_mode & 0o7777 for name in ("run.sh", "private.json")}
    assert modes == {"run.sh": 0o750, "private.json": 0o600}


def test_in_place_a_link_out_of_the_folder_is_not_lost(tmp_path, shards):
    (tmp_path / "secret").write_text("KEY")
    (shards / "config.json").symlink_to("../secret")
    with pytest.raises(ckptool.Unwritable, match=r"config\.json"):
        ckptool.save(ckptool.open(shards), shards, overwrite=True)
    assert (shards / "config.json").is_symlink()


def test_a_folder_that_holds_other_things_is_not_replaced(tmp_path, shards):
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    (out / "diary.txt").write_text("x")
    with pytest.raises(ckptool.OutputExists):
        ckptool.save(ckptool.open(shards), out)
    with pytest.raises(ckptool.Unwritable, match=r"holds 2 other things, which would be lost") as caught:
        ckptool.save(ckptool.open(shards), out, overwrite=True)
    assert "diary.txt" in str(caught.value)
    assert (out / "diary.txt").exists()


def test_old_shards_go_when_new_ones_take_their_place(tmp_path, shards):
    ckptool.save(ckptool.open(shards), tmp_path / "out")
    ckptool.save(state_dict_of({"x": tensor_of("float32")}), tmp_path / "out", format="shards", overwrite=True)
    assert os.listdir(tmp_path / "out") == ["model.safetensors"]


def test_in_place_other_weights_of_the_folder_are_not_deleted(shards):
    (shards / "pytorch_model.bin").write_bytes(b"other weights")
    with pytest.raises(ckptool.Unwritable, match=r"pytorch_model\.bin"):
        ckptool.save(ckptool.open(shards), shards, overwrite=True)
    assert (shards / "pytorch_model.bin").exists()


def test_an_empty_folder_may_be_the_target_and_a_backup_keeps_the_old_one(tmp_path, shards):
    (tmp_path / "out").mkdir(mode=0o750)
    ckptool.save(ckptool.open(shards), tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    old = bytes_at(tmp_path / "out")
    ckptool.save(ckptool.add_prefix(ckptool.open(shards)), tmp_path / "out", overwrite=True, backup=".orig")
    assert bytes_at(tmp_path / "out.orig") == old
    assert bytes_at(tmp_path / "out") != old


def test_an_old_folder_that_stood_aside_when_a_run_was_cut_off_comes_back(tmp_path, shards):
    old = bytes_at(shards)
    with Directory.at(tmp_path) as parent:
        work = Work.start(parent, shards.name, names=["model.safetensors"])
        os.rename(shards, work.path / "old")  # as on a system that cannot exchange two names
        work.close()
    with pytest.raises(ckptool.OutputExists):
        ckptool.save(state_dict_of({"x": tensor_of("float32")}), shards, format="shards")
    assert bytes_at(shards) == old


def test_a_second_process_does_not_write_the_same_folder(tmp_path, shards):
    pytest.importorskip("fcntl")
    with Directory.at(tmp_path) as parent:
        work = Work.start(parent, "out", names=["model.safetensors"])
        with pytest.raises(ckptool.Unwritable, match="another run of ckptool is writing it"):
            ckptool.save(ckptool.open(shards), tmp_path / "out")
        work.close()


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("1.5kb", 1500), (7, 7), ("12", 12), (" 2 MB ", 2_000_000)]
)
def test_sizes_are_decimal(text, size):
    assert dividing.parse_size(text) == size


@pytest.mark.parametrize("text", ["5GiB", "", "GB", "-1GB", "0", "0.5", "1e9", "9" * 5000, "9" * 5000 + "GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ckptool.RuleError, match="is not a size"):
        dividing.parse_size(text)


def test_a_checkpoint_of_more_files_than_descriptors_is_read(tmp_path, in_new_python):
    pytest.importorskip("resource")
    entries = {f"w{n}": tensor_of("float32", (2,)) for n in range(80)}
    ckptool.save(state_dict_of(entries), tmp_path / "x", format="shards", max_shard_size=8)
    program = """
import resource, sys, ckptool
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(len(ckptool.open(sys.argv[1]).state_dict()))
"""
    assert in_new_python(program, tmp_path / "x") == "80"


def test_the_sample_is_held_whole(tmp_path):
    ckptool.save(sample(), tmp_path / "x", format="hf", max_shard_size="20")
    assert weights_of(ckptool.open(tmp_path / "x")) == weights_of(sample())
