"""Several files with one command: one line each, one summary, and the worst exit code."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from samples import Run


@pytest.fixture
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


@pytest.fixture
def files(run, net):
    """A folder of checkpoints, shards among them, and things that are none."""
    wrapped = {f"module.{key}": value for key, value in net.state_dict().items()}
    Path("ckpts/deep").mkdir(parents=True)
    for name in ("a.pth", "b.pth", "deep/c.pt"):
        torch.save(wrapped, f"ckpts/{name}")
    Path("ckpts/notes.txt").write_text("no checkpoint")
    Path("ckpts/.hidden.pth").write_bytes(b"x")
    torch.save(wrapped, "wrapped.pth")
    assert run("convert", "wrapped.pth", "ckpts/shards/", "--max-shard-size", "40").code == 0
    return wrapped


def loads(net, path):
    net.load_state_dict(torch.load(path), strict=True)


def test_several_files_are_replaced_in_place(run: Run, net, files):
    ran = run("strip-prefix", "ckpts/a.pth", "ckpts/b.pth", "--in-place")
    assert ran.code == 0, ran.err
    lines = ran.err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["wrote ckpts/a.pth", "wrote ckpts/b.pth", "2 files"]
    assert lines[0].endswith("strip 'module.': 7 of 7 keys")
    assert lines[-1] == "2 files: 2 written, 0 failed"
    for name in ("a.pth", "b.pth"):
        loads(net, f"ckpts/{name}")


def test_a_folder_is_searched_and_shards_are_one_checkpoint(run: Run, net, files):
    ran = run("strip-prefix", "ckpts/", "--out-dir", "here/", "-r")
    assert ran.code == 0, ran.err
    assert ran.err.splitlines()[-1] == "4 files: 4 written, 0 failed"
    for name in ("a.pth", "b.pth", "deep/c.pt"):
        loads(net, f"here/{name}")
    assert sorted(path.name for path in Path("here/shards").iterdir()) == sorted(
        path.name for path in Path("ckpts/shards").iterdir()
    )
    assert run("convert", "here/shards", "whole.pth").code == 0
    loads(net, "whole.pth")
    assert torch.load("ckpts/a.pth").keys() == files.keys()


def test_shards_in_a_folder_are_replaced_in_place(run: Run, net, files):
    assert run("strip-prefix", "ckpts", "--in-place", "--recursive").code == 0
    assert run("convert", "ckpts/shards", "whole.pth").code == 0
    loads(net, "whole.pth")
    loads(net, "ckpts/deep/c.pt")


def test_one_bad_file_does_not_stop_the_others(run: Run, net, files):
    Path("ckpts/bad.pth").write_bytes(b"PK\3\4 no archive")
    torch.save(net.state_dict(), "ckpts/plain.pth")
    ran = run("strip-prefix", "ckpts", "--out-dir", "here", "-r")
    assert ran.code == 2
    failed = [line for line in ran.err.splitlines() if line.startswith("FAILED ")]
    assert len(failed) == 2
    assert "FAILED ckpts/plain.pth: no key starts with 'module.'" in failed
    assert ran.err.splitlines()[-1] == "6 files: 4 written, 2 failed"
    assert not Path("here/bad.pth").exists()
    loads(net, "here/b.pth")
    assert run("strip-prefix", "ckpts/bad.pth", "ckpts/a.pth", "--in-place", "-q").code == 2
    loads(net, "ckpts/a.pth")


def test_the_format_that_is_asked_for_names_the_outputs(run: Run, net, files):
    from safetensors.torch import load_file

    ran = run("convert", "ckpts", "-r", "--out-dir", "st", "-t", "safetensors", "--unwrap")
    assert ran.code == 0, ran.err
    for name in ("a", "b", "deep/c", "shards"):
        net.load_state_dict(load_file(f"st/{name}.safetensors"), strict=True)
    assert run("convert", "ckpts/a.pth", "ckpts/b.pth", "--out-dir", "sh", "--max-shard-size", "40").code == 0
    assert Path("sh/b/model.safetensors.index.json").exists()


def test_two_files_of_one_name_are_not_written_over_each_other(run: Run, net, files):
    torch.save(files, "a.pth")
    assert run("strip-prefix", "a.pth", "ckpts/a.pth", "--out-dir", "here").code == 0
    for name in ("a.pth", "ckpts/a.pth"):  # each below the folder that it came from
        loads(net, f"here/{name}")
    assert run("strip-prefix", "a.pth", "--out-dir", "here").code == 2  # it is there already
    assert run("strip-prefix", "a.pth", "--out-dir", "here", "--overwrite").code == 0
    ran = run("strip-prefix", Path("a.pth").resolve(), Path("ckpts/a.pth").resolve(), "--out-dir", "far")
    assert ran.code == 2
    assert ran.err.splitlines()[1].endswith("/a.pth goes there, too")


def test_files_that_differ_in_their_ending_keep_it(run: Run, net):
    for name in ("w.pth", "w.pt", "best.pth.tar"):
        torch.save(net.state_dict(), name)
    assert run("convert", "w.pth", "w.pt", "best.pth.tar", "--out-dir", "st", "-t", "safetensors").code == 0
    assert sorted(path.name for path in Path("st").iterdir()) == [
        "best.safetensors", "w.pt.safetensors", "w.pth.safetensors",
    ]  # fmt: skip


def test_no_output_is_written_over_another_input(run: Run, net, files):
    torch.save({"module.other": torch.ones(1)}, "a.pth")
    before = Path("a.pth").read_bytes(), Path("ckpts/a.pth").read_bytes()
    for order in (["a.pth", "ckpts/a.pth"], ["ckpts/a.pth", "a.pth"]):
        ran = run("strip-prefix", *order, "--out-dir", "ckpts", "--overwrite")
        assert ran.code == 2
        assert "the output for a.pth would replace ckpts/a.pth, which this command names" in ran.err
        assert (Path("a.pth").read_bytes(), Path("ckpts/a.pth").read_bytes()) == before
    assert run("strip-prefix", "ckpts/a.pth", "ckpts/b.pth", "--out-dir", "ckpts", "--overwrite").code == 0
    loads(net, "ckpts/a.pth")


def test_a_folder_of_a_trainer_is_one_checkpoint(run: Run, net):
    for rank in range(2):
        place = Path(f"runs/megatron/iter_0000001/mp_rank_0{rank}")
        place.mkdir(parents=True)
        model = {"embedding.word_embeddings.weight": torch.full((2, 3), float(rank))}
        torch.save({"model": model, "iteration": 1}, place / "model_optim_rng.pt")
        Path("runs/ranks").mkdir(exist_ok=True)
        torch.save(net.state_dict(), f"runs/ranks/model_world_size_2_rank_{rank}.pt")
    Path("runs/named").mkdir()
    for name in ("best_rank0", "best_rank1", "last"):
        torch.save(net.state_dict(), f"runs/named/{name}.pth")
    before = [path.read_bytes() for path in sorted(Path("runs").rglob("*.pt"))]
    assert run("convert", "runs", "-r", "--in-place", "-m", "cpu").code == 2
    assert [path.read_bytes() for path in sorted(Path("runs").rglob("*.pt"))] == before
    ran = run("convert", "runs", "-r", "--out-dir", "out", "-t", "torch-zip")
    assert ran.code == 0, ran.err
    names = sorted(str(path.relative_to("out")) for path in Path("out").rglob("*") if path.is_file())
    assert len(names) == 5, names
    assert torch.load(f"out/{names[0]}")["embedding.word_embeddings.weight"].shape == (4, 3)


def test_a_dry_run_makes_no_folder(run: Run, files):
    ran = run("strip-prefix", "ckpts/a.pth", "ckpts/b.pth", "--out-dir", "here", "-n")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "2 files: 2 would be written, 0 failed"
    assert not Path("here").exists()


def test_json_is_one_document(run: Run, files):
    ran = run("strip-prefix", "ckpts/a.pth", "absent.pth", "--out-dir", "here", "--json")
    assert ran.code == 2
    document = json.loads(ran.out)
    assert document["failed"] == 1
    assert [one["path"] for one in document["files"]] == ["here/a.pth"]
    assert [(one["where"], one["error"]) for one in document["errors"]] == [("absent.pth", "NoSuchFile")]


def test_json_lines_are_a_line_for_each_file(run: Run, files):
    ran = run("strip-prefix", "ckpts/a.pth", "absent.pth", "--out-dir", "here", "--json-lines")
    first, second = map(json.loads, ran.out.splitlines())
    assert (first["command"], first["path"]) == ("strip-prefix", "here/a.pth")
    assert second["error"]["what"] == "no such file or directory"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("strip-prefix a b c", "Several files need --in-place or --out-dir DIR."),
        ("strip-prefix a -r", "-r goes with --in-place or --out-dir."),
        ("strip-prefix a b --in-place --out-dir d", "exclude each other"),
        ("strip-prefix a --out-dir d -o x", "exclude each other"),
        ("strip-prefix a --in-place -o x", "--in-place replaces IN"),
        ("strip-prefix a b -o x", "OUT is given twice."),
        ("strip-prefix a", "Missing OUT"),
    ],
)
def test_what_does_not_go_together_is_said(run: Run, typed, said):
    ran = run(*typed.split())
    assert ran.code == 2
    assert said in ran.err


def test_a_folder_without_a_checkpoint_is_named(run: Run, files):
    Path("empty").mkdir()
    assert "holds no file that may be a checkpoint" in run("strip-prefix", "empty", "-r", "--in-place").err
    ran = run("strip-prefix", "ckpts", "wrapped.pth", "--out-dir", "here")
    assert ran.code == 2
    assert "-r looks into folders" in ran.err


def test_passes_that_went_through_are_written_down_once(run: Run, files):
    assert run("strip-prefix", "ckpts/a.pth", "ckpts/b.pth", "--in-place", "--save-recipe", "r.yaml").code == 0
    assert "strip-prefix: module." in Path("r.yaml").read_text()


def test_several_files_are_repaired_at_once(run: Run, net, files):
    import zipfile

    Path("broken").mkdir()
    for name in ("a.pth", "b.pth"):
        with zipfile.ZipFile(f"ckpts/{name}") as old, zipfile.ZipFile(f"broken/{name}", "w") as new:
            for record in old.infolist():
                new.writestr(record.filename.partition("/")[2], old.read(record))
    assert run("repair", "broken", "-r", "--out-dir", "mended").code == 0
    assert torch.load("mended/b.pth").keys() == files.keys()
