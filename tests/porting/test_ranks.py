"""A file with a state dict for each rank of tensor parallel training is one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
nn = torch.nn

import ckptool

COLUMNS = ("inner", "query")


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width + 4)
        self.output = nn.Linear(width + 4, width)
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Any) -> Any:
        x = x + self.output(self.query(self.norm(x)))
        return x + self.outer(self.inner(x).relu())


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 12, inner: int = 20) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(2))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


def trained(width: int = 12, inner: int = 20) -> Any:
    torch.manual_seed(3)
    model = Model(width, inner)
    for value in model.parameters():
        nn.init.uniform_(value, 0.1, 1.0)
    return model


def divided(model: Any, ranks: int) -> list[dict[str, Any]]:
    """What each rank would save: rows of the layers that come first, columns of those that come second."""
    files: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for key, value in model.state_dict().items():
        layer, leaf = key.split(".")[-2:]
        if layer in COLUMNS:
            parts = value.chunk(ranks, 0)
        elif layer != "norm" and leaf == "weight":
            parts = value.chunk(ranks, 1)
        else:
            parts = [value] * ranks
        for held, part in zip(files, parts, strict=True):
            held[key] = part.clone()
    return files


@given(st.sampled_from([2, 4]), st.sampled_from([12, 24]), st.sampled_from([20, 28]), st.booleans())
def test_the_shares_of_all_ranks_are_joined(ranks: int, width: int, inner: int, listed: bool) -> None:
    theirs, ours = trained(width, inner), Model(width, inner)
    shares = divided(theirs, ranks)
    source = {"ranks": shares} if listed else {f"mp_rank_{rank:02}": held for rank, held in enumerate(shares)}
    account = ckptool.load_into(ours, source)
    assert {entry.status for entry in account.entries} == {"mapped"}
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))


def test_a_saved_mapping_joins_them_again(tmp_path: Path) -> None:
    theirs = trained()
    shares = divided(theirs, 2)
    torch.save({"rank0": shares[0], "rank1": shares[1]}, tmp_path / "ranks.pth")
    ckptool.transfer(tmp_path / "ranks.pth", Model()).save(tmp_path / "m.yaml")
    made = ckptool.read_mapping(tmp_path / "m.yaml").apply(tmp_path / "ranks.pth")
    ckptool.save(made, tmp_path / "out.pth")
    found = torch.load(tmp_path / "out.pth")
    assert all(torch.equal(value, found[key]) for key, value in theirs.state_dict().items())


def test_models_of_an_ensemble_are_not_joined() -> None:
    first, second = trained(), Model()
    mapping = ckptool.transfer({"0": first.state_dict(), "1": second.state_dict()}, Model())
    assert {entry.status for entry in mapping.entries} == {"guessed"}
    assert all("cat" not in entry.expr.operations() for entry in mapping.entries if entry.expr is not None)


def test_shares_of_fused_projections_are_a_guess() -> None:
    """Which rows of which rank are q, k and v is in the code only."""

    class Fused(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.proj(self.qkv(x)[..., :8])

    theirs = Fused().state_dict()
    shares = [
        {k: v.chunk(2, 1 if k == "proj.weight" else 0)[rank] if k != "proj.bias" else v for k, v in theirs.items()}
        for rank in range(2)
    ]
    mapping = ckptool.transfer({"rank0": shares[0], "rank1": shares[1]}, Fused())
    assert {entry.target for entry in mapping.having("guessed")} == {"qkv.weight", "qkv.bias"}
    assert {entry.target for entry in mapping.having("mapped")} == {"proj.weight", "proj.bias"}
