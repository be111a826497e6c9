"""`ckptool inspect --list`: lines that are the same for equal contents, and git diffs that show what changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptool
from ckptool.cli import main
from ckptool.reports.content_lines import content_lines

ROOT = Path(__file__).parents[2]
TRAINED = ROOT / "fixtures" / "trained"


def lines(path: Path) -> list[str]:
    return list(content_lines(ckptool.open(path)))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".legacy.pth"])
def test_equal_weights_have_the_same_lines_in_every_format(suffix: str, tmp_path: Path) -> None:
    source = ckptool.open(TRAINED / "housing-data-parallel-ema.pth")
    form = "legacy" if suffix == ".legacy.pth" else None
    plan = ckptool.save(source, tmp_path / f"copy{suffix}", format=form)
    assert lines(tmp_path / f"copy{suffix}")[0] == f"format  {plan.format}"
    assert lines(tmp_path / f"copy{suffix}")[1:] == list(content_lines(source))[1:]


def test_a_line_changes_if_and_only_if_what_it_names_does(tmp_path: Path) -> None:
    values = {"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float32), "epoch": 3}
    ckptool.save(values, tmp_path / "one.pth")
    before = lines(tmp_path / "one.pth")
    assert [line.split("  ")[:2] for line in before] == [
        ["format", "torch-zip"], ["a", "float32 [2, 3]"], ["b", "float32 [4]"], ["epoch", "3"],
    ]  # fmt: skip
    values["b"][2] = np.nextafter(np.float32(1), np.float32(2))
    for number, changed in (("two", values), ("three", dict(reversed(values.items())))):
        ckptool.save(changed, tmp_path / f"{number}.pth")
        after = lines(tmp_path / f"{number}.pth")
        assert [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new] == [2]


def test_tensors_and_values_outside_the_weights_are_listed() -> None:
    names = {line.split("  ")[0] for line in lines(TRAINED / "cnn-ddp-full.pth")}
    assert {"epoch", "model/module.conv1.weight", "optimizer/param_groups/0/lr"} <= names
    assert any(name.startswith("optimizer/state/") for name in names)


def test_the_list_is_for_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", "a.pth", "b.pth", "--list"])
    assert capsys.readouterr().err.startswith("Error: --list: is for one file.\nHint: ckptool inspect a.pth --list")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_shows_what_changed_between_two_commits(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        known = {
            **os.environ,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "PYTHONPATH": str(ROOT),
        }
        author = [word for field in ("name", "email") for word in ("-c", f"user.{field}=a@b.c")]
        done = subprocess.run(
            ["git", *author, *words], cwd=tmp_path, env=known, capture_output=True, text=True, check=True
        )
        return done.stdout

    git("init", "-q")
    git("config", "diff.ckptool.textconv", f"'{sys.executable}' -m ckptool inspect --list")
    (tmp_path / ".gitattributes").write_text("*.pth diff=ckptool\n")
    values = {"kept": np.zeros(3, np.float32), "fc.weight": np.zeros((2, 2), np.float32), "epoch": 1}
    for epoch in (1, 2):
        ckptool.save({**values, "epoch": epoch}, tmp_path / "model.pth", overwrite=True)
        git("add", ".")
        git("commit", "-q", "-m", "a")
        values["fc.weight"] = np.ones((2, 2), np.float16)
    shown = git("diff", "-U0", "HEAD~1", "HEAD", "--", "model.pth").splitlines()
    changes = [line.rpartition("  ")[0] for line in shown if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changes == ["-epoch", "-fc.weight  float32 [2, 2]  cpu", "+epoch", "+fc.weight  float16 [2, 2]  cpu"]
