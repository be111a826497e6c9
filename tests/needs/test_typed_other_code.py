"""Needs about weights for other code: heads, sizes, layouts, and proofs that a port is right."""

import pickle
from collections import OrderedDict
from pathlib import Path

import numpy
import pytest
import torch
from typing_user import NET_PY, Net, error_of, loads, net, same

CHAIN = """from torch import nn


class VGG(nn.Module):
    def __init__(self, classes=7):
        super().__init__()
        self.{a} = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                                 nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.{b} = nn.Sequential({c})

    def forward(self, x):
        return self.{b}(self.{a}(x).flatten(1))
"""


def module_of(code, name="Net", **options):
    """The class NAME of a file of the user's, built."""
    space = {"__name__": "user_code"}
    exec(compile(code, "user_code.py", "exec"), space)
    return space[name](**options).eval()


@pytest.fixture
def code(user):
    Path("net.py").write_text(NET_PY)
    return user


def test_05_a_head_of_another_size_is_left_to_the_model(code):
    model = net(classes=1000)
    torch.save(model.state_dict(), "head.pth")
    error = error_of(loads, "head.pth")
    assert "size mismatch for fc.weight" in str(error)
    out = code.cures("head.pth", "net.py", error=error)
    loaded = loads(out).state_dict()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in loaded.items() if "fc" not in key)
    out = code.cures("head.pth", error=error)  # without the code
    missing = Net().load_state_dict(torch.load(out), strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (["fc.weight", "fc.bias"], [])


def test_15_weights_go_into_code_with_other_names(user):
    linear = "nn.Linear(64, 12), nn.ReLU(), nn.Dropout(), nn.Linear(12, classes)"
    theirs = module_of(CHAIN.format(a="features", b="classifier", c=f"nn.Dropout(), {linear}"), "VGG")
    torch.save(theirs.state_dict(), "vgg.pth")
    Path("mine.py").write_text(CHAIN.format(a="body", b="head", c=linear))
    user.types("ckptool transfer vgg.pth mine.py -o mine.pth")
    mine = module_of(Path("mine.py").read_text(), "VGG")
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(loads("mine.pth", mine)(x), theirs(x))
    out = user.cures("vgg.pth", "mine.py")
    assert torch.equal(loads(out, mine)(x), theirs(x))


POSITIONS = """import torch
from torch import nn


class ViT(nn.Module):
    def __init__(self, side={side}):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 8, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, side * side + 1, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(x[:, 0])
"""


def test_25_positions_are_brought_to_another_grid(user):
    theirs = module_of(POSITIONS.format(side=6), "ViT")
    torch.nn.init.normal_(theirs.pos_embed)
    torch.save(theirs.state_dict(), "vit.pth")
    Path("vit.py").write_text(POSITIONS.format(side=4))
    mine = module_of(POSITIONS.format(side=4), "ViT")
    error = error_of(loads, "vit.pth", mine)
    loads(user.cures("vit.pth", "vit.py", error=error), mine)
    old, new = theirs.pos_embed.detach(), mine.pos_embed.detach()
    assert torch.equal(new[:, 0], old[:, 0])
    grid = old[:, 1:].reshape(1, 6, 6, 8).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.interpolate(grid, (4, 4), mode="bicubic", antialias=True, align_corners=False)
    torch.testing.assert_close(new[:, 1:], wanted.permute(0, 2, 3, 1).reshape(1, 16, 8), rtol=1e-4, atol=1e-5)


WORDS = """from torch import nn


class LM(nn.Module):
    def __init__(self, words={words}):
        super().__init__()
        self.embed_tokens = nn.Embedding(words, 6)
        self.layer = nn.Linear(6, 6)
        self.lm_head = nn.Linear(6, words, bias=False)

    def forward(self, x):
        return self.lm_head(self.layer(self.embed_tokens(x)))
"""


def test_26_a_vocabulary_gets_more_words(user):
    theirs = module_of(WORDS.format(words=32), "LM")
    torch.save(theirs.state_dict(), "lm.pth")
    Path("lm.py").write_text(WORDS.format(words=35))
    mine = module_of(WORDS.format(words=35), "LM")
    error = error_of(loads, "lm.pth", mine)
    loads(user.cures("lm.pth", "lm.py", error=error), mine)
    assert torch.equal(mine.embed_tokens.weight[:32], theirs.embed_tokens.weight)
    torch.testing.assert_close(mine.embed_tokens.weight[32], theirs.embed_tokens.weight.mean(0))


KERAS = """from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dense = nn.Linear(4, 6)

    def forward(self, x):
        return self.dense(self.norm(self.conv(x)).mean((2, 3)))
"""


def test_27_arrays_of_keras_become_weights_of_torch(user):
    rng = numpy.random.default_rng(0)
    arrays = {
        "conv2d/kernel": rng.normal(size=(3, 3, 3, 4)), "conv2d/bias": rng.normal(size=4),
        "batch_normalization/gamma": rng.normal(size=4), "batch_normalization/beta": rng.normal(size=4),
        "batch_normalization/moving_mean": rng.normal(size=4), "batch_normalization/moving_variance": rng.random(4),
        "dense/kernel": rng.normal(size=(4, 6)), "dense/bias": rng.normal(size=6),
    }  # fmt: skip
    arrays = {key: value.astype("float32") for key, value in arrays.items()}
    numpy.savez("keras.npz", **arrays)
    Path("keras.pkl").write_bytes(pickle.dumps(arrays))
    Path("small.py").write_text(KERAS)
    user.types("ckptool transfer keras.npz small.py -o small.pth")
    user.types("ckptool transfer keras.pkl small.py -o pickled.pth")
    assert same(torch.load("pickled.pth"), torch.load("small.pth"))
    user.types("ckptool transfer keras.pkl small.py --save-mapping map.yaml -n")
    user.types("ckptool transfer keras.pkl small.py --mapping map.yaml -o again.pth")
    assert same(torch.load("again.pth"), torch.load("small.pth"))
    model = loads("small.pth", module_of(KERAS, "Small"))
    kernel = torch.as_tensor(arrays["conv2d/kernel"], dtype=torch.float32).permute(3, 2, 0, 1)
    assert torch.equal(model.conv.weight, kernel)
    assert torch.equal(model.dense.weight, torch.as_tensor(arrays["dense/kernel"], dtype=torch.float32).t())
    assert torch.equal(model.norm.running_var, torch.as_tensor(arrays["batch_normalization/moving_variance"]).float())


def test_28_a_port_is_proved_and_a_wrong_one_is_caught(user):
    Path("theirs.py").write_text(KERAS)
    Path("mine.py").write_text(KERAS.replace("self.conv", "self.stem").replace("self.dense", "self.head"))
    model = module_of(KERAS, "Small")
    torch.save(model.state_dict(), "theirs.pth")
    proved = "ckptool transfer theirs.pth mine.py --prove --source-model theirs.py --input 'float32[2,3,8,8]' -o"
    user.types(f"{proved} mine.pth")
    mine = Path("mine.py").read_text()
    for eps in ("1e-3", "1e-2"):  # Keras has 1e-3 where torch has 1e-5
        Path("mine.py").write_text(mine.replace("BatchNorm2d(4)", f"BatchNorm2d(4, eps={eps})"))
        seen = user.asks(f"{proved} wrong.pth", says=f"the model has eps {float(eps)} at norm; with that changed")
        assert "the source has eps 1e-05" in " ".join(seen.text.split())
        assert not Path("wrong.pth").exists()


def test_35_queries_keys_and_values_are_joined_and_split(user):
    split = WORDS.format(words=9).replace(
        "self.layer = nn.Linear(6, 6)",
        "self.q_proj, self.k_proj, self.v_proj = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)",
    )
    split = split.replace(
        "return self.lm_head(self.layer(self.embed_tokens(x)))",
        "x = self.embed_tokens(x)\n        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)\n"
        "        return self.lm_head(nn.functional.scaled_dot_product_attention(q, k, v))",
    )
    fused = split.replace(
        "self.q_proj, self.k_proj, self.v_proj = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)",
        "self.qkv = nn.Linear(6, 18)",
    ).replace("self.q_proj(x), self.k_proj(x), self.v_proj(x)", "self.qkv(x).chunk(3, -1)")
    Path("split.py").write_text(split)
    Path("fused.py").write_text(fused)
    theirs = module_of(split, "LM")
    torch.save(theirs.state_dict(), "split.pth")
    user.types("ckptool transfer split.pth fused.py -o fused.pth")
    user.types("ckptool transfer fused.pth split.py -o back.pth")
    x = torch.arange(9)[None]
    torch.testing.assert_close(loads("fused.pth", module_of(fused, "LM"))(x), theirs(x))
    assert same(torch.load("back.pth"), theirs.state_dict())


def filled(weight, channels, rule):
    """The kernel of a first layer of CHANNELS inputs, by the words of docs/transfer.md."""
    if rule == "repeat":
        return torch.cat([weight] * channels, 1)[:, :channels] * 3 / channels
    if rule == "sum":
        return weight.sum(1, keepdim=True)
    if rule == "first":
        return weight[:, :channels]
    if rule == "mean":
        return torch.cat([weight.mean(1, keepdim=True)] * channels, 1) * 3 / channels
    return torch.cat([weight, *[torch.zeros_like(weight[:, :1])] * (channels - 3)], 1)


@pytest.mark.parametrize(
    ("channels", "rule"),
    [(4, "repeat"), (4, "zeros"), (4, "mean"), (1, "sum"), (6, "repeat"), (5, "repeat"), (2, "first")],
)
def test_44_a_first_layer_gets_another_number_of_channels(code, channels, rule):
    model = net()
    torch.save(model.state_dict(), "rgb.pth")
    Path("other.py").write_text(NET_PY.replace("channels=3", f"channels={channels}"))
    code.types(f"ckptool transfer rgb.pth other.py -o made.pth --input-channels {rule}")
    made = loads("made.pth", Net(channels=channels)).state_dict()
    kernel = made.pop("conv1.weight")
    torch.testing.assert_close(kernel, filled(model.conv1.weight, channels, rule))
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in made.items())


def test_44_a_rule_that_does_not_lead_there_names_one_that_does(code):
    torch.save(net().state_dict(), "rgb.pth")
    Path("other.py").write_text(NET_PY.replace("channels=3", "channels=1"))
    seen = code.tries("ckptool transfer rgb.pth other.py -o made.pth --input-channels repeat")
    assert seen.code == 2
    assert "does not lead from 3 input channels to 1" in seen.text
    loads(code.takes_the_hint(seen), Net(channels=1))


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_44_doctor_offers_a_rule_to_who_does_not_know_the_option(code, channels):
    model = net()
    torch.save(model.state_dict(), "rgb.pth")
    Path("other.py").write_text(NET_PY.replace("channels=3", f"channels={channels}"))
    mine = Net(channels=channels)
    error = error_of(loads, "rgb.pth", mine)
    loads(code.cures("rgb.pth", "other.py", error=error), mine)
    rule = "repeat" if channels > 3 else "sum"
    torch.testing.assert_close(mine.conv1.weight, filled(model.conv1.weight, channels, rule))


def test_52_a_table_of_names_takes_weights_there_and_back(user):
    Path("their_unet.py").write_text(NET_PY)
    theirs = net().state_dict()
    table = {"conv1": "input_blocks.0.0", "bn1": "input_blocks.0.1", "mlp_module.{}": "middle.ff.{}", "fc": "out"}
    Path("table.txt").write_text("".join(f"{new}={old}\n" for old, new in table.items()))
    Path("back.txt").write_text("".join(f"{old}={new}\n" for old, new in table.items()))
    torch.save(theirs, "diffusers.pth")
    user.types("ckptool rename diffusers.pth sd.pth --rules back.txt")
    assert "input_blocks.0.0.weight" in torch.load("sd.pth")
    user.types("ckptool rename sd.pth again.pth --rules table.txt")
    assert same(torch.load("again.pth"), theirs)
    user.types("ckptool transfer sd.pth their_unet.py -o ported.pth")
    assert same(loads("ported.pth").state_dict(), OrderedDict(theirs))


def test_52_a_mapping_that_ships_needs_no_code_and_leads_back(user):
    torch.manual_seed(0)
    width, words = 8, 11
    layer = "bert.encoder.layer.0"
    old = OrderedDict({"bert.embeddings.word_embeddings.weight": torch.rand(words, width)})
    for norm in ("bert.embeddings", f"{layer}.attention.output", f"{layer}.output"):
        old[f"{norm}.LayerNorm.gamma"], old[f"{norm}.LayerNorm.beta"] = torch.rand(width), torch.rand(width)
    old[f"{layer}.attention.self.query.weight"] = torch.rand(width, width)
    torch.save(old, "pytorch_model.bin")
    assert "bert-old-to-new" in user.types("ckptool mappings").text
    user.types("ckptool transfer pytorch_model.bin --mapping bert-old-to-new -o new.pth")
    new = torch.load("new.pth")
    assert {key.replace("gamma", "weight").replace("beta", "bias") for key in old} == set(new)
    assert torch.equal(new[f"{layer}.output.LayerNorm.weight"], old[f"{layer}.output.LayerNorm.gamma"])
    user.types("ckptool transfer new.pth --mapping bert-old-to-new --invert -o old.pth")
    back = torch.load("old.pth")
    assert back.keys() == old.keys()
    assert all(torch.equal(back[key], value) for key, value in old.items())
