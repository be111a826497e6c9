"""What holds for every command: help, exit codes, streams, start-up."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from samples import Run, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.cli import cli
from ckptool.tree import Dict

COMMANDS = list(cli.list_commands(click.Context(cli)))
CKPTOOL = [sys.executable, "-m", "ckptool"]


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    ran = run()
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == run("--help").out


def test_a_file_in_place_of_a_command_is_told_from_a_typing_mistake(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a b.pth").write_bytes(b"")
    said = run("a b.pth").err
    assert "Error: 'a b.pth' is a file or folder, not a command. Did you mean `ckptool inspect 'a b.pth'`?" in said
    assert "Did you mean 'inspect'?" in run("inspct").err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_it_does_and_shows_an_example(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"\n  ckptool {command}" in ran.out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns_and_breaks_no_phrase(run: Run, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*command.split(), "--help").out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        assert line.count("`") % 2 == 0, (
            line
        )  # code stays on its line, and so do a default and an option with its value
        assert line.count("[") == line.count("]"), line
        is_option = re.search(r"--[a-z-]+$", line) and not re.match(r"  (ckptool|torchrun) ", line)
        assert not (is_option and re.match(r" +[A-Z\d]", after)), line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help_text(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    options = [param for param in found.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_the_options_of_the_command_line_change_only_on_purpose() -> None:
    spelled = set()
    for command in set(COMMANDS) - {"train", "transfer"}:  # which have words of their own; see below, docs/training.md
        found = cli.get_command(click.Context(cli), command)
        assert found is not None
        for param in found.params:
            if isinstance(param, click.Option):
                spelled.update(param.opts)
    assert sorted(spelled) == sorted(
        """--add-prefix --against --allow-loss --at --atol --backup --cast --cast-keep --compact --component --depth
        --dequantize --detect-renames --digest --drop --drop-buffers --dry-run --error --extract --fill-buffers
        --filter --first --fits --for --html --if-present --in-place --json --json-lines --keep-objects --kwargs --list
        --manifest --map-location --max-shard-size --model --open --out-dir --output --overwrite --partial-file
        --parts --patch --prefix --quiet --ratios --recipe --recover --recursive --remove-leftovers --rename --rtol
        --rules --save-recipe --scalars-to-metadata --select --settings --sort --stats --strict --strip-first
        --strip-prefix --ties --to --to-dense --untie --unwrap --variant --verbose --weights --with-optimizer --wrap
        --write-manifest
        -m -n -o -q -r -t -v""".split()
    )


def test_the_options_of_transfer_change_only_on_purpose() -> None:
    found = cli.get_command(click.Context(cli), "transfer")
    assert found is not None
    spelled = {name for param in found.params if isinstance(param, click.Option) for name in param.opts}
    assert sorted(spelled) == sorted(
        """--accept-guesses --allow-loss --at --by --cast --dry-run --emit --explain --first --hint --html --input
        --input-channels --invert --json --kwargs --map-location --mapping --number --open --output --overwrite
        --partial --partial-file --parts --patience --prove --quiet --reference --save-mapping
        --source-input --source-kwargs --source-model --start --to --verbose -m -n -o -q -t -v""".split()
    )


def test_a_letter_means_the_same_in_every_command_as_the_reference_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    section = page.partition("## Short options\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(-\w)` \| `(--[\w-]+)` \|", section, re.MULTILINE)
    found = set()
    top = click.Context(cli, **cli.context_settings)
    for command in COMMANDS:
        one = cli.get_command(top, command)
        assert one is not None
        for param in one.get_params(click.Context(one, parent=top)):
            words = [*param.opts, *param.secondary_opts] if isinstance(param, click.Option) else []
            letters = [word for word in words if not word.startswith("--")]
            found.update((letter, next(word for word in words if word.startswith("--"))) for letter in letters)
    assert sorted(found) == listed


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"], ["--version"]])
def test_the_tool_introduces_itself(run: Run, args: list[str]) -> None:
    ran = run(*args)
    assert ran.code in (0, 2)  # click 8.2 and later leave with 2 when no command is given
    assert "ckptool" in ran.out + ran.err


def test_starting_imports_neither_torch_nor_numpy_nor_rich(files: dict[str, Path]) -> None:
    script = (
        "import sys; from ckptool.cli import main\n"
        "try: main(['strip-prefix', 'dp.pth', 'out.pth', '-q'])\n"
        "except SystemExit as left: assert not left.code\n"
        "print([name for name in ('torch', 'numpy', 'rich', 'ml_dtypes', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=files["dp.pth"].parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("args", "most", "without"),
    [
        ("--help", 12, "checkpoint disk.files formats"),
        ("inspect dp.pth --json", 112, "passes.recipes disk.writing formats.saving ranks.group reports.diagnosis"),
        ("inspect dp.pth", 130, "disk.writing formats.saving ranks.group reports.scanning reports.verify"),
        (
            "strip-prefix dp.pth out.pth -q",
            112,
            "reports ranks.group disk.together disk.folders formats.dcp formats.frameworks.hdf5 "
            "formats.frameworks.onnx formats.one_a_rank passes.dequantizing passes.values passes.cleaning",
        ),
    ],
)
def test_a_command_waits_for_no_more_modules_than_it_needs(
    files: dict[str, Path], args: str, most: int, without: str
) -> None:
    script = (
        "import sys; from ckptool.cli import main\n"
        f"try: main({args.split()!r})\n"
        "except SystemExit as left: assert not left.code\n"
        "print(*(name for name in sys.modules if name.startswith('ckptool.')), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=files["dp.pth"].parent, capture_output=True, text=True, check=True
    )
    loaded = {name.removeprefix("ckptool.") for name in done.stderr.split()}
    assert not set(without.split()) & loaded
    assert len(loaded) <= most, sorted(loaded)


@pytest.mark.parametrize(("args", "code"), [("--version", 0), ("inspect missing.pth", 2)])
def test_what_was_printed_and_what_is_to_be_done_at_exit_is_not_lost(tmp_path: Path, args: str, code: int) -> None:
    script = (
        "import atexit, sys, ckptool.cli\n"
        "atexit.register(print, 'bye')\n"
        "print('hello')\n"
        f"sys.argv = ['ckptool', *{args.split()!r}]\n"
        "ckptool.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.splitlines()[0] == "hello"
    assert done.stdout.splitlines()[-1] == "bye"


def test_a_reader_that_goes_away_ends_it_quietly(files: dict[str, Path]) -> None:
    piped = f"{' '.join(CKPTOOL)} inspect dp.pth dp.pth dp.pth --json | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", piped], cwd=files["dp.pth"].parent, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("0", "141")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 143)])
def test_a_signal_leaves_no_half_written_file(tmp_path: Path, name: str, code: int) -> None:
    waiting = (
        "import os, sys, ckptool.cli.rewrite as rewrite, ckptool.formats.saving as saving\n"
        "from ckptool.cli import main\n"
        "write = saving.write_pieces\n"
        "def slow(*args, **options):\n"
        "    write(*args, **options)\n"
        "    print('written', flush=True)\n"
        "    import time; time.sleep(30)\n"
        "saving.write_pieces = slow\n"
        "main(['add-prefix', 'in.pth', 'out.pth'])\n"
    )
    from samples import state_dict

    from ckptool import save
    from ckptool.checkpoint import Checkpoint

    save(Checkpoint(state_dict()), tmp_path / "in.pth")
    with subprocess.Popen(
        [sys.executable, "-c", waiting], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        assert len(list(tmp_path.iterdir())) == 2  # the input and the temporary file
        time.sleep(0.1)
        child.send_signal(getattr(signal, name))
        _, err = child.communicate(timeout=20)
        assert child.returncode == code
    assert "nothing was changed" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.pth"]


def test_an_unexpected_failure_is_one_line_and_a_traceback_on_request(
    run: Run, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ckptool.cli.inspect as command

    def broken(path: str, **options: bool) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(command.report, "inspect", broken)
    quiet = run("inspect", "dp.pth")
    assert (quiet.code, "Traceback" in quiet.err, "CKPTOOL_DEBUG=1" in quiet.err) == (2, False, True)
    monkeypatch.setenv("CKPTOOL_DEBUG", "1")
    assert "ZeroDivisionError" in run("inspect", "dp.pth").err


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish", "ksh"])
@pytest.mark.parametrize("command", ["remap dp.pth out.pth --map-location", "convert dp.pth out.pth --map-location"])
def test_an_unquoted_arrow_is_explained_in_a_real_shell(files: dict[str, Path], shell: str, command: str) -> None:
    import shutil

    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"there is no {shell} here")
    folder = files["dp.pth"].parent
    typed = f"{' '.join(CKPTOOL)} {command} cuda:1->cuda:0"
    done = subprocess.run([found, "-c", typed], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the shell took the '>'" in done.stderr
    assert "named 'cuda:0'" in done.stderr
    assert "--map-location cuda:1=cuda:0" in done.stderr
    assert "rm cuda:0" in done.stderr
    assert (folder / "cuda:0").read_bytes() == b""
    assert not (folder / "out.pth").exists()


ONE = [
    ["inspect", "one.pth"],
    ["inspect", "one.pth", "--stats"],
    ["scan", "one.pth"],
    ["verify", "one.pth"],
    ["diff", "one.pth", "one.safetensors"],
    ["diff", "one.pth", "other.pth"],
    ["doctor", "one.pth"],
    ["strip-prefix", "one.pth", "out.pth"],
    ["add-prefix", "one.pth", "out.pth"],
    ["remap", "one.pth", "out.pth", "--map-location", "cpu"],
    ["remap", "one.pth", "out.pth", "--map-location", "cuda:0=cpu"],
    ["rename", "one.pth", "out.pth", "--rename", "module.=encoder."],
    ["convert", "one.pth", "out.safetensors", "--cast", "bf16"],
    ["convert", "one.pth", "out.pth", "--unwrap"],
    ["convert", "one.pth", "out", "-t", "dcp"],
    ["convert", "one.pth", "out/", "-t", "sharded-safetensors"],
    ["convert", "one.pth", "out.pth", "-t", "legacy"],
    ["average", "one.pth", "other.pth", "-o", "out.pth"],
    ["clean", "one.pth", "out.pth"],
    ["repair", "broken.pth", "out.pth"],
    ["extract-weights", "one.pth", "out.safetensors"],
]


@pytest.mark.parametrize("args", ONE, ids=lambda args: " ".join(args))
def test_one_of_something_is_said_in_the_singular(run: Run, args: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, fill in (("one.pth", 1), ("one.safetensors", 1), ("other.pth", 2)):
        weight = tensor(1, location="cuda:0" if name.endswith("pth") else "cpu", fill=fill)
        ckptool.save(Checkpoint(Dict([("module.w", weight)], True)), name)
    Path("broken.pth").write_bytes(bytes(30) + Path("one.pth").read_bytes()[30:])
    ran = run(*args)
    assert ran.code in (0, 1), ran.err
    # of words that end in s, "values" is the name of a status: "1 values, 3 equal"
    assert not re.findall(r"(?<![.,\d])1 (?!values\b)\w+s\b", ran.out + ran.err)
