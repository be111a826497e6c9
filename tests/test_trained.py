"""The checkpoints that ckptool's own training pipeline made are what the manifest says, and can be made again."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from same import graph

import ckptool
from ckptool.train.ways import WAYS

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
TRAINED = FIXTURES / "trained"
MANIFEST = json.loads((FIXTURES / "manifest.json").read_text(encoding="utf-8"))
FILES = sorted(path.relative_to(TRAINED).as_posix() for path in TRAINED.rglob("*") if path.is_file())
SINGLE = [name for name in FILES if "/" not in name]
WITH_MODULE = [
    name
    for name in SINGLE
    if any(f"-{how}-wrapped" in name for how in ("data-parallel", "ddp"))
    or any(f"-{how}-full" in name for how in ("data-parallel", "ddp"))
]


def test_every_file_is_in_the_manifest_with_its_checksum_and_how_it_was_made():
    listed = {one["file"]: one for one in MANIFEST["files"]}
    assert sorted(listed) == FILES
    for name, one in listed.items():
        assert hashlib.sha256((TRAINED / name).read_bytes()).hexdigest() == one["sha256"], name
        assert one["bytes"] == (TRAINED / name).stat().st_size
        assert one["command"].startswith(("ckptool train", "ckptool remap", "python -m fixtures.build"))
        assert one["by"]


def test_all_strategies_are_there_and_all_together_are_small():
    for strategy in WAYS:
        assert f"housing-{strategy}-wrapped.pth" in FILES
        assert f"housing-{strategy}-full.pth" in FILES
    assert sum((TRAINED / name).stat().st_size for name in FILES) < 3_000_000


def test_no_file_says_where_it_was_made():
    here = str(FIXTURES.parents[0]).encode()
    for name in FILES:
        assert here not in (TRAINED / name).read_bytes()


@pytest.mark.parametrize("name", SINGLE)
def test_a_trained_file_opens_without_torch(name):
    ckpt = ckptool.open(TRAINED / name)
    assert ckpt.format == (
        "safetensors" if name.endswith("safetensors") else "torch-legacy" if "legacy" in name else "torch-zip"
    )
    assert ckpt.storages()


@pytest.mark.parametrize("name", WITH_MODULE)
def test_a_wrapped_file_without_its_prefix_is_what_the_run_saved_unwrapped(name, tmp_path):
    ckpt = ckptool.open(TRAINED / name)
    at = "model" if "-full" in name else ""
    stripped = ckptool.strip_prefix(ckpt, at=at)
    task, strategy = name.split("-")[0], "ddp" if "-ddp-" in name else "data-parallel"
    plain = TRAINED / f"{task}-{strategy}-unwrapped.pth"
    keys = list(stripped.state_dict(at))
    assert not any(key.startswith("module.") for key in keys)
    if plain.exists() and "2018" not in name and "cuda" not in name and "mixed" not in name:
        expected = ckptool.open(plain).state_dict()
        in_order = sorted if name.endswith("safetensors") else list  # the safetensors library writes them sorted
        assert keys == in_order(expected)
        for key, tensor in stripped.state_dict(at).tensors.items():
            assert bytes(tensor.source().read(0, tensor.nbytes)) == bytes(expected[key].source().read(0, tensor.nbytes))
        if not name.endswith("safetensors"):
            assert stripped.state_dict(at).metadata == expected.metadata


@pytest.mark.parametrize("name", SINGLE)
def test_every_kind_of_file_can_be_resumed_from_and_none_is_unpickled(name, monkeypatch):
    torch = pytest.importorskip("torch")
    from ckptool.train.resume import read

    def unpickled(*args, **kwargs):
        raise AssertionError("unpickled")

    monkeypatch.setattr(torch, "load", unpickled)
    monkeypatch.setattr("pickle.Unpickler", unpickled)
    found = read(TRAINED / name)
    first = min(TRAINED.glob(f"{name.split('-')[0]}-*wrapped.pth"))
    assert sorted(found.weights) == sorted(ckptool.unwrap(ckptool.open(first), missing="ok").state_dict())
    assert all(isinstance(value, torch.Tensor) for value in found.weights.values())
    assert bool(found.history) == ("-full" in name)


@pytest.mark.parametrize("strategy", ["single", "data-parallel", "ddp"])
def test_a_pickled_model_has_the_weights_that_were_saved_unwrapped(strategy):
    model = ckptool.open(TRAINED / f"housing-{strategy}-model.pth")
    found = ckptool.unwrap(ckptool.extract(model), missing="ok").state_dict()
    expected = ckptool.open(TRAINED / f"housing-{strategy}-unwrapped.pth").state_dict()
    assert list(found) == list(expected)
    assert found.metadata == expected.metadata
    for key, tensor in found.tensors.items():
        assert (tensor.numpy() == expected[key].numpy()).all()


def test_the_optimizer_of_the_2018_recipe_is_really_empty_in_its_file():
    root = ckptool.open(TRAINED / "housing-data-parallel-full-2018.pth").root
    assert dict(root.entries)["optimizer"].entries == []


@pytest.mark.parametrize("number", [0, 1])
def test_files_are_tagged_with_the_gpu_in_their_name(number):
    ckpt = ckptool.open(TRAINED / f"housing-data-parallel-wrapped-cuda{number}.pth")
    assert {storage.location for storage in ckpt.storages()} == {f"cuda:{number}"}


def test_one_file_is_spread_over_two_gpus_and_comes_to_the_cpu_whole(tmp_path):
    ckpt = ckptool.open(TRAINED / "housing-data-parallel-wrapped-mixed.pth")
    assert {storage.location for storage in ckpt.storages()} == {"cuda:0", "cuda:1"}
    moved = ckptool.map_location(ckpt, {"cuda:*": "cpu"})
    assert {storage.location for storage in moved.storages()} == {"cpu"}


def test_making_them_again_gives_the_same_but_for_rounding(forks, tmp_path, monkeypatch):
    """The same keys, types, tags and objects, exactly; values within 1e-4, since processors round differently.

    A bias before a batch norm has no gradient but rounding, and Adam makes full steps of whatever it is given:
    which way it walks, and with it the mean that the norm keeps, is the processor's own.
    """
    torch = pytest.importorskip("torch")
    if torch.__version__.partition("+")[0] != MANIFEST["torch"]:
        pytest.skip(f"made with torch {MANIFEST['torch']}")
    monkeypatch.syspath_prepend(FIXTURES.parent)
    (tmp_path / "fixtures").symlink_to(FIXTURES)
    assert forks.run("fixtures.build", ["again"], tmp_path, tmp_path / "said") == 0, (tmp_path / "said").read_text()
    again = tmp_path / "again"
    assert sorted(path.relative_to(again).as_posix() for path in again.rglob("*") if path.is_file()) == FILES
    for name in SINGLE:
        assert_alike(torch, TRAINED / name, again / name)
    from ckptool.train.resume import read

    for folder in sorted(path.name for path in TRAINED.iterdir() if path.is_dir()):
        one, other = read(TRAINED / folder), read(again / folder)
        assert_close(
            torch, [one.weights, one.optimizer, one.scheduler], [other.weights, other.optimizer, other.scheduler]
        )


def assert_alike(torch, one, other):
    left, right = ckptool.open(one), ckptool.open(other)
    assert list(map(without_values, graph(left.root))) == list(map(without_values, graph(right.root))), one.name
    assert_close(torch, ckptool.load(one, "cpu"), ckptool.load(other, "cpu"), adam=one.name.startswith("cnn-ddp"))


def without_values(entry):
    """An entry of a graph without the numbers that depend on rounding."""
    if isinstance(entry, tuple) and entry[0] == "float":
        return "float"
    if isinstance(entry, tuple) and entry[0] == "storage" and len(entry) == 3 and isinstance(entry[2], bytes):
        return ("storage", entry[1], len(entry[2]))
    return entry


WALKS = re.compile(r"conv\d\.bias|bn\d\.running_mean|test_loss")
STEPS, RATE = 12, 0.01
#: A weight moves by the rate times its momentum, so that rounding shows as much larger in a momentum.
MOMENTUM = "momentum_buffer"


def assert_close(torch, one, other, *, adam=False, within=1e-4):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=within, equal_nan=True)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            walks = adam and isinstance(key, str) and WALKS.search(key)
            allowed = 2 * STEPS * RATE if walks else within / RATE if key == MOMENTUM else within
            assert_close(torch, one[key], other[key], adam=adam, within=allowed)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_close(torch, a, b, adam=adam, within=within)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-4, abs=within)
    elif isinstance(one, ckptool.Inert):
        assert one.class_name == other.class_name
        assert_close(
            torch, [one.args, one.state, one.items], [other.args, other.state, other.items], adam=adam, within=within
        )
    else:
        assert one == other
