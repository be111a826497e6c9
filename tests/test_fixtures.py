"""The real checkpoints are what their page says they are, open, and come back from a rewrite as they were."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import unwatched

import ckptool

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT / "fixtures" / "real"
PAGE = (REAL / "README.md").read_text(encoding="utf-8")
FILES = sorted(path.name for path in REAL.iterdir() if path.suffix != ".md")
WEIGHTS = [name for name in FILES if name != "rxnmapper-training-args.bin"]

# file -> format, path of the state dict, keys, parameters, locations
HELD = {
    "deepcr-mask.pth": ("torch-legacy", "", 46, 1_779, {"cuda:0"}),
    "lpips-alex.pth": ("torch-legacy", "", 5, 1_152, {"cuda:0"}),
    "facenet-pnet.pt": ("torch-legacy", "", 13, 6_632, {"cpu"}),
    "m6anet-hct116.pt": ("torch-zip", "", 12, 7_998, {"cuda:2"}),
    "metapredict-lstm.pt": ("torch-zip", "", 18, 16_681, {"cuda:0"}),
    "plddt-lightning.ckpt": ("torch-zip", "state_dict", 12, 12_007, {"cuda:0"}),
}


def test_every_file_is_listed_with_its_checksum():
    listed = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", PAGE, re.MULTILINE))
    assert {hashlib.sha256((REAL / name).read_bytes()).hexdigest(): name for name in FILES} == listed


def test_every_file_has_an_origin_a_licence_and_a_description():
    licences = (REAL / "LICENSES.md").read_text(encoding="utf-8")
    for name in FILES:
        assert PAGE.count(f"| `{name}` |") == 2
        assert f"`{name}`" in licences
        size = re.search(rf"\| `{re.escape(name)}` \| ([\d,]+) \|", PAGE)
        assert int(size[1].replace(",", "")) == (REAL / name).stat().st_size
    assert sum((REAL / name).stat().st_size for name in FILES) < 400_000


@pytest.mark.parametrize("name", HELD)
def test_a_real_file_opens_as_what_it_is(name):
    ckpt = ckptool.open(REAL / name)
    weights = ckpt.state_dict()
    found = {storage.location for storage in ckpt.storages()}
    assert (ckpt.format, weights.path, len(weights), weights.parameters, found) == HELD[name]


def test_a_file_without_tensors_opens_too():
    ckpt = ckptool.open(REAL / "rxnmapper-training-args.bin")
    assert (ckpt.root.class_name, ckpt.storages()) == ("argparse.Namespace", [])
    with pytest.raises(ckptool.NotFound):
        ckpt.state_dict()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("format_", ["torch-zip", "torch-legacy"])
def test_a_real_file_is_the_same_for_torch_after_it_was_written_anew(name, format_, tmp_path):
    torch = pytest.importorskip("torch")
    ckptool.save(ckptool.open(REAL / name), tmp_path / "out.pth", format=format_)
    assert_same(torch_load(torch, REAL / name), torch_load(torch, tmp_path / "out.pth"))


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_weights_of_a_real_file_survive_safetensors(name, tmp_path):
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    ckpt = ckptool.extract(ckptool.open(REAL / name))
    ckptool.save(ckpt, tmp_path / "out.safetensors")
    loaded = torch_load(torch, REAL / name)
    before = loaded["state_dict"] if name.endswith(".ckpt") else loaded
    through_library = library.load_file(tmp_path / "out.safetensors")
    assert list(ckptool.load(tmp_path / "out.safetensors")) == list(before)
    assert through_library.keys() == before.keys()
    for key, tensor in before.items():
        assert_same(tensor, through_library[key])


@pytest.mark.parametrize("name", ["deepcr-mask.pth", "metapredict-lstm.pt"])
def test_a_real_prefix_comes_off_and_goes_back_on(name, tmp_path):
    torch = pytest.importorskip("torch")
    stripped = ckptool.strip_prefix(ckptool.open(REAL / name))
    ckptool.save(stripped, tmp_path / "stripped.pth")
    again = ckptool.add_prefix(ckptool.open(tmp_path / "stripped.pth"))
    ckptool.save(again, tmp_path / "again.pth")
    before, between = torch_load(torch, REAL / name), torch_load(torch, tmp_path / "stripped.pth")
    assert [key.removeprefix("module.") for key in before] == list(between)
    after = torch_load(torch, tmp_path / "again.pth")
    assert_same(before, after)
    assert before._metadata == after._metadata


@pytest.mark.parametrize("name", [name for name, held in HELD.items() if held[4] != {"cpu"}])
def test_a_real_file_loads_without_a_gpu_once_it_is_remapped(name, tmp_path):
    torch = pytest.importorskip("torch")
    ckptool.save(ckptool.map_location(ckptool.open(REAL / name), "cpu"), tmp_path / "out.pth")
    assert_same(torch_load(torch, REAL / name), torch_load(torch, tmp_path / "out.pth", map_location=None))


def test_the_demonstration_proves_what_it_shows(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    done = subprocess.run(
        [sys.executable, "-m", "fixtures.demo"],
        cwd=tmp_path,
        env=unwatched(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    verdicts = re.findall(r"^  (yes|NO )  ", done.stdout, re.MULTILINE)
    assert len(verdicts) >= 12
    assert set(verdicts) == {"yes"}


def torch_load(torch, path, map_location="cpu"):
    import argparse

    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location=map_location, weights_only=True)


def assert_same(one, other):
    """Nested dicts, lists and namespaces with equal tensors (type, shape, stride, bytes), in the same order."""
    import torch

    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif hasattr(one, "__dict__"):
        assert_same(vars(one), vars(other))
    else:
        assert one == other
