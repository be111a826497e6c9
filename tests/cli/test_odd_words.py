"""Whatever is typed, the answer is a report or one clear error, with an exit code that is documented."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from programs import unwatched
from samples import Files, Ran, Run

import ckptool
from ckptool.cli import cli

COMMANDS = list(cli.list_commands(click.Context(cli)))
#: A command that works, without its first file.
TYPED = {
    "strip-prefix": "out.pth",
    "add-prefix": "out.pth",
    "rename": "out.pth --rename conv1=c --if-present",
    "remap": "out.pth -m cpu",
    "convert": "out.pth",
    "extract-weights": "out.pth",
    "clean": "out.pth",
    "slim": "out.pth",
    "average": "dp.pth -o out.pth",
    "repair": "out.pth --allow-loss",
    "inspect": "",
    "diff": "dp.pth",
    "verify": "",
    "scan": "",
    "doctor": "",
}
WRITERS = [command for command, rest in TYPED.items() if "out.pth" in rest]
ODD_PATHS = [
    "", ".", "..", "/", "-", "*", "[", "a" * 256, "a" * 5000, "模" * 90, "/".join(["d" * 200] * 30), "\udcff", "x\ny",
    "dp.pth/", "dp.pth/x", "there/new", "absent/new", "dangling", "loop", "pipe", "sock", "/dev/null", "/dev/zero",
    "/proc/self/mem", "http://[", "http://\udcff/", "s3://b/x", "C:\\x", "x.distcp", ".metadata",
    "model.safetensors.index.json",
]  # fmt: skip
ODD_WORDS = [
    "",
    "-",
    "=",
    "re:(",
    "re:" + "(" * 2000,
    "\n",
    "\udcff",
    "a" * 10_000,
    "9" * 5000,
    "-1",
    "nan",
    "²",
    "~2",
    ".",
]
ARGUMENTS = ["n", "n=", "=1", "n=[", "n=" + "[" * 100_000, "n=" + "9" * 5000, "n=NaN", "1=2", "\udcff=1"]
#: Options that take a word of any kind, and the command that they are tried with.
WORDY = {
    "convert": """--strip-prefix --rename --add-prefix --select --drop --cast --cast-keep --map-location --to --for
        --backup --at --max-shard-size --variant""",
    "average": "--ratios --at",
    "inspect": "--filter --depth --sort",
    "diff": "--rtol --atol --at",
    "doctor": "--error --at",
    "slim": "--weights",
}


@pytest.fixture
def odd(files: Files) -> None:
    """Things that have a name and are no checkpoints."""
    Path("there").mkdir()
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe")


def named(path: str) -> str:
    return ascii(path) if len(path) < 40 else f"{path[:4]!a} x {len(path)}"


def fine(ran: Ran, words: object) -> None:
    assert ran.code in (0, 1, 2), words
    assert "failed unexpectedly" not in ran.err, (words, ran.err)
    assert "Traceback" not in ran.err
    assert all(c.isprintable() or c == "\n" for c in ran.out + ran.err), words
    assert ran.code != 2 or "Error: " in ran.err or "CANNOT TELL" in ran.out


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_word_more(run: Run, command: str) -> None:
    fine(run(command), command)


@pytest.mark.parametrize("path", ODD_PATHS, ids=named)
def test_a_file_that_is_none(run: Run, odd: None, path: str) -> None:
    for command, rest in TYPED.items():
        if path in ("/", "..") and command in ("inspect", "scan"):
            continue  # which would search all that is there
        words = [command, *(["--"] if path == "-" and not rest.count("-") else []), path, *rest.split()]
        fine(run(*words), words)
        shutil.rmtree("out.pth", ignore_errors=True)
        Path("out.pth").unlink(missing_ok=True)


@pytest.mark.parametrize("words", ["inspect W", "scan W", "strip-prefix W --in-place -r", "convert dp.pth W"])
def test_an_empty_word_is_not_the_current_folder(run: Run, files: Files, words: str) -> None:
    before = {name: path.read_bytes() for name, path in files.items()}
    ran = run(*("" if word == "W" else word for word in words.split()))
    assert ran.code == 2
    assert "the name of a file is empty; a variable of the shell may be unset.\nHint: name a file" in ran.err
    assert {name: path.read_bytes() for name, path in files.items()} == before


@pytest.mark.parametrize("path", ODD_PATHS, ids=named)
def test_a_target_that_is_none(run: Run, odd: None, path: str) -> None:
    for command in ("convert", "average", "add-prefix"):
        words = [command, "dp.pth", *(["dp.pth"] if command == "average" else []), "-o", path]
        fine(run(*words), words)
    assert run("convert", "dp.pth", "shards", "-t", "shards").code == 0
    fine(run("convert", "shards", "-o", path), path)
    for option in ("--save-recipe", "--recipe", "--rules"):
        if path not in ("pipe", "/dev/zero") or option == "--save-recipe":
            fine(run("convert", "dp.pth", "o.pth", f"{option}={path}"), (option, path))
            Path("o.pth").unlink(missing_ok=True)


@pytest.mark.parametrize("command", WORDY)
def test_an_option_with_a_word_that_is_none(run: Run, odd: None, command: str) -> None:
    for option in WORDY[command].split():
        for word in ODD_WORDS:
            if (option, word) == ("--error", "-"):
                continue  # stdin, which is the one of the suite here
            words = [command, "dp.pth", *TYPED[command].split(), f"{option}={word}"]
            fine(run(*words), words)
            shutil.rmtree("out.pth", ignore_errors=True)
            Path("out.pth").unlink(missing_ok=True)


@pytest.mark.parametrize("path", ODD_PATHS, ids=named)
def test_code_that_is_none(run: Run, odd: None, torch: object, path: str) -> None:
    for words in (["transfer", "dp.pth", path], ["verify", "dp.pth", f"--fits={path}"], ["doctor", "dp.pth", path]):
        words = [words[0], "--", *words[1:]] if path == "-" and words[0] != "verify" else words
        fine(run(*words), words)


@pytest.mark.parametrize("value", ARGUMENTS, ids=named)
def test_arguments_that_are_none(run: Run, files: Files, torch: object, value: str) -> None:
    Path("net.py").write_text("from torch import nn\nNet = nn.Linear\ndef build_model(n=1): return nn.Linear(2, 4)\n")
    fine(run("transfer", "dp.pth", "net.py", "-n", f"--kwargs={value}"), value)


def test_many_files_of_which_some_are_none(run: Run, odd: None, files: Files) -> None:
    names = [*files, "there", "dangling", "loop", "pipe", "absent", "a" * 300]
    for command in ("inspect", "scan", "verify"):
        ran = run(command, *names)
        fine(ran, command)
        assert ran.code == 2
        assert "plain.safetensors" in ran.out
        assert ran.err.count("Error: ") >= 5


def python(folder: Path, words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m ckptool {words}"
    return subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False, **options)


@pytest.mark.skipif(os.name != "posix", reason="descriptors and folders of POSIX")
@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ("inspect dp.pth >&-", (0, 2)),
        ("inspect dp.pth 2>&-", (0,)),
        ("inspect absent 2>&-", (2,)),
        ("inspect dp.pth <&- >&- 2>&-", (0, 2)),
        ("inspect dp.pth > /dev/full", (2,)),
        ("strip-prefix dp.pth out.pth 2> /dev/full", (0, 2)),
        ("strip-prefix dp.pth out2.pth <&- >&- 2>&-", (0, 2)),
    ],
)
def test_streams_that_are_closed_or_full(files: Files, tmp_path: Path, words: str, codes: tuple[int, ...]) -> None:
    if "/dev/full" in words and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    done = python(tmp_path, words)
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stderr
    assert "failed unexpectedly" not in done.stderr
    for path in tmp_path.glob("out*"):
        assert ckptool.detect(path) == "torch-zip"


@pytest.mark.skipif(os.name != "posix", reason="folders of POSIX")
@pytest.mark.parametrize(
    "command", ["inspect {}", "inspect ../dp.pth", "strip-prefix {} out.pth", "scan .", "doctor {}"]
)
def test_a_folder_that_was_deleted_meanwhile(files: Files, tmp_path: Path, command: str) -> None:
    (tmp_path / "gone").mkdir()
    typed = command.format(tmp_path / "dp.pth")
    line = f"cd gone && rmdir ../gone && {sys.executable} -m ckptool {typed}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 2)
    assert "Traceback" not in done.stderr
    assert "failed unexpectedly" not in done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may look into, as those of pytest are not."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may become somebody else")
def test_files_and_folders_that_may_not_be_read(files: Files, folder: Path) -> None:
    """Run by somebody who is not root, in a child that has imported everything."""
    (folder / "shut").mkdir(mode=0o700)
    (folder / "shut" / "a.pth").write_bytes(files["dp.pth"].read_bytes())
    shutil.copy(files["dp.pth"], folder)
    (folder / "dp.pth").chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY],
        cwd=folder,
        env=unwatched(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "failed unexpectedly" not in done.stderr
    assert done.stdout.split() == ["2"] * 12, done.stderr


AS_NOBODY = """
import io, os, contextlib
from ckptool.cli import main
import ckptool.cli.inspect, ckptool.cli.rewrite, ckptool.cli.scan, ckptool.cli.verify, ckptool.cli.doctor
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for words in (["inspect", "dp.pth"], ["convert", "dp.pth", "warm", "-t", "shards"], ["doctor", "dp.pth"]):
        with contextlib.suppress(SystemExit):
            main(words)  # what is imported late is imported now
os.setuid(65534)
for path in ("dp.pth", "shut", "shut/a.pth"):
    for words in (["inspect", path], ["scan", path], ["verify", path], ["strip-prefix", path, "/tmp/never.pth"]):
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                main(words)
            except SystemExit as left:
                code = left.code
        print(code)
"""


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [("convert --sort", ""), ("inspect --jsn", "'--json'"), ("convert --unwarp", "'--unwrap'"), ("diff -x", "")],
)
def test_an_unknown_option_is_answered_with_those_that_are_like_it(run: Run, typed: str, proposed: str) -> None:
    said = run(*typed.split()).err
    assert "No such option" in said
    assert ("Did you mean" in said) == bool(proposed)
    assert proposed in said
