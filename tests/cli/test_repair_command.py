"""`ckptool repair`."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from samples import Files, Run


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
    assert "mended: its records are not in a folder" in ran.err
    assert run("diff", "plain.pth", "out.pth").code == 0


def test_loss_is_named_and_has_to_be_allowed(run: Run, files: Files) -> None:
    data = files["old.pth"].read_bytes()
    files["old.pth"].write_bytes(data[:-10])
    ran = run("repair", "old.pth", "out.pth")
    assert (ran.code, Path("out.pth").exists()) == (2, False)
    assert ran.err.startswith(
        "Error: old.pth: not all of it can be saved; 1 entry would be lost:\n    module.fc.weight"
    )
    assert "Hint: --allow-loss writes the rest, with 2 of 3 tensors" in ran.err
    assert run("repair", "old.pth", "out.pth", "--allow-loss", "--json", "--dry-run").code == 0
    receipt = json.loads(run("repair", "old.pth", "out.pth", "--allow-loss", "--json").out)
    assert len(receipt["lost"]) == 1
    assert run("verify", "out.pth").code == 0


def test_there_must_be_something_to_repair(run: Run, files: Files) -> None:
    ran = run("repair", "plain.pth", "out.pth")
    assert (ran.code, Path("out.pth").exists()) == (2, False)
    assert "nothing is wrong with it" in ran.err


def test_a_file_is_repaired_in_place_and_the_old_one_kept(run: Run, files: Files) -> None:
    flat(files["plain.pth"])
    assert run("repair", "flat.pth", "--in-place", "--backup", ".broken").code == 0
    assert run("diff", "plain.pth", "flat.pth").code == 0
    assert Path("flat.pth.broken").exists()
