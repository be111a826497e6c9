"""`ckptool transfer --prove`: what is told of a setting that differs, and of a new head."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

torch = pytest.importorskip("torch")

from samples import Run

CODE = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self, classes=10, eps=1e-5):
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, eps=eps)
            self.body, self.norm2 = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16, eps=eps)
            self.head = nn.Linear(16, classes)

        def forward(self, x):
            x = self.norm(self.stem(x)).relu()
            return self.head(self.norm2(self.body(x)).relu().mean((2, 3)))
"""
PROVE = ("transfer", "old.pth", "new.py", "--source-model", "old.py", "--prove", "-o", "out.pth")


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text = dedent(CODE)
    for word in ("stem", "norm", "body"):
        text = text.replace(f"self.{word}", f"self.old_{word}")
    (tmp_path / "old.py").write_text(text)
    (tmp_path / "new.py").write_text(dedent(CODE))
    space: dict[str, type[torch.nn.Module]] = {}
    exec(text, space)
    torch.manual_seed(0)
    torch.save(space["Net"]().state_dict(), tmp_path / "old.pth")
    return tmp_path


@pytest.mark.parametrize("more", [[], ["--accept-guesses"], ["--partial"]])
def test_an_eps_that_differs_fails_the_proof_is_named_and_nothing_is_written(
    both: Path, run: Run, more: list[str]
) -> None:
    ran = run(*PROVE, "--kwargs", "eps=1e-3", *more)
    assert ran.code == 1
    assert "the source has eps 1e-05 at old_norm, the model has eps 0.001 at norm" in ran.err
    assert not (both / "out.pth").exists()


def test_a_port_whose_proof_failed_becomes_no_code_and_its_mapping_is_not_called_nothing(both: Path, run: Run) -> None:
    ran = run(*PROVE, "-n", "--kwargs", "eps=1e-3", "--emit", "port.py", "--save-mapping", "m.yaml")
    assert ran.code == 1
    assert (both / "m.yaml").exists()
    assert not (both / "port.py").exists()
    assert "no weights were written" in ran.err
    assert "nothing was written" not in ran.err
    assert ran.err.splitlines()[-1].split().count("-n") == 1


def test_what_was_measured_and_its_bound_are_told(both: Path, run: Run) -> None:
    ran = run(*PROVE, "--json")
    proof = json.loads(ran.out)["proof"]
    assert ran.code == 0
    assert 0 <= proof["difference"] <= proof["bound"] < 1e-5 * proof["largest"]
    assert proof["causes"] == []
    assert "where rounding explains" in " ".join(run(*PROVE, "-n").out.split())


def test_with_a_new_head_all_before_it_is_proved_and_written(both: Path, run: Run) -> None:
    ran = run(*PROVE, "--kwargs", "classes=3", "--partial", "head.*")
    assert ran.code == 0
    assert "all before head.weight, which has no source" in " ".join(ran.out.split())
    assert torch.load(both / "out.pth")["head.weight"].shape == (3, 16)


def test_a_new_head_does_not_hide_a_setting_before_it(both: Path, run: Run) -> None:
    ran = run(*PROVE, "--kwargs", "classes=3", "--kwargs", "eps=1e-4", "--partial", "head.*")
    assert ran.code == 1
    assert "the model has eps 0.0001 at norm" in ran.err
    assert not (both / "out.pth").exists()
