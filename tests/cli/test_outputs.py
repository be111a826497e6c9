"""What commands write, where something is there already."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from samples import Files, Run, envelope, state_dict

import ckptool
from ckptool.checkpoint import Checkpoint

NET = "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"


def test_a_page_does_not_replace_what_is_there(run: Run, files: Files) -> None:
    before = files["dp.pth"].read_bytes()
    for command in ("inspect plain.pth --html dp.pth", "diff plain.pth old.pth --html dp.pth -q"):
        ran = run(*command.split())
        assert ran.code == 2
        assert "dp.pth: exists already" in ran.err
        ran = run(*command.split(), "--overwrite")
        assert ran.code == 2
        assert "dp.pth: is not a ckptool page" in ran.err
    assert files["dp.pth"].read_bytes() == before


def test_a_pattern_that_the_shell_put_behind_html_destroys_no_checkpoint(run: Run, files: Files) -> None:
    before = {name: path.read_bytes() for name, path in files.items()}
    for more in ([], ["--overwrite"]):
        assert run("inspect", "--html", *sorted(files), *more).code == 2
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_a_page_is_never_an_input_of_its_command(run: Run, files: Files) -> None:
    os.symlink("plain.pth", "link.pth")
    os.link("plain.pth", "second.pth")
    before = files["plain.pth"].read_bytes()
    for name in ("plain.pth", "./plain.pth", "link.pth", "second.pth"):
        ran = run("inspect", "plain.pth", "--html", name, "--overwrite")
        assert ran.code == 2
        assert "is an input or another output of this command" in ran.err
        assert "Hint: --html ANOTHER_NAME" in ran.err
    assert files["plain.pth"].read_bytes() == before


def test_a_page_replaces_an_older_page_when_asked(run: Run, files: Files) -> None:
    assert run("inspect", "plain.pth", "--html", "page.html").code == 0
    assert run("inspect", "dp.pth", "--html", "page.html").code == 2
    assert run("inspect", "dp.pth", "--html", "page.html", "--overwrite").code == 0
    assert "dp.pth" in Path("page.html").read_text()
    assert run("diff", "plain.pth", "dp.pth", "--html", "page.html", "--overwrite").code == 1


def test_an_empty_file_may_become_a_page(run: Run, files: Files) -> None:
    Path("page.html").touch()
    assert run("inspect", "plain.pth", "--html", "page.html", "--overwrite").code == 0


@pytest.mark.parametrize("name", ["in.pth", "out.pth", "rules.txt"])
def test_a_recipe_is_no_other_file_of_its_command(run: Run, files: Files, name: str) -> None:
    Path("rules.txt").write_text("module.=\n")
    Path("in.pth").write_bytes(files["dp.pth"].read_bytes())
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    ran = run("rename", "in.pth", "out.pth", "--rules", "rules.txt", "--save-recipe", name, "--overwrite")
    assert ran.code == 2
    assert "is an input or another output of this command" in ran.err
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_a_manifest_replaces_a_manifest_only(run: Run, files: Files) -> None:
    Path("notes.txt").write_text("precious")
    ran = run("verify", "plain.pth", "--write-manifest", "notes.txt", "--overwrite")
    assert ran.code == 2
    assert "notes.txt: is not a ckptool manifest" in ran.err
    assert Path("notes.txt").read_text() == "precious"
    assert run("verify", "plain.pth", "--write-manifest", "m.json").code == 0
    assert run("verify", "plain.pth", "--write-manifest", "m.json").code == 2
    assert run("verify", "plain.pth", "--write-manifest", "m.json", "--overwrite").code == 0


def test_a_mapping_replaces_a_mapping_only(run: Run, files: Files) -> None:
    pytest.importorskip("torch")
    Path("net.py").write_text(NET + "        self.fc1 = torch.nn.Linear(2, 3)\n")
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.ModuleDict({"fc1": torch.nn.Linear(2, 3)}).state_dict(), "src.pth")
    Path("notes.yaml").write_text("precious: true\n")
    for command in ("--save-mapping notes.yaml", "--html notes.yaml", "--save-mapping src.pth", "--html net.py"):
        ran = run("transfer", "src.pth", "net.py", "-o", "out.pth", *command.split(), "--overwrite")
        assert ran.code == 2, command
        assert not Path("out.pth").exists()
    assert Path("notes.yaml").read_text() == "precious: true\n"


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_link_to_nothing_is_no_target(run: Run, files: Files, overwrite: list[str]) -> None:
    os.symlink("nowhere", "dangling")
    for command in (
        "strip-prefix dp.pth dangling",
        "convert dp.pth dangling -t shards",
        "inspect dp.pth --html dangling",
        "strip-prefix dp.pth new.pth --save-recipe dangling",
    ):
        ran = run(*command.split(), *overwrite)
        assert ran.code == 2, command
        assert "dangling: is a link to nowhere, which does not exist" in ran.err
        assert "Hint: rm dangling, or name the file itself" in ran.err
    assert not Path("nowhere").exists()
    assert not Path("new.pth").exists()


@pytest.mark.skipif(not Path("/proc/self/exe").exists(), reason="names of Linux")
@pytest.mark.parametrize("target", ["/proc/self/exe", "/proc/self/fd/1", "/dev/stdout", "/dev/fd/1", "link"])
def test_a_name_in_proc_is_no_target(run: Run, files: Files, target: str) -> None:
    os.symlink("/proc/self/exe", "link")
    interpreter = Path(sys.executable).resolve()
    before = interpreter.stat()
    for command in ("strip-prefix dp.pth {}", "convert dp.pth {} -t shards", "inspect dp.pth --html {}"):
        ran = run(*command.format(target).split(), "--overwrite")
        assert ran.code == 2, command
        assert "leads through /proc" in ran.err
    assert interpreter.stat() == before


@pytest.mark.parametrize("target", ["s3://bucket/x", "gs://bucket/x.pth", "hf://you/x", "https://example.org/x.pth"])
@pytest.mark.parametrize("option", [[], ["-t", "shards"]])
def test_a_target_at_a_url_is_named_as_such(run: Run, files: Files, target: str, option: list[str]) -> None:
    before = sorted(Path().iterdir())
    if target.startswith("h"):  # nothing is sent to the hub or to a web server; stores are tested beside servers
        ran = run("convert", "plain.pth", target, *option)
        assert ran.code == 2
        assert ran.err.startswith(f"Error: {target}: ")
        assert "Hint: name a file" in ran.err
    ran = run("inspect", "plain.pth", "--html", target)
    assert ran.code == 2
    assert "URL" in ran.err
    assert sorted(Path().iterdir()) == before


def test_a_folder_may_have_a_long_name_in_any_script(run: Run, files: Files) -> None:
    assert run("convert", "plain.pth", "模" * 80, "-t", "shards").code == 0
    ran = run("convert", "plain.pth", "模" * 90, "-t", "shards")
    assert ran.code == 2
    assert "file name too long" in ran.err


@pytest.mark.parametrize("suffix", ["../x", "/x", "", "a/b", "x" * 300, "\0"])
def test_a_backup_with_an_impossible_suffix_is_refused_before_anything_is_written(
    run: Run, files: Files, suffix: str
) -> None:
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    ran = run("strip-prefix", "dp.pth", "--in-place", "--backup", suffix)
    assert ran.code == 2
    assert "backup" in ran.err
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


# -- what runs that were cut off left


def left_behind(target: str) -> Path:
    from ckptool.disk.door import Directory
    from ckptool.disk.work import Work

    with Directory.at(Path().resolve()) as here:
        work = Work.start(here, target, names=["model.safetensors"])
        with work.create("model.safetensors") as out:
            out.write(b"half")
        work.close()
        return Path(work.path.name)


def test_doctor_names_what_is_left_behind_and_removes_it(run: Run, files: Files) -> None:
    left = left_behind("plain.pth")
    other = left_behind("other.pth")
    ran = run("doctor", "plain.pth")
    assert ran.code == 0
    assert left.name in ran.out
    assert other.name not in ran.out
    assert "ckptool doctor . --remove-leftovers" in ran.out
    ran = run("doctor", ".", "--remove-leftovers")
    assert ran.code == 0
    assert {line.split()[0] for line in ran.out.splitlines()} == {"removed"}
    assert not left.exists()
    assert not other.exists()
    assert run("doctor", ".", "--remove-leftovers").out == "nothing is left behind\n"


def test_doctor_keeps_what_a_living_run_or_nobody_known_wrote(run: Run, files: Files) -> None:
    from ckptool.disk.door import Directory
    from ckptool.disk.work import Work

    planted = Path(".plain.pth.00000000.ckptool-tmp")
    planted.mkdir()
    (planted / "precious").touch()
    with Directory.at(Path().resolve()) as here:
        work = Work.start(here, "plain.pth")
        ran = run("doctor", ".", "--remove-leftovers", "--json")
        work.discard()
    assert ran.code == 1
    assert "its run is still at work" in ran.out
    assert "its record is not of this machine" in ran.out
    assert (planted / "precious").exists()


def test_inspecting_a_folder_leaves_out_what_is_half_done(run: Run, files: Files) -> None:
    left = left_behind("other.pth")
    Path("plain.safetensors").unlink()  # which makes the folder a checkpoint of its own
    ran = run("inspect", ".")
    assert left.name not in ran.out
    assert f"left out {left.name}, which a run of ckptool has not finished" in ran.err


def test_a_run_that_is_interrupted_says_where_the_finished_files_are(run: Run, files: Files, monkeypatch) -> None:
    from ckptool.disk import folders

    ckptool.save(Checkpoint(envelope(state_dict())), "in.ckpt")
    real, seen = folders.write_pieces, []

    def interrupted(*args, **options):
        if seen:
            raise KeyboardInterrupt
        seen.append(real(*args, **options))

    monkeypatch.setattr(folders, "write_pieces", interrupted)
    ran = run("convert", "plain.pth", "out", "--max-shard-size", "8")
    assert ran.code == 130
    (left,) = Path().glob(".out.*.ckptool-tmp")
    assert f"what is finished stays in {left.name}; the same command goes on from there" in ran.err


def test_a_recipe_is_never_the_backup_of_its_command(run: Run, files: Files) -> None:
    before = files["dp.pth"].read_bytes()
    ran = run("strip-prefix", "dp.pth", "--in-place", "--backup", ".bak", "--save-recipe", "dp.pth.bak")
    assert ran.code == 2
    assert "dp.pth.bak is an input or another output of this command" in ran.err
    assert files["dp.pth"].read_bytes() == before
    assert not Path("dp.pth.bak").exists()


@pytest.mark.skipif(os.name != "posix", reason="files have no such permission")
def test_what_replaces_a_file_does_not_run_as_its_owner(run: Run, files: Files) -> None:
    files["dp.pth"].chmod(0o4755)
    assert run("strip-prefix", "dp.pth", "--in-place").code == 0
    assert files["dp.pth"].stat().st_mode & 0o7777 == 0o755


def test_a_folder_where_a_disk_is_mounted_is_refused_before_the_work(
    run: Run, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: os.path.basename(path) == "disk")
    ran = run("convert", "dp.pth", "disk", "-t", "shards", "--overwrite")
    assert ran.code == 2
    assert "disk: a disk is mounted there" in ran.err
    assert "Hint: name a folder in it: disk/NAME" in ran.err
    assert os.listdir("disk") == []


def test_many_files_are_counted_once_a_second_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptool.cli import output

    said: list[str] = []

    @contextlib.contextmanager
    def line(title: str, *, wanted: bool) -> Iterator[Callable[[str], None]]:
        said.append(title)
        yield said.append

    monkeypatch.setattr(output, "status_line", line)
    times = iter([0.0, 0.5, 1.5])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    files = [("a.pth", False), ("b.pth", False), ("c.pth", False)]
    assert list(output.counting("inspecting", files, wanted=True)) == files
    assert said == ["inspecting", "1 file, b.pth", "2 files, c.pth"]
