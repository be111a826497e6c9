"""Needs about folders: shards, files that each rank of a run wrote, adapters beside their base."""

import json
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from programs import unwatched
from safetensors.torch import load_file
from typing_user import FIXTURES, Net, error_of, loads, net, same


def test_18_many_processes_write_one_whole_file(user):
    torch.save(torch.nn.DataParallel(net()).state_dict(), "dp.pth")
    command = "torch.distributed.run --nproc-per-node 2 --no-python ckptool-here convert dp.pth out.pth --unwrap -q"
    Path("ckptool-here").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ckptool "$@"\n')
    Path("ckptool-here").chmod(0o755)
    words = [word.replace("ckptool-here", "./ckptool-here") for word in command.split()]
    done = subprocess.run([sys.executable, "-m", *words], env=unwatched(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert same(loads("out.pth").state_dict(), net().state_dict())
    for error, says in (
        ("RuntimeError: storage has wrong size: expected -4669315570785868528 got 512", "global rank 0 only"),
        ("RuntimeError: Parent directory runs/1 does not exist.", "makedirs"),
    ):
        assert says in user.asks("ckptool doctor --error", error).text


def test_19_shards_become_one_file_and_one_file_becomes_shards(user):
    weights = {f"blocks.{n}.weight": torch.full((50, 50), float(n)) for n in range(9)}
    torch.save(weights, "one.pth")
    user.types("ckptool convert one.pth shards/ --max-shard-size 30KB")
    user.types("ckptool convert shards/ back.safetensors")
    assert load_file("back.safetensors").keys() == weights.keys()
    parts = sorted(Path("shards").glob("*-of-*.safetensors"))
    lone = parts[0]
    seen = user.tries(f"ckptool convert {lone} third.safetensors")
    assert seen.code == 2
    assert "shard" in seen.text
    assert not Path("third.safetensors").exists()
    assert load_file(user.takes_the_hint(seen)).keys() == weights.keys()
    assert load_file(user.cures(lone)).keys() == weights.keys()
    parts[1].unlink()
    assert parts[1].name in user.asks("ckptool doctor shards").text


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_20_what_fsdp_left_becomes_a_plain_file(user):
    model = net()
    dcp.save({"model": model.state_dict(), "epoch": 3}, checkpoint_id="run", no_dist=True)
    error = error_of(torch.load, "run")
    assert "Is a directory" in str(error)
    out = user.follows(user.types("ckptool doctor run"))
    assert same(loads(out).state_dict(), model.state_dict())
    user.types("ckptool convert run plain.safetensors --extract")
    assert load_file("plain.safetensors").keys() == model.state_dict().keys()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_20_an_error_of_dcp_about_a_missing_name_is_explained(user):
    dcp.save({"model": net().state_dict()}, checkpoint_id="run", no_dist=True)
    with pytest.raises(dcp.api.CheckpointException, match="Missing key in checkpoint state_dict") as raised:
        dcp.load(Net().state_dict(), checkpoint_id="run", no_dist=True)
    seen = user.tries("ckptool doctor run --error", f"CheckpointException: {raised.value}")
    assert "looked for keys that the folder does not hold" in seen.text
    assert same(loads(user.follows(seen, -1)).state_dict(), net().state_dict())


@pytest.fixture
def deepspeed(user):
    with tarfile.open(FIXTURES / "deepspeed" / "runs.tar.xz") as packed:
        packed.extractall(".", filter="data")


@pytest.mark.parametrize("run", ["zero2-bf16", "zero3-three-ranks"])
def test_22_what_deepspeed_left_becomes_a_plain_file(user, deepspeed, run):
    expected = torch.load(f"{run}/expected.pt")
    weights = load_file(user.cures(run))
    for key, value in weights.items():
        assert torch.equal(value.to(expected[key].dtype), expected[key]), key
    assert set(weights) <= set(expected)
    assert len(weights) >= 5
    rank = sorted(Path(run).rglob("*model_states.pt"))[0]
    error = (
        "size mismatch for fc.weight: copying a param with shape torch.Size([0]) from checkpoint, "
        "the shape in current model is torch.Size([3, 4])."
    )
    assert "ZeRO" in user.tries(f"ckptool doctor {rank} --error", error).text


def test_33_an_adapter_is_merged_into_its_base(user):
    with zipfile.ZipFile(FIXTURES / "adapters.zip") as packed:
        packed.extractall(".")
    expected = load_file("merged/lora.safetensors")
    config = Path("adapters/lora/adapter_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "bases/llama"}))
    out = user.cures("adapters/lora", says="needs its base model")
    merged = load_file(next(Path(out).glob("*.safetensors")))
    assert expected.keys() < merged.keys() == load_file("bases/llama/model.safetensors").keys()
    for key, value in expected.items():
        torch.testing.assert_close(merged[key], value, rtol=1e-5, atol=1e-6)
    user.types("ckptool merge-lora bases/llama adapters/lora again")


def test_51_ranks_of_megatron_become_one_file(user):
    with tarfile.open(FIXTURES / "megatron" / "runs.tar.xz") as packed:
        packed.extractall(".", filter="data")
    user.types("ckptool convert tp1pp1/iter_0000001 whole.safetensors")
    joined = load_file(user.cures("tp2pp2/iter_0000001"))
    whole = load_file("whole.safetensors")
    assert {key: value.shape for key, value in joined.items()} == {key: value.shape for key, value in whole.items()}
    rank = "tp2pp1/iter_0000001/mp_rank_00/model_optim_rng.pt"
    seen = user.asks(f"ckptool doctor {rank}", says="of 2")
    assert load_file(user.follows(seen)).keys() == whole.keys()


def test_12_a_folder_is_looked_into(user):
    Path("runs").mkdir()
    torch.save({"net": net().state_dict()}, "runs/last.pth")
    torch.save(Net().state_dict(), "runs/ok.pth")
    text = user.asks("ckptool doctor runs").text
    assert "last.pth: the weights are under the key 'net'" in text
    assert "ok.pth: no problem found" in text
