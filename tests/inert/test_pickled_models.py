"""Whole pickled models: their state dict is recovered without their class, and is what `state_dict()` gives."""

import pytest

torch = pytest.importorskip("torch")

from test_real_files import assert_same_values, storages_of
from torch import nn
from torch.nn.utils import prune

import ckptool
from ckptool.inert import pickled_models
from ckptool.reports.inspect import describe


class Net(nn.Module):
    """All that a module can hold: nested, shared and empty children, ties, buffers of both kinds, views."""

    def __init__(self):
        super().__init__()
        self.late = None
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.InstanceNorm2d(4, affine=True)
        )
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("cache", torch.zeros(5), persistent=False)
        self.register_buffer("nothing", None)
        self.register_parameter("no_bias", None)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.again = self.features
        self.rnn = nn.LSTM(4, 5, num_layers=2)
        self.heads = nn.ModuleDict({"b": nn.Linear(2, 2), "a": nn.ModuleList([nn.Linear(1, 1)])})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(2))])
        self.marked = nn.Parameter(torch.zeros(2))
        self.marked.sharded = True
        self.plain_buffer = nn.Buffer(torch.ones(2))
        self.gone = None
        self.late = nn.Linear(2, 2)

    def forward(self, x):
        return x


def models():
    weight_norm = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2)), nn.Linear(2, 2))
    pruned = nn.Linear(4, 4)
    prune.l1_unstructured(pruned, "weight", 2)
    return {
        "all that there is": Net(),
        "DataParallel": nn.DataParallel(Net()),
        "compiled": torch.compile(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))),
        "compiled in place": compiled_in_place(),
        "compiled inside": nn.Sequential(torch.compile(nn.Linear(2, 2)), nn.Linear(2, 1)),
        "norms of weights": weight_norm,
        "pruned": pruned,
        "averaged": torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2)),
        "transformer": nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False),
        "traced by fx": torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
        "half": nn.Sequential(nn.Linear(2, 2)).half(),
        "nothing in it but a buffer": nn.BatchNorm1d(3, affine=False),
    }


def compiled_in_place():
    model = nn.Sequential(nn.Linear(2, 2))
    model.compile()
    return model


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
NAMES = """all that there is, DataParallel, compiled, compiled in place, compiled inside, norms of weights, pruned,
averaged, transformer, traced by fx, half, nothing in it but a buffer""".replace("\n", " ").split(", ")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", NAMES)
def test_the_state_dict_is_the_one_that_the_model_gives(tmp_path, name, zipped):
    model = models()[name]
    expected = model.state_dict()
    torch.save(model, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    ckpt = ckptool.open(tmp_path / "x.pt")
    receipt = ckptool.save(ckptool.extract(ckpt), tmp_path / "y.pth", format="torch-zip")
    assert receipt.objects == {}
    back = torch.load(tmp_path / "y.pth", weights_only=True)
    assert_same_values(back, expected)
    assert storages_of(back) == storages_of(expected)
    model.load_state_dict(back, strict=True)


@pytest.mark.parametrize("name", ["all that there is", "DataParallel"])
def test_weights_reach_safetensors_with_their_ties(tmp_path, name):
    model = models()[name]
    torch.save({"model": model, "epoch": 3}, tmp_path / "x.pt")
    ckptool.save(ckptool.extract(ckptool.open(tmp_path / "x.pt")), tmp_path / "y.safetensors")
    back = ckptool.load(tmp_path / "y.safetensors")
    assert_same_values(dict(back), dict(model.state_dict()))
    prefix = "module." if name == "DataParallel" else ""
    assert back[f"{prefix}head.weight"].data_ptr() == back[f"{prefix}embed.weight"].data_ptr()


def test_what_stands_around_a_model_counts_as_content_until_it_is_left_behind(tmp_path):
    torch.save({"model": nn.Linear(2, 2), "epoch": 3}, tmp_path / "x.pt")
    ckpt = ckptool.open(tmp_path / "x.pt")
    with pytest.raises(ckptool.CannotCarry, match=r"(?s)an object of class torch.nn.modules.linear.Linear.*epoch"):
        ckptool.save(ckpt, tmp_path / "y.safetensors")
    with pytest.raises(ckptool.CannotCarry, match="objects that may run code"):
        ckptool.save(ckpt, tmp_path / "y.pth")


def test_keys_inside_a_pickled_model_are_not_renamed_there(tmp_path):
    torch.save({"model": nn.Linear(2, 2)}, tmp_path / "x.pt")
    ckpt = ckptool.open(tmp_path / "x.pt")
    for change in (
        ckptool.strip_prefix,
        ckptool.add_prefix,
        ckptool.unwrap,
        lambda c: ckptool.rename(c, {"weight": "w"}),
        lambda c: ckptool.drop(c, "weight"),
    ):
        with pytest.raises(ckptool.RuleError, match="attributes of a whole pickled model"):
            change(ckpt)
    assert list(ckptool.rename(ckptool.extract(ckpt), {"weight": "w"}).state_dict()) == ["w", "bias"]


def test_where_an_object_cannot_be_written_the_way_to_its_weights_is_named(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "x.pt")
    with pytest.raises(ckptool.CannotCarry) as raised:
        ckptool.save(ckptool.open(tmp_path / "x.pt"), tmp_path / "y.pth")
    assert raised.value.hint.startswith(
        f"ckptool convert {tmp_path}/x.pt {tmp_path}/x-weights.pt --extract   # keeps the"
    )
    with pytest.raises(ckptool.RuleError) as raised:
        ckptool.strip_prefix(ckptool.open(tmp_path / "x.pt"))
    assert raised.value.hint.startswith(f"ckptool extract-weights {tmp_path}/x.pt {tmp_path}/x-weights.safetensors ")


def test_a_module_that_lacks_dicts_of_newer_ones_counts(tmp_path):
    model = nn.Linear(2, 2)
    for name in list(vars(model)):
        if name not in ("_parameters", "training"):
            del vars(model)[name]
    torch.save({"model": model}, tmp_path / "x.pt")
    assert list(ckptool.open(tmp_path / "x.pt").state_dict()) == ["weight", "bias"]


def test_of_several_models_one_has_to_be_named(tmp_path):
    torch.save({"model": nn.Linear(2, 2), "ema": nn.Linear(3, 3), "loss": nn.MSELoss()}, tmp_path / "x.pt")
    ckpt = ckptool.open(tmp_path / "x.pt")
    with pytest.raises(ckptool.Ambiguous, match=r"(?s)2 state dicts.*model .*ema "):
        ckptool.extract(ckpt)
    assert ckptool.extract(ckpt, at="ema").state_dict()["weight"].shape == (3, 3)


class Trainer:
    """A class that holds models among its attributes."""

    def __init__(self):
        self.net, self.steps = nn.Linear(2, 2), 7


def test_models_are_found_among_the_attributes_of_other_objects(tmp_path):
    torch.save(Trainer(), tmp_path / "x.pt")
    ckpt = ckptool.open(tmp_path / "x.pt")
    assert [one.path for one in ckpt.state_dicts()] == ["@state/net"]
    assert list(ckptool.extract(ckpt, at="@state/net").state_dict()) == ["weight", "bias"]


def test_state_dicts_that_are_there_come_before_models(tmp_path):
    torch.save({"state_dict": {"w": torch.ones(1)}, "hyper_parameters": {"loss": nn.Linear(1, 1)}}, tmp_path / "x.pt")
    assert [one.path for one in ckptool.open(tmp_path / "x.pt").state_dicts()] == ["state_dict"]


def test_a_report_shows_a_recovered_state_dict_under_all_its_names(tmp_path):
    torch.save({"model": Net()}, tmp_path / "x.pt")
    seen = describe(ckptool.open(tmp_path / "x.pt"))
    (one,) = seen.state_dicts
    assert (one.path, one.model) == ("model", "test_pickled_models.Net")
    assert [row.key for row in seen.tensors if row.state_dict == "model"] == list(Net().state_dict())
    places = {row.key: row.path for row in seen.tensors if row.key}
    assert places["head.weight"] == "model/@state/_modules/head/@state/_parameters/weight"
    assert ["embed.weight", "head.weight"] in seen.ties
    assert any(command.startswith("ckptool extract-weights ") for command, _ in seen.suggestions)


def test_functions_that_change_a_state_dict_are_named_and_not_run(tmp_path):
    model = nn.Linear(2, 2)
    model._register_state_dict_hook(changing_hook)
    torch.save(model, tmp_path / "x.pt")
    done = ckptool.extract(ckptool.open(tmp_path / "x.pt"))
    assert any("functions that change its state dict" in line for line in done.history)
    assert list(done.state_dict()) == ["weight", "bias"]


def changing_hook(module, state_dict, prefix, local_metadata):
    state_dict.clear()


def test_a_module_that_contains_itself_or_unfolds_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pickled_models, "_MOST_REPEATS", 5_000)
    model = nn.Sequential(nn.Linear(1, 1))
    model._modules["1"] = model
    torch.save(model, tmp_path / "x.pt")
    with pytest.raises(ckptool.Malformed, match="contains itself"):
        ckptool.open(tmp_path / "x.pt").state_dicts()
    model = nn.Sequential(nn.Linear(1, 1))
    for _ in range(40):
        model = nn.Sequential(model, model)
    torch.save(model, tmp_path / "y.pt")
    with pytest.raises(ckptool.CannotCarry, match="hold one another in more than 5,000 ways"):
        ckptool.open(tmp_path / "y.pt").state_dicts()


def statically_quantized():
    """Convolutions, plain, fused and transposed, a linear layer, and an addition, for an engine that is everywhere."""
    torch.backends.quantized.engine = "qnnpack"
    quantization = torch.ao.quantization
    model = nn.Sequential(
        quantization.QuantStub(),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 2, 3, bias=False),
        torch.ao.nn.quantized.FloatFunctional(),
        nn.Flatten(),
        nn.Linear(72, 5),
    )
    model.forward = None
    del model.forward
    model.eval()
    quantization.fuse_modules(model, [["1", "2"]], inplace=True)
    model.qconfig = quantization.get_default_qconfig("qnnpack")
    prepared = quantization.prepare(model)
    value = prepared[0](torch.randn(1, 3, 6, 6))
    value = prepared[3](prepared[2](prepared[1](value)))
    prepared[6](prepared[5](prepared[4].add(value, value)))
    return quantization.convert(prepared)


def quantized_embedding():
    model = nn.Sequential(nn.EmbeddingBag(10, 12))
    model.qconfig = torch.ao.quantization.float_qparams_weight_only_qconfig
    return torch.ao.quantization.convert(torch.ao.quantization.prepare(model.eval()))


def dynamically_quantized(cell=False):
    torch.backends.quantized.engine = "qnnpack"
    layers = [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2, bias=False))] + [nn.GRUCell(4, 4), nn.LSTM(4, 4)] * cell
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(*layers), {nn.Linear, nn.GRUCell, nn.LSTM})


QUANTIZED = {
    "statically": statically_quantized,
    "embedding": quantized_embedding,
    "dynamically": dynamically_quantized,
    "convolution alone": lambda: statically_quantized()[1],
}


def assert_same(one, other):
    assert type(one) is type(other) or isinstance(one, torch.Tensor)
    if isinstance(one, tuple):
        assert len(one) == len(other)
        for ours, theirs in zip(one, other, strict=True):
            assert_same(ours, theirs)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_modules_give_the_state_dict_that_torch_gives(tmp_path, name):
    torch.manual_seed(0)
    model = QUANTIZED[name]()
    expected = model.state_dict()
    torch.save(model, tmp_path / "x.pt")
    ckptool.save(ckptool.extract(ckptool.open(tmp_path / "x.pt")), tmp_path / "y.pth")
    back = torch.load(tmp_path / "y.pth", weights_only=True)
    assert list(back) == list(expected)
    assert back._metadata == expected._metadata
    for key, value in expected.items():
        assert_same(back[key], value)
    other = QUANTIZED[name]()
    other.load_state_dict(back, strict=True)
    again = ckptool.open(tmp_path / "y.pth").state_dict()
    assert list(again) == list(expected)


def test_packed_cells_are_carried_as_objects_on_request(tmp_path):
    """torch's own state dict holds objects of its C++ code for them."""
    model = dynamically_quantized(cell=True)
    torch.save(model, tmp_path / "x.pt")
    done = ckptool.extract(ckptool.open(tmp_path / "x.pt"))
    assert list(done.state_dict()) == list(model.state_dict())
    with pytest.raises(ckptool.CannotCarry, match=r"torch\.ScriptObject \(\d+\)"):
        ckptool.save(done, tmp_path / "y.pth")
    ckptool.save(done, tmp_path / "y.pth", keep_objects=True)
    back = torch.load(tmp_path / "y.pth", weights_only=False)
    assert back._metadata == model.state_dict()._metadata
    other = dynamically_quantized(cell=True)
    other.load_state_dict(back, strict=True)
    value = torch.randn(3, 4)
    assert torch.equal(other[2](value), model[2](value))


class InItsOwnWay(nn.Module):
    """A module that is pickled as something else than its attributes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def __getstate__(self):
        return (self.__dict__.copy(),)

    def __setstate__(self, state):
        self.__dict__.update(state[0])


class RebuiltByCode(nn.Module):
    def __init__(self, weight=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2) if weight is None else weight)

    def __reduce__(self):
        return RebuiltByCode, (self.weight.detach(),)


@pytest.mark.parametrize("part", [InItsOwnWay, RebuiltByCode])
def test_parts_of_a_model_that_cannot_be_looked_into_are_content_that_would_be_lost(tmp_path, part):
    torch.save(nn.Sequential(nn.Linear(2, 2), nn.Sequential(part())), tmp_path / "x.pt")
    ckpt = ckptool.extract(ckptool.open(tmp_path / "x.pt"))
    for target in ("y.pth", "y.safetensors"):
        with pytest.raises(
            ckptool.CannotCarry, match=rf"the weights of 1\.0, an object of class test_pickled_models\.{part.__name__}"
        ):
            ckptool.save(ckpt, tmp_path / target)
        assert not (tmp_path / target).exists()
    ckptool.save(ckpt, tmp_path / "y.pth", allow_loss=True)
    assert list(torch.load(tmp_path / "y.pth")) == ["0.weight", "0.bias"]
    assert any("1.0, an object" in line for line in describe(ckptool.open(tmp_path / "x.pt")).warnings)
    assert any(
        "1.0, an object" in line and "left out" in line
        for line in ckptool.clean(ckptool.open(tmp_path / "x.pt")).history
    )


class WithTensorsAside(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.anchors, self.grids = nn.LSTM(2, 2), torch.ones(3), [torch.zeros(1)]


def test_tensors_that_no_state_dict_holds_and_classes_of_others_are_named(tmp_path):
    torch.save(WithTensorsAside(), tmp_path / "x.pt")
    lines = ckptool.extract(ckptool.open(tmp_path / "x.pt")).history
    assert [line for line in lines if "attributes" in line] == [
        "note: no state dict holds these tensors among the model's attributes: anchors, grids"
    ]
    assert any("by code, that is not in it: test_pickled_models.WithTensorsAside" in line for line in lines)
    torch.save(nn.LSTM(2, 2), tmp_path / "y.pt")
    assert not any("note" in line for line in ckptool.extract(ckptool.open(tmp_path / "y.pt")).history)


def test_models_that_were_compiled_again_and_again_are_refused_in_one_line(tmp_path):
    made = b"ctorch._dynamo.eval_frame\nOptimizedModule\n" * 1500
    inner = b"ctorch.nn\nLinear\n)\x81}(X\x0b\x00\x00\x00_parametersK\x01X\x08\x00\x00\x00_modules}ub"
    (tmp_path / "x.pkl").write_bytes(b"\x80\x02" + made + inner + b"\x85R" * 1500 + b".")
    ckpt = ckptool.open(tmp_path / "x.pkl", format="pickle")
    with pytest.raises(ckptool.CheckpointError):
        ckpt.state_dict("")
    with pytest.raises(ckptool.NotFound):
        ckpt.state_dict()
