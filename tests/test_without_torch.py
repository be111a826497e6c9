"""What the library says where a package is missing, and that no hint names an install that does not exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptool.train
from ckptool.disk.addresses import STORES

ROOT = Path(__file__).parents[1]
FILE = ROOT / "fixtures" / "real" / "metapredict-lstm.pt"
CODE = str(ROOT / "fixtures" / "demo.py")


def first_tensor() -> ckptool.LazyTensor:
    return next(iter(ckptool.open(FILE).state_dict().values()))


NEEDS_TORCH: dict[str, Callable[[], Any]] = {
    "ckptool.load": lambda: ckptool.load(FILE),
    "ckptool.from_torch": lambda: ckptool.from_torch({}),
    "LazyTensor.torch": lambda: first_tensor().torch(),
    "moving tensors in memory": lambda: ckptool.remap({"w": np.zeros(3)}, "cpu"),
    "ckptool.transfer": lambda: ckptool.transfer(FILE, CODE),
    "ckptool.load_into": lambda: ckptool.load_into(object(), FILE),
    f"running {CODE}": lambda: ckptool.fits(FILE, CODE),
    "training": lambda: ckptool.train.run(ckptool.train.Config()),
}


@pytest.mark.parametrize("work", NEEDS_TORCH)
def test_what_needs_torch_says_so_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # which makes importing it fail
    monkeypatch.delitem(vars(ckptool.train), "run", raising=False)  # which an earlier test imported
    with pytest.raises(ImportError) as raised:
        NEEDS_TORCH[work]()
    assert isinstance(raised.value, ckptool.NotInstalled)
    assert raised.value.name == "torch"
    extra = "train" if work == "training" else "torch"
    assert str(raised.value) == (f"{work} needs torch, which is not installed.\nHint: pip install 'ckptool[{extra}]'")


def test_doctor_with_a_model_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ckptool.NotInstalled, match="needs torch"):
        ckptool.doctor(FILE, CODE)


def test_all_public_names_can_be_imported_where_torch_is_missing() -> None:
    program = "import sys; sys.modules['torch'] = None\nfrom ckptool import *\nprint(load.__name__, Inert('a.B'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("load <inert a.B>\n", "")


def extras() -> dict[str, set[str]]:
    """Extra of pyproject.toml -> the packages that it brings."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    lines = re.findall(r"^(\w+) = \[(.*)\]$", section, re.MULTILINE)
    return {name: set(re.findall(r'"([\w-]+)', line)) for name, line in lines}


def known_packages() -> set[str]:
    return {"fsspec", *filter(None, STORES.values())}.union(*extras().values())


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("ckptool/**/*.py")]


@pytest.mark.same_without_torch
def test_no_text_names_an_install_that_does_not_exist() -> None:
    ours, known = extras().keys(), {"ckptool", *known_packages()}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"(?:\bckptool|['\"]\.)\[(\w+)\]", text)) <= ours, page
        assert set(re.findall(r"pip install (?:-\S+ )*['\"]?([\w-]+)", text)) <= known, page


@pytest.mark.same_without_torch
def test_what_is_reported_missing_can_be_installed() -> None:
    """By its own name, or by an extra of ours."""
    found = 0
    for page in ROOT.glob("ckptool/**/*.py"):
        for call in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
            if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("require", "not_installed")):
                continue
            said = {word.arg: word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)}
            package = call.args[1]
            found += 1
            if "extra" in said:
                assert said["extra"] in extras(), page
            elif isinstance(package, ast.Constant):
                assert package.value in known_packages(), page
    assert found > 10
