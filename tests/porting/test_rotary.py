"""Queries and keys that rotary embeddings turn by pairs: which rows are a pair is a doubt only where it can be one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from ckptool.model_code.building import signature_of
from ckptool.porting.sources import match_signature

COS, SIN = torch.rand(3, 1, 4), torch.rand(3, 1, 4)


class Attention(nn.Module):
    """Attention of two heads; TURNED in halves, in pairs, or not at all."""

    def __init__(self, turned: str | None, names: tuple[str, ...]) -> None:
        super().__init__()
        self.turned, self.names = turned, names
        for name in names:
            self.add_module(name, nn.Linear(8, 8, bias=False))

    def turn(self, x: Any) -> Any:
        x = x.view(*x.shape[:-1], 2, 4)
        if self.turned == "half":
            one, other = x.chunk(2, -1)
            x = x * COS + torch.cat([-other, one], -1) * SIN
        elif self.turned == "interleaved":
            x = x * COS + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * SIN
        return x.flatten(-2)

    def forward(self, x: Any) -> Any:
        q, k, v = (self.get_submodule(name)(x) for name in self.names[:3])
        return self.get_submodule(self.names[3])(self.turn(q) @ self.turn(k).transpose(-1, -2) @ v)


class Block(nn.Module):
    def __init__(self, turned: str | None, names: tuple[str, ...]) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attn = Attention(turned, names)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.norm(x))
        return x + self.down(self.up(self.norm2(x)).relu())


FUSED = ("q_proj", "k_proj", "v_proj", "o_proj")
OTHER = ("query", "key", "value", "dense")


class SeesAndSpeaks(nn.Module):
    """Two towers, of which only the second turns its queries and keys."""

    def __init__(self, turned: str, names: tuple[str, ...] = FUSED) -> None:
        super().__init__()
        self.vision = nn.ModuleDict({"block": Block(None, names)})
        self.language = nn.ModuleDict({"block": Block(turned, names)})

    def forward(self, x: Any) -> Any:
        return self.language["block"](self.vision["block"](x))


def entries(source: nn.Module, model: nn.Module, prefix: str) -> dict[str, Any]:
    tensors = {prefix + key: value for key, value in source.state_dict().items()}
    mapping = match_signature(tensors, signature_of(model, inputs=(torch.zeros(2, 3, 8),)))
    return {entry.target: entry for entry in mapping.entries}


@pytest.mark.parametrize("turned", ["half", "interleaved"])
def test_a_part_that_is_not_turned_is_not_in_doubt_for_one_that_is(turned: str) -> None:
    made = entries(SeesAndSpeaks(turned, OTHER), SeesAndSpeaks(turned), "")
    about = {key for key, entry in made.items() if any("rotary" in doubt for doubt in entry.doubts)}
    assert about == {f"language.block.attn.{name}_proj.weight" for name in "qk"}


def test_the_same_names_behind_another_prefix_are_the_same_code() -> None:
    made = entries(SeesAndSpeaks("half"), SeesAndSpeaks("half"), "model.")
    assert {entry.status for entry in made.values()} == {"mapped"}


def test_where_all_else_has_the_same_names_nothing_is_turned_though_the_name_is_that_of_another_convention() -> None:
    """Code that turns in pairs may well call its layers as most code does that turns in halves."""
    made = entries(SeesAndSpeaks("interleaved"), SeesAndSpeaks("interleaved"), "model.")
    for name in "qk":
        entry = made[f"language.block.attn.{name}_proj.weight"]
        assert str(entry.expr) == f"model.language.block.attn.{name}_proj.weight"
    assert not any("rotary" in str(entry.expr) for entry in made.values())


def test_a_few_equal_names_in_other_surroundings_are_no_evidence_of_the_same_code() -> None:
    source = {
        key.replace("norm", "ln").replace("up", "fc1").replace("down", "fc2"): value
        for key, value in SeesAndSpeaks("half").state_dict().items()
    }
    mapping = match_signature(source, signature_of(SeesAndSpeaks("interleaved"), inputs=(torch.zeros(2, 3, 8),)))
    doubted = {entry.target for entry in mapping.entries if any("rotary" in doubt for doubt in entry.doubts)}
    assert doubted == {f"language.block.attn.{name}_proj.weight" for name in "qk"}


class Normed(SeesAndSpeaks):
    """Queries and keys have norms of their own, under these names."""

    def __init__(self, turned: str, norms: tuple[str, str], names: tuple[str, ...] = FUSED) -> None:
        super().__init__(turned, names)
        for norm in norms:
            for tower in (self.vision, self.language):
                tower["block"].attn.add_module(norm, nn.LayerNorm(8))

    def forward(self, x: Any) -> Any:
        raise NotImplementedError  # so that nothing is known of what is turned

    class RotaryEmbedding(nn.Module):
        pass


@pytest.mark.parametrize("names", [FUSED, OTHER])
def test_norms_of_queries_are_turned_as_those_are(names: tuple[str, ...]) -> None:
    source, model = Normed("half", ("q_norm", "k_norm"), names), Normed("half", ("norm_q", "norm_k"))
    for one in (source, model):
        one.positions = Normed.RotaryEmbedding()
    made = entries(source, model, "model.")
    doubted = {key for key, entry in made.items() if any("rotary" in doubt for doubt in entry.doubts)}
    beside = {key for key in doubted if "norm_" in key}
    assert bool(beside) == bool(doubted - beside) == (names is OTHER)


@pytest.mark.parametrize("name", ["Wqkv", "qkv", "query_key_value", "to_qkv"])
@pytest.mark.parametrize("turned", ["half", "interleaved"])
def test_names_of_fused_projections_that_code_of_both_kinds_has_do_not_say_how_rows_are_paired(
    name: str, turned: str
) -> None:
    model = SeesAndSpeaks(turned)
    source = dict(model.state_dict())
    for tower in ("vision", "language"):
        parts = [source.pop(f"{tower}.block.attn.{part}_proj.weight") for part in "qkv"]
        source[f"{tower}.block.attn.{name}.weight"] = torch.cat(parts)
    mapping = match_signature(source, signature_of(model, inputs=(torch.zeros(2, 3, 8),)))
    entry = next(e for e in mapping.entries if e.target == "language.block.attn.q_proj.weight")
    assert any("rotary" in doubt for doubt in entry.doubts)


def test_learned_queries_are_not_turned() -> None:
    class Asks(Sees):
        def __init__(self, names: tuple[str, ...]) -> None:
            super().__init__(names)
            self.pool = nn.ParameterDict({"query": nn.Parameter(torch.randn(5, 8))})

    made = entries(Asks(OTHER), Asks(FUSED), "model.")
    assert made["pool.query"].status == "mapped"
    assert made["block.attn.q_proj.weight"].status == "guessed"


class Sees(nn.Module):
    """Its attention is turned by a part that says so, and no input is found for it."""

    class RotaryEmbedding(nn.Module):
        def forward(self, x: Any) -> Any:
            raise NotImplementedError

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.block, self.positions = Block(None, names), self.RotaryEmbedding()

    def forward(self, x: Any) -> Any:
        return self.block(self.positions(x))


def test_of_a_model_that_cannot_be_followed_its_parts_say_that_queries_and_keys_are_turned() -> None:
    made = match_signature(Sees(OTHER).state_dict(), signature_of(Sees(FUSED)))
    doubted = {entry.target for entry in made.entries if any("rotary" in doubt for doubt in entry.doubts)}
    assert doubted == {f"block.attn.{name}_proj.weight" for name in "qk"}
    assert {entry.status for entry in entries(Sees(FUSED), Sees(FUSED), "model.").values()} == {"mapped"}


class SeesAtTimes(SeesAndSpeaks):
    """What sees is not used for inputs without pictures."""

    def forward(self, x: Any) -> Any:
        return self.language["block"](x)


def test_what_was_not_followed_is_not_said_to_be_turned_as_other_parts_are() -> None:
    made = entries(SeesAtTimes("interleaved"), SeesAtTimes("interleaved"), "model.")
    doubted = {key for key, entry in made.items() if any("rotary" in doubt for doubt in entry.doubts)}
    assert doubted == {f"language.block.attn.{name}_proj.weight" for name in "qk"}
