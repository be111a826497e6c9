"""The wheel and the sdist of a release, as users install them: `make test-wheel` builds both, and brings the tools.

Every environment is empty but for what the wheel asks for, and each Python that the project names is tried where the
machine has it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tree import Dict, Global, Object

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "fixtures" / "real" / "metapredict-lstm.pt"
BUILT = Path(os.environ.get("CKPTOOL_BUILT", "absent")).absolute()
TOOLS = Path(os.environ.get("CKPTOOL_TOOLS", "absent")).absolute()
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
VERSIONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)

pytestmark = pytest.mark.skipif(not BUILT.is_dir(), reason="make test-wheel builds the wheel")


def ran(*words: object, where: Path | None = None, code: int = 0, **environment: str) -> str:
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=where,
        env={**known, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def the(pattern: str) -> Path:
    (found,) = BUILT.glob(pattern)
    return found


def interpreter(version: str) -> str | None:
    """A Python of that version on this machine: on the path or, since its shims run only what is chosen, of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for place in filter(
        None, [shutil.which(f"python{version}"), *sorted(root.glob(f"versions/{version}.*/bin/python"))]
    ):
        said = subprocess.run([place, "-c", "import ensurepip"], capture_output=True, check=False)
        if said.returncode == 0:
            return str(place)
    return None


def environment(folder: Path, python: str, what: Path, *options: str) -> Path:
    """The folder of programs of a new environment with WHAT in it."""
    ran(TOOLS / "uv", "venv", "--quiet", "--no-python-downloads", "--python", python, folder)
    ran(TOOLS / "uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python", *options, what)
    return folder / "bin"


def try_out(programs: Path, folder: Path) -> None:
    """What a user does first, in an empty folder: each command works, and nothing of it is torch."""

    def ckptool_says(*words: object, code: int = 0) -> str:
        return ran(programs / "ckptool", *words, where=folder, code=code)

    assert ckptool_says("--version") == f"ckptool {ckptool.__version__}\n"
    assert ran(programs / "python", "-m", "ckptool", "--version", where=folder) == f"ckptool {ckptool.__version__}\n"
    assert "18 keys, 16,681 parameters" in ckptool_says("inspect", SAMPLE)
    ckptool_says("inspect", SAMPLE, "--html", "page.html")
    assert (folder / "page.html").stat().st_size > 10_000
    ckptool_says("strip-prefix", SAMPLE, "plain.safetensors", "-q")
    ckptool_says("diff", SAMPLE, "plain.safetensors", "--detect-renames", code=1)
    ckptool_says("verify", "plain.safetensors")
    ckptool_says("scan", SAMPLE)
    ckptool_says("doctor", SAMPLE, code=1)
    assert "_ckptool_completion" in ckptool_says("completion", "bash")
    assert "ldm-unet-to-diffusers" in ckptool_says("mappings")
    missing = subprocess.run(
        [programs / "ckptool", "transfer", SAMPLE, "model.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (missing.returncode, missing.stderr.splitlines()[-1]) == (2, "Hint: pip install 'ckptool[torch]'")
    program = """
from importlib.util import find_spec
import ckptool
from ckptool.porting.words import table
assert table().parts and find_spec("torch") is None
ckptool.save(ckptool.strip_prefix(ckptool.open({!r})), "library.pth")
try:
    ckptool.load("library.pth")
except ImportError as error:
    print(error)
"""
    said = ran(programs / "python", "-c", program.format(str(SAMPLE)), where=folder)
    assert said == "ckptool.load needs torch, which is not installed.\nHint: pip install 'ckptool[torch]'\n"
    assert (programs.parent / "share" / "man" / "man1" / "ckptool.1").stat().st_size > 10_000


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    programs = environment(tmp_path / "empty", python, the("*.whl"))
    ran(TOOLS / "uv", "pip", "check", "--python", programs / "python")
    (tmp_path / "work").mkdir()
    try_out(programs, tmp_path / "work")


def test_the_sdist_works_in_an_empty_environment(tmp_path: Path) -> None:
    programs = environment(tmp_path / "empty", sys.executable, the("*.tar.gz"))
    (tmp_path / "work").mkdir()
    try_out(programs, tmp_path / "work")


def test_the_oldest_packages_that_the_project_takes_suffice(tmp_path: Path) -> None:
    python = next(filter(None, map(interpreter, VERSIONS)))
    programs = environment(tmp_path / "empty", python, the("*.whl"), "--resolution", "lowest-direct")
    (tmp_path / "work").mkdir()
    try_out(programs, tmp_path / "work")


def test_the_hint_installs_what_it_names(tmp_path: Path) -> None:
    """An extra of a package that is installed needs no index for the package itself."""
    programs = environment(tmp_path / "empty", sys.executable, the("*.whl"))
    said = ran(TOOLS / "pip", "--python", programs / "python", "install", "--dry-run", "ckptool[families]")
    assert "Would install" in said
    assert "ckptool" not in said.partition("Would install")[2]
    assert "h5py" in said


def test_the_types_fit_a_project_of_a_user(tmp_path: Path) -> None:
    """Both checkers, as strict as they are, beside the wheel and not beside its source."""
    programs = environment(tmp_path / "empty", sys.executable, the("*.whl"))
    shutil.copy(ROOT / "tests" / "usage.py", tmp_path)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "include": ["usage.py"]}')
    said = ran(TOOLS / "pyright", "--pythonpath", programs / "python", where=tmp_path)
    assert "0 errors, 0 warnings" in said
    ran(TOOLS / "mypy", "--strict", "--python-executable", programs / "python", "usage.py", where=tmp_path)


def test_uvx_runs_the_wheel() -> None:
    said = ran(TOOLS / "uvx", "--quiet", "--from", the("*.whl"), "ckptool", "--version")
    assert said == f"ckptool {ckptool.__version__}\n"


def test_pipx_runs_the_wheel_and_installs_it(tmp_path: Path) -> None:
    places = {"PIPX_HOME": str(tmp_path), "PIPX_BIN_DIR": str(tmp_path / "bin"), "PIPX_MAN_DIR": str(tmp_path / "man")}
    said = ran(TOOLS / "pipx", "run", "--spec", the("*.whl"), "ckptool", "--version", **places)
    assert said == f"ckptool {ckptool.__version__}\n"
    ran(TOOLS / "pipx", "install", the("*.whl"), **places)
    assert "18 keys" in ran(tmp_path / "bin" / "ckptool", "inspect", SAMPLE)
    assert (tmp_path / "man" / "man1" / "ckptool.1").exists()


def in_the_repository() -> list[str]:
    return ran("git", "ls-files", "--cached", "--others", "--exclude-standard", where=ROOT).splitlines()


def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    with zipfile.ZipFile(the("*.whl")) as archive:
        names = set(archive.namelist())
    info, data = (f"ckptool-{ckptool.__version__}.{kind}" for kind in ("dist-info", "data"))
    beside = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    beside.add(f"{data}/data/share/man/man1/ckptool.1")
    listed = [name for name in in_the_repository() if name.startswith("ckptool/")]
    assert names == beside | set(listed)
    assert {"ckptool/py.typed", "ckptool/porting/words.yaml", "ckptool/cli/schemas/inspect.json"} <= names


def test_the_sdist_holds_what_the_repository_holds() -> None:
    with tarfile.open(the("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == {*in_the_repository(), "PKG-INFO"}


def test_the_sdist_builds_the_same_wheel(tmp_path: Path) -> None:
    """`python -m build` makes the wheel out of the sdist; this one comes from the repository."""
    ran(TOOLS / "python", "-m", "build", "--wheel", "--outdir", tmp_path, ROOT)
    (again,) = tmp_path.glob("*.whl")
    assert again.read_bytes() == the("*.whl").read_bytes()


def test_the_description_has_no_link_that_leads_nowhere() -> None:
    with zipfile.ZipFile(the("*.whl")) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(name).decode()
    assert "ckptool opens PyTorch checkpoints" in text
    links = re.findall(r"\]\(([^)]*)\)", text) + re.findall(r"^(?:Project-URL|Home-page): (.*)", text, re.MULTILINE)
    assert [link for link in links if "://" not in link] == []
    assert links == [] or "[project.urls]\n" in PROJECT


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_pre_commit_installs_the_hooks_and_runs_them(tmp_path: Path) -> None:
    """Out of a repository with the files of this one, which pre-commit clones."""
    ran("tar", "-xzf", the("*.tar.gz"), "-C", tmp_path)
    (source,) = tmp_path.iterdir()
    mine = tmp_path / "mine"
    mine.mkdir()
    shutil.copy(SAMPLE, mine / "good.pt")
    author = [word for field in ("name", "email") for word in ("-c", f"user.{field}=a@b.c")]
    for folder in (source, mine):
        ran("git", "init", "-q", where=folder)
        ran("git", "add", ".", where=folder)
        ran("git", *author, "commit", "-q", "-m", "a", where=folder)
    hooks = [{"id": "ckptool-scan"}, {"id": "ckptool-verify"}]
    rev = ran("git", "rev-parse", "HEAD", where=source).strip()
    config = {"repos": [{"repo": str(source), "rev": rev, "hooks": hooks}]}
    (mine / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    places = {"PRE_COMMIT_HOME": str(tmp_path / "home"), "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}
    ran("git", "add", ".", where=mine)
    assert (
        ran(TOOLS / "pre-commit", "run", where=mine, **places).count("Skipped") == 2
    )  # no checkpoint is in the commit
    assert ran(TOOLS / "pre-commit", "run", "--all-files", where=mine, **places).count("Passed") == 2
    evil = Checkpoint(Dict([("x", Object("reduce", Global("os", "system"), ("id",)))]))
    ckptool.save(evil, mine / "evil.pth", keep_objects=True)
    whole = bytearray(SAMPLE.read_bytes())
    whole[len(whole) // 2] ^= 1
    (mine / "damaged.pt").write_bytes(whole)
    ran("git", "add", ".", where=mine)
    said = ran(TOOLS / "pre-commit", "run", where=mine, code=1, **places)
    assert re.findall(r"^(\S+): (?:NOT SAFE|DAMAGED)", said, re.MULTILINE) == ["evil.pth", "damaged.pt"]


def test_the_action_installs_what_it_runs(tmp_path: Path) -> None:
    """The steps of action.yml, one after the other, as a runner would."""
    steps = {one["name"]: one["run"] for one in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]}
    known = {
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "PYTHON": sys.executable,
        "PATHS": str(SAMPLE.parent),
        "FILES": f"{SAMPLE.parent}/*.pt",
    }
    bash = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
    said = [ran(*bash, run, where=tmp_path, **known) for run in steps.values()]
    assert "metapredict-lstm.pt: safe" in said[1]
    assert "metapredict-lstm.pt: sound" in said[2]


def test_twine_takes_both(tmp_path: Path) -> None:
    ran(TOOLS / "twine", "check", "--strict", the("*.whl"), the("*.tar.gz"), NO_COLOR="1")
