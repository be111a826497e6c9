"""Which rows of a layer are in which part of its output, by where code moves each number, whatever it calls."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

import ckptool
from ckptool.model_code.building import signature_of

H, D = 4, 4
WIDTH = H * D


def tensors(**shapes: tuple[int, ...]) -> dict[str, Any]:
    """Return a weight of each of SHAPES by name, and a bias for it, and those of a norm."""
    width = next(iter(shapes.values()))[1]
    made = {"norm.weight": torch.rand(width), "norm.bias": torch.rand(width)}
    for name, shape in shapes.items():
        made |= {f"{name}.weight": torch.randn(shape), f"{name}.bias": torch.randn(shape[0])}
    return made


ATTENTION = dict.fromkeys(("q_proj", "k_proj", "v_proj", "out_proj"), (WIDTH, WIDTH))
GATED = {"gate_proj": (16, 8), "up_proj": (16, 8), "down_proj": (8, 16)}


class Fused(nn.Module):  # type: ignore[misc]
    """An attention with one layer, whose output SPLIT makes queries, keys and values [n, heads, places, width] of."""

    def __init__(self, split: Any) -> None:
        super().__init__()
        self.split = split
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = self.split(self.qkv(self.norm(x)))
        return self.out(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2))


def heads(x: Any) -> Any:
    return x.unflatten(-1, (H, D)).transpose(1, 2)


def by_heads(x: Any) -> Any:
    return x.unflatten(-1, (H, 3, D)).permute(3, 0, 2, 1, 4).unbind(0)


def in_blocks(x: Any) -> Any:
    return [heads(part) for part in x.chunk(3, -1)]


def of_keys_and_values(x: Any) -> Any:
    q, kv = x.split((WIDTH, 2 * WIDTH), -1)
    return [heads(q), *(heads(part) for part in kv.chunk(2, -1))]


def of_heads_of_keys_and_values(x: Any) -> Any:
    q, kv = x.split((WIDTH, 2 * WIDTH), -1)
    return [heads(q), *kv.unflatten(-1, (H, 2, D)).permute(3, 0, 2, 1, 4).unbind(0)]


#: How a layer's output becomes queries, keys and values, and which of its places do.
SPLITS = {
    "in blocks": in_blocks,
    "by heads": by_heads,
    "shares of each head": lambda x: [part.transpose(1, 2) for part in x.unflatten(-1, (H, 3 * D)).chunk(3, -1)],
    "every third": lambda x: [heads(x[..., n::3]) for n in range(3)],
    "each number": lambda x: x.unflatten(-1, (H, D, 3)).permute(4, 0, 2, 1, 3).unbind(0),
    "keys and values together": of_keys_and_values,
    "without the first place": lambda x: by_heads(x[:, 1:]),
    "of the first of the batch": lambda x: by_heads(x[:1]),
    "of some places": lambda x: by_heads(x[:, [1, 0, 2]]),
    "of each of the batch": lambda x: [torch.cat(one) for one in zip(*(by_heads(y[None]) for y in x), strict=True)],
    "all places in a row": lambda x: by_heads(x.flatten(0, 1).unflatten(0, x.shape[:2])),
    "flat": lambda x: [
        one.unflatten(0, x.shape[:2]).transpose(1, 2) for one in x.flatten(0, 1).unflatten(-1, (H, 3, D)).unbind(2)
    ],
    "channels first": lambda x: [
        one.mT.unflatten(-1, (H, D)).transpose(1, 2)
        for one in x.mT.unflatten(1, (H, 3 * D)).chunk(3, 2)
        for one in [one.flatten(1, 2)]
    ],
    "heads in the batch": lambda x: [
        one.unflatten(0, (-1, H)).mT for one in x.mT.reshape(len(x) * H, 3 * D, -1).split(D, 1)
    ],
    "places first": lambda x: x.transpose(0, 1).unflatten(-1, (H, 3, D)).permute(3, 1, 2, 0, 4).unbind(0),
    "padded": lambda x: by_heads(F.pad(x, (0, 0, 0, 2))),
    "rolled": lambda x: by_heads(x.roll(1, 1)),
    "behind another token": lambda x: by_heads(torch.cat([torch.zeros_like(x[:, :1]), x], 1)),
    "changed in place": lambda x: by_heads(
        (x.float() + torch.zeros(1)).masked_fill(torch.zeros(1, dtype=torch.bool), 0)
    ),
}


def rows_of(split: Any) -> Any:
    """Return the row of the layer that each number of the parts, one after the other, is computed by."""
    parts = split(torch.arange(3.0 * WIDTH).expand(2, 6, -1))
    return torch.cat([part[0, :, 1].reshape(-1) for part in parts]).long()


def filled(mapping: Any, source: Any, key: str) -> Any:
    """Return what MAPPING, applied to the tensors SOURCE, gives KEY."""
    return torch.from_numpy(mapping.apply(source).state_dicts()[0].tensors[key].numpy().copy())


@pytest.mark.parametrize("split", SPLITS)
def test_separate_layers_are_joined_as_code_moves_the_output_whatever_it_does(split: str) -> None:
    source, rows = tensors(**ATTENTION), rows_of(SPLITS[split])
    mapping = ckptool.transfer(source, Fused(SPLITS[split]), inputs=["float32[2,6,16]"])
    assert mapping.is_sure
    wanted = torch.cat([source[f"{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(filled(mapping, source, "qkv.weight")[rows], wanted)


@pytest.mark.parametrize(
    "split",
    [of_heads_of_keys_and_values, lambda x: in_blocks(x.flip(-1)), lambda x: by_heads(x.sort(-1)[0])],
    ids=["keys and values by heads", "flipped", "sorted"],
)
def test_a_layer_whose_output_code_moves_in_another_way_is_asked_about(split: Any) -> None:
    mapping = ckptool.transfer(tensors(**ATTENTION), Fused(split), inputs=["float32[2,6,16]"])
    assert {entry.target for entry in mapping.entries if entry.status == "guessed"} == {"qkv.weight", "qkv.bias"}


class Gated(nn.Module):  # type: ignore[misc]
    """A feed-forward network whose gate and value SPLIT makes of the output of one layer."""

    def __init__(self, split: Any) -> None:
        super().__init__()
        self.split = split
        self.norm, self.gate_up_proj, self.down_proj = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        gate, up = self.split(self.gate_up_proj(self.norm(x)))
        return self.down_proj(F.silu(gate) * up)


PERMUTED = torch.cat([torch.arange(0, 32, 2), torch.arange(1, 32, 2)])
HALVES = {
    "two halves": lambda x: x.chunk(2, -1),
    "the second first": lambda x: x.chunk(2, -1)[::-1],
    "slices": lambda x: (x[..., :16], x[..., 16:]),
    "every second": lambda x: (x[..., ::2], x[..., 1::2]),
    "every second, reordered": lambda x: x[..., PERMUTED].chunk(2, -1),
    "pairs": lambda x: x.unflatten(-1, (16, 2)).unbind(-1),
    "rows of halves": lambda x: x.unflatten(-1, (2, 16)).unbind(-2),
    "halves of each head": lambda x: [one.flatten(-2) for one in x.unflatten(-1, (4, 8)).chunk(2, -1)],
    "halves in each head": lambda x: [one.flatten(-2) for one in x.unflatten(-1, (4, 2, 4)).unbind(-2)],
    "channels first": lambda x: [one.mT for one in x.mT.chunk(2, 1)],
    "every second, channels first": lambda x: [one.mT for one in (x.mT[:, ::2], x.mT[:, 1::2])],
}


@pytest.mark.parametrize("split", HALVES)
def test_a_gate_and_its_value_are_joined_as_code_moves_them(split: str) -> None:
    source = tensors(**GATED)
    mapping = ckptool.transfer(source, Gated(HALVES[split]), inputs=["float32[2,6,8]"])
    assert mapping.is_sure
    parts = HALVES[split](torch.arange(32.0).expand(2, 6, 32))
    rows = torch.cat([part[0, 0] for part in parts]).long()
    wanted = torch.cat([source["gate_proj.weight"], source["up_proj.weight"]])
    assert torch.equal(filled(mapping, source, "gate_up_proj.weight")[rows], wanted)


def test_a_gate_in_another_order_than_its_value_is_asked_about() -> None:
    mapping = ckptool.transfer(tensors(**GATED), Gated(lambda x: x.flip(-1).chunk(2, -1)), inputs=["float32[2,6,8]"])
    assert "gate_up_proj.weight" in {entry.target for entry in mapping.entries if entry.status == "guessed"}


class Places(nn.Module):  # type: ignore[misc]
    """One half of the places is a gate for the other half, or goes past a layer: they are no halves of the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        one, other = self.a(x).chunk(2, 2)
        gate, value = self.c(torch.cat([self.b(one), other], 2).mT).chunk(2, 2)
        return gate.sigmoid() * value


def test_halves_of_places_are_no_halves_of_outputs() -> None:
    entries = signature_of(Places(), inputs=[torch.zeros(2, 3, 8, 8)]).entries
    assert all(entry.facts.gate is None and not entry.facts.bypasses for entry in entries.values())


FLATTENED = {
    "rows first": lambda x: x.flatten(1),
    "channels last": lambda x: x.permute(0, 2, 3, 1).flatten(1),
    "by name": lambda x: torch.permute(x, dims=(0, 2, 3, 1)).flatten(1),
    "moved by name": lambda x: torch.movedim(x, source=1, destination=-1).flatten(1),
    "as tokens": lambda x: x.flatten(2).transpose(1, 2).flatten(1),
    "viewed as tokens": lambda x: x.view(2, 8, 30).transpose(1, 2).reshape(2, -1),
    "by an einsum": lambda x: torch.einsum("nchw->nhwc", x).flatten(1),
    "all places first": lambda x: x.permute(0, 2, 3, 1).reshape(-1, 8).reshape(2, -1),
    "columns first": lambda x: x.transpose(1, 3).flatten(1),
    "each of the batch": lambda x: torch.stack([one.permute(1, 2, 0).flatten() for one in x]),
}


class Pictures(nn.Module):  # type: ignore[misc]
    def __init__(self, names: tuple[str, str], flatten: Any) -> None:
        super().__init__()
        self.names, self.flatten = names, flatten
        self.add_module(names[0], nn.Conv2d(3, 8, 3, padding=1))
        self.add_module(names[1], nn.Linear(8 * 5 * 6, 10))

    def forward(self, x: Any) -> Any:
        conv, head = (getattr(self, name) for name in self.names)
        return head(self.flatten(conv(x).relu()))


@pytest.mark.parametrize("own", FLATTENED)
@pytest.mark.parametrize("theirs", ["rows first", "as tokens"])
def test_both_codes_show_the_order_in_which_they_flatten_maps_whatever_they_do(theirs: str, own: str) -> None:
    torch.manual_seed(0)
    source, model = Pictures(("features", "head"), FLATTENED[theirs]), Pictures(("conv", "fc"), FLATTENED[own])
    given = {"inputs": ["float32[2,3,5,6]"], "source_model": source, "prove": False}
    mapping = ckptool.transfer(source.state_dict(), model, **given)
    assert mapping.is_sure
    model.load_state_dict({key: filled(mapping, source.state_dict(), key) for key in model.state_dict()})
    x = torch.randn(2, 3, 5, 6)
    assert torch.allclose(model(x), source(x), atol=1e-5)


class Patched(nn.Module):  # type: ignore[misc]
    def __init__(self, turn: Any) -> None:
        super().__init__()
        self.turn, self.embed = turn, nn.Linear(48, 8)

    def forward(self, x: Any) -> Any:
        return self.embed(self.turn(x.reshape(2, 3, 2, 4, 2, 4)).reshape(2, 4, 48))


@pytest.mark.parametrize(
    "turn",
    [
        lambda x: x.permute(0, 2, 4, 3, 5, 1),
        lambda x: torch.permute(x, dims=(0, 2, 4, 3, 5, 1)),
        lambda x: x.movedim(1, -1).transpose(dim0=2, dim1=3),
    ],
    ids=["by place", "by name", "moved"],
)
def test_the_order_in_which_patches_are_flattened_shows_however_dimensions_are_named(turn: Any) -> None:
    found = signature_of(Patched(turn), inputs=[torch.zeros(2, 3, 8, 8)]).entries["embed.weight"].facts.pixels
    assert found == (("h", 4), ("w", 4), ("c", 3))
