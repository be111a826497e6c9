"""`ckptool inspect` and `ckptool formats`."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest
from samples import Files, Run, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.formats import FOLDERS
from ckptool.tensor import LazyTensor, Storage
from ckptool.tree import Dict

REAL = Path(__file__).parents[2] / "fixtures" / "real"


def test_the_json_document_has_every_field_that_is_promised(run: Run, files: Files) -> None:
    document = json.loads(run("inspect", "last.ckpt", "--json").out)
    assert (document["ckptool"], document["command"]) == (1, "inspect")
    (file,) = document["files"]
    assert set(file) == {
        "path", "format", "bytes", "state_dicts", "tensors", "objects", "warnings", "stored", "used", "slim",
        "training", "adapter", "packed", "framework",
    }  # fmt: skip
    assert file["training"]["progress"] == [["epoch", "3"]]
    assert (file["path"], file["format"]) == ("last.ckpt", "torch-zip")
    assert file["bytes"] == files["last.ckpt"].stat().st_size
    (weights,) = file["state_dicts"]
    assert weights["path"] == "state_dict"
    assert (weights["keys"], weights["parameters"], weights["bytes"]) == (3, 28, 112)
    assert weights["wrappers"] == {"module.": 3}
    assert list(weights["metadata"]) == ["", "module", "module.conv1", "module.fc"]
    assert file["objects"] == {"argparse.Namespace": 1}
    assert file["tensors"][0] == {
        "path": "state_dict/module.conv1.weight",
        "key": "module.conv1.weight",
        "dtype": "float32",
        "shape": [2, 1, 3, 3],
        "stride": [9, 9, 3, 1],
        "location": "cuda:1",
        "storage": 0,
        "bytes": 72,
        "requires_grad": False,
        "kind": "dense",
        "state_dict": "state_dict",
        "role": None,
    }
    outside = [t for t in file["tensors"] if t["key"] is None]
    assert [t["path"] for t in outside] == ["optimizer/state/0/step", "optimizer/state/0/exp_avg"]


def test_paths_tell_integer_keys_from_strings_and_escape_slashes(run: Run, tmp_path: Path) -> None:
    inner = Dict([(0, tensor(1)), ("0", tensor(1)), ("a/b~c", tensor(1)), ("", tensor(1))])
    ckptool.save(Checkpoint(Dict([("x", inner)])), tmp_path / "odd.pth")
    (file,) = json.loads(run("inspect", "odd.pth", "--json").out)["files"]
    assert [t["path"] for t in file["tensors"]] == ["x/0", 'x/"0"', "x/a~1b~0c", 'x/""']


def test_tied_tensors_have_the_same_storage_number(run: Run, tmp_path: Path) -> None:
    one = tensor(2, 3)
    root = Dict([("embed.weight", one), ("head.weight", one), ("bias", tensor(2))])
    ckptool.save(Checkpoint(root), tmp_path / "tied.pth")
    (file,) = json.loads(run("inspect", "tied.pth", "--json").out)["files"]
    assert [t["storage"] for t in file["tensors"]] == [0, 0, 1]
    assert file["state_dicts"][0]["parameters"] == 8
    assert "embed.weight = head.weight" in run("inspect", "tied.pth").out


def test_the_text_folds_layers_and_names_the_command_that_helps(run: Run, files: Files, tmp_path: Path) -> None:
    layers = [(f"module.layers.{i}.{leaf}", tensor(4, 4, location="cuda:1")) for i in range(32) for leaf in ("w", "b")]
    ckptool.save(Checkpoint(Dict(layers, True)), tmp_path / "deep.pth")
    out = run("inspect", "deep.pth").out
    assert "module.layers.{0..31}  x32" in out
    assert "to remove 'module.' and load it without cuda:1:" in out
    assert [line for line in out.splitlines() if "ckptool " in line] == [
        "    ckptool convert deep.pth deep-fixed.pth --unwrap --map-location cpu"
    ]


def test_files_that_were_inspected_do_not_stay_open(run: Run, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path("/proc/self/fd")
    if not place.exists():
        pytest.skip("only Linux lists the descriptors of a process")
    from ckptool.reports import inspect as report

    counts = []

    def counted(path: str, **options: bool) -> report.Inspection:
        counts.append(len(list(place.iterdir())))
        return inspect(path, **options)

    inspect = report.inspect
    monkeypatch.setattr(report, "inspect", counted)
    assert run("inspect", *[files["plain.pth"]] * 300).code == 0
    assert max(counts) - counts[0] < 100
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("dp.pth", "to remove 'module.' and load it without cuda:1"),
        ("last.ckpt", "to keep only the weights, remove 'module.' and load it without cuda:1"),
        ("evil.pth", "to keep only the weights"),
        ("mixed.pth", "to remove 'module.' (DataParallel or DDP)"),
    ],
)
def test_one_command_makes_a_file_load(run: Run, files: Files, name: str, heading: str) -> None:
    lines = run("inspect", name).out.splitlines()
    (command,) = (line.split() for line in lines if line.startswith("    ckptool "))
    assert lines[-2] == f"  {heading}:"
    ran = run(*command[1:])
    assert ran.code == 0, ran.err
    assert run("doctor", command[3]).code == 0
    assert "ckptool " not in run("inspect", command[3]).out


def test_of_several_state_dicts_a_command_takes_each(run: Run, files: Files) -> None:
    lines = run("inspect", "gan.pth").out.splitlines()
    assert lines[-3] == "  to take one of its state dicts:"
    for name, line in zip("GD", lines[-2:], strict=True):
        assert run(*line.split()[1:]).code == 0
        assert list(ckptool.open(f"gan-{name}.pth").state_dict()) == list(ckptool.open("plain.pth").state_dict())


def test_the_weights_in_a_folder_with_a_loader_of_its_own_are_taken_out(run: Run) -> None:
    fixture = Path(__file__).parents[2] / "fixtures" / "trained" / "housing-single-dcp"
    *_, heading, command = run("inspect", fixture).out.splitlines()
    assert heading == "  to keep only the weights:"
    assert command.startswith("    ckptool convert ")
    assert run("convert", fixture, "weights", "--extract").code == 0
    assert "ckptool " not in run("inspect", "weights").out


def test_what_else_is_in_the_file_is_told(run: Run, files: Files) -> None:
    out = run("inspect", "last.ckpt").out
    for words in ("epoch", "argparse.Namespace", "2 tensors", "args/@state/gpu"):
        assert words in out
    assert "loading this file with pickle would import or call 1 name" in run("inspect", "evil.pth").out


def test_names_from_a_file_cannot_talk_to_the_terminal(run: Run, tmp_path: Path) -> None:
    root = Dict([("\x1b[31mred\x07\u202e.weight", tensor(1)), ("line\nbreak", tensor(1))])
    ckptool.save(Checkpoint(root), tmp_path / "loud.pth")
    for args in (["loud.pth"], ["loud.pth", "-v"], ["loud.pth", "--json"]):
        out = run("inspect", *args).out
        assert not set(out) & {"\x1b", "\x07", "\u202e"}
        assert "line\nbreak" not in out


def test_of_several_files_the_worst_decides(run: Run, files: Files) -> None:
    ran = run("inspect", "plain.pth", "absent.pth", "plain.safetensors")
    assert ran.code == 2
    assert "absent.pth: no such file" in ran.err
    assert "plain.safetensors: safetensors" in ran.out
    assert [f["path"] for f in json.loads(run("inspect", "plain.pth", "absent.pth", "--json").out)["files"]] == [
        "plain.pth"
    ]


def test_each_file_of_a_folder_gets_a_line(run: Run, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("many").mkdir()
    for name in ("dp.pth", "plain.pth", "evil.pth"):
        files[name].rename(Path("many", name))
    lines = run("inspect", "many").out.splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == ["many/dp.pth", "many/evil.pth", "many/plain.pth"]
    assert lines[0].endswith("module., cuda:1")
    assert lines[1].endswith("1 unsafe name")
    assert lines[-1] == "3 files; -v shows what is in each"
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, run("inspect", "many").out.splitlines())) <= 70


@pytest.mark.parametrize("command", ["inspect", "scan", "verify"])
def test_a_document_says_what_failed_and_why(run: Run, files: Files, command: str) -> None:
    document = json.loads(run(command, "plain.pth", "absent.pth", "--json").out)
    assert [one["path"] for one in document["files"]] == ["plain.pth"]
    assert document["errors"] == [
        {
            "error": "NoSuchFile",
            "where": "absent.pth",
            "what": "no such file or directory",
            "evidence": [],
            "hint": None,
        }
    ]
    alone = run(command, "absent.pth", "--json")
    assert (alone.code, json.loads(alone.out)["errors"]) == (2, document["errors"])
    lines = run(command, "plain.pth", "absent.pth", "--json-lines").out.splitlines()
    assert json.loads(lines[0])["path"] == "plain.pth"
    assert json.loads(lines[1])["error"] == document["errors"][0]


def test_a_misspelt_option_is_in_the_document_too(run: Run) -> None:
    ran = run("convert", "a.pth", "b.pth", "--json", "--nonsense")
    assert (ran.code, json.loads(ran.out)["errors"][0]["error"]) == (2, "NoSuchOption")


@pytest.mark.parametrize("typed", ["plian.pth", "Plain.pth", "plain"])
def test_a_misspelt_file_name_is_recognised(run: Run, files: Files, typed: str) -> None:
    if os.path.exists(typed):  # where names are taken without regard to case
        return
    ran = run("inspect", typed)
    assert ran.code == 2
    assert "did you mean plain." in ran.err


def test_formats_are_listed_for_people_and_programs(run: Run) -> None:
    listed = json.loads(run("formats", "--json").out)["formats"]
    written = ["npz", "torch-zip", "torch-legacy", "safetensors", "gguf", *(f.name for f in FOLDERS if f.draft)]
    assert [f["name"] for f in listed if f["writes"]] == written
    read_only = "torchscript torch-package pt2 torch-tar pickle zero ranks megatron".split()
    read_only += "keras joblib equinox npy hdf5 flax tensorflow tflite onnx tfjs saved-model orbax".split()
    assert sorted(f["name"] for f in listed if not f["writes"]) == sorted(read_only)
    text = run("formats").out
    assert all(f["name"] in text for f in listed)


def test_folders_and_patterns_are_searched_for_checkpoints(run: Run, files: Files, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    files["plain.pth"].rename(tmp_path / "deep" / "plain.pth")
    (tmp_path / "deep" / "notes.txt").write_text("nothing\n")
    assert run("inspect", "deep", "-v").out.startswith("deep/plain.pth: torch-zip")
    assert "old.pth: torch-legacy" in run("inspect", "o*.pth").out
    (tmp_path / "empty").mkdir()
    ran = run("inspect", "empty")
    assert (ran.code, "holds no checkpoint" in ran.err) == (2, True)


def test_links_out_of_a_folder_are_named_and_not_followed(run: Run, files: Files, tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "out.pth").symlink_to(files["plain.pth"])
    (tmp_path / "deep" / "er" / "out").symlink_to(tmp_path)
    said = "not followed: deep/out.pth, deep/er/out, links out of the folder"
    ran = run("inspect", "deep")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"Error: deep: holds no checkpoint.\n    {said}\n"
    (tmp_path / "deep" / "in.pth").write_bytes(files["plain.pth"].read_bytes())
    ran = run("inspect", "deep")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("deep/in.pth  2.0 kB  torch-zip")
    assert ran.out.endswith(f"\n\n{said}\n")
    document = json.loads(run("inspect", "deep", "--json").out)
    assert document["not_followed"] == ["deep/out.pth", "deep/er/out"]
    assert run("inspect", "deep/out.pth").code == 0


@pytest.mark.parametrize("command", ["inspect", "verify", "strip-prefix {} out"])
def test_what_a_folder_of_shards_has_beside_it_is_not_followed(run: Run, files: Files, command: str) -> None:
    assert run("convert", "dp.pth", "repo", "-t", "shards").code == 0
    Path("secret").write_text("KEY")
    Path("repo/config.json").symlink_to("../secret")
    ran = run(*(command if "{}" in command else f"{command} {{}}").format("repo").split())
    assert ran.code == 0
    assert "not followed: config.json, a link out of the folder" in ran.out + ran.err
    Path("repo/model.safetensors").rename("weights")
    Path("repo/model.safetensors").symlink_to("../weights")
    ran = run(
        *(command if "{}" in command else f"{command} {{}}").format("repo").split(),
        *(["--overwrite"] * ("{}" in command)),
    )
    assert ran.code == 2
    assert "repo/model.safetensors: is a link out of the folder, and is not followed:" in ran.err


def test_a_folder_that_may_not_be_listed_is_named_and_the_others_are_searched(
    run: Run, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "shut").mkdir(parents=True)
    (tmp_path / "deep" / "a.pth").write_bytes(files["plain.pth"].read_bytes())
    listed = os.scandir

    def scandir(path: str) -> object:  # root may list everything
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for command in ("inspect", "scan"):
        ran = run(command, "deep")
        assert (ran.code, ran.err) == (2, "Error: deep/shut: permission denied.\n")
        assert "deep/a.pth" in ran.out


def test_values_are_described_when_they_are_asked_for(run: Run, files: Files) -> None:
    ran = run("inspect", "plain.pth", "--stats", "--filter", "fc")
    assert "  values:\n    fc.weight  [4, 2]  9.551e-38 to 9.551e-38" in ran.out
    (file,) = json.loads(run("inspect", "plain.pth", "--stats", "--json").out)["files"]
    assert [one["zeros"] for one in file["stats"]] == [18, 0, 0]
    assert set(file["stats"][0]) == {
        "elements", "min", "max", "mean", "std", "zeros", "nan", "infinite", "histogram",
    }  # fmt: skip
    assert run("inspect", "plain.pth", "--stats", "--html", "page.html").code == 0
    assert '"histogram":[' in Path("page.html").read_text()


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_of_a_training_checkpoint(run: Run, files: Files, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = run("inspect", "last.ckpt", "--depth", "2").out
    assert out.startswith(
        "last.ckpt: torch-zip, 2.7 kB\n"
        "\n"
        "  state dict at state_dict: 3 keys, 28 parameters, 112 bytes\n"
        "    float32; cuda:1; module. in 3 keys\n"
        "\n"
        "    module.conv1  2 tensors  20 parameters  80 bytes\n"
        "    module.fc     1 tensor   8 parameters   32 bytes\n"
        "\n"
        "  training:\n"
        "    epoch  3\n"
        "\n"
        "  training state:\n"
        "    optimizer  12 bytes  2 tensors\n"
    )
    assert "  settings:\n    args/lr   0.1\n    args/gpu  cuda:1\n" in out


def test_a_module_takes_one_line_of_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run("inspect", str(REAL / "deepcr-mask.pth")).out
    rows = [line for line in out.splitlines() if line.startswith("    module.")]
    assert rows[0] == "    module.inc.conv.conv.0                160 bytes  weight [4, 1, 3, 3]  +1"
    assert max(map(len, rows)) <= 80


def test_quiet_prints_one_line_per_file(run: Run, files: Files) -> None:
    ran = run("inspect", "-q", "dp.pth", "plain.safetensors")
    first, second = ran.out.splitlines()
    assert first.split()[0] == "dp.pth"
    assert "3 tensors, 28 parameters" in first
    assert "safetensors" in second
    assert len(run("inspect", "-q", "-v", "--stats", "dp.pth").out.splitlines()) == 1


def test_a_filter_that_finds_nothing_leads_to_one_that_finds_it(run: Run, files: Files) -> None:
    hint = run("inspect", "dp.pth", "--filter", "conv1.weight").err.splitlines()[-1]
    assert hint == "Hint: ckptool inspect dp.pth --filter module.conv1.weight"
    hint = run("inspect", "dp.pth", "--filter", "fc").err.splitlines()[-1]
    assert hint == "Hint: ckptool inspect dp.pth --filter re:fc"
    assert run(*hint.split()[2:]).code == 0


def test_statistics_of_no_finite_value_are_said_in_words(run: Run) -> None:
    nan = Storage(Buffer(b"\0\0\xc0\x7f" * 2), "cpu", BY_NAME["float32"])
    root = Dict([("a", LazyTensor(nan, BY_NAME["float32"], (2,), (1,))), ("b", tensor(0))])
    ckptool.save(Checkpoint(root), "odd.pth")
    *_, first, second = (
        " ".join(line.split()) for line in run("inspect", "odd.pth", "--stats").out.splitlines() if line
    )
    assert (first, second) == ("a [2] no finite value 2 NaN", "b [0] no values")
