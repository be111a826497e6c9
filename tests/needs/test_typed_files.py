"""Needs about files as such: cut, damaged, zipped again, no checkpoints at all, and how they are written."""

import gzip
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import torch
from programs import unwatched
from safetensors.torch import load_file, save_file
from typing_user import error_of, loads, net, same

import ckptool
from ckptool.disk.files import File


def big():
    """Weights of several records, 300 kB."""
    torch.manual_seed(0)
    return {f"layer{n}.weight": torch.randn(60, 60) for n in range(20)}


def test_07_a_file_that_was_cut_gives_back_what_is_whole(user):
    whole = big()
    for legacy in (False, True):
        torch.save(whole, "cut.pth", _use_new_zipfile_serialization=not legacy)
        data = Path("cut.pth").read_bytes()
        Path("cut.pth").write_bytes(data[: len(data) * 2 // 3])
        error = error_of(torch.load, "cut.pth")
        out = user.cures("cut.pth", error=error, says="of 20 tensors are whole")
        saved = torch.load(out)
        assert 10 <= len(saved) < 20
        assert all(torch.equal(value, whole[key]) for key, value in saved.items())
    Path("empty.pth").write_bytes(b"")
    assert "empty" in user.tries("ckptool doctor empty.pth").text


def test_08_what_is_no_checkpoint_is_called_what_it_is(user):
    Path("lfs.pth").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab" * 32 + "\nsize 2469606195\n"
    )
    Path("login.pth").write_text("\n<!DOCTYPE html><html><head><title>Sign in</title></head></html>\n")
    Path("error.pth").write_text('{"error": "Entry not found"}')
    Path("zeros.pth").write_bytes(bytes(4096))
    for name, word, says in (
        ("lfs.pth", "118", "git lfs pull"), ("login.pth", "10", "web page"), ("error.pth", "123", "JSON"),
        ("zeros.pth", None, "zeros"),
    ):  # fmt: skip
        seen = user.tries(f"ckptool doctor {name}")
        assert seen.code in (1, 2)
        assert says in seen.text, seen.text
        if word is not None:
            error = error_of(torch.load, name)
            assert word in str(error)
            explained = user.tries(f"ckptool doctor {name} --error", f"{type(error).__name__}: {error}")
            assert says in explained.text, explained.text
            assert "weights_only=False does not help" in explained.text
    model = net()
    torch.save(model.state_dict(), "plain.pth")
    Path("zipped.pth").write_bytes(gzip.compress(Path("plain.pth").read_bytes()))
    seen = user.asks("ckptool doctor zipped.pth", says="gzip")
    line = next(line.strip(" -") for line in seen.text.splitlines() if "gunzip <" in line)
    subprocess.run(line, shell=True, check=True)
    assert same(loads("zipped-unpacked.pth").state_dict(), model.state_dict())
    save_file(model.state_dict(), "model.ckpt")
    assert same(loads(user.cures("model.ckpt", says="safetensors")).state_dict(), model.state_dict())
    shutil.copy("plain.pth", "model.safetensors")
    error = error_of(load_file, "model.safetensors")
    out = user.cures("model.safetensors", error=error)
    assert load_file(out).keys() == model.state_dict().keys()


def test_17_a_run_that_is_killed_leaves_the_file_and_its_leftovers_are_removed(user):
    torch.save({f"w{n}": torch.rand(1000, 1000) for n in range(30)}, "big.pth")
    before = Path("big.pth").read_bytes()
    command = [sys.executable, "-m", "ckptool", "convert", "big.pth", "--in-place", "--cast", "bf16"]
    for _ in range(20):
        writer = subprocess.Popen(command, env=unwatched(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while writer.poll() is None and not list(Path().glob(".big.pth*.ckptool-tmp/*")):
            time.sleep(0.001)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        if left := list(Path().glob(".big.pth*.ckptool-tmp")):
            break
    assert left
    assert Path("big.pth").read_bytes() == before
    seen = user.types("ckptool doctor big.pth")
    assert left[0].name in seen.text
    user.types(next(line for line in seen.commands if "--remove-leftovers" in line))
    assert sorted(os.listdir()) == ["big.pth"]


def test_21_a_file_is_rewritten_in_memory_that_does_not_grow_with_it(user):
    torch.save({"state_dict": {f"w{n}": torch.zeros(1024, 1024) for n in range(50)}}, "big.pth")
    program = (
        "import sys\nfrom ckptool.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit as left: assert not left.code\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    words = ["convert", "big.pth", "shards", "--extract", "--cast", "bf16", "--max-shard-size", "40MB", "-q"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=unwatched(), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 110_000  # kB, of 200 MB
    assert len(list(Path("shards").glob("*.safetensors"))) == 3


def test_23_a_torch_before_1_6_gets_a_file_that_it_reads(user):
    model = net()
    torch.save(model.state_dict(), "new.pth")
    error = "RuntimeError: new.pth is a zip archive (did you mean to use torch.jit.load()?)"
    out = user.cures("new.pth", error=error)
    assert not zipfile.is_zipfile(out)
    assert same(loads(out).state_dict(), model.state_dict())
    user.types("ckptool convert new.pth old.pth -t legacy --for torch==1.4")
    torch.save({"w": torch.ones(2, dtype=torch.bfloat16)}, "bf16.pth")
    assert "bfloat16" in user.tries("ckptool convert bf16.pth no.pth -t legacy --for torch==1.0").text


def test_37_writing_over_the_file_that_is_read_is_safe(user):
    model = net()
    torch.save({f"module.{key}": value for key, value in model.state_dict().items()}, "dp.pth")
    os.link("dp.pth", "hard.pth")
    os.symlink("dp.pth", "soft.pth")
    user.types("ckptool strip-prefix soft.pth dp.pth --overwrite")
    assert same(loads("dp.pth").state_dict(), model.state_dict())
    assert "module.fc.weight" in torch.load("hard.pth")
    state = ckptool.load("dp.pth", mmap=True)
    ckptool.save({key: value * 2 if value.is_floating_point() else value for key, value in state.items()}, "dp.pth",
                 overwrite=True)  # fmt: skip
    assert torch.equal(torch.load("dp.pth")["fc.bias"], model.state_dict()["fc.bias"] * 2)
    for error in ("OSError: [Errno 14] Bad address", "Bus error (core dumped)"):
        assert "while it was mapped" in user.asks("ckptool doctor --error", error).text


def test_38_bytes_that_changed_are_found(user):
    whole = big()
    torch.save(whole, "rot.pth")
    data = bytearray(Path("rot.pth").read_bytes())
    data[len(data) // 2] ^= 1
    Path("rot.pth").write_bytes(data)
    torch.load("rot.pth")  # which says nothing
    user.asks("ckptool verify rot.pth")
    seen = user.asks("ckptool doctor rot.pth", says="bytes have changed since it was saved")
    rest = torch.load(user.follows(seen))
    assert len(rest) == 19
    assert all(torch.equal(rest[key], whole[key]) for key in rest)
    save_file(whole, "w.safetensors")
    user.types("ckptool verify w.safetensors --write-manifest w.json")
    data = bytearray(Path("w.safetensors").read_bytes())
    data[-9] ^= 1
    Path("w.safetensors").write_bytes(data)
    assert "layer" in user.asks("ckptool verify w.safetensors --manifest w.json").text


def test_39_the_same_weights_have_the_same_digest(user):
    weights = big()
    torch.save(weights, "one.pth")
    torch.save(dict(reversed(weights.items())), "two.pth")
    save_file(weights, "three.safetensors")
    digests = {user.types(f"ckptool verify {name} --digest").text.split("digest")[1].split()[0]
               for name in ("one.pth", "two.pth", "three.safetensors")}  # fmt: skip
    assert len(digests) == 1


def test_40_a_file_is_read_in_few_long_reads_and_never_mapped(user, monkeypatch):
    torch.save({f"w{n}": torch.zeros(256, 1024) for n in range(32)}, "nfs.pth")
    size, taken = Path("nfs.pth").stat().st_size, []
    read, into = File.read, File.read_into
    monkeypatch.setattr(File, "read", lambda self, at, n: taken.append(n) or read(self, at, n))
    monkeypatch.setattr(File, "read_into", lambda self, to, at: taken.append(len(to)) or into(self, to, at))
    monkeypatch.setattr(mmap, "mmap", None)
    user.types("ckptool convert nfs.pth out.safetensors --cast bf16")
    assert sum(taken) >= size * 0.99
    assert sum(taken) / len(taken) > 200_000
    user.types("ckptool inspect nfs.pth")


def test_48_a_file_that_torch_cannot_map_becomes_one_that_it_can(user):
    model = net()
    torch.save(model.state_dict(), "legacy.pth", _use_new_zipfile_serialization=False)
    error = error_of(torch.load, "legacy.pth", mmap=True)
    assert same(loads(user.cures("legacy.pth", error=error), mmap=True).state_dict(), model.state_dict())
    zeros = {"a": torch.zeros(90, 90), "b": torch.ones(90, 90)}
    torch.save(zeros, "stored.pth")
    with zipfile.ZipFile("stored.pth") as old, zipfile.ZipFile("packed.pth", "w", zipfile.ZIP_DEFLATED) as new:
        for record in old.namelist():
            new.writestr(record, old.read(record))
    error = error_of(torch.load, "packed.pth", mmap=True)
    assert same(torch.load(user.cures("packed.pth", error=error), mmap=True), zeros)


def test_49_an_archive_that_was_unpacked_and_zipped_again_is_rebuilt(user):
    model = net()
    torch.save(model.state_dict(), "ok.pth")
    with zipfile.ZipFile("ok.pth") as archive:
        archive.extractall("unpacked")
    for name, folder, inner in (("flat", "unpacked/ok", "."), ("nested", "unpacked", "ok")):
        shutil.make_archive(name, "zip", folder, inner)
        os.rename(f"{name}.zip", f"{name}.pth")
        if name == "nested":
            with zipfile.ZipFile("nested.pth", "a") as archive:
                archive.writestr("__MACOSX/._ok", b"junk")
        error = error_of(torch.load, f"{name}.pth")
        assert same(loads(user.cures(f"{name}.pth", error=error)).state_dict(), model.state_dict())
    with zipfile.ZipFile("outer.pth", "w") as archive:
        archive.write("ok.pth")
    assert same(
        loads(user.cures("outer.pth", error=error_of(torch.load, "outer.pth"))).state_dict(), model.state_dict()
    )
    seen = user.asks("ckptool doctor unpacked/ok", says="that was unpacked")
    assert "zip -0 -r" in seen.text


def test_50_values_that_are_no_numbers_are_found(user):
    weights = net().state_dict()
    weights["fc.weight"][0, 0] = float("nan")
    weights["conv1.bias"][:] = float("inf")
    torch.save(weights, "nan.pth")
    seen = user.tries("ckptool verify nan.pth --strict")
    assert seen.code == 1
    assert "fc.weight" in seen.text
    assert "conv1.bias" in seen.text
    assert "sound" not in seen.text
    assert "fc.weight" in user.types("ckptool doctor nan.pth").text
