"""Neighbours of a feature map that a layer takes side by side: their order is in its weights, and no shape shows it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import ckptool
from ckptool.porting.reasons import Reason


def by_columns(x: Any) -> Any:
    return torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)


def by_rows(x: Any) -> Any:
    n, h, w, c = x.shape
    return x.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h // 2, w // 2, 4 * c)


def by_channel(x: Any) -> Any:
    return torch.pixel_unshuffle(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)


def by_unfold(x: Any) -> Any:
    n, h, w, _ = x.shape
    return nn.Unfold(2, stride=2)(x.permute(0, 3, 1, 2)).transpose(1, 2).reshape(n, h // 2, w // 2, -1)


def by_windows(x: Any) -> Any:
    """All channels of one neighbour together, row by row."""
    return x.unfold(1, 2, 2).unfold(2, 2, 2).permute(0, 1, 2, 4, 5, 3).flatten(3)


WAYS = [by_columns, by_rows, by_channel, by_unfold, by_windows]


class Merging(nn.Module):  # type: ignore[misc]
    """Halves a picture: its neighbours side by side, a norm, and a matrix."""

    def __init__(self, names: tuple[str, str, str], gather: Any, *, flat: bool = False) -> None:
        super().__init__()
        self.names, self.gather, self.flat = names, gather, flat
        self.add_module(names[0], nn.Conv2d(3, 6, 1))
        self.add_module(names[1], nn.LayerNorm(24))
        self.add_module(names[2], nn.Linear(24, 12, bias=False))

    def forward(self, x: Any) -> Any:
        stem, norm, matrix = (getattr(self, name) for name in self.names)
        x = stem(x)
        x = x.flatten(2).transpose(1, 2).reshape(len(x), x.shape[2], -1, 6) if self.flat else x.permute(0, 2, 3, 1)
        return matrix(norm(self.gather(x))).mean((1, 2))


def ported(theirs: Any, own: Any, *, code: bool) -> Any:
    spec = ["float32[2,3,8,8]"]
    return ckptool.transfer(theirs.state_dict(), own, inputs=spec, source_model=theirs if code else None, prove=False)


def give_the_same(mapping: Any, theirs: Any, own: Any) -> bool:
    made = mapping.apply(theirs.state_dict()).state_dicts()[0]
    own.load_state_dict({key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in made.tensors.items()})
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        return torch.allclose(theirs(x), own(x), atol=1e-5)


OLD, NEW = ("stem", "norm", "reduction"), ("first", "ln", "proj")


def model(names: tuple[str, str, str], gather: Any, **more: Any) -> Any:
    torch.manual_seed(3)
    made = Merging(names, gather, **more)
    for value in made.parameters():
        nn.init.uniform_(value, 0.5, 1.5)
    return made


@pytest.mark.parametrize("own", WAYS)
@pytest.mark.parametrize("theirs", WAYS)
@pytest.mark.parametrize("flat", [False, True])
def test_both_codes_show_the_order_of_the_neighbours(theirs: Any, own: Any, flat: bool) -> None:
    source, target = model(OLD, theirs, flat=flat), model(NEW, own)
    mapping = ported(source, target, code=True)
    assert not mapping.having("guessed")
    assert give_the_same(mapping, source, target)


@pytest.mark.parametrize("own", [by_rows, by_channel, by_unfold, by_windows])
def test_a_model_that_takes_neighbours_otherwise_than_column_by_column_is_asked_about(own: Any) -> None:
    source, target = model(OLD, by_columns), model(NEW, own)
    mapping = ported(source, target, code=False)
    asked = {e.target for e in mapping.entries if any(q.reason == Reason.NEIGHBOURS for q in e.questions)}
    assert asked == {"ln.weight", "ln.bias", "proj.weight"}
    assert give_the_same(mapping, source, target)


def test_a_model_that_takes_them_as_others_do_is_no_question() -> None:
    assert not ported(model(OLD, by_columns), model(NEW, by_columns), code=False).having("guessed")


class Heard(nn.Module):  # type: ignore[misc]
    """A spectrogram whose four bands become channels, as in a recurrent network over time."""

    def __init__(self, names: tuple[str, str, str], *, bands_first: bool) -> None:
        super().__init__()
        self.names, self.bands_first = names, bands_first
        self.add_module(names[0], nn.Conv2d(3, 6, 1))
        self.add_module(names[2], nn.Linear(24, 12))

    def forward(self, x: Any) -> Any:
        x = getattr(self, self.names[0])(x)  # [n, c, time, bands]
        return getattr(self, self.names[2])(
            x.permute(0, 2, 3, 1).flatten(2) if self.bands_first else x.mT.flatten(1, 2).mT
        )


@pytest.mark.parametrize("bands_first", [False, True])
def test_four_bands_that_become_channels_are_no_square(bands_first: bool) -> None:
    source, target = (Heard(names, bands_first=bands_first) for names in (OLD, NEW))
    mapping = ckptool.transfer(source.state_dict(), target, inputs=["float32[2,3,9,4]"])
    assert all(q.reason != Reason.NEIGHBOURS for entry in mapping.entries for q in entry.questions)


def test_windows_with_a_rim_of_zeros_show_no_neighbours() -> None:
    def padded(x: Any) -> Any:
        return nn.Unfold(2, stride=2, padding=1)(x.permute(0, 3, 1, 2)).transpose(1, 2).unflatten(1, (5, 5))

    assert not ported(model(OLD, by_columns), model(NEW, padded), code=False).having("guessed")


def test_the_same_code_is_no_question() -> None:
    assert not ported(model(OLD, by_rows), model(OLD, by_rows), code=False).having("guessed")


class Attention(nn.Module):  # type: ignore[misc]
    """An attention over 1d maps whose queries, keys and values are one convolution, cut into heads first or last."""

    def __init__(self, *, heads_first: bool) -> None:
        super().__init__()
        self.heads_first = heads_first
        self.stem, self.qkv, self.proj_out = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 24, 1), nn.Conv1d(8, 8, 1)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        n, c, t = x.shape
        if self.heads_first:
            q, k, v = self.qkv(x).reshape(n * 2, 12, t).split(4, dim=1)
        else:
            q, k, v = (one.reshape(n * 2, 4, t) for one in self.qkv(x).chunk(3, dim=1))
        weight = torch.einsum("bct,bcs->bts", q / 2, k).softmax(-1)
        return x + self.proj_out(torch.einsum("bts,bcs->bct", weight, v).reshape(n, c, t))


class Apart(nn.Module):  # type: ignore[misc]
    """The same attention with linear layers for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 8, 1)
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        rows = x.transpose(1, 2)
        q, k, v = (f(rows).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        rows = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.to_out(rows).transpose(1, 2)


@pytest.mark.parametrize("heads_first", [False, True])
def test_code_shows_how_it_cuts_the_channels_of_a_convolution_into_queries_keys_and_values(heads_first: bool) -> None:
    torch.manual_seed(3)
    source, target = Attention(heads_first=heads_first), Apart()
    mapping = ckptool.transfer(source.state_dict(), target, inputs=["float32[2,3,5]"], source_model=source, prove=False)
    made = mapping.apply(source.state_dict()).state_dicts()[0]
    target.load_state_dict({key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in made.tensors.items()})
    x = torch.randn(2, 3, 5)
    with torch.no_grad():
        assert torch.allclose(source(x), target(x), atol=1e-5)
    assert bool(mapping.having("guessed")) != heads_first  # by blocks, heads may still be inside of the channels


class OneKey(nn.Module):  # type: ignore[misc]
    """An attention of four heads that share one key and value, which are as wide as a head."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        for name, sizes in zip(names, ((12, 16), (12, 4), (12, 4), (16, 12)), strict=True):
            self.add_module(name, nn.Linear(*sizes))

    def forward(self, x: Any) -> Any:
        q, k, v = (getattr(self, name)(x).unflatten(-1, (-1, 4)).transpose(1, 2) for name in self.names[:3])
        k, v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
        return getattr(self, self.names[3])(
            nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        )


def test_heads_of_an_attention_are_no_neighbours() -> None:
    theirs, own = OneKey(("q_proj", "k_proj", "v_proj", "o_proj")), OneKey(("wq", "wk", "wv", "wo"))
    assert ckptool.transfer(theirs.state_dict(), own, inputs=["float32[2,5,12]"]).is_sure


class Capsules(nn.Module):  # type: ignore[misc]
    """Five convolutions with four channels each, whose outputs become vectors of five numbers (Sabour et al., 2017)."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        if how == "list":
            self.capsules = nn.ModuleList([nn.Conv2d(3, 4, 3) for _ in range(5)])
        else:
            self.conv = nn.Conv2d(3, 20, 3)

    def forward(self, x: Any) -> Any:
        if self.how == "list":
            return torch.stack([conv(x).flatten(1) for conv in self.capsules], -1)
        made = self.conv(x)
        if self.how == "interleaved":
            return made.view(len(x), 4, 5, *made.shape[2:]).permute(0, 1, 3, 4, 2).reshape(len(x), -1, 5)
        return made.unflatten(1, (5, 4)).flatten(2).mT


@pytest.mark.parametrize("how", ["interleaved", "in a row"])
def test_code_shows_whether_the_channels_of_joined_convolutions_take_turns(how: str) -> None:
    source, own = Capsules("list"), Capsules(how)
    mapping = ckptool.transfer(source.state_dict(), own, inputs=["float32[2,3,8,8]"])
    assert mapping.is_sure
    assert give_the_same(mapping, source, own)
