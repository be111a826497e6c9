"""What a layer makes of sizes is what torch makes of them, and a copy without values is a deepcopy."""

import copy
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from ckptool.model_code.hollow import shape_only, without_memory
from ckptool.model_code.trace import signature_of


def zeros(*shape):
    return torch.zeros(()).expand(shape)


@given(st.data(), st.integers(1, 3))
def test_a_convolution_of_zeros_has_the_shape_that_torch_gives_it(data, dims):
    def numbers(low, high):
        return st.one_of(
            st.integers(low, high),
            st.tuples(st.integers(low, high)),
            st.lists(st.integers(low, high), min_size=dims, max_size=dims),
        )

    x = zeros(2, 3, *data.draw(st.lists(st.integers(1, 12), min_size=dims, max_size=dims)))
    weight = zeros(5, 3, *data.draw(st.lists(st.integers(1, 4), min_size=dims, max_size=dims)))
    options = data.draw(st.tuples(numbers(1, 3), st.one_of(numbers(0, 3), st.just("valid")), numbers(1, 3)))
    args = (x, weight, None, *options[: data.draw(st.integers(0, 3))])
    name = f"conv{dims}d"
    found = shape_only(name, args, {})
    try:
        expected = getattr(torch.nn.functional, name)(*args)
    except RuntimeError:
        assert found is None  # it is torch that refuses it
        return
    assert found is None if "valid" in args[4:5] else found.shape == expected.shape


def test_a_convolution_of_zeros_is_not_computed():
    made = shape_only("conv2d", (zeros(1, 4096, 8000, 8000), zeros(4096, 4096, 3, 3), None, 2, 1), {})
    assert made.shape == (1, 4096, 4000, 4000)
    assert made.stride() == (0, 0, 0, 0)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="newer torch")
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.sampled_from(["cpu", "meta"]))
def test_rows_by_one_of_several_matrices_have_the_shape_that_torch_gives_them(sizes, device):
    offsets = torch.tensor(sizes).cumsum(0).to(torch.int32)
    x, stack = torch.zeros(sum(sizes), 8), torch.zeros(len(sizes), 8, 16)
    expected = torch.nn.functional.grouped_mm(x, stack, offs=offsets)
    hollow = stack.to(device) if device == "meta" else zeros(*stack.shape)
    assert shape_only("grouped_mm", (x.to(device), hollow), {"offs": offsets}).shape == expected.shape


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@given(st.data(), st.sampled_from(["cpu", "meta"]))
def test_a_recurrent_layer_of_zeros_gives_what_torch_gives(data, device):
    kind = data.draw(st.sampled_from(["RNN", "GRU", "LSTM"]))
    flags = {name: data.draw(st.booleans()) for name in ("bias", "batch_first", "bidirectional")}
    more = {"proj_size": data.draw(st.integers(0, 2))} if kind == "LSTM" else {}
    layer = getattr(torch.nn, kind)(3, 4, data.draw(st.integers(1, 2)), **flags, **more)
    x = torch.zeros(data.draw(st.sampled_from([(2, 5, 3), (5, 3)])))
    if packed := x.ndim == 3 and data.draw(st.booleans()):
        lengths = torch.full((x.shape[0 if flags["batch_first"] else 1],), 2)
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, flags["batch_first"])
    expected = [t.shape for t in leaves_of(layer(x))]
    (hollow,) = [one for one in without_memory(layer) if next(one.parameters()).device.type == device]
    with Answered() as answered:
        given = hollow(x.to(device) if packed or device == "meta" else zeros(*x.shape))
    assert [t.shape for t in leaves_of(given)] == expected
    assert answered.known == [True]


@pytest.mark.parametrize(
    "wrong", [{"input": (7, 2, 5)}, {"state": (1, 3, 4)}, {"state": (2, 2, 4)}, {"state": (1, 2, 9)}]
)
def test_a_recurrent_layer_refuses_sizes_as_torch_does(wrong):
    shapes = {"input": (7, 2, 3), "state": (1, 2, 4)} | wrong
    weights = [zeros(12, 3), zeros(12, 4)]
    args = (zeros(*shapes["input"]), zeros(*shapes["state"]), weights, False, 1, 0.0, False, False, False)
    assert shape_only("gru", args, {}) is None
    with pytest.raises(RuntimeError):
        torch.gru(*args)


class Answered(torch.overrides.TorchFunctionMode):
    """Takes what `shape_only` gives, and notes for each recurrent layer whether it gave anything."""

    def __init__(self):
        super().__init__()
        self.known = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = shape_only(func.__name__, args, kwargs or {})
        if func.__name__ in ("rnn_tanh", "gru", "lstm"):
            self.known.append(found is not None)
        return func(*args, **(kwargs or {})) if found is None else found


def leaves_of(value):
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return [value.data]
    return [value] if isinstance(value, torch.Tensor) else [leaf for one in value for leaf in leaves_of(one)]


def test_a_model_without_values_is_followed_in_one_thread():
    threads = set()

    class Watching(torch.nn.Linear):
        def forward(self, x):
            threads.add(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert signature_of(Watching(3, 2)).traced
        assert (threads, torch.get_num_threads()) == ({1}, 3)
    finally:
        torch.set_num_threads(before)


class Own(torch.nn.Module):
    """A module that is copied by its own code."""

    def __init__(self):
        super().__init__()
        self.layer, self.copies = torch.nn.Linear(3, 3), 0

    def __deepcopy__(self, memo):
        made = Own()
        made.layer, made.copies = copy.deepcopy(self.layer, memo), self.copies + 1
        return made


class Stated(torch.nn.Module):
    """A module that leaves something out of its state, and has a place outside of its dict."""

    __slots__ = ("outside",)

    def __init__(self):
        super().__init__()
        self.handle, self.outside, self.weight = open, [1], torch.nn.Parameter(torch.ones(2))

    def __getstate__(self):
        return {key: value for key, value in super().__getstate__().items() if key != "handle"}, {"outside": [2]}

    def __setstate__(self, state):
        super().__setstate__(state[0])
        self.handle, self.outside = None, state[1]["outside"]


class Counting(torch.nn.Module):
    """A module that looks at its parts when its state is set."""

    def __init__(self):
        super().__init__()
        self.layer, self.count = torch.nn.Linear(3, 3), 0

    def __setstate__(self, state):
        super().__setstate__(state)
        self.count = len(list(self.layer.parameters()))


class Everything(torch.nn.Module):
    """A model of modules that refer to each other in every way, and that holds what is no module."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTM(3, 3)
        self.attention = torch.nn.MultiheadAttention(4, 2)
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3), Own(), Stated(), Counting()])
        self.again = self.blocks[0]
        self.blocks[0].weight = self.blocks[1].layer.weight
        self.outside = [torch.nn.Linear(3, 2), {"of": self.blocks[0]}]
        self.cache = self.blocks[0].cache = {}
        self.steps = self.again.steps = OrderedDict()
        self.settings = {"sizes": [1, 2], "more": {"a": {1}}}
        self.register_buffer("places", torch.arange(4), persistent=False)
        self.hook = self.register_forward_hook(self.seen)

    def seen(self, *_):
        self.settings["more"]["seen"] = True

    def forward(self, x):
        return self.again(x)


def _shape(value, found):
    """Return VALUE with the objects in it as their classes, and as numbers where they are met again."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return value
    if id(value) in found:
        return found[id(value)][0]
    found[id(value)] = len(found), value  # which keeps what was made for the moment, and its id
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.shape
    if isinstance(value, dict):
        return type(value), [(_shape(key, found), _shape(item, found)) for key, item in value.items()]
    if isinstance(value, list | tuple | set):
        return type(value), [_shape(item, found) for item in value]
    if isinstance(value, torch.nn.Module):
        outside = getattr(value, "outside", None)
        return type(value).__qualname__, _shape(vars(value), found), _shape(outside, found)
    if hasattr(value, "__self__"):
        return value.__func__, _shape(value.__self__, found)
    return type(value)


def test_a_copy_without_values_has_the_parts_of_a_deepcopy_and_their_ties():
    model = Everything()
    expected = _shape(copy.deepcopy(model), {})
    assert [_shape(hollow, {}) for hollow in without_memory(model)] == [expected, expected]


def test_what_a_copy_without_values_does_is_not_seen_in_the_model():
    model = Everything()
    hollow = next(without_memory(model))
    hollow(torch.zeros(2, 3))
    hollow.cache["a"] = hollow.steps["b"] = 1
    assert (hollow.settings["more"], hollow.again.cache) == ({"a": {1}, "seen": True}, {"a": 1})
    assert (model.settings["more"], model.cache, model.steps) == ({"a": {1}}, {}, OrderedDict())


def test_copies_without_values_share_no_memory_with_the_model():
    model = Everything()
    zeros, on_meta = without_memory(model)
    assert not any(any(tensor.stride()) for tensor in zeros.parameters())
    assert all(tensor.is_meta for tensor in on_meta.parameters())
    for hollow in (zeros, on_meta):
        assert not {id(t) for t in model.state_dict(keep_vars=True).values()} & {id(t) for t in hollow.parameters()}


class Residual(torch.nn.Module):
    """Adds to what a convolution gives, in place, and puts a row into it."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.Conv2d(3, 2, 1)

    def forward(self, x):
        out = self.conv(x)
        out += x
        out[:, 0] = 0
        return self.out(out.mul_(2).clamp_(min=0))


def test_what_code_changes_in_place_may_share_one_element():
    assert signature_of(Residual(), inputs=(torch.zeros(2, 3, 8, 8),)).traced


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_that_a_hook_computes_is_copied_without_values():
    """torch cannot copy a tensor that has a history."""
    layer = torch.nn.utils.weight_norm(torch.nn.Conv1d(3, 4, 3))
    copied = next(without_memory(torch.nn.Sequential(layer)))
    assert not any(copied[0].weight_v.stride())
    told = signature_of(torch.nn.Sequential(layer, torch.nn.Conv1d(4, 2, 1)))
    assert told.traced
    assert told.entries["0.weight_v"].used is not None


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_norm_of_vectors_that_were_a_map_is_followed(device):
    """Which channels stand side by side is looked for on the CPU, in vectors as well."""

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.out = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)

        def forward(self, x):
            x = torch.nn.functional.adaptive_avg_pool2d(self.conv(x), 1)
            return self.out(self.norm(x.view(x.shape[0], -1)))

    assert signature_of(Pooled().to(device)).traced


def test_real_zeros_that_share_memory_become_complex_ones():
    """Code of Llama by its authors views queries as complex numbers, which torch refuses for them."""
    made = shape_only("view_as_complex", (zeros(2, 4, 3, 2),), {})
    assert (made.shape, made.dtype, made.stride()) == ((2, 4, 3), torch.complex64, (0, 0, 0))
    assert shape_only("view_as_complex", (torch.zeros(3, 2),), {}) is None
    assert shape_only("view_as_complex", (zeros(2, 3),), {}) is None
