"""Maps that are flattened before a linear layer, in one dimension, two or three, with channels first or last."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.model_code.building import signature_for

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SIZES = {1: (6,), 2: (4, 3), 3: (2, 3, 5)}


class Torch(nn.Module):
    """A convolution whose map is flattened with channels first."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.conv = CONVOLUTIONS[dims](3, 8, 1)
        self.pool = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}[dims](1)
        self.head = nn.Linear(8 * prod(SIZES[dims]), 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.pool(self.conv(x).relu()).flatten(1))


class Keras(nn.Module):
    """The same with channels last, as matrices: nothing here is a convolution."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.register_parameter("conv/kernel:0", nn.Parameter(torch.randn(*[1] * dims, 3, 8)))
        self.register_parameter("conv/bias:0", nn.Parameter(torch.randn(8)))
        self.register_parameter("dense/kernel:0", nn.Parameter(torch.randn(8 * prod(SIZES[dims]), 5)))
        self.register_parameter("dense/bias:0", nn.Parameter(torch.randn(5)))

    def forward(self, x: Any) -> Any:
        weights = dict(self.named_parameters())
        x = x.movedim(1, -1) @ weights["conv/kernel:0"].reshape(3, 8) + weights["conv/bias:0"]
        return x.relu().flatten(1, -2).flatten(1) @ weights["dense/kernel:0"] + weights["dense/bias:0"]


@pytest.mark.parametrize("dims", SIZES)
def test_a_file_with_channels_last_is_reordered_with_a_question(dims: int) -> None:
    torch.manual_seed(0)
    source, model = Keras(dims), Torch(dims)
    inputs = [torch.randn(2, 3, *SIZES[dims])]
    mapping = ckptool.transfer(source.state_dict(), model, inputs=inputs)
    assert mapping["head.weight"].status == "guessed"
    ckptool.load_into(model, source.state_dict(), mapping=mapping, accept_guesses=True)
    torch.testing.assert_close(model(*inputs), source(*inputs))


def test_a_question_that_code_does_not_answer_stays() -> None:
    """As many channels as places: the sizes that both codes flatten do not tell which is which."""
    sizes, SIZES[1] = SIZES[1], (8,)
    try:
        source, model = Keras(1), Torch(1)
        inputs = [torch.randn(2, 3, 8)]
        mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    finally:
        SIZES[1] = sizes
    assert mapping["head.weight"].status == "guessed"


def test_code_that_flattens_two_dimensions_answers_the_question() -> None:
    source, model = Keras(1), Torch(1)
    inputs = [torch.randn(2, 3, *SIZES[1])]
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    assert mapping["head.weight"].status == "mapped"


@pytest.mark.parametrize("dims", SIZES)
def test_a_proof_finds_the_order_of_flattened_maps(dims: int) -> None:
    torch.manual_seed(0)
    source, model = Keras(dims), Torch(dims)
    inputs = [torch.randn(2, 3, *SIZES[dims])]
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]


def test_a_sequence_that_a_linear_layer_has_mixed_is_no_map() -> None:
    class Mixed(Torch):
        def __init__(self) -> None:
            super().__init__(1)
            self.mix = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.head(self.mix(self.conv(x).transpose(1, 2)).transpose(1, 2).flatten(1))

    entries = signature_for(Mixed(), inputs=[torch.randn(2, 3, 6)]).entries
    assert entries["head.weight"].facts.flattened is None
    entries = signature_for(Torch(1), inputs=[torch.randn(2, 3, 6)]).entries
    assert entries["head.weight"].facts.flattened == ("nchw", 8, 1, 6)


class Tokens(nn.Module):
    """A head over tokens and their channels, flattened as they are or the other way round, as two codes of PatchTST."""

    def __init__(self, *names: str, turned: bool) -> None:
        super().__init__()
        self.names, self.turned = names, turned
        self.add_module(names[0], nn.Linear(4, 8))
        self.add_module(names[1], nn.Linear(8 * 6, 5))

    def forward(self, x: Any) -> Any:
        embed, head = (getattr(self, name) for name in self.names)
        x = embed(x).relu()
        return head((x.transpose(1, 2) if self.turned else x).flatten(1))


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_of_two_flattened_dimensions_is_a_question_that_code_answers(turned: bool) -> None:
    torch.manual_seed(0)
    source, model = Tokens("W_P", "linear", turned=turned), Tokens("embedding", "projection", turned=False)
    inputs = [torch.randn(2, 6, 4)]
    alone = ckptool.transfer(source.state_dict(), model, inputs=inputs)["projection.weight"]
    assert (alone.status, str(alone.expr), len(alone.rivals)) == ("guessed", "linear.weight", 1)
    known = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    assert known.is_sure
    ckptool.load_into(model, source.state_dict(), mapping=known)
    torch.testing.assert_close(model(*inputs), source(*inputs))


def test_fields_of_a_table_and_the_same_code_are_no_question() -> None:
    class Fields(nn.Module):
        def __init__(self, table: str, head: str) -> None:
            super().__init__()
            self.names = (table, head)
            self.add_module(table, nn.Embedding(20, 8))
            self.add_module(head, nn.Linear(8 * 6, 5))

        def forward(self, at: Any) -> Any:
            table, head = (getattr(self, name) for name in self.names)
            return head(table(at).flatten(1))

    source, model = Fields("emb", "fc"), Fields("fields", "mlp")
    assert ckptool.transfer(source.state_dict(), model, inputs=[torch.zeros(2, 6, dtype=torch.long)]).is_sure
    same = Tokens("W_P", "linear", turned=True)
    assert ckptool.transfer(same.state_dict(), Tokens("W_P", "linear", turned=False), inputs=["float32[2,6,4]"]).is_sure


class TorchDecoder(nn.Module):
    """Rows that become maps with channels first, or last and turned then, behind a norm of all their numbers."""

    def __init__(self, dims: int, *, last: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 8 * prod(SIZES[dims]))
        self.norm = nn.BatchNorm1d(8 * prod(SIZES[dims]))
        self.conv = CONVOLUTIONS[dims](8, 3, 1)
        self.sizes, self.last = SIZES[dims], last

    def forward(self, x: Any) -> Any:
        x = self.norm(self.fc(x)).relu()
        x = x.reshape(-1, *self.sizes, 8).movedim(-1, 1) if self.last else x.view(-1, 8, *self.sizes)
        return self.conv(nn.functional.interpolate(x, scale_factor=2))


class KerasDecoder(nn.Module):
    """The same with channels last, under names of Keras. PLAIN: as a matrix, not as a convolution."""

    def __init__(self, dims: int, *, plain: bool = False) -> None:
        super().__init__()
        self.dims, self.plain, count = dims, plain, 8 * prod(SIZES[dims])
        for name, sizes in {
            "dense/kernel:0": (5, count),
            "dense/bias:0": (count,),
            "batch_normalization/gamma:0": (count,),
            "batch_normalization/beta:0": (count,),
            "conv/kernel:0": (*[1] * dims, 8, 3),
            "conv/bias:0": (3,),
        }.items():
            self.register_parameter(name, nn.Parameter(torch.randn(sizes)))
        self.register_buffer("batch_normalization/moving_mean:0", torch.randn(count))
        self.register_buffer("batch_normalization/moving_variance:0", torch.rand(count) + 1)

    def forward(self, x: Any) -> Any:
        kernel, bias, scale, shift, weight, last, mean, variance = self.state_dict(keep_vars=True).values()
        x = nn.functional.batch_norm(x @ kernel + bias, mean, variance, scale, shift)
        x = x.relu().reshape(-1, *SIZES[self.dims], 8).movedim(-1, 1)
        x = nn.functional.interpolate(x, scale_factor=2)
        if self.plain:
            return (x.movedim(1, -1) @ weight.reshape(8, 3) + last).movedim(-1, 1)
        weight = weight.movedim((-1, -2), (0, 1))
        return [nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d][self.dims - 1](x, weight, last)


@pytest.mark.parametrize("dims", SIZES)
def test_rows_that_become_maps_are_reordered_for_a_file_with_channels_last(dims: int) -> None:
    torch.manual_seed(0)
    source, model = KerasDecoder(dims).eval(), TorchDecoder(dims).eval()
    inputs = [torch.randn(2, 5)]
    mapping = ckptool.transfer(source.state_dict(), model, inputs=inputs)
    rows = {"fc.weight", "fc.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"}
    assert {entry.target for entry in mapping.having("guessed")} == rows
    ckptool.load_into(model, source.state_dict(), mapping=mapping, accept_guesses=True)
    torch.testing.assert_close(model(*inputs), source(*inputs))


@pytest.mark.parametrize("dims", SIZES)
def test_the_code_of_the_source_shows_how_rows_become_maps(dims: int) -> None:
    torch.manual_seed(0)
    source, model = KerasDecoder(dims).eval(), TorchDecoder(dims).eval()
    inputs = [torch.randn(2, 5)]
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    assert mapping.is_sure
    ckptool.load_into(model, source.state_dict(), mapping=mapping)
    torch.testing.assert_close(model(*inputs), source(*inputs))


@pytest.mark.parametrize("dims", SIZES)
def test_a_proof_finds_how_rows_become_maps(dims: int) -> None:
    torch.manual_seed(0)
    source, model = KerasDecoder(dims, plain=True).eval(), TorchDecoder(dims).eval()
    inputs = [torch.randn(2, 5)]
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]


@pytest.mark.parametrize("dims", SIZES)
def test_rows_that_become_maps_with_channels_last_in_the_model_stay(dims: int) -> None:
    mapping = ckptool.transfer(KerasDecoder(dims).state_dict(), TorchDecoder(dims, last=True), inputs=["float32[2,5]"])
    assert mapping.is_sure


def test_rows_of_another_torch_model_with_channels_first_stay() -> None:
    other = {f"decoder.{key}": value for key, value in TorchDecoder(2).state_dict().items()}
    assert ckptool.transfer(other, TorchDecoder(2), inputs=["float32[2,5]"]).is_sure


def test_rows_that_become_one_channel_or_tokens_are_no_maps() -> None:
    class Others(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.place, self.tokens = nn.Linear(5, 12), nn.Linear(5, 8), nn.Linear(5, 24)
            self.conv, self.point, self.mix = nn.Conv2d(1, 3, 1), nn.Conv2d(8, 3, 1), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            map, point = self.one(x).view(-1, 1, 3, 4), self.place(x).view(-1, 8, 1, 1)
            return self.conv(map), self.point(point), self.mix(self.tokens(x).view(-1, 3, 8))

    entries = signature_for(Others(), inputs=[torch.randn(2, 5)]).entries
    assert not any(entry.facts.unflattened for entry in entries.values())
    entries = signature_for(TorchDecoder(2, last=True), inputs=[torch.randn(2, 5)]).entries
    assert entries["norm.bias"].facts.unflattened == ("nhwc", 8, 4, 3)


def test_rows_are_reordered_for_any_order_of_the_dimensions() -> None:
    class Columns(TorchDecoder):
        def forward(self, x: Any) -> Any:
            x = self.norm(self.fc(x)).relu().reshape(-1, *self.sizes[::-1], 8).permute(0, 3, 2, 1)
            return self.conv(nn.functional.interpolate(x, scale_factor=2))

    source, model = KerasDecoder(2).eval(), Columns(2).eval()
    inputs = [torch.randn(2, 5)]
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    assert mapping.is_sure
    ckptool.load_into(model, source.state_dict(), mapping=mapping)
    torch.testing.assert_close(model(*inputs), source(*inputs))
    plain = {f"decoder.{key}": value for key, value in TorchDecoder(2).state_dict().items()}
    kept = ckptool.transfer(plain, model, inputs=inputs)["fc.bias"]
    assert (kept.status, str(kept.expr)) == ("guessed", "decoder.fc.bias")


class Shared(nn.Module):
    """Rows that become maps, and more that has their order: a layer and a table whose rows are added, a vector that
    multiplies them, and a layer that takes them as they are. LAST: maps with channels last.
    """

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last
        self.fc, self.cond, self.kinds = nn.Linear(5, 96), nn.Linear(4, 96, bias=False), nn.Embedding(3, 96)
        self.norm, self.gain, self.shift = nn.LayerNorm(96), nn.Parameter(torch.randn(96)), nn.Embedding(2, 96)
        self.conv, self.side = nn.Conv2d(8, 3, 3), nn.Linear(96, 7)

    def forward(self, x: Any, y: Any) -> Any:
        x = self.norm(self.cond(y) - self.fc(x) + self.kinds.weight[:2]) * self.gain
        x = (x + self.shift(torch.arange(2))).relu()
        maps = x.view(-1, 3, 4, 8).permute(0, 3, 1, 2) if self.last else x.view(-1, 8, 3, 4)
        return self.conv(maps), self.side(x)


def keras_weights(model: Shared) -> dict[str, torch.Tensor]:
    """The weights of MODEL as Keras has them."""
    weights = {
        **{f"{name}/kernel": getattr(model, name).weight.T for name in ("fc", "cond", "side")},
        **{f"{name}/bias": getattr(model, name).bias for name in ("fc", "side", "conv")},
        **{f"{name}/embeddings": getattr(model, name).weight for name in ("kinds", "shift")},
        "conv/kernel": model.conv.weight.permute(2, 3, 1, 0),
        "norm/gamma": model.norm.weight,
        "norm/beta": model.norm.bias,
        "gain": model.gain,
    }
    return {key: value.detach() for key, value in weights.items()}


@pytest.mark.parametrize("code", [True, False])
def test_all_that_has_the_order_of_rows_that_become_maps_is_reordered_with_them(code: bool) -> None:
    torch.manual_seed(0)
    source, model = Shared(last=True), Shared(last=False)
    torch.nn.init.normal_(source.norm.weight)
    inputs = [torch.randn(2, 5), torch.randn(2, 4)]
    weights = source.state_dict() if code else keras_weights(source)
    mapping = ckptool.transfer(weights, model, source_model=source if code else None, inputs=inputs, prove=False)
    asked = {entry.target for entry in mapping.having("guessed")}
    assert asked == (set() if code else {*model.state_dict()} - {"conv.weight", "conv.bias", "side.bias"})
    ckptool.load_into(model, weights, mapping=mapping, accept_guesses=True)
    torch.testing.assert_close(model(*inputs), source(*inputs))


class Heads(nn.Module):
    """Two layers whose rows become maps of one size, each with channels last if it is in LAST."""

    def __init__(self, *names: str, last: str = "") -> None:
        super().__init__()
        self.names, self.last = names, last
        for name in names:
            self.add_module(f"fc_{name}", nn.Linear(5, 96))
            self.add_module(f"conv_{name}", nn.Conv2d(8, 3 + names.index(name), 3))

    def forward(self, x: Any) -> Any:
        found = []
        for name in self.names:
            rows = getattr(self, f"fc_{name}")(x)
            maps = rows.view(-1, 3, 4, 8).permute(0, 3, 1, 2) if name in self.last else rows.view(-1, 8, 3, 4)
            found.append(getattr(self, f"conv_{name}")(maps))
        return found


@pytest.mark.parametrize("last", ["a", "b"])
def test_each_of_two_layers_has_the_order_of_its_own_maps(last: str) -> None:
    source, model = Heads("a", "b", last=last), Heads("image", "mask")
    inputs = [torch.randn(2, 5)]
    mapping = ckptool.transfer(source.state_dict(), model, source_model=source, inputs=inputs, prove=False)
    assert mapping.is_sure
    ckptool.load_into(model, source.state_dict(), mapping=mapping)
    torch.testing.assert_close(model(*inputs), source(*inputs))
