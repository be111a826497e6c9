"""Models whose classes torch has replaced, and models without sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

#: torch deprecates scripting; models that were scripted are there.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

import ckptool
from ckptool.cli import main
from ckptool.errors import RuleError
from ckptool.model_code.trace import signature_of


def plain() -> Any:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def lazy() -> Any:
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "use",
    [
        lambda: ckptool.transfer(plain().state_dict(), lazy()),
        lambda: ckptool.transfer(plain().state_dict(), plain(), source_model=lazy()),
        lambda: ckptool.load_into(lazy(), plain().state_dict()),
    ],
    ids=["model", "source_model", "load_into"],
)
def test_a_model_that_has_no_sizes_yet_is_refused(use: Callable[[], Any]) -> None:
    with pytest.raises(RuleError, match=r"lazy layers.*0\.weight[^\0]*run the model once"):
        use()


def test_a_lazy_model_that_ran_once_is_like_any_other() -> None:
    model = lazy()
    model(torch.zeros(2, 5))
    assert len(ckptool.transfer(plain().state_dict(), model).having("mapped")) == 9


def test_the_command_line_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(plain().state_dict(), tmp_path / "in.pth")
    code = "from torch import nn\ndef build_model():\n    return nn.Sequential(nn.LazyLinear(8))\n"
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(SystemExit) as left:
        main(["transfer", str(tmp_path / "in.pth"), str(tmp_path / "mine.py")])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "lazy layers" in said
    assert "end of build_model()" in said


def test_a_scripted_model_has_the_classes_of_its_code() -> None:
    made = signature_of(torch.jit.script(plain()))
    assert made.name == "Sequential"
    assert [entry.module for entry in made.entries.values()] == ["Linear"] * 2 + ["BatchNorm1d"] * 5 + ["Linear"] * 2


@pytest.mark.parametrize("of_source", [False, True])
def test_a_scripted_model_is_a_side_like_any_other(of_source: bool) -> None:
    scripted = torch.jit.script(plain())
    own, theirs = (plain(), scripted) if of_source else (scripted, None)
    assert len(ckptool.transfer(plain().state_dict(), own, source_model=theirs).having("mapped")) == 9
