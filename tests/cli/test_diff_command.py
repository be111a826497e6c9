"""`ckptool diff`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples import Files, Run, state_dict, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tree import Dict


def test_the_exit_code_is_the_verdict(run: Run, files: Files) -> None:
    assert run("diff", "plain.pth", "plain.safetensors").code == 0
    assert run("diff", "dp.pth", "old.pth").code == 0  # another container, another device
    assert run("diff", "dp.pth", "old.pth", "--strict").code == 1
    assert run("diff", "plain.pth", "dp.pth").code == 1
    assert run("diff", "plain.pth", "absent.pth").code == 2
    assert run("diff", "last.ckpt", "dp.pth").code == 1
    assert run("diff", "last.ckpt", "dp.pth", "--weights").code == 0
    assert run("diff", "gan.pth", "plain.pth", "--at", "G", "--weights").code == 0
    assert run("diff", "plain.pth", "plain.pth", "--rtol", "-1").code == 2


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_says_what_differs(run: Run, files: Files, tmp_path: Path, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    root = state_dict()
    root.entries[1] = ("conv1.bias", tensor(2, fill=9))
    root.entries[2] = ("fc.weight", tensor(5, 2, fill=2))
    root.entries += [(f"layers.{n}.w", tensor(1)) for n in range(12)]
    ckptool.save(Checkpoint(Dict([("epoch", 3), ("state_dict", root)])), tmp_path / "b.ckpt")
    ran = run("diff", "plain.pth", "b.ckpt")
    assert max(len(line) for line in ran.out.splitlines()) <= width
    numbers = "2 of 2, max 1.65e-33, mean 1.65e-33, relative 1, cosine 1"
    assert ran.out == (
        "DIFFERENT: plain.pth (torch-zip), b.ckpt (torch-zip)\n"
        "  1 equal, 1 values, 1 shape, 12 only right\n"
        "  left: 2 of 3 tensors have a partner, 71.43 % of 28 parameters\n"
        "  right: 2 of 15 tensors have a partner, 47.62 % of 42 parameters\n"
        "\n"
        "  only at the right, 12:\n"
        "    layers.{0..11}.w  x12  float32 [1]\n"
        "\n"
        "  other shapes, 1:\n"
        "    fc.weight  [4, 2] | [5, 2]\n"
        "\n"
        "  other values, 1:\n"
        f"    conv1.bias  [2]  {numbers}\n"
        "\n"
        "  other entries that differ, 1:\n"
        "    epoch  nothing | 3\n"
    )


def test_the_command_that_it_names_makes_the_two_the_same(run: Run, files: Files) -> None:
    out = run("diff", "dp.pth", "plain.pth", "--detect-renames").out
    command = next(line.split() for line in out.splitlines() if line.startswith("    ckptool "))
    assert run(*command[1:]).code == 0
    assert run("diff", command[3], "plain.pth").code == 0


def test_the_json_document_has_every_field_that_is_promised(run: Run, files: Files) -> None:
    document = json.loads(run("diff", "plain.pth", "dp.pth", "--json").out)
    assert set(document) == {
        "ckptool", "command", "same", "left", "right", "formats", "pairs", "entries", "form", "suggestions",
        "parts", "errors",
    }  # fmt: skip
    assert set(document["pairs"][0]) == {"left", "right", "status", "values"}
    assert set(document["pairs"][0]["left"]) == {"name", "dtype", "shape", "location", "parameters", "weight"}
    assert document["same"] is False


def test_the_page_has_every_pair(run: Run, files: Files) -> None:
    ran = run("diff", "plain.pth", "dp.pth", "--html", "diff.html", "-q")
    assert (ran.code, ran.out) == (1, "")
    page = Path("diff.html").read_text()
    assert "module.conv1.weight" in page
    assert '"only right"' in page


def test_names_from_a_file_cannot_talk_to_the_terminal(run: Run, tmp_path: Path) -> None:
    loud = {"\x1b[31mred\x07\u202e.weight": 1, "line\nbreak": 2, "same\x1b": 3}
    for number, name in enumerate(("a.pth", "b.pth")):
        entries = [(key + str(number) * (fill < 3), tensor(1, fill=fill)) for key, fill in loud.items()]
        root = Dict([("state_dict", Dict(entries, True)), ("\x1b]0;t\x07", f"\x1b{number}")])
        ckptool.save(Checkpoint(root), tmp_path / name)
    for args in ([], ["-v"], ["--json"], ["--detect-renames"]):
        out = run("diff", "a.pth", "b.pth", *args).out
        assert not set(out) & {"\x1b", "\x07", "\u202e"}
        assert "line\nbreak" not in out
