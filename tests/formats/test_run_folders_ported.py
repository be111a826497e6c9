"""Folders of ranks of every kind, ported into other model code: what arrives is what the run had in memory."""

import re
from pathlib import Path

import pytest

import ckptool
from ckptool.porting.applying import apply

torch = pytest.importorskip("torch")
nn = torch.nn
FIXTURES = Path(__file__).parents[2] / "fixtures"


def renamed(key, names):
    """KEY with the words of NAMES in place of others."""
    return ".".join(names.get(word, word) for word in key.split("."))


def ported(folder, net, names):
    """What NET gets out of a folder, with every tensor certain, and loads."""
    mapping = ckptool.transfer(folder, net, hints=[f"{old}={new}" for old, new in names.items()])
    assert mapping.is_sure, mapping
    found = ckptool.load(apply(mapping, ckptool.open(folder)))
    net.load_state_dict(found)
    return found


class OtherNet(nn.Module):
    """The model of the runs of DeepSpeed, under other names."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 5)
        self.blocks = nn.ModuleList([nn.Linear(5, 5) for _ in range(2)])
        self.ln = nn.LayerNorm(5)
        self.fixed = nn.Linear(5, 5)
        self.register_buffer("scale", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))
        self.out = nn.Linear(5, 11, bias=False)
        self.out.weight = self.tokens.weight


OF_ZERO = {"emb": "tokens", "layers": "blocks", "norm": "ln", "frozen": "fixed", "head": "out"}


@pytest.mark.parametrize(
    "name", ["zero0-bf16", "zero1-bf16", "zero2-three-ranks", "zero3-bf16", "zero3-three-ranks", "zero2-fp16"]
)
def test_runs_of_zero(trainer_runs, name):
    folder = trainer_runs / "deepspeed" / name
    expected = torch.load(folder / "expected.pt", weights_only=True)
    found = ported(folder, OtherNet(), OF_ZERO)
    assert found.keys() == {renamed(key, OF_ZERO) for key in expected}
    for key, value in expected.items():
        assert torch.equal(found[renamed(key, OF_ZERO)].to(value.dtype), value), key


class Chain(nn.Module):
    """The model of the runs of torch, under other names, or what FSDP 1 had of it."""

    def __init__(self, *, short=False):
        super().__init__()
        if not short:
            self.first, self.norm = nn.Linear(5, 7), nn.BatchNorm1d(7)
        self.second, self.third = nn.Linear(7, 5), nn.Linear(5, 3)


@pytest.mark.parametrize(("world", "name"), [(2, "files"), (4, "files"), (4, "hybrid"), (4, "crossed")])
def test_files_of_ranks_with_dtensors(ranks, world, name):
    path = ranks[world] / ("full.pth" if name == "files" else "before.pth")
    whole = torch.load(path, weights_only=False)
    names = {"0": "first", "1": "norm", "2": "second", "3": "third"}
    found = ported(ranks[world] / name, Chain(), names)
    for key, value in (whole["model"] if name == "files" else whole).items():
        assert torch.equal(found[renamed(key, names)], value), key


@pytest.mark.parametrize("name", ["fsdp1", "fsdp1-local-noted", "fsdp1-views-noted", "fsdp1-inner-noted"])
def test_files_of_ranks_of_fsdp_1(ranks, name):
    names = {"0": "second", "1": "third"}
    found = ported(ranks[2] / name, Chain(short=True), names)
    for key, value in torch.load(ranks[2] / "before.pth", weights_only=True).items():
        assert torch.equal(found[renamed(key, names)], value), key


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.fused, self.back = nn.Linear(8, 16), nn.Linear(8, 8, bias=False)
        self.up, self.down = nn.Linear(8, 24, bias=False), nn.Linear(12, 8, bias=False)


class Gpt(nn.Module):
    """The model of the runs of Megatron, with its fused weights, under other names."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([Layer() for _ in range(2)])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 16, bias=False)


OF_MEGATRON = {
    "embedding.word_embeddings": "words",
    "decoder.layers.{}.input_layernorm": "blocks.{}.norm_1",
    "decoder.layers.{}.pre_mlp_layernorm": "blocks.{}.norm_2",
    "decoder.layers.{}.self_attention.linear_qkv": "blocks.{}.fused",
    "decoder.layers.{}.self_attention.linear_proj": "blocks.{}.back",
    "decoder.layers.{}.mlp.linear_fc1": "blocks.{}.up",
    "decoder.layers.{}.mlp.linear_fc2": "blocks.{}.down",
    "decoder.final_layernorm": "norm",
    "output_layer": "head",
}


@pytest.mark.parametrize("name", ["tp1pp1", "tp2pp1", "tp2pp2"])
def test_runs_of_megatron(trainer_runs, name):
    """What is read of them is held against Megatron's own distributed format in `test_megatron.py`."""
    expected = ckptool.load(trainer_runs / "megatron" / name)
    found = ported(trainer_runs / "megatron" / name, Gpt(), OF_MEGATRON)
    for key, value in expected.items():
        other = re.sub(r"\.(\d)\.", r".{}.", key)
        for old, new in OF_MEGATRON.items():
            other = other.replace(old, new)
        assert torch.equal(found[other.format(*re.findall(r"\.(\d)\.", key))], value), key
    assert len(found) == len(expected)
