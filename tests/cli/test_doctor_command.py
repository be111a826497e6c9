"""`ckptool doctor`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from samples import Files, Run, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tree import Dict

ERROR = 'Missing key(s) in state_dict: "fc.weight". Unexpected key(s) in state_dict: "module.fc.weight".'


def test_the_exit_code_says_whether_something_is_wrong(run: Run, files: Files) -> None:
    assert run("doctor", "plain.pth").code == 0
    assert run("doctor", "plain.safetensors").code == 0
    for name in ("dp.pth", "last.ckpt", "gan.pth", "evil.pth", "mixed.pth", "old.pth"):
        assert run("doctor", name).code == 1, name
    assert run("doctor", "absent.pth").code == 2
    assert run("doctor").code == 2
    assert run("doctor", "--error", ERROR).code == 1
    assert run("doctor", "--error", "something else").code == 2
    assert run("doctor", "--error", "<All keys matched successfully>").code == 0


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_ends_with_what_to_type(run: Run, files: Files, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run("doctor", "dp.pth").out == (
        "dp.pth: 2 problems found (torch-zip, 28 parameters in 3 tensors)\n"
        "  1. the model was wrapped when it was saved: 'module.' is in 3 of 3 keys\n"
        "  2. 3 storages were saved on cuda:1; torch.load fails without it\n"
        "\n"
        "  to fix it, run:\n"
        "    ckptool convert dp.pth dp-fixed.pth --unwrap --map-location cpu\n"
    )


@pytest.mark.parametrize("width", [80, 120])
def test_an_error_message_is_explained(run: Run, files: Files, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    means = (
        "The file was saved from DataParallel or DDP, whose names begin with 'module.', and the model is not wrapped."
    )
    told = run("doctor", "--error", ERROR).out.splitlines()
    assert " ".join(line.strip() for line in told[:-1]) == means
    assert told[-1] == "    ckptool strip-prefix FILE OUT --prefix module."
    assert all(len(line) <= width for line in told)
    both = run("doctor", "dp.pth", "--error", ERROR).out
    assert [line for line in both.splitlines() if line.startswith("    ckptool ")] == [
        "    ckptool convert dp.pth dp-fixed.pth --unwrap --map-location cpu"
    ]
    assert "2 problems found" in both


def test_a_message_is_read_from_stdin(run: Run, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"epoch 1\nTraceback …\n{ERROR}\n"))
    assert "strip-prefix" in run("doctor", "--error", "-").out


def test_what_it_says_to_type_mends_the_file(run: Run, files: Files) -> None:
    for name in ("dp.pth", "last.ckpt", "evil.pth", "mixed.pth", "old.pth"):
        out = run("doctor", name).out
        commands = [line.split() for line in out.splitlines() if line.startswith("    ckptool ")]
        ran = run(*commands[0][1:])
        assert ran.code == 0, ran.err
        assert run("doctor", commands[0][3]).code == 0, name


def test_the_json_document_has_every_field_that_is_promised(run: Run, files: Files) -> None:
    document = json.loads(run("doctor", "dp.pth", "--error", ERROR, "--json").out)
    assert set(document) == {
        "ckptool", "command", "messages", "healthy", "path", "kind", "findings", "cure", "fit", "checked",
        "errors",
    }  # fmt: skip
    assert set(document["findings"][0]) == {"name", "what", "trouble", "commands", "actions"}
    assert document["messages"][0]["name"] == "module-unexpected"
    assert document["healthy"] is False


def test_nothing_from_a_file_or_a_message_can_talk_to_the_terminal(run: Run, tmp_path: Path) -> None:
    root = Dict([("\x1b[31m\x07", Dict([("module.\x1b]0;t\x07.w", tensor(2, location="cuda:\x1b[2J"))]))])
    ckptool.save(Checkpoint(root), tmp_path / "loud.pth")
    for args in (["loud.pth"], ["loud.pth", "--json"], ["--error", f"\x1b[31m{ERROR}\x1b[0m"]):
        assert not set(run("doctor", *args).out) & {"\x1b", "\x07"}


def test_quiet_prints_problems_alone(run: Run, files: Files) -> None:
    assert run("doctor", "plain.pth", "-q") == (0, "", "")
    assert "worth knowing" in run("doctor", "last.ckpt").out
    ran = run("doctor", "last.ckpt", "-q")
    assert (ran.code, "worth knowing" in ran.out) == (1, False)
    assert "problems found" in ran.out
    assert "to fix it, run" in ran.out


def test_of_a_folder_of_shards_the_damaged_one_is_named_alone(run: Run, files: Files) -> None:
    assert run("convert", "plain.pth", "shards", "--max-shard-size", "50").code == 0
    whole = "ckptool convert shards shards-whole.safetensors\n"
    assert whole in run("inspect", "shards/model-00001-of-00002.safetensors").out
    assert run(*whole.split()[1:]).code == 0
    second = Path("shards/model-00001-of-00002.safetensors")
    second.write_bytes(second.read_bytes()[:-4])
    out = " ".join(run("doctor", "shards").out.split())
    assert "1 problem found" in out
    assert f"1. {second.name}: is cut short" in out
    assert "ckptool repair" not in run("verify", "shards").err  # what is left of a shard makes no checkpoint
    second.unlink()
    out = " ".join(run("doctor", "shards").out.split())
    assert "1 problem found" in out
    assert f"1. model.safetensors.index.json: names '{second.name}', which is not in the folder" in out


def test_no_command_is_shown_twice_with_another_output(run: Run) -> None:
    tower = Dict([(f"tower.{name}", tensor(2)) for name in ("a.weight", "b.weight")])
    ckptool.save(Checkpoint(tower), "tower.pth")
    message = 'Missing key(s) in state_dict: "a.weight". Unexpected key(s) in state_dict: "tower.a.weight".'
    out = run("doctor", "tower.pth", "--error", message).out
    assert out.count("--strip-prefix tower.") == 1


def test_the_page_is_written_beside_the_text_and_the_exit_code_stays(run: Run, files: Files) -> None:
    plain = run("doctor", "dp.pth")
    ran = run("doctor", "dp.pth", "--html", "page.html")
    assert (ran.code, ran.out) == (plain.code, plain.out)
    assert ran.err == "wrote page.html\n"
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "convert dp.pth dp-fixed.pth --unwrap --map-location cpu" in page
    assert run("doctor", "plain.pth", "--html", "page.html").code == 2
    assert run("doctor", "plain.pth", "-q", "--html", "page.html", "--overwrite").out == ""
    assert "no problem found" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    ["absent.pth", "--error nonsense", "dp.pth --recover", ". --remove-leftovers", "dp.pth --html dp.pth --overwrite"],
)
def test_no_page_is_written_where_there_is_nothing_to_show(run: Run, files: Files, words: str) -> None:
    before = Path("dp.pth").read_bytes()
    assert run("doctor", "--html", "page.html", *words.split()).code == 2
    assert not Path("page.html").exists()
    assert Path("dp.pth").read_bytes() == before


def test_what_was_checked_is_listed_with_v_and_in_the_document(run: Run, files: Files, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "checked, without a problem" not in run("doctor", "dp.pth").out
    told = run("doctor", "dp.pth", "-v").out.partition("checked, without a problem:\n")[2]
    document = json.loads(run("doctor", "dp.pth", "--json").out)
    assert [line.strip() for line in told.splitlines()] == document["checked"]
    assert "torch.load(weights_only=True) accepts every class that it names" in document["checked"]
    assert not any("GPU" in one or "wrapper" in one for one in document["checked"])  # these are its problems


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("dp.pth", "prefix of a wrapper"), ("dp.pth", "needs a GPU"), ("last.ckpt", "at the top of the file"),
        ("evil.pth", "runs code"), ("evil.pth", "weights_only=True"), ("gan.pth", "at the top of the file"),
    ],
)  # fmt: skip
def test_nothing_that_is_a_problem_is_said_to_be_fine(run: Run, files: Files, name: str, claim: str) -> None:
    assert claim in " ".join(json.loads(run("doctor", "plain.pth", "--json").out)["checked"])
    assert claim not in " ".join(json.loads(run("doctor", name, "--json").out)["checked"])
