"""`ckptool convert --drop-buffers` and `--fill-buffers`."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from samples import Run


def test_buffers_go_and_come_back_without_any_code(run: Run, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    torch.save(model.state_dict(), tmp_path / "new.pth")
    ran = run("convert", "new.pth", "old.pth", "--drop-buffers")
    assert (ran.code, "  drop buffers: 1 num_batches_tracked" in ran.err) == (0, True)
    assert "1.num_batches_tracked" not in torch.load(tmp_path / "old.pth")
    ran = run("convert", "old.pth", "again.pth", "--fill-buffers")
    assert (ran.code, "  fill buffers: 1 num_batches_tracked" in ran.err) == (0, True)
    made = torch.load(tmp_path / "again.pth")
    assert list(made) == list(model.state_dict())
    model.load_state_dict(made)


def test_a_file_without_any_is_refused_unless_that_is_fine(run: Run, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    ran = run("convert", "a.pth", "b.pth", "--drop-buffers")
    assert (ran.code, "none of its tensors is a buffer that models compute" in ran.err) == (2, True)
    assert run("convert", "a.pth", "b.pth", "--drop-buffers", "--if-present").code == 0
