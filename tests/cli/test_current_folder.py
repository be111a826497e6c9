"""Nothing is imported from the folder that ckptool is started in: a download may hold a `click.py`."""

from __future__ import annotations

import ast
import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from programs import unwatched
from samples import Files

import ckptool

#: Modules that Python itself, before ckptool is found, takes from there for `python -m`.
OF_PYTHON = """importlib warnings contextlib collections keyword operator reprlib functools types runpy pkgutil abc io
    os site codecs encodings stat posixpath ntpath genericpath sitecustomize usercustomize _collections_abc
    _distutils_hack""".split()


@pytest.fixture
def canaries(files: Files, tmp_path: Path) -> Path:
    """A folder of checkpoints with a module for each that could be imported; it says that it was, and fails."""
    names = {*importlib.metadata.packages_distributions(), *sys.stdlib_module_names}
    for name in names - {*OF_PYTHON, "ckptool", "__main__"}:
        if name.isidentifier():
            text = f"open({str(tmp_path / 'sung')!r}, 'a').write({name + ' '!r})\nraise SystemExit('canary {name}')\n"
            (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def python(folder: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env={**unwatched(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def sung(folder: Path) -> str:
    """The modules that were imported from the folder."""
    return (folder / "sung").read_text() if (folder / "sung").exists() else ""


COMMANDS = [
    "inspect dp.pth --stats --html page.html",
    "convert dp.pth out.safetensors --cast bf16 --recipe recipe.txt --save-recipe more.txt",
    "diff dp.pth plain.pth --html page.html",
    "verify plain.safetensors --digest",
    "scan evil.pth",
    "doctor dp.pth --html diagnosis.html",
    "repair cut.pth out.pth --allow-loss",
    "formats --json",
    "convert dp.pth out/ -t dcp",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_module_of_the_current_folder_is_imported(canaries: Path, command: str) -> None:
    (canaries / "recipe.txt").write_text("ckptool: 1\npasses:\n- strip-prefix: module.\n")
    (canaries / "cut.pth").write_bytes((canaries / "dp.pth").read_bytes()[:-200])
    ran = python(canaries, "-m", "ckptool", *command.split())
    assert sung(canaries) == "", ran.stderr
    assert "canary" not in ran.stderr
    assert "Traceback" not in ran.stderr


def test_nor_is_one_when_a_module_of_the_package_is_named_or_python_is_told_to(canaries: Path) -> None:
    ran = python(canaries, "-mckptool", "inspect", "dp.pth")
    assert (ran.returncode, sung(canaries)) == (0, ""), ran.stderr
    ran = python(canaries, "-m", "ckptool.cli", "inspect", "dp.pth")  # no program, but imported to find that out
    assert (ran.returncode, sung(canaries)) == (1, "")
    ran = python(canaries, "-m", "ckptool", "inspect", "dp.pth", PYTHONSAFEPATH="1")
    assert (ran.returncode, sung(canaries)) == (0, ""), ran.stderr
    ran = python(canaries, "-I", "-m", "ckptool", "--version")
    assert sung(canaries) == ""
    script = shutil.which("ckptool", path=str(Path(sys.executable).parent))
    if script:
        ran = python(canaries, script, "inspect", "dp.pth")
        assert (ran.returncode, sung(canaries)) == (0, ""), ran.stderr


def test_a_source_tree_that_is_not_installed_is_found_after_everything_else(files: Files, tmp_path: Path) -> None:
    shutil.copytree(Path(ckptool.__file__).parent, tmp_path / "ckptool", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "click.py").write_text("raise SystemExit('canary')")
    installed = sysconfig.get_path("purelib")
    ran = python(tmp_path, "-S", "-m", "ckptool", "inspect", "dp.pth", PYTHONPATH=installed)
    assert ran.returncode == 0, ran.stderr
    program = """if 1:
        import sys
        sys.argv, sys.orig_argv, sys.path[0] = ["-m", "x"], ["python", "-m", "ckptool", "x"], sys.argv[1]
        import ckptool
        print(sys.path)"""
    ran = python(tmp_path, "-S", "-c", program, str(tmp_path), PYTHONPATH=installed)
    assert ast.literal_eval(ran.stdout)[0] == installed, ran.stderr
    assert ast.literal_eval(ran.stdout)[-1] == str(tmp_path)


def test_a_folder_that_is_gone_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = f"rmdir ../gone; {sys.executable} -m ckptool --version"
    ran = subprocess.run(["sh", "-c", command], cwd=tmp_path / "gone", capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"ckptool {ckptool.__version__}\n")


def test_a_program_that_imports_ckptool_keeps_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import ckptool\nimport helper\n")
    (tmp_path / "mine" / "__main__.py").write_text("from mine import helper\nprint(helper.__name__)\n")
    (tmp_path / "helper.py").write_text("")
    ran = python(tmp_path, "-m", "mine")
    assert (ran.returncode, ran.stdout) == (0, "helper\n"), ran.stderr


@pytest.mark.usefixtures("torch")
def test_processes_that_train_import_nothing_from_there(canaries: Path) -> None:
    options = "--task housing --strategy ddp --nproc 1 --epochs 1 --samples 64 --workers 1 --out run --no-curves -q"
    ran = python(canaries, "-m", "ckptool", "train", *options.split())
    if sys.version_info >= (3, 11):
        assert sung(canaries) == "", ran.stderr
    assert not {"torch", "numpy", "click", "rich", "yaml", "ml_dtypes", "safetensors"} & set(sung(canaries).split())
    assert ran.returncode == 0 or sys.version_info < (3, 11), ran.stderr
