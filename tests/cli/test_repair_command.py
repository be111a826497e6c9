"""`ckptool repair`."""

from __future__ import annotations

import json
import shlex
import zipfile
from pathlib import Path

import pytest
from samples import Files, Run, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tree import Dict


def flat(path: Path) -> Path:
    out = path.with_name("flat.pth")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for record in old.infolist():
            new.writestr(record.filename.partition("/")[2], old.read(record))
    return out


def test_a_file_that_was_zipped_again_is_rebuilt(run: Run, files: Files) -> None:
    flat(files["plain.pth"])
    assert run("inspect", "flat.pth").code == 2
    ran = run("repair", "flat.pth", "out.pth")
    assert ran.code == 0
    assert "repaired: its records are not in a folder" in ran.err
    assert run("diff", "plain.pth", "out.pth").code == 0


def test_loss_is_named_and_has_to_be_allowed(run: Run, files: Files) -> None:
    data = files["old.pth"].read_bytes()
    files["old.pth"].write_bytes(data[:-10])
    ran = run("repair", "old.pth", "out.pth")
    assert (ran.code, Path("out.pth").exists()) == (2, False)
    assert ran.err.startswith(
        "Error: old.pth: not all of it can be saved; 1 entry would be lost:\n    module.fc.weight"
    )
    assert "legacy files have no checksums: bytes that changed within a tensor do not show" in ran.err
    assert "Hint: ckptool repair old.pth out.pth --allow-loss   # writes the rest, with 2 of 3 tensors" in ran.err
    assert run("repair", "old.pth", "out.pth", "--allow-loss", "--json", "--dry-run").code == 0
    receipt = json.loads(run("repair", "old.pth", "out.pth", "--allow-loss", "--json").out)
    assert len(receipt["lost"]) == 1
    assert run("verify", "out.pth").code == 0


@pytest.mark.parametrize("name", ["plain.pth", "old.pth", "plain.safetensors"])
@pytest.mark.parametrize("command", ["inspect", "verify", "convert -o out.pth", "diff plain.pth", "inspect plain.pth"])
def test_the_hint_of_a_file_that_is_cut_short_saves_its_whole_tensors(
    run: Run, files: Files, name: str, command: str
) -> None:
    cut = files[name].with_stem("cut")
    whole = max(s.source.offset + s.source.length for s in ckptool.open(name).storages())
    cut.write_bytes(files[name].read_bytes()[: whole - 4])
    ran = run(*command.split(), cut.name)
    assert ran.code == 2
    (hint,) = (line.removeprefix("Hint: ") for line in ran.err.splitlines() if line.startswith("Hint: "))
    told, _, why = hint.partition("   # ")
    assert why == "saves 2 of 3 tensors; a whole copy is better, if there is one"
    assert told.removeprefix("ckptool ") in run("doctor", cut.name).out
    assert run(*shlex.split(told)[1:]).code == 0
    assert len(ckptool.open(shlex.split(told)[3]).state_dict()) == 2


def test_the_hint_of_a_file_without_a_whole_tensor_is_to_fetch_it(run: Run, files: Files) -> None:
    Path("cut.pth").write_bytes(files["plain.pth"].read_bytes()[:400])
    for command in ("inspect", "verify"):
        assert run(command, "cut.pth").err.endswith("compare the size with the source, and fetch it again\n")


def test_a_large_file_that_is_cut_short_is_not_read_for_a_hint(
    run: Run, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptool.reports.diagnosis.rescue._READ_AT_ONCE", 1000)
    Path("cut.pth").write_bytes(files["plain.pth"].read_bytes()[:1200])
    error = run("inspect", "cut.pth").err
    assert error.endswith("fetch it again; `ckptool doctor cut.pth` says which tensors can be saved\n")
    assert "1 problem found" in run("doctor", "cut.pth").out


def test_there_must_be_something_to_repair(run: Run, files: Files) -> None:
    ran = run("repair", "plain.pth", "out.pth")
    assert (ran.code, Path("out.pth").exists()) == (2, False)
    assert "nothing is wrong with it" in ran.err


def test_a_file_is_repaired_in_place_and_the_old_one_kept(run: Run, files: Files) -> None:
    flat(files["plain.pth"])
    assert run("repair", "flat.pth", "--in-place", "--backup", ".broken").code == 0
    assert run("diff", "plain.pth", "flat.pth").code == 0
    assert Path("flat.pth.broken").exists()


def test_what_saves_no_tensor_is_not_called_a_repair(run: Run, files: Files) -> None:
    data = bytearray(files["plain.safetensors"].read_bytes())
    Path("cut.safetensors").write_bytes(data[: len(data) - 28 * 4])  # the values of every tensor
    for allowed in ([], ["--allow-loss"]):
        ran = run("repair", "cut.safetensors", "out.safetensors", *allowed)
        assert (ran.code, Path("out.safetensors").exists()) == (2, False)
        assert "none of its 3 tensors is whole, so none can be saved" in ran.err
        assert "--allow-loss" not in ran.err
    said = run("doctor", "cut.safetensors")
    assert said.code == 1
    assert "none of its 3 tensors is whole" in " ".join(said.out.split())
    assert "ckptool repair" not in said.out


def test_no_file_without_a_tensor_is_written_whatever_is_allowed(run: Run, files: Files) -> None:
    ckptool.save(Checkpoint(Dict([("epoch", 3), ("w", tensor(50))])), "a.pth")
    source = ckptool.open("a.pth").storages()[0].source
    data = bytearray(Path("a.pth").read_bytes())
    data[source.offset] ^= 1
    Path("a.pth").write_bytes(data)
    for allowed in ([], ["--allow-loss"]):
        ran = run("repair", "a.pth", "out.pth", *allowed)
        assert (ran.code, Path("out.pth").exists()) == (2, False)
        assert "none of its 1 tensor is whole, so none can be saved:\n    w: its checksum does not match" in ran.err
        assert "--allow-loss" not in ran.err
    said = " ".join(run("doctor", "a.pth").out.split())  # wherever its lines end
    assert "none of its 1 tensor is whole" in said
    assert "ckptool repair" not in said
    ckptool.save(Checkpoint(Dict([("epoch", 3)])), "no-tensor.pth")
    ran = run("repair", str(flat(Path("no-tensor.pth"))), "out.pth")
    assert (ran.code, Path("out.pth").exists()) == (2, False)
    assert "holds no tensor, so there is nothing to save" in ran.err


def test_a_file_whose_first_header_is_destroyed_is_named_and_rebuilt(run: Run, files: Files) -> None:
    data = files["plain.pth"].read_bytes()
    for number, start in enumerate((bytes(4), bytes(30), b"\xff" * 40)):
        Path("broken.pth").write_bytes(start + data[len(start) :])
        assert run("inspect", "broken.pth").code == 2
        said = run("doctor", "broken.pth")
        assert (said.code, "ckptool repair broken.pth broken-repaired.pth\n" in said.out) == (1, True), said.out
        assert run("repair", "broken.pth", f"out{number}.pth").code == 0
        assert run("diff", "plain.pth", f"out{number}.pth").code == 0
