"""Inputs of a model, found by running it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from ckptool.errors import RuleError
from ckptool.model_code.input_search import Budget, find_inputs, working_inputs
from ckptool.model_code.inputs import (
    Fields,
    InputSpec,
    guess_inputs,
    inputs_text,
    leaves,
    made,
    nested,
    parse_inputs,
    read_inputs,
)
from ckptool.model_code.trace import signature_of

F = nn.functional


class Maps(nn.Module):
    """A head over feature maps of several sizes, one layer each."""

    def __init__(self, widths: tuple[int, ...] = (6, 10, 14)) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(n, 4, 1) for n in widths])


class MapsApart(Maps):
    def forward(self, *maps: Any) -> Any:
        return [layer(x) for layer, x in zip(self.layers, maps, strict=True)]


class MapsInAList(Maps):
    def forward(self, maps: Any) -> Any:
        return [layer(maps[n]) for n, layer in enumerate(self.layers)]


class ABatch(nn.Module):
    """What training code hands over: a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv, self.out = nn.Embedding(31, 8), nn.Conv2d(1, 8, 3), nn.Linear(8, 2)

    def forward(self, batch: Any) -> Any:
        return self.out(self.conv(batch["image"]).mean((2, 3)) + self.words(batch["tokens"]).mean(1))


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(7, 5)

    def forward(self, x: Any, adj: Any) -> Any:
        return adj @ self.lin(x)


class OptionalNeeded(nn.Module):
    """Everything has a default, and some of it is needed all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.label = nn.Conv2d(4, 8, 3), nn.Embedding(11, 8)

    def forward(self, sample: Any, step: Any = None, class_labels: Any = None, return_dict: bool = True) -> Any:
        return self.image(sample) + self.label(class_labels)[:, :, None, None] * step.float()[:, None, None, None]


class Film(nn.Module):
    """Takes five dimensions, and only its own number of frames."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.places = nn.Conv2d(3, 6, 4, 4), nn.Parameter(torch.zeros(5, 6))

    def forward(self, clip: Any) -> Any:
        n, c, t, h, w = clip.shape
        x = self.conv(clip.transpose(1, 2).reshape(n * t, c, h, w)).mean((2, 3)).view(n, t, 6)
        return x + self.places


class OneRow(nn.Module):
    """A text reader: the height of a picture has to become 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return F.max_pool2d(F.max_pool2d(self.conv(x), 2), 2).squeeze(2).permute(2, 0, 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(9, 5, batch_first=True)

    def forward(self, x: Any, hidden: Any) -> Any:
        return self.rnn(x, hidden)[0]


class Mel(nn.Module):
    """Spectra of a fixed length only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.places = nn.Conv1d(20, 8, 3, stride=2, padding=1), nn.Parameter(torch.zeros(50, 8))

    def forward(self, input_features: Any) -> Any:
        if input_features.shape[-1] != 100:
            raise ValueError(
                f"expects the mel input features to be of length 100, but found {input_features.shape[-1]}"
            )
        return self.conv(input_features).transpose(1, 2) + self.places


class Conditioned(nn.Module):
    """Takes a sequence, another one and a vector to condition it on, the time, a number, and where its places lie."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.vector, self.strength = nn.Linear(32, 6), nn.Linear(14, 6), nn.Linear(1, 6)
        self.own, self.other, self.norm = nn.Linear(10, 6), nn.Linear(18, 6), nn.LayerNorm(6)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor = None,
        pooled_projections: torch.Tensor = None,
        timestep: torch.LongTensor = None,
        img_ids: torch.Tensor = None,
        guidance: torch.Tensor = None,
        return_dict: bool = True,
    ) -> Any:
        assert timestep.ndim == 1, "Timesteps should be a 1d-array"
        waves = timestep[:, None] * torch.ones(32)
        condition = self.time(waves) + self.vector(pooled_projections) + self.strength(guidance[:, None])
        x = torch.cat([self.other(encoder_hidden_states), self.own(hidden_states)], dim=1)
        angles = [img_ids[:, axis].outer(torch.ones(2)) for axis in range(4)]
        assert len(img_ids) == hidden_states.shape[1]
        return self.norm(x) * condition[:, None] + torch.cat(angles, -1).sum()


class Noisy(nn.Module):
    """Calls its level of noise a label, without a table of labels."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.time = nn.Conv2d(3, 8, 3), nn.Linear(6, 8)

    def forward(self, x: Any, labels: Any) -> Any:
        assert labels.ndim == 1
        waves = labels[:, None].float() * torch.arange(1.0, 7.0)
        return self.image(x) + self.time(waves)[:, :, None, None]


@pytest.mark.parametrize(
    "model",
    [Conditioned, Noisy, MapsApart, MapsInAList, ABatch, Graph, OptionalNeeded, Film, OneRow, Recurrent, Mel],
    ids=lambda kind: kind.__name__,
)
def test_inputs_are_found_that_use_every_weight(model: Any) -> None:
    own = model().eval()
    found = next(find_inputs(own), None)
    assert found is not None
    given = made(found, generator=torch.Generator().manual_seed(0))
    for p in own.parameters():
        p.requires_grad_(True)
    out = own(**given) if isinstance(given, dict) else own(*given)
    total = sum(t.float().sum() for t in (out if isinstance(out, list) else [out]))
    total.backward()
    assert all(p.grad is not None for p in own.parameters())


def test_the_inputs_that_are_asked_for_come_first() -> None:
    own = Maps((3,))
    own.forward = lambda x: own.layers[0](x)  # type: ignore[method-assign]
    like = parse_inputs(["float32[1,3,5,9]"])
    assert str(next(working_inputs(own, like=[like]))[0]) == "float32[1,3,5,9]"


class Pyramid(nn.Module):
    """A decoder: maps of rising size, each joined with what was grown from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in ((32, 16), (40, 12), (28, 8), (16, 6)))

    def forward(self, a: Any, b: Any, c: Any, d: Any) -> Any:
        x = d
        for layer, skip in zip(self.layers, (c, b, a), strict=False):
            x = torch.cat([nn.functional.interpolate(layer(x), scale_factor=2), skip], 1)
        return self.layers[-1](x)


class Subsampled(nn.Module):
    """Two convolutions of stride 2 over time and frequency: only one width gives the wanted features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 6, 3, 2), nn.Conv2d(6, 6, 3, 2))
        self.proj = nn.Linear(6 * 4, 5)

    def forward(self, x: Any) -> Any:
        return self.proj(self.conv(x.unsqueeze(1)).permute(0, 2, 1, 3).flatten(2))


class Warped(nn.Module):
    """Two pictures of one channel each, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, moving: Any, fixed: Any) -> Any:
        return self.conv(torch.cat([moving, fixed], 1)).sum(1, keepdim=True) * moving


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(5, 10, 24))

    def forward(self, x: Any) -> Any:
        return torch.einsum("bic,coi->boc", x, self.weight)


class PutIn(nn.Module):
    """A table of ratings, put into the middle of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = nn.Parameter(torch.rand(18, 4))

    def forward(self, r: Any) -> Any:
        whole = torch.zeros(18, 18)
        whole[:7, 7:] = r
        return whole @ self.nodes


class Checked(nn.Module):
    """Code that says in a sentence of its own what it wants."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        if x.shape[1] != 24:
            raise ValueError(f"Input sequence length ({x.shape[1]}) doesn't match model configuration (24).")
        if x.shape[2] != 3:
            raise ValueError(
                f"The defined number of input channels (3) has to be that of the batch input ({x.shape[2]})"
            )
        return self.proj(x)


class Context(nn.Module):
    """Attention over a sequence that a bare name gives no shape to."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3, padding=1)
        self.k, self.v = nn.Linear(20, 8), nn.Linear(20, 8)

    def forward(self, x: Any, context: Any) -> Any:
        q = self.stem(x).flatten(2).mT
        b, n, _ = q.shape
        k, v = (f(context).reshape(b, -1, 2, 4).transpose(1, 2) for f in (self.k, self.v))
        q = q.reshape(b, n, 2, 4).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Tables(nn.Module):
    """A table for each column of an input, found by the number of the column."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({f"embed_{i}": nn.Embedding(9, 3) for i in range(7)})
        self.out = nn.Linear(7 * 3 + 6, 1)

    def forward(self, dense: Any, sparse: Any) -> Any:
        looked_up = [self.tables[f"embed_{i}"](sparse[:, i]) for i in range(sparse.shape[1])]
        return self.out(torch.cat([*looked_up, dense], -1))


class TablesInAList(Tables):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(self.tables.values())

    def forward(self, dense: Any, sparse: Any) -> Any:
        looked_up = [self.tables[i](sparse[:, i]) for i in range(sparse.shape[1])]
        return self.out(torch.cat([*looked_up, dense], -1))


class Placed(nn.Module):
    """Adds to features what says where they are, which has as many channels as they get."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.layer = nn.Conv2d(20, 24, 1), nn.Linear(24, 24)

    def forward(self, feats: Any, pos: Any) -> Any:
        x, pos = (t.flatten(2).permute(2, 0, 1) for t in (self.project(feats), pos))
        return self.layer(x + pos)


class Shuffled(nn.Module):
    """Takes the places that the smallest of some numbers have."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.out = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 8)
        self.places = nn.Parameter(torch.zeros(1, 16, 8))

    def forward(self, pictures: Any, noise: Any) -> Any:
        x = self.patches(pictures).flatten(2).mT + self.places
        kept = torch.argsort(noise, dim=1)[:, : x.shape[1] // 2]
        return self.out(torch.gather(x, 1, kept.unsqueeze(-1).repeat(1, 1, x.shape[2])))


class Labelled(nn.Module):
    """A picture with a number for each label beside its channels, all over."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(6, 3, 1)

    def forward(self, img: Any, attr: Any) -> Any:
        everywhere = attr[:, :, None, None].expand(-1, -1, *img.shape[2:])
        return self.out(self.stem(torch.cat([img, everywhere], 1)).relu())


class Towers(nn.Module):
    """One number for each thing, and some for what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.things, self.inside = nn.Embedding(100, 6), nn.EmbeddingBag(12, 6)
        self.out = nn.Linear(12, 4)

    def forward(self, thing: Any, inside: Any) -> Any:
        return self.out(torch.cat([self.things(thing), self.inside(inside)], 1))


class Shifted(nn.Module):
    """Frames of a video, four after another in the first dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        clips = self.stem(x).unflatten(0, (-1, 4))
        return self.out(clips.roll(1, 1).mean((1, 3, 4)))


class CrossAttends(nn.Module):
    """Takes what it is given itself where there is no context, of which the weights have other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.q, self.kv = nn.Conv2d(4, 16, 3, padding=1), nn.Linear(16, 16), nn.Linear(24, 32)

    def forward(self, x: Any, context: Any = None) -> Any:
        x = self.stem(x).flatten(2).mT
        k, v = self.kv(x if context is None else context).chunk(2, -1)
        return (self.q(x) @ k.mT).softmax(-1) @ v


class Decides(nn.Module):
    """A state, an action and a return for each step in time, put one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.action, self.gain = nn.Linear(11, 16), nn.Linear(3, 16), nn.Linear(1, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, states: Any, actions: Any, returns: Any) -> Any:
        every = torch.stack([self.gain(returns), self.state(states), self.action(actions)], 1)
        b, _, *_, width = every.shape
        every = every.permute(0, 2, 1, 3).reshape(b, -1, width) if every.ndim == 4 else every.reshape(b, -1)
        return self.head(self.norm(every))


class TextFirst(nn.Module):
    """A text of one length, and then a picture of one size, whose places have a token beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Parameter(torch.rand(8, 16))
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 4), nn.Conv2d(16, 16, 2, 2))
        self.spots = nn.Parameter(torch.rand(5, 16))

    def forward(self, image: Any, text: Any) -> Any:
        said = (self.words(text) + self.places).mean(1)
        x = self.stem(image).flatten(2).mT
        return (torch.cat([x.mean(1, keepdim=True), x], 1) + self.spots).mean(1), said


_SIZED = [Pyramid, Subsampled, Warped, Einsum, PutIn, Checked, Context, Tables, TablesInAList, Placed, Shuffled]
_SIZED += [Labelled, Towers, Shifted, CrossAttends, Decides, TextFirst]


@pytest.mark.parametrize("kind", _SIZED)
def test_what_stops_a_try_and_what_other_tries_gave_there_lead_to_the_sizes(kind: Any) -> None:
    model = kind()
    found = next(find_inputs(model), None)
    assert found is not None
    with torch.no_grad():
        model(*made(found)) if isinstance(found, list) else model(**made(found))


def test_a_vocabulary_is_used_up() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(300, 4)

        def forward(self, thing: Any) -> Any:
            return self.table(thing)

    found = next(find_inputs(Words()))
    assert [one.high for _, one in leaves(found)] == [300]


def test_each_turn_of_a_search_tries_something_as_long_as_anything_is_left() -> None:
    class Never(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.conv, self.words = nn.Linear(7, 13), nn.Conv2d(13, 5, 3), nn.Embedding(10, 5)
            self.tries = 0

        def forward(self, x: Any, y: Any, z: Any) -> Any:
            self.tries += 1
            if x.shape[1] != 31:
                raise ValueError("no")
            return self.conv(self.line(x)) + self.words(y) * z

    model = Never()
    assert next(find_inputs(model, patience=200.0), None) is None
    assert model.tries == 2 * 160


def test_a_model_that_takes_nothing_we_can_make_has_no_inputs() -> None:
    class Odd(nn.Module):
        def forward(self, thing: Any) -> Any:
            raise RuntimeError("not today")

    assert next(find_inputs(Odd(), patience=2.0), None) is None


@pytest.mark.parametrize(
    "text", ["float32[1 2]", "float32[" + "9" * 5000 + "]", "int64[2]<" + "9" * 5000, ".".join("a" * 60) + "=int64[2]"]
)
def test_a_text_that_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(RuleError):
        parse_inputs([text])


def test_an_index_is_a_number_of_plain_digits() -> None:
    assert list(nested({"a.²": 1, "a.1": 2})["a"]) == ["²", "1"]


def test_names_with_dots_are_lists_and_dicts() -> None:
    texts = ["maps.0=float32[1,2]", "maps.1=float32[3,4]", "batch.image=float32[5]", "x=int64[2]<9"]
    parsed = parse_inputs(texts)
    assert isinstance(parsed, dict)
    assert isinstance(parsed["maps"], list)
    assert isinstance(parsed["batch"], Fields)
    assert inputs_text(parsed) == " ".join(texts)
    assert made(parsed)["batch"].image.shape == (5,)


def test_one_name_cannot_be_an_input_and_hold_inputs() -> None:
    with pytest.raises(RuleError, match="inside of another input"):
        nested({"a": 1, "a.b": 2})
    with pytest.raises(RuleError, match="inside of 'a'"):
        nested({"a.b": 2, "a": 1})


def test_a_single_input_is_not_taken_apart() -> None:
    tensor = torch.zeros(2, 3)
    assert read_inputs(tensor)[0] is tensor
    spec = InputSpec("float32", (2, 3))
    assert read_inputs(spec) == read_inputs("float32[2,3]") == [spec]


def test_an_input_has_one_name() -> None:
    assert read_inputs({"x": "float32[2,3]"}) == {"x": InputSpec("float32", (2, 3))}
    with pytest.raises(RuleError, match="second name"):
        read_inputs({"x": "y=float32[2,3]"})


def test_a_picture_that_is_too_small_for_what_is_flattened_grows_in_both_directions() -> None:
    class Flattening(nn.Module):
        """As in VGG: 7 x 7 places are flattened; no layer of the model says how often maps are halved."""

        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(n, 12, 3, padding=1) for n in (3, 12, 12)])
            self.fc = nn.Linear(12 * 49, 5)

        def forward(self, x: Any) -> Any:
            for conv in self.convs:
                x = F.max_pool2d(conv(x).relu(), 2)
            return self.fc(x.flatten(1))

    small = [InputSpec("float32", (2, 3, 8, 8))]  # of which a pooling layer of the other code makes 7 x 7 places
    assert next(working_inputs(Flattening(), like=[small])) == [InputSpec("float32", (2, 3, 56, 56))]


def test_code_that_compares_each_with_each_is_not_tried_on_thousands() -> None:
    sizes = []

    class Pairs(nn.Module):
        """Graph attention: every node with every other, and only a number of nodes that we do not hit upon."""

        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(7, 5)

        def forward(self, x: Any, adj: Any) -> Any:
            h = self.lin(x).flatten(0, -2)
            sizes.append(len(h))
            e = h[:, None] + h[None, :]
            return e.sum(-1) * adj.view(997, 997)

    next(find_inputs(Pairs(), patience=4.0), None)
    assert max(sizes) <= 4096


@pytest.mark.parametrize(
    ("name", "shapes", "much"),
    [
        ("cdist", ((2, 9000, 3), (2, 9000, 3)), True),
        ("cdist", ((2, 900, 3), (2, 900, 3)), False),
        ("matmul", ((8, 5000, 4), (4, 5000)), True),
        ("matmul", ((8, 50, 4), (4, 50)), False),
        ("__getitem__", ((1000, 224), (400, 400)), True),
        ("__getitem__", ((1000, 2), (400, 40)), False),
    ],
)
def test_what_would_make_too_much_of_its_inputs_is_refused_before_it_is_done(
    name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], much: bool
) -> None:
    kind = torch.int64 if name == "__getitem__" else torch.float32
    args = torch.zeros(()).expand(shapes[0]), torch.zeros((), dtype=kind).expand(shapes[1])
    with pytest.raises(MemoryError) if much else contextlib.nullcontext():
        Budget().before(name, args)


def test_all_that_a_try_keeps_is_counted_once_and_has_a_limit() -> None:
    budget, part = Budget(), torch.empty(1 << 25)
    for _ in range(100):
        budget.after([part.view(2, -1), part[:7]])
    others = [torch.empty(1 << 25) for _ in range(15)]
    budget.after(others)
    with pytest.raises(MemoryError):
        budget.after([torch.empty(1 << 25)])


def test_results_without_memory_of_their_own_are_not_counted() -> None:
    budget = Budget()
    budget.after([torch.eye(3).to_sparse()])
    torch.vmap(lambda x: (budget.after([x * 2]), x)[1])(torch.ones(4, 2))


class OneOfEach(nn.Module):
    """A user and an item at a time, not texts of either."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 12), nn.Embedding(56, 12)
        self.user_biases, self.item_biases = nn.Embedding(40, 1), nn.Embedding(56, 1)

    def forward(self, user: Any, item: Any) -> Any:
        found = self.user_biases(user) + self.item_biases(item)
        found += (self.users(user) * self.items(item)).sum(dim=1, keepdim=True)
        return found.squeeze()


def test_ids_may_be_one_of_each_and_no_texts() -> None:
    found = next(find_inputs(OneOfEach()))
    assert inputs_text(found) == "int64[2]<40 int64[2]<56"


class TwoStreams(nn.Module):
    """A picture and a text as sequences, each beside the coordinates of its places, as Flux takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.img_in, self.txt_in, self.places, self.out = (nn.Linear(n, 16) for n in (8, 20, 3, 16))

    def forward(self, img, img_ids, txt, txt_ids):
        x = torch.cat([self.txt_in(txt), self.img_in(img)], 1)
        return self.out(x + self.places(torch.cat([txt_ids, img_ids])))[:, txt.shape[1] :, ...]


def test_what_has_coordinates_beside_it_is_a_sequence() -> None:
    guessed = next(guess_inputs(TwoStreams()))
    assert [one.shape for one in guessed] == [(2, 12, 8), (12, 3), (2, 12, 8), (12, 3)]
    signature = signature_of(TwoStreams())
    assert signature.traced
    assert all(entry.used is not None for entry in signature.entries.values())
