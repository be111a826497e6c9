"""The command line run in this process, and files for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from samples import Files, Ran, Run, envelope, state_dict, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.cli import main
from ckptool.tree import Dict, Global, Object


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> Ran:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return Ran(int(left.value.code or 0), out, err)

    return run


@pytest.fixture(scope="session")
def made_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of several kinds, made once."""
    folder = tmp_path_factory.mktemp("files")
    roots: dict[str, Any] = {
        "plain.pth": state_dict(),
        "dp.pth": state_dict("module.", "cuda:1"),
        "last.ckpt": envelope(state_dict("module.", "cuda:1")),
        "gan.pth": Dict([("G", state_dict()), ("D", state_dict())]),
        "evil.pth": Dict([("state_dict", state_dict()), ("x", Object("reduce", Global("os", "system"), ("id",)))]),
        "mixed.pth": Dict([*state_dict("module.").entries, ("n_averaged", tensor())], True),
    }
    for name, root in roots.items():
        ckptool.save(Checkpoint(root), folder / name, keep_objects=True)
    ckptool.save(Checkpoint(state_dict("module.")), folder / "old.pth", format="legacy")
    ckptool.save(Checkpoint(state_dict()), folder / "plain.safetensors")
    return folder


@pytest.fixture
def files(made_files: Path, tmp_path: Path) -> Files:
    """Files of several kinds, by name, which the test may change."""
    shutil.copytree(made_files, tmp_path, dirs_exist_ok=True)
    return {path.name: path for path in tmp_path.iterdir()}
