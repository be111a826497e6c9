"""The action and the hooks for repositories that hold checkpoints: what their files say, and the steps run as they are.

`make test-wheel` also runs the step that installs, and the hooks under pre-commit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.cli import main
from ckptool.tree import Dict, Global, Object

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
BASH = shutil.which("bash")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with a sound checkpoint, one that runs code, and a text."""
    folder = tmp_path / "repository"
    (folder / "my models").mkdir(parents=True)
    shutil.copy(ROOT / "fixtures" / "real" / "metapredict-lstm.pt", folder / "my models" / "good.pt")
    evil = Checkpoint(Dict([("x", Object("reduce", Global("os", "system"), ("id",)))]))
    ckptool.save(evil, folder / "evil.pth", keep_objects=True)
    (folder / "notes.txt").write_text("nothing of interest\n")
    return folder


def step(name: str, repository: Path, **inputs: str) -> tuple[int, str, str]:
    """Run a step of the action as a runner does: its exit code, what it prints, and the summary of the run."""
    temporary = repository.parent / "runner"
    programs = temporary / "ckptool" / "bin"
    if not programs.exists():  # what the first step would have installed
        programs.mkdir(parents=True)
        (programs / "ckptool").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ckptool "$@"\n')
        (programs / "ckptool").chmod(0o755)
    given = {name: one["default"] for name, one in ACTION["inputs"].items()} | inputs
    (found,) = (one for one in ACTION["runs"]["steps"] if one["name"].startswith(name))

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda word: given[word[1]], text)

    summary = temporary / "summary.md"
    known = {
        **os.environ,
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
        "RUNNER_TEMP": str(temporary),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(summary),
        **{name: filled(text) for name, text in found.get("env", {}).items()},
    }
    done = subprocess.run(
        [str(BASH), "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]],
        cwd=repository, env=known, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, summary.read_text() if summary.exists() else ""


needs_bash = pytest.mark.skipif(BASH is None, reason="the steps of the action are for bash")


@needs_bash
@pytest.mark.parametrize(
    ("paths", "code", "shown"),
    [
        (".", 1, ["evil.pth: NOT SAFE", "os.system", "::error title=ckptool scan::"]),
        ("my models\n\n", 0, ["my models/good.pt: safe"]),
        ("my models/good.pt\nabsent.pth\n", 2, ["absent.pth: no such file", "::error title=ckptool scan::"]),
    ],
)
def test_the_action_scans_what_it_is_given(repository: Path, paths: str, code: int, shown: list[str]) -> None:
    status, text, summary = step("Scan", repository, paths=paths)
    assert status == code, text
    assert [line for line in shown if line not in text] == []
    assert summary.startswith("```text\n")
    assert summary.endswith("\n```\n")
    assert shown[0] in summary
    assert "\x1b" not in text


@needs_bash
@pytest.mark.parametrize(
    ("verify", "code", "shown"),
    [
        ("my models/**/*.pt", 0, "my models/good.pt: sound"),
        ("*.bin\n", 2, "::error title=ckptool verify::No file matches: *.bin"),
    ],
)
def test_the_action_verifies_the_files_that_match(repository: Path, verify: str, code: int, shown: str) -> None:
    status, text, _ = step("Verify", repository, verify=verify)
    assert status == code, text
    assert shown in text


def test_no_input_of_the_action_becomes_a_part_of_a_script() -> None:
    steps = ACTION["runs"]["steps"]
    assert steps
    assert not any("${{" in one["run"] for one in steps)
    used = {name for one in steps for text in one["env"].values() for name in re.findall(r"inputs\.(\w+)", text)}
    assert used == set(ACTION["inputs"])


def test_the_page_describes_every_input_and_hook() -> None:
    page = (ROOT / "docs" / "in-your-repository.md").read_text(encoding="utf-8")
    assert set(ACTION["inputs"]) <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert all(f"`{hook['id']}`" in page for hook in HOOKS)


def test_the_page_shows_files_that_name_what_there_is() -> None:
    page = (ROOT / "docs" / "in-your-repository.md").read_text(encoding="utf-8")
    own, ours, workflow = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert own["repos"][0]["hooks"][0]["entry"] == HOOKS[0]["entry"]
    assert ours["repos"][0]["hooks"] == [{"id": hook["id"]} for hook in HOOKS]
    assert workflow["steps"][1]["with"].keys() <= ACTION["inputs"].keys()
    assert ours["repos"][0]["rev"] == f"v{ckptool.__version__}" == workflow["steps"][1]["uses"].rpartition("@")[2]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_takes_checkpoints_and_nothing_else(hook: dict[str, str]) -> None:
    for name in ("a.pth", "x/last.ckpt", "b.safetensors", "pytorch_model.bin", "d/adapter_model.bin", "m.pt", "o.pkl"):
        assert re.search(hook["files"], name), name
    for name in ("a.py", "setup.bin", "apth", "README.md", "a.ptx", "model.safetensors.index.json"):
        assert not re.search(hook["files"], name), name


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_fails_on_the_file_that_it_is_for(
    hook: dict[str, str], repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = repository / "my models" / "good.pt", repository / "evil.pth"
    if hook["id"] == "ckptool-verify":
        whole = bytearray(good.read_bytes())
        whole[len(whole) // 2] ^= 1
        bad.write_bytes(whole)
    program, *words = hook["entry"].split()
    assert program == "ckptool"
    for files, code in (([good], 0), ([good, bad], 1)):
        with pytest.raises(SystemExit) as left:
            main([*words, *map(str, files)])
        assert int(left.value.code or 0) == code
        assert (capsys.readouterr().out == "") == (code == 0)
