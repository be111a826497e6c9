"""The documentation says what is: every command in it runs and prints what is shown, every option is described."""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest

from ckptool.cli import _COMMANDS, cli
from ckptool.porting.operations import OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("fixtures/**/*.md")])
README = ROOT / "README.md"
BASH = shutil.which("bash")

_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NEEDS_TORCH = re.compile(
    r"\btorch\.|import torch|ckptool\.load\(|ckptool tra(?:in|nsfer) |ckptool\.(?:train|load_into)"
)


def blocks(page):
    """(language, line number, text) of each block that can be run."""
    text = page.read_text(encoding="utf-8")
    return [(found[1], text.count("\n", 0, found.start()) + 2, found[2]) for found in _BLOCK.finditer(text)]


def name_of(page):
    return str(page.relative_to(ROOT))


RUNNABLE = [page for page in PAGES if blocks(page)]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A folder that is like a clone, and the command line on the path."""
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "100")
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:  # the pages start hundreds of programs
        monkeypatch.delenv(name)
    return tmp_path


def commands(text):
    """(command, shown output) pairs of a console block."""
    pairs = []
    for line in text.splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], []))
        elif line.startswith("> "):
            pairs[-1] = (f"{pairs[-1][0]}\n{line[2:]}", [])
        else:
            pairs[-1][1].append(line)
    return [(command, "\n".join(shown).strip("\n")) for command, shown in pairs]


#: What a shell does more with than to divide it into words.
_OF_THE_SHELL = re.compile(r"[][|&;<>()$`*?{}~!#\\\n]")


def run_command(command, forks):
    """The exit status of a command, and what it prints. One of ckptool's needs no shell, nor a new Python.

    Nor does one that follows others (`&&`).
    """
    before, follows, last = command.rpartition(" && ")
    if follows and _of_ckptool(last):
        status, said = in_a_shell(before)
        if not status:
            status, more = run_command(last, forks)
            said += more
        return status, said
    if not _of_ckptool(command):
        return in_a_shell(command)
    module, *words = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        return forks.run(module, words, Path.cwd(), said), said.read_text(encoding="utf-8")


def _of_ckptool(command):
    """Whether it is one command of ckptool, of which a shell would make nothing but words."""
    return command.startswith("ckptool ") and not _OF_THE_SHELL.search(command.replace("\\\n", " "))


def in_a_shell(command):
    done = subprocess.run(
        [BASH, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout


def run_console(page, line, text, forks):
    for command, shown in commands(text):
        status, said = run_command(command, forks)
        where = f"{page.name}:{line}: {command}\n{said}"
        refused = re.match(r"Error:|Usage:", shown) is not None
        assert (status in (1, 2)) if refused else (status == 0), where
        if shown:
            # a line of its own with … stands for what is left out
            parts = [re.escape(part.strip("\n")) for part in re.split(r"(?m)^\s*…$", shown)]
            matches = re.fullmatch(r"[\s\S]*".join(parts), said.strip("\n")) is not None
            assert matches, where


def run_page(page, forks, *, with_torch):
    names = {"__name__": "__main__"}
    for language, line, text in blocks(page):
        if not with_torch and _NEEDS_TORCH.search(text):
            continue
        if language == "console":
            run_console(page, line, text, forks)
        else:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)
            for shown in re.findall(r"  # -> (.*)$", text, re.MULTILINE):
                assert shown in printed.getvalue().splitlines(), f"{page.name}:{line}: {printed.getvalue()}"


@pytest.mark.skipif(BASH is None, reason="the examples are for a POSIX shell")
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_what_a_page_shows_works(page, reader, forks):
    """All of it where torch is installed, and what needs no torch where it is not.

    A page begins with the files that the README makes first, as a reader does.
    """
    if page != README:
        _, line, text = blocks(README)[0]
        run_console(README, line, text, forks)
    run_page(page, forks, with_torch=all(map(importlib.util.find_spec, ("torch", "safetensors"))))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, target


def test_every_make_target_that_the_pages_name_exists():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z][a-z-]*)`", page.read_text(encoding="utf-8"))}
    assert named
    assert named <= set(targets)


# -- the command line and its reference


def command(name):
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def options(name):
    return [param for param in command(name).params if isinstance(param, click.Option)]


def examples(name):
    """The lines of the help of a command that begin with its name."""
    return re.findall(rf"^\s*(ckptool {re.escape(name)}\b.*)$", command(name).help or "", re.MULTILINE)


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_option_has_a_help_text(name):
    assert all(option.help for option in options(name)), [option.opts for option in options(name)]


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_help_text_has_examples_that_can_be_typed(name):
    assert examples(name)
    for example in examples(name):
        words = shlex.split(example)[2:]
        command(name).make_context(name, words)  # raises UsageError where a word is not understood


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_and_option_is_in_the_reference(name):
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", reference, re.MULTILINE | re.DOTALL))
    assert f"`ckptool {name}`" in sections
    described = sections[f"`ckptool {name}`"] + sections["Options of every command that writes"]
    missing = [word for option in options(name) for word in option.opts if not re.search(rf"`{word}\b", described)]
    assert missing == []


def test_the_reference_names_no_option_that_is_gone():
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    known = {word for name in _COMMANDS for option in options(name) for word in option.opts + option.secondary_opts}
    known |= {"--help", "--version", "--color"}
    assert set(re.findall(r"`(--[a-z-]+)", reference)) <= known


def test_every_operation_of_a_mapping_file_is_in_the_reference():
    rows = [f"`{operation.usage}` | {operation.summary}" for operation in OPERATIONS.values()]
    page = (ROOT / "docs" / "mapping-files.md").read_text(encoding="utf-8")
    section = page.partition("## Operations\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (`.*) \|$", section.replace(r"\|", "|"), re.MULTILINE) == rows


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_commands_as_the_readme_sets_it_up(reader):
    line = next(x for x in re.findall(r"`([^`\n]+)`", (ROOT / "README.md").read_text()) if "completion bash" in x)
    typed = "ckptool str"
    script = (
        f'{line}\nCOMP_LINE="{typed}"; COMP_POINT={len(typed)}; _ckptool_completion ckptool; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run([BASH, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["strip-prefix"]


def test_the_pages_name_no_machine_and_no_registry():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(?:work|tmp|home|root)/", text), page.name
