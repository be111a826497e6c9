"""Bugs that were found by reading and by trying, each as the sentence that it broke. Torch is the judge here."""

from __future__ import annotations

import argparse
import copy
import json
import sys
import types
import zipfile
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")

import ckptool
from ckptool.cli import main


def run(*args):
    with pytest.raises(SystemExit) as left:
        main([str(arg) for arg in args])
    return int(left.value.code or 0)


def test_tensors_that_see_one_storage_as_two_types_keep_types_values_and_sharing(tmp_path):
    a, c = torch.arange(4.0), torch.randn(3, dtype=torch.complex64)
    saved = {"a": a, "b": a.view(torch.int32), "c": c, "r": torch.view_as_real(c)}
    ckptool.save(saved, tmp_path / "x.pth")
    for loaded in (torch.load(tmp_path / "x.pth"), ckptool.load(tmp_path / "x.pth")):
        assert all(loaded[key].dtype == saved[key].dtype and torch.equal(loaded[key], saved[key]) for key in saved)
        loaded["a"][0] = 7.0
        assert loaded["b"][0] == a.new_tensor([7.0]).view(torch.int32)[0]


def test_a_storage_that_is_no_whole_number_of_elements_keeps_its_type(tmp_path):
    odd = torch.zeros(10, dtype=torch.uint8)[:8].view(torch.float32)
    ckptool.save({"w": odd}, tmp_path / "x.pth")
    assert torch.load(tmp_path / "x.pth")["w"].dtype == torch.float32


class Outer:
    class Inner:
        def __init__(self):
            self.names, self.raw, self.none = {"a", "b"}, bytearray(b"xy"), b""


def test_a_rewrite_in_protocol_4_names_the_builtins_of_python_3(tmp_path):
    torch.save({"w": torch.ones(2), "o": Outer.Inner()}, tmp_path / "in.pth", pickle_protocol=4)
    assert (
        run("add-prefix", tmp_path / "in.pth", tmp_path / "out.pth", "--keep-objects", "-q") == 2
    )  # two kinds of entries
    ckpt = ckptool.open(tmp_path / "in.pth")
    ckptool.save(ckptool.map_location(ckpt, "cuda:0"), tmp_path / "out.pth", keep_objects=True)
    loaded = torch.load(tmp_path / "out.pth", map_location="cpu", weights_only=False)["o"]
    assert (loaded.names, loaded.raw, loaded.none) == ({"a", "b"}, bytearray(b"xy"), b"")


def test_a_module_that_is_called_as_one_of_python_2_keeps_its_name(tmp_path, monkeypatch):
    module = types.ModuleType("commands")
    module.Thing = type("Thing", (), {"__module__": "commands"})
    monkeypatch.setitem(sys.modules, "commands", module)
    torch.save({"sd": {"module.w": torch.ones(2)}, "o": module.Thing()}, tmp_path / "in.pth", pickle_protocol=4)
    ckpt = ckptool.strip_prefix(ckptool.open(tmp_path / "in.pth"))
    ckptool.save(ckpt, tmp_path / "out.pth", keep_objects=True)
    assert type(torch.load(tmp_path / "out.pth", weights_only=False)["o"]) is module.Thing


def test_a_backup_is_never_made_over_the_input_or_an_older_backup(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth.bak")
    torch.save({"w": torch.zeros(2)}, tmp_path / "a.pth")
    before = (tmp_path / "a.pth.bak").read_bytes()
    command = ("add-prefix", tmp_path / "a.pth.bak", tmp_path / "a.pth", "--overwrite", "--backup", ".bak")
    assert run(*command) == 2
    assert run("add-prefix", tmp_path / "a.pth", "--in-place", "--backup", ".bak") == 2
    assert run("add-prefix", tmp_path / "a.pth", "--in-place", "--backup", "") == 2
    assert (tmp_path / "a.pth.bak").read_bytes() == before
    assert list(torch.load(tmp_path / "a.pth")) == ["w"]


def test_inspect_prints_json_of_python_2_strings_and_of_any_metadata(tmp_path, capfd):
    state_dict = OrderedDict(w=torch.ones(1))
    state_dict._metadata = OrderedDict([("", {"version": 1, 3: argparse.Namespace(a=1)}), ("x", b"raw")])
    state_dict._metadata["loop"] = state_dict._metadata
    torch.save(state_dict, tmp_path / "in.pth")
    assert run("inspect", tmp_path / "in.pth", "--json") == 0
    (file,) = json.loads(capfd.readouterr().out)["files"]
    assert file["state_dicts"][0]["metadata"][""]["version"] == 1


def test_the_state_dict_that_at_names_is_the_one_that_is_written(tmp_path):
    inner = {"x": torch.ones(1), "y": torch.ones(1)}
    torch.save({"model": {"a": torch.ones(2), "b": torch.ones(2), "c": inner}, "epoch": 1}, tmp_path / "in.pth")
    command = ("convert", tmp_path / "in.pth", tmp_path / "out.safetensors", "--at", "model")
    assert run(*command) == 2
    assert run(*command, "--allow-loss") == 0
    assert list(ckptool.open(tmp_path / "out.safetensors").state_dict()) == ["a", "b"]


def test_further_members_of_an_archive_are_content(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "in.pth")
    with zipfile.ZipFile(tmp_path / "in.pth", "a") as archive:
        archive.writestr("in/extra/config.json", "{}")
    with pytest.raises(ckptool.CannotCarry, match="cannot hold all") as raised:
        ckptool.plan(ckptool.open(tmp_path / "in.pth"), tmp_path / "out.safetensors")
    assert raised.value.evidence == ("the member extra/config.json of the archive",)
    ckptool.save(ckptool.add_prefix(ckptool.open(tmp_path / "in.pth"), "a" * 3000), tmp_path / "out.pth")
    assert "in/extra/config.json" in zipfile.ZipFile(tmp_path / "out.pth").namelist()


def test_an_order_that_is_not_known_is_not_certified_by_a_conversion(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"z": torch.ones(1), "a": torch.ones(1)}, tmp_path / "in.safetensors")
    receipt = ckptool.save(ckptool.open(tmp_path / "in.safetensors"), tmp_path / "out.safetensors")
    assert any("how they were saved is not known" in line for line in receipt.form)
    assert not ckptool.open(tmp_path / "out.safetensors").order_preserved
    receipt = ckptool.save(ckptool.open(tmp_path / "in.safetensors"), tmp_path / "out.pth")
    assert any("how they were saved is not known" in line for line in receipt.form)


def test_a_location_rule_that_matches_nothing_is_no_silent_success_on_a_plain_dict():
    with pytest.raises(ckptool.NoMatch, match="no storage is on cuda:1"):
        ckptool.map_location({"a": torch.ones(1)}, "cuda:1=cuda:0")
    lazily = torch.tensor([1 + 2j]).conj()
    assert torch.equal(ckptool.map_location({"a": lazily}, "cpu")["a"], lazily)


def test_a_second_identical_remap_of_an_optimizer_is_success(tmp_path):
    moments = {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}}
    saved = {"state_dict": {"w": torch.ones(2)}, "optimizer": {"state": moments, "param_groups": []}}
    torch.save(saved, tmp_path / "in.pth")
    assert run("remap", tmp_path / "in.pth", tmp_path / "a.pth", "-m", "cpu=cuda:0") == 0
    assert run("remap", tmp_path / "a.pth", tmp_path / "b.pth", "-m", "cuda:1=cuda:0") == 0
    assert (tmp_path / "a.pth").read_bytes() == (tmp_path / "b.pth").read_bytes()


def test_a_strip_leaves_the_metadata_of_another_state_dict_alone(tmp_path):
    model = torch.nn.DataParallel(torch.nn.Sequential(torch.nn.BatchNorm2d(2))).state_dict()
    other = copy.copy(model)
    other._metadata = model._metadata
    torch.save({"model": model, "ema": other}, tmp_path / "in.pth")
    ckpt = ckptool.strip_prefix(ckptool.open(tmp_path / "in.pth"), at="model")
    assert ckpt.state_dict("ema").metadata == model._metadata
    assert list(ckpt.state_dict("model").metadata) == ["", "0"]


@pytest.mark.parametrize("target", ["no/such/x.pth", ".", "there.pth"])
def test_a_dry_run_refuses_a_target_that_the_run_would_refuse(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(1)}, "in.pth")
    torch.save({"w": torch.ones(1)}, "there.pth")
    assert run("add-prefix", "in.pth", target, "--dry-run") == 2


def test_a_receipt_says_that_all_is_in_place_only_where_it_is(tmp_path, capfd):
    torch.save({"w": torch.ones(1)}, tmp_path / "in.pth")
    assert run("remap", tmp_path / "in.pth", tmp_path / "out.pth", "-m", "cuda:0=cuda:1", "--if-present") == 0
    assert "where they should be" not in capfd.readouterr().err


def test_the_name_of_a_file_cannot_talk_to_the_terminal():
    from ckptool.disk.files import beside, shell_quote

    assert not {"\x1b"} & set(beside("e\x1b[31mvil.pth", "cpu") + shell_quote("e\x1b[31mvil.pth"))


def test_in_place_keeps_the_container_whatever_the_suffix(tmp_path):
    ckptool.save({"w": torch.ones(1)}, tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").rename(tmp_path / "w.bin")
    torch.save({"w": torch.ones(1)}, tmp_path / "model.zip")
    for name, expected in (("w.bin", "safetensors"), ("model.zip", "torch-zip")):
        assert run("add-prefix", tmp_path / name, "--in-place") == 0
        assert ckptool.detect(tmp_path / name) == expected


def test_a_new_file_is_no_more_readable_than_the_one_it_came_from(tmp_path):
    torch.save({"w": torch.ones(4)}, tmp_path / "in.pth")
    (tmp_path / "in.pth").chmod(0o600)
    assert run("add-prefix", tmp_path / "in.pth", tmp_path / "out.pth") == 0
    assert (tmp_path / "out.pth").stat().st_mode & 0o777 == 0o600


def test_a_rule_file_without_a_rule_and_a_place_that_is_not_there_are_told(tmp_path):
    torch.save({"w": torch.ones(1)}, tmp_path / "in.pth")
    (tmp_path / "rules.txt").write_text("# nothing\n")
    assert run("rename", tmp_path / "in.pth", tmp_path / "o.pth", "--rules", tmp_path / "rules.txt") == 2
    assert run("convert", tmp_path / "in.pth", tmp_path / "o.pth", "--at", "nope") == 2


def test_what_stands_twice_in_a_plain_dict_stays_one():
    weights = {"module.w": torch.ones(1)}
    done = ckptool.strip_prefix({"model": weights, "again": weights}, at="model")
    assert done["model"] is done["again"]
