"""The networks: their names, sizes and first weights; and that each of them learns."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from ckptool.train import Config, run
from ckptool.train.models import VGG, ConvNet, HousingNet, LeNet, initialise

#: torchvision 0.21: vgg11, vgg13, vgg16, vgg19, then each with _bn.
PARAMETERS = {
    (11, False): 132_863_336,
    (13, False): 133_047_848,
    (16, False): 138_357_544,
    (19, False): 143_667_240,
    (11, True): 132_868_840,
    (13, True): 133_053_736,
    (16, True): 138_365_992,
    (19, True): 143_678_248,
}

#: The convolutions of torchvision's vgg19: number in `features`, input and output channels.
VGG19 = """0:3:64 2:64:64 5:64:128 7:128:128 10:128:256 12:256:256 14:256:256 16:256:256 19:256:512 21:512:512
    23:512:512 25:512:512 28:512:512 30:512:512 32:512:512 34:512:512"""
#: Those of vgg19_bn; each is followed by its norm.
VGG19_BN = """0:3:64 3:64:64 7:64:128 10:128:128 14:128:256 17:256:256 20:256:256 23:256:256 27:256:512 30:512:512
    33:512:512 36:512:512 40:512:512 43:512:512 46:512:512 49:512:512"""
CLASSIFIER = {"0": (4096, 25088), "3": (4096, 4096), "6": (1000, 4096)}


def real_vgg(depth, batch_norm):
    with torch.device("meta"):
        return VGG(depth, 1.0, batch_norm=batch_norm)


@pytest.mark.parametrize(("depth", "batch_norm"), PARAMETERS)
def test_a_vgg_of_full_width_has_the_parameters_of_torchvision(depth, batch_norm):
    assert sum(p.numel() for p in real_vgg(depth, batch_norm).parameters()) == PARAMETERS[depth, batch_norm]


def test_the_real_vgg19_has_torchvisions_keys_and_shapes_and_548_megabytes():
    shapes = {}
    for layer in VGG19.split():
        number, inputs, outputs = map(int, layer.split(":"))
        shapes[f"features.{number}.weight"] = (outputs, inputs, 3, 3)
        shapes[f"features.{number}.bias"] = (outputs,)
    for number, shape in CLASSIFIER.items():
        shapes[f"classifier.{number}.weight"] = shape
        shapes[f"classifier.{number}.bias"] = shape[:1]
    state = real_vgg(19, False).state_dict()
    assert {key: tuple(value.shape) for key, value in state.items()} == shapes
    assert list(state) == list(shapes)
    assert sum(value.nbytes for value in state.values()) >> 20 == 548


def test_with_batch_norm_it_has_the_keys_of_vgg19_bn():
    keys = []
    for layer in VGG19_BN.split():
        number = int(layer.split(":")[0])
        keys += [f"features.{number}.{name}" for name in ("weight", "bias")]
        norm = "weight bias running_mean running_var num_batches_tracked".split()
        keys += [f"features.{number + 1}.{name}" for name in norm]
    keys += [f"classifier.{number}.{name}" for number in CLASSIFIER for name in ("weight", "bias")]
    assert list(real_vgg(19, True).state_dict()) == keys


def test_a_vgg_of_full_width_begins_as_torchvisions_does():
    torch.manual_seed(0)
    narrow = VGG(11, 0.25, classes=10)
    conv, linear = narrow.features[3].weight, narrow.classifier[3].weight
    assert conv.std().item() == pytest.approx(math.sqrt(2 / (conv.shape[0] * 9)), rel=0.05)
    assert linear.std().item() == pytest.approx(0.01 / math.sqrt(0.25), rel=0.05)
    assert all(p.abs().sum() == 0 for name, p in narrow.named_parameters() if name.endswith("bias"))
    one = nn.Linear(4096, 64)
    nn.init.normal_(one.weight, 0, 0.01)  # torchvision's, whatever the size of the layer
    assert one.weight.std().item() == pytest.approx(0.01 / math.sqrt(1), rel=0.05)


def test_the_housing_net_has_13_16_32_1_units():
    shapes = {key: tuple(value.shape) for key, value in HousingNet().state_dict().items()}
    assert [shape for key, shape in shapes.items() if key.endswith("weight")] == [(16, 13), (32, 16), (1, 32)]


@pytest.mark.parametrize("size", [8, 32, 37])
def test_the_convolutional_net_takes_images_of_any_size(size):
    assert ConvNet(7)(torch.zeros(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize("model", [HousingNet, ConvNet, LeNet, lambda: VGG(11, 0.0625, batch_norm=True, classes=5)])
@pytest.mark.parametrize("scheme", ["xavier", "kaiming", "constant:0.25"])
def test_a_scheme_sets_weights_by_the_type_of_their_module(model, scheme):
    torch.manual_seed(0)
    made = model()
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    initialise(made, scheme)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert not module.bias.any()
        elif isinstance(module, nn.Conv2d | nn.Linear):
            assert not module.bias.any()
            fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(module.weight)
            deviation = module.weight.std().item() if module.weight.numel() > 300 else None
            if scheme == "constant:0.25":
                assert torch.equal(module.weight, torch.full_like(module.weight, 0.25))
            elif scheme == "xavier":
                assert module.weight.abs().max() <= math.sqrt(6 / (fan_in + fan_out))
                if deviation:
                    assert deviation == pytest.approx(math.sqrt(2 / (fan_in + fan_out)), rel=0.2)
            elif deviation:
                assert deviation == pytest.approx(math.sqrt(2 / fan_out), rel=0.2)
    assert any(not torch.equal(before[name], p) for name, p in made.named_parameters())


def test_the_default_scheme_leaves_the_weights_as_they_begin():
    torch.manual_seed(0)
    model = LeNet()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    initialise(model, "default")
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


#: Task -> (options, epochs in which it learns beyond doubt, the part of its first loss that is left after them).
LEARNS = {
    "housing": ({}, 6, 0.3),
    "cnn": ({}, 3, 0.6),
    "lenet": ({}, 6, 0.9),
    "vgg": ({}, 6, 0.8),
    "vgg with batch norm": ({"task": "vgg", "batch_norm": True}, 3, 0.5),
}


@pytest.mark.parametrize("case", LEARNS)
def test_every_task_learns_with_the_options_that_it_has_by_default(tmp_path, case):
    options, epochs, part = LEARNS[case]
    config = Config(**{"task": case, "out": tmp_path, "curves": False, "epochs": epochs, "save_every": 0, **options})
    done = run(config)
    first, last = done.history[0], done.history[-1]
    assert last.loss < part * first.loss
    assert last.test_loss < first.test_loss
    if first.accuracy is not None:
        assert last.accuracy > 0.2  # of ten classes
