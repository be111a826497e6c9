"""What the shell offers when Tab is pressed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from samples import Files, Run

from ckptool.cli import cli
from ckptool.cli.offered import Bash
from ckptool.cli.options import FileName

BASH = shutil.which("bash")

#: Options and arguments with any text, for which there is nothing to offer.
FREE = {
    *("--add-prefix", "--backup", "--component", "--depth", "--error", "--explain", "--first", "--input", "--kwargs"),
    *("--max-shard-size", "--number", "--patience", "--ratios", "--rtol", "--atol", "--source-input"),
    *("--source-kwargs", "--start", "--variant", "--accept-guesses", "--partial"),
}


@pytest.fixture
def offered(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The values that are offered for the last word of a line."""
    monkeypatch.chdir(tmp_path)

    def offered(line: str) -> list[str]:
        *args, incomplete = line.split(" ")[1:]
        items = ShellComplete(cli, {}, "ckptool", "_CKPTOOL_COMPLETE").get_completions(args, incomplete)
        return [item.value for item in items if item.type == "plain"]

    return offered


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("ckptool rem", ["remap"]),
        ("ckptool convert dp.pth out.pth --unw", ["--unwrap"]),
        ("ckptool convert dp.pth out -t saf", ["safetensors"]),
        ("ckptool convert dp.pth out --cast bf", ["bf16", "bfloat16"]),
        ("ckptool convert dp.pth out --ties d", ["drop"]),
        ("ckptool convert dp.pth out --wrap sta", ["state_dict"]),
        ("ckptool convert dp.pth out --for torch==1.6", ["torch==1.6"]),
        ("ckptool remap dp.pth out -m ", ["cpu", "cuda:1=cpu", "cuda:0", "cuda:1"]),
        ("ckptool remap dp.pth out -m cuda:1=c", ["cuda:1=cpu", "cuda:1=cuda:0"]),
        ("ckptool remap --map-location=cuda:1=cp", ["cuda:1=cpu"]),
        ("ckptool strip-prefix dp.pth out --prefix ", ["module."]),
        ("ckptool convert dp.pth out --drop ", ["module.conv1", "module.fc"]),
        ("ckptool convert dp.pth out --unwrap --drop ", ["conv1", "fc"]),
        ("ckptool inspect dp.pth --filter module.f", ["module.fc.weight"]),
        ("ckptool convert gan.pth out --at ", ["G", "D"]),
        ("ckptool mappings ti", ["timm-vit-to-hf"]),
        ("ckptool transfer dp.pth --mapping llama", ["llama-to-hf"]),
        ("ckptool transfer dp.pth net.py", ["net.py", "net.py:Net", "net.py:make"]),
        ("ckptool transfer dp.pth net.py:m", ["net.py:make"]),
        ("ckptool verify dp.pth --fits net.py:N", ["net.py:Net"]),
        ("ckptool train --strategy d", ["data-parallel", "ddp"]),
        ("ckptool train --save wrapped,ful", ["wrapped,full", "wrapped,full-2018"]),
        ("ckptool train --save full:leg", ["full:legacy"]),
        ("ckptool convert gone.pth out --drop ", []),
        ("ckptool convert cut.pth out --drop ", []),
        ("ckptool convert http://127.0.0.1:1/a.pth out --drop ", []),
    ],
)
def test_values_are_offered_that_fit_what_was_typed(offered, tmp_path: Path, line: str, values: list[str]) -> None:
    (tmp_path / "net.py").write_text("raise SystemExit\nclass Net: ...\ndef make(): ...\ndef _own(): ...\n")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "dp.pth").read_bytes()[:99])
    assert offered(line) == values


def test_every_option_that_takes_a_value_offers_some_or_files_or_is_free() -> None:
    lacking = set()
    for name in set(cli.list_commands(click.Context(cli))) - {"train"}:  # where most values are numbers
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for param in command.params:
            chosen = isinstance(param.type, FileName | click.Choice) or "shell_complete" in vars(param)
            if isinstance(param, click.Option) and not param.is_flag and not chosen:
                lacking.add(max(param.opts, key=len))
    assert lacking == FREE


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_words_that_it_breaks_at_colons_and_equals_signs(files: Files, tmp_path: Path) -> None:
    lines = {
        "ckptool remap dp.pth out.pth -m cuda:1=cp": "cpu",
        "ckptool remap dp.pth out.pth --map-location=cuda:1=cp": "cpu",
        "ckptool remap 'dp.pth' out.pth -m 'cuda:1=cp": "cuda:1=cpu",
        "ckptool convert dp.pth out.pth --select module.c": "module.conv1.weight module.conv1.bias",
    }
    asked = "".join(
        f"line={shlex.quote(line)}; COMP_LINE=$line; COMP_POINT=${{#line}}; _ckptool_completion ckptool; "
        'echo "${COMPREPLY[@]}"\n'
        for line in lines
    )
    program = f'ckptool() {{ "{sys.executable}" -m ckptool "$@"; }}\nenv() {{ export "${{@:1:$#-1}}"; ckptool; }}\n'
    script = f'{program}eval "$(ckptool completion bash)"\n{asked}'
    done = subprocess.run([BASH, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == list(lines.values()), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_each_shell_defines_what_completes(run: Run, shell: str) -> None:
    ran = run("completion", shell)
    assert ran.code == 0
    assert "_ckptool_completion" in ran.out
    assert f"_CKPTOOL_COMPLETE={shell}_complete" in ran.out


def test_bash_is_answered_behind_the_last_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_LINE", "ckptool remap a b -m cuda:1=cuda and more")
    monkeypatch.setenv("COMP_POINT", "32")
    shell = Bash(cli, {}, "ckptool", "_CKPTOOL_COMPLETE")
    assert shell.get_completion_args() == (["remap", "a", "b", "-m"], "cuda:1=cuda")
    (first, *_) = [shell.format_completion(item) for item in shell.get_completions(*shell.get_completion_args())]
    assert first == "plain,cuda:0"
