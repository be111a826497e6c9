"""Averages that training keeps of a tensor, which a model holds beside it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class Codebook(nn.Module):  # type: ignore[misc]
    """Codes in rows that are looked up, with the sums that training keeps of what fell on each."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 12)
        self._embedding = nn.Embedding(40, 12)
        self._ema_w = nn.Parameter(torch.randn(40, 12))

    def forward(self, x: Any) -> Any:
        return self._embedding(torch.cdist(self.enter(x), self._embedding.weight).argmin(1))


class Turned(nn.Module):  # type: ignore[misc]
    """The same, with a code in each column."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(5, 12)
        self.register_buffer("embed", torch.randn(12, 40))
        self.register_buffer("embed_avg", torch.randn(12, 40))

    def forward(self, x: Any) -> Any:
        x = self.start(x)
        nearest = (self.embed.pow(2).sum(0) - 2 * x @ self.embed).argmin(1)
        return nn.functional.embedding(nearest, self.embed.transpose(0, 1))


def test_an_average_comes_from_beside_what_fills_the_tensor_of_which_it_is_and_is_turned_like_it() -> None:
    import ckptool

    account = ckptool.transfer(Codebook().state_dict(), Turned(), inputs=["float32[3,5]"])
    assert str(account["embed"].expr) == "transpose(_embedding.weight)"
    assert str(account["embed_avg"].expr) == "transpose(_ema_w)"
    assert {entry.status for entry in account.entries} == {"mapped"}


def test_an_average_of_another_module_is_none_of_this_one() -> None:
    import ckptool

    class Tenth(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.vq10 = Turned()

        def forward(self, x: Any) -> Any:
            return self.vq10(x)

    source = {f"vq10.{key}": value for key, value in Codebook().state_dict().items() if key != "_ema_w"}
    account = ckptool.transfer(source | {"vq1._ema_w": torch.randn(40, 12)}, Tenth(), inputs=["float32[3,5]"])
    assert account["vq10.embed_avg"].expr is None


class Mixed(nn.Module):  # type: ignore[misc]
    """Codes in columns with their average, behind a convolution with as many channels as there are codes."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        self.plain = plain
        self.project = nn.Linear(24, 8) if plain else nn.Conv2d(24, 8, 1)
        if plain:
            self.codes = nn.Embedding(24, 8)
        else:
            self.register_buffer("embed", torch.randn(8, 24))
            self.register_buffer("embed_avg", torch.randn(8, 24))

    def forward(self, x: Any) -> Any:
        if self.plain:
            x = self.project(x.movedim(1, -1))
            return self.codes(torch.cdist(x, self.codes.weight).argmin(-1))
        x = self.project(x).movedim(1, -1)
        far = self.embed.pow(2).sum(0) - 2 * x @ self.embed
        return nn.functional.embedding(far.argmin(-1), self.embed.transpose(0, 1))


def test_an_average_that_no_code_runs_is_no_layer_of_its_sizes() -> None:
    import ckptool

    source = Mixed(plain=False)
    mapping = ckptool.transfer(
        source.state_dict(), Mixed(plain=True), source_model=source, inputs=["float32[2,24,4,4]"], prove=False
    )
    assert str(mapping["project.weight"].expr) == "reshape(project.weight, 8, 24)"
    assert str(mapping["codes.weight"].expr) == "transpose(embed)"
