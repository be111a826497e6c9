"""Envelopes both ways, as a script meets them."""

import pytest

torch = pytest.importorskip("torch")
from samples import Run

import ckptool
from ckptool.errors import KeyCollision, RuleError


@pytest.fixture
def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


@pytest.mark.parametrize("key", ["state_dict", "model", "net", "a/b"])
def test_wrap_puts_weights_where_a_script_expects_them(run: Run, net, key):
    torch.save(net.state_dict(), "plain.pth")
    ran = run("convert", "plain.pth", "out.pth", "--wrap", key)
    assert ran.code == 0, ran.err
    assert f"wrap: 7 keys under '{key}'" in ran.err
    net.load_state_dict(torch.load("out.pth")[key], strict=True)
    assert run("extract-weights", "out.pth", "back.pth").code == 0
    net.load_state_dict(torch.load("back.pth"), strict=True)


def test_wrap_gives_an_envelope_another_key_and_keeps_what_is_beside(run: Run, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.save({"epoch": 3, "net": net.state_dict(), "optimizer": optimizer.state_dict()}, "last.pth")
    ran = run("convert", "last.pth", "out.pth", "--wrap", "state_dict", "--unwrap", "--if-present")
    assert ran.code == 0, ran.err
    assert "under 'state_dict', and no longer 'net'" in ran.err
    loaded = torch.load("out.pth")
    assert list(loaded) == ["epoch", "state_dict", "optimizer"]
    net.load_state_dict(loaded["state_dict"], strict=True)
    optimizer.load_state_dict(loaded["optimizer"])


def test_numbers_between_the_weights_are_beside_them_in_an_envelope(run: Run, net):
    torch.save({**net.state_dict(), "epoch": 7}, "mixed.pth")
    assert run("convert", "mixed.pth", "out.pth", "--wrap", "model").code == 0
    loaded = torch.load("out.pth")
    assert loaded["epoch"] == 7
    net.load_state_dict(loaded["model"], strict=True)


def test_a_recipe_has_wrap_at_any_place(run: Run, net):
    torch.save({f"module.{key}": value for key, value in net.state_dict().items()}, "dp.pth")
    with open("r.yaml", "w") as file:
        file.write("ckptool: 1\npasses:\n- wrap: model\n- unwrap\n- cast: bf16\n")
    ran = run("convert", "dp.pth", "out.pth", "--recipe", "r.yaml")
    assert ran.code == 0, ran.err
    loaded = torch.load("out.pth")["model"]
    net.load_state_dict(loaded, strict=True)
    assert loaded["0.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("out", ["out.safetensors", "folder/"])
def test_a_flat_format_refuses_an_envelope(run: Run, net, out):
    torch.save(net.state_dict(), "plain.pth")
    more = ["--max-shard-size", "1MB"] if out == "folder/" else []
    ran = run("convert", "plain.pth", out, "--wrap", "model", *more)
    assert ran.code == 2
    assert "holds one flat set of tensors, and no key around them" in ran.err


def test_what_stands_under_the_key_is_not_replaced(net):
    ckpt = ckptool.from_torch({"net": net.state_dict(), "model": "resnet"})
    with pytest.raises(KeyCollision, match="something else stands under 'model'"):
        ckptool.wrap(ckpt, "model")
    with pytest.raises(RuleError, match="is a name of training state"):
        ckptool.wrap(ckpt, "optimizer")
    with pytest.raises(RuleError, match="the weights stand deeper, at a/b"):
        ckptool.wrap(ckptool.from_torch({"a": {"b": net.state_dict()}}), "model")


def test_a_plain_dict_is_wrapped_as_one(net):
    assert list(ckptool.wrap(net.state_dict(), "model")) == ["model"]


@pytest.mark.parametrize("option", [["--extract"], ["--drop", "epoch"], ["--allow-loss"]])
def test_one_tensor_and_a_number_convert(run: Run, option):
    torch.save({"w": torch.arange(3.0), "epoch": 7, "arch": "x"}, "one.pth")
    ran = run("convert", "one.pth", "out.safetensors", *option, *(["--drop", "arch"] if "--drop" in option else []))
    assert ran.code == 0, ran.err
    from safetensors.torch import load_file

    assert torch.equal(load_file("out.safetensors")["w"], torch.arange(3.0))


def test_extract_leaves_a_number_at_the_root_behind(run: Run, net):
    torch.save({**net.state_dict(), "epoch": 7, "optimizer": {"state": {}, "param_groups": []}}, "mixed.pth")
    ran = run("extract-weights", "mixed.pth", "out.pth")
    assert ran.code == 0, ran.err
    assert "extract: 7 keys kept; left behind: epoch, optimizer" in ran.err
    net.load_state_dict(torch.load("out.pth"), strict=True)
