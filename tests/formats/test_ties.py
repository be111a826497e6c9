"""Ties in safetensors files, with `save_model` and `load_model` of safetensors as judges, in both directions."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_model

import ckptool
from ckptool.cli import main


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.mid = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.other = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.other.weight = self.embed.weight


@pytest.fixture
def model():
    torch.manual_seed(1)
    return Tied()


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    def run(*args, code=0):
        with pytest.raises(SystemExit) as left:
            main(list(args))
        err = capfd.readouterr().err
        assert (left.value.code or 0) == code, err
        return err

    return run


def assert_equal(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_what_drop_writes_is_what_save_model_writes_and_load_model_takes(run, model):
    torch.save(model.state_dict(), "m.pth")
    err = run("convert", "m.pth", "ours.safetensors", "--ties", "drop")
    assert "2 tied keys are noted and not stored" in err
    save_model(model, "theirs.safetensors")
    with safe_open("ours.safetensors", "pt") as ours, safe_open("theirs.safetensors", "pt") as theirs:
        assert set(ours.keys()) == set(theirs.keys())
        noted = ours.metadata()
        del noted["ckptool"], noted["format"]
        assert noted == theirs.metadata()
    for name in ("ours.safetensors", "theirs.safetensors"):
        fresh = Tied()
        load_model(fresh, name, strict=True)
        assert_equal(fresh, model)


@pytest.mark.parametrize("target", ["m.pth", "folder/"])
def test_notes_of_save_model_are_read(run, model, target):
    save_model(model, "theirs.safetensors")
    options = ["-t", "sharded-bin"] if target == "folder/" else []
    run("convert", "theirs.safetensors", target, *options)
    loaded = torch.load("m.pth") if target == "m.pth" else torch.load("folder/pytorch_model.bin")
    fresh = Tied()
    fresh.load_state_dict(loaded, strict=True)
    assert_equal(fresh, model)
    assert loaded["head.weight"].data_ptr() == loaded["embed.weight"].data_ptr()


def test_a_file_of_save_model_stays_one_through_a_rename(run, model):
    save_model(model, "theirs.safetensors", metadata={"step": "3", "who": "me"})
    run("convert", "theirs.safetensors", "ours.safetensors", "--rename", "mid=middle")
    with safe_open("ours.safetensors", "pt") as file:
        assert len(file.keys()) == 3
        assert {"step": "3", "who": "me", "head.weight": "embed.weight"}.items() <= file.metadata().items()
    run("convert", "ours.safetensors", "prefixed.safetensors", "--add-prefix", "module.")
    with safe_open("prefixed.safetensors", "pt") as file:
        assert file.metadata()["module.head.weight"] == "module.embed.weight"
        assert "head.weight" not in file.metadata()


def test_keep_stores_both_and_clone_forgets_the_tie(run, model):
    save_model(model, "theirs.safetensors")
    run("convert", "theirs.safetensors", "kept.safetensors", "--ties", "keep")
    Tied().load_state_dict(load_file("kept.safetensors"), strict=True)
    assert ckptool.open("kept.safetensors").state_dict().ties() == [["embed.weight", "head.weight", "other.weight"]]
    run("convert", "theirs.safetensors", "apart.safetensors", "--ties", "clone")
    Tied().load_state_dict(load_file("apart.safetensors"), strict=True)
    assert ckptool.open("apart.safetensors").state_dict().ties() == []
    run("convert", "theirs.safetensors", "apart.pth", "--ties", "clone")
    loaded = torch.load("apart.pth")
    assert loaded["head.weight"].data_ptr() != loaded["embed.weight"].data_ptr()


def test_shards_drop_ties_and_restore_them(run, model):
    torch.save(model.state_dict(), "m.pth")
    run("convert", "m.pth", "shards/", "--ties", "drop", "--max-shard-size", "100")
    with open("shards/model.safetensors.index.json") as file:
        index = json.load(file)["weight_map"]
    assert set(index) == {"embed.weight", "mid.weight", "mid.bias"}
    run("convert", "shards", "back.pth")
    loaded = torch.load("back.pth")
    assert list(loaded) == list(model.state_dict())
    fresh = Tied()
    fresh.load_state_dict(loaded, strict=True)
    assert_equal(fresh, model)
    run("convert", "shards", "again", "--rename", "mid=middle")
    with open("again/model.safetensors.index.json") as file:
        index = json.load(file)["weight_map"]
    assert set(index) == {"embed.weight", "middle.weight", "middle.bias"}
    files = {name: load_file(f"again/{name}") for name in index.values()}
    assert {key for held in files.values() for key in held} == {"embed.weight", "middle.weight", "middle.bias"}


def test_order_survives_keys_that_are_not_stored(run, model):
    torch.save(model.state_dict(), "m.pth")
    run("convert", "m.pth", "ours.safetensors", "--ties", "drop")
    opened = ckptool.open("ours.safetensors")
    assert list(opened.state_dict()) == list(model.state_dict())
    assert opened.order_preserved


def test_a_pickle_keeps_ties_and_refuses_to_drop_them(run, model):
    torch.save(model.state_dict(), "m.pth")
    assert "keeps ties as they are" in run("convert", "m.pth", "out.pth", "--ties", "drop", code=2)


def test_metadata_that_only_looks_like_a_note_is_kept(run, model):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2), "v": torch.ones(2)}, "a.safetensors", metadata={"w": "v", "base": "sd15"})
    opened = ckptool.open("a.safetensors")
    assert list(opened.state_dict()) in (["w", "v"], ["v", "w"])
    assert opened.metadata == {"w": "v", "base": "sd15"}
