"""Needs about values: types, sharing, averages, and what safetensors cannot say."""

from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.utils.prune
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from typing_user import NET_PY, Net, error_of, loads, net, on_device, same


class Tied(torch.nn.Module):
    """A small language model whose head is its embedding."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 4)
        self.lm_head = torch.nn.Linear(4, 11, bias=False)
        self.lm_head.weight = self.embed.weight


def test_11_tied_weights_go_to_safetensors_and_back(user):
    model = Tied()
    torch.save(model.state_dict(), "tied.pth")
    error = error_of(save_file, model.state_dict(), "no.safetensors")
    assert "Some tensors share memory" in str(error)
    both = load_file(user.cures("tied.pth", error=error))
    assert torch.equal(both["lm_head.weight"], both["embed.weight"])
    assert error_of(load_model, Tied(), "tied-fixed.safetensors")
    user.types("ckptool convert tied.pth once.safetensors --ties drop")
    fresh = Tied()
    load_model(fresh, "once.safetensors")
    assert torch.equal(fresh.embed.weight, model.embed.weight)
    user.types("ckptool convert once.safetensors back.pth")
    back = torch.load("back.pth")
    assert same(loads("back.pth", Tied()).state_dict(), model.state_dict())
    assert back["lm_head.weight"].data_ptr() == back["embed.weight"].data_ptr()
    save_model(model, "theirs.safetensors")
    user.types("ckptool convert theirs.safetensors theirs.pth")
    assert set(torch.load("theirs.pth")) == set(model.state_dict())


def test_14_a_training_checkpoint_shrinks_to_its_weights(user):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    ema = {key: value.clone() for key, value in model.state_dict().items()}
    torch.save({"model": model.state_dict(), "model_ema": ema, "optimizer": optimizer.state_dict()}, "big.pth")
    assert "optimizer" in user.types("ckptool inspect big.pth").text
    user.types("ckptool slim big.pth slim.pth --weights raw")
    assert same(loads("slim.pth").state_dict(), model.state_dict())
    assert Path("slim.pth").stat().st_size < Path("big.pth").stat().st_size / 2


def test_29_views_of_large_tensors_do_not_take_their_space(user):
    whole = torch.rand(1_000_000)
    torch.save({"a": whole[:10], "b": whole[5:20]}, "view.pth")
    seen = user.types("ckptool doctor view.pth")
    assert "views of larger ones were saved" in " ".join(seen.text.split())
    user.types("ckptool convert view.pth small.pth --compact")
    assert Path("small.pth").stat().st_size < 4000
    small = torch.load("small.pth")
    assert torch.equal(small["b"], whole[5:20])
    assert small["b"].data_ptr() == small["a"].data_ptr() + 20


def test_32_averaged_weights_are_told_from_raw_ones(user):
    raw, ema = net(), Net()
    torch.save({"state_dict": ema.state_dict(), "ema_state_dict": {
        **{f"module.{key}": value for key, value in raw.state_dict().items()}, "steps": torch.tensor(9)},
        "meta": {"mmengine_version": "0.10"}, "message_hub": {}}, "mm.pth")  # fmt: skip
    user.types("ckptool slim mm.pth raw.pth --weights raw")
    user.types("ckptool slim mm.pth ema.pth --weights ema")
    assert same(loads("raw.pth").state_dict(), raw.state_dict())
    assert same(loads("ema.pth").state_dict(), ema.state_dict())
    averaged = torch.optim.swa_utils.AveragedModel(raw)
    torch.save(averaged.state_dict(), "swa.pth")
    assert same(loads(user.cures("swa.pth")).state_dict(), raw.state_dict())


def test_34_floats_are_cast_and_nothing_else(user):
    weights = net().state_dict()
    weights["fc.weight"][0, 0] = 1e6
    torch.save(weights, "full.pth")
    user.types("ckptool convert full.pth half.pth --cast bf16 --cast-keep re:bn|running")
    half = torch.load("half.pth")
    for key, value in weights.items():
        kept = "bn" in key or not value.is_floating_point()
        assert torch.equal(half[key], value if kept else value.bfloat16()), key
    text = user.types("ckptool convert full.pth fp16.pth --cast fp16").text
    assert "1 value beyond the range of the new type: fc.weight (1)" in text
    seen = user.tries("ckptool convert full.pth no.pth --cast bf16 --cast-keep '*norm*'")
    assert seen.code == 2
    assert "re:" in seen.text


def test_41_safetensors_without_format_get_it_and_keep_the_rest(user):
    save_file(net().state_dict(), "bare.safetensors", metadata={"step": "7"})
    error = (
        "OSError: The safetensors archive passed at bare.safetensors does not contain the valid metadata. "
        "Make sure you save your model with the `save_pretrained` method."
    )
    with safe_open(user.cures("bare.safetensors", error=error), "pt") as opened:
        assert opened.metadata()["format"] == "pt"
        assert opened.metadata()["step"] == "7"


def test_42_what_safetensors_cannot_hold_is_made_so_or_named(user):
    root = {"w": torch.rand(3, 4).t(), "deep": {"b": torch.ones(2)}, "s": torch.eye(3).to_sparse(), "epoch": 7}
    torch.save(root, "odd.pth")
    seen = user.tries("ckptool convert odd.pth odd.safetensors")
    assert seen.code == 2
    torch.save({"w": root["w"], "epoch": 7}, "one.pth")
    assert torch.equal(load_file(user.takes_the_hint(user.tries("ckptool convert one.pth one.safetensors")))["w"],
                       root["w"])  # fmt: skip
    assert set(torch.load(user.cures("one.pth"))) == {"w"}
    torch.save({"s": root["s"], "w": root["w"]}, "sparse.pth")
    user.types("ckptool convert sparse.pth dense.safetensors --to-dense")
    assert torch.equal(load_file("dense.safetensors")["s"], torch.eye(3))
    torch.save({"z": torch.ones(2, dtype=torch.complex128), "w": torch.ones(2)}, "c.pth")
    seen = user.tries("ckptool convert c.pth c.safetensors")
    assert seen.code == 2
    assert load_file(user.takes_the_hint(seen))["z"].dtype == torch.complex64


def test_42_numbers_beside_the_weights_go_into_the_header(user):
    held = {"epoch": 7, "best": numpy.float64(0.5), "arch": "net", "done": True, "alike": "fc.bias", "format": "mine"}
    torch.save({"model": net().state_dict(), **held}, "run.pth")
    user.types("ckptool convert run.pth run.safetensors --scalars-to-metadata --extract")
    with safe_open("run.safetensors", "pt") as opened:
        header = {key: text for key, text in opened.metadata().items() if key != "ckptool"}
    assert header == {"format": "pt", "epoch": "7", "best": "0.5", "arch": "net", "done": "true"}
    assert load_file("run.safetensors").keys() == net().state_dict().keys()
    user.types("ckptool convert run.safetensors back.pth")
    user.types("ckptool convert back.pth again.safetensors")
    assert Path("again.safetensors").read_bytes() == Path("run.safetensors").read_bytes()
    torch.save({"w": torch.ones(2), "epoch": 7}, "one.pth")
    user.types("ckptool convert one.pth one.safetensors --scalars-to-metadata")  # nothing else was in the way
    assert load_file("one.safetensors").keys() == {"w"}
    seen = user.tries("ckptool convert one.pth two.pth --scalars-to-metadata")  # where torch.load would not see them
    assert (seen.code, "torch.load reads" in seen.text, Path("two.pth").exists()) == (2, True, False)
    torch.save(net().state_dict(), "none.pth")
    seen = user.tries("ckptool convert none.pth none.safetensors --scalars-to-metadata")
    assert (seen.code, "no numbers or texts" in seen.text) == (2, True)
    assert load_file(user.takes_the_hint(seen)).keys() == net().state_dict().keys()


def test_45_files_are_compared_averaged_and_looked_at(user):
    first, second = net(), net()
    with torch.no_grad():
        second.fc.bias.add_(1)
        second.bn1.num_batches_tracked.fill_(9)
    torch.save(first.half().state_dict(), "a.pth.tar")
    torch.save(second.half().state_dict(), "b.pth.tar")
    assert "fc.bias" in user.asks("ckptool diff a.pth.tar b.pth.tar").text
    user.types("ckptool average a.pth.tar b.pth.tar -o mean.pth")
    mean = torch.load("mean.pth")
    wanted = ((first.fc.bias.double() + second.fc.bias.double()) / 2).half()
    assert torch.equal(mean["fc.bias"], wanted)
    assert int(mean["bn1.num_batches_tracked"]) == 9
    assert "conv1" in user.types("ckptool inspect a.pth.tar").text
    assert "not a tar archive" in user.asks("ckptool doctor a.pth.tar --error",
                                         "tar: This does not look like a tar archive").text  # fmt: skip


def test_47_packed_and_parametrised_weights_are_known(user):
    packed = {
        "fc.weight": torch.randint(0, 255, (32, 1), dtype=torch.uint8),
        "norm.weight": torch.ones(8),
        "fc.weight.absmax": torch.rand(1), "fc.weight.quant_map": torch.linspace(-1, 1, 16),
        "fc.weight.quant_state.bitsandbytes__nf4": torch.tensor(list(
            b'{"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [8, 8]}'), dtype=torch.uint8),
    }  # fmt: skip
    save_file(packed, "bnb.safetensors")
    text = user.types("ckptool convert bnb.safetensors cast.safetensors --cast fp16").text
    assert "bitsandbytes" in text
    assert load_file("cast.safetensors")["fc.weight.absmax"].dtype == torch.float32
    assert "bitsandbytes" in user.asks("ckptool doctor bnb.safetensors").text
    with pytest.warns(FutureWarning):
        old = torch.nn.Sequential(torch.nn.utils.weight_norm(torch.nn.Linear(3, 4)), torch.nn.Linear(4, 2))
    torch.save(old.state_dict(), "old.pth")
    Path("new.py").write_text(
        "import torch\n\ndef build():\n    from torch.nn.utils.parametrizations import weight_norm\n"
        "    return torch.nn.Sequential(weight_norm(torch.nn.Linear(3, 4)), torch.nn.Linear(4, 2))\n"
    )
    user.types("ckptool transfer old.pth new.py -o new.pth")
    first = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 4))
    new = torch.nn.Sequential(first, torch.nn.Linear(4, 2))
    x = torch.rand(5, 3)
    torch.testing.assert_close(loads("new.pth", new)(x), old(x))
    pruned = torch.nn.Linear(3, 4)
    torch.nn.utils.prune.random_unstructured(pruned, "weight", 0.5)
    torch.save(pruned.state_dict(), "pruned.pth")
    Path("plain.py").write_text("import torch\n\ndef build():\n    return torch.nn.Linear(3, 4)\n")
    user.types("ckptool transfer pruned.pth plain.py -o plain.pth")
    torch.testing.assert_close(loads("plain.pth", torch.nn.Linear(3, 4))(x), pruned(x))


FORMS = {
    "plain": "torch.nn.Linear(3, 4)",
    "old": "torch.nn.utils.weight_norm(torch.nn.Linear(3, 4))",
    "new": "torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 4))",
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("there", FORMS)
@pytest.mark.parametrize("here", FORMS)
def test_47_weight_norm_of_a_model_that_is_one_layer_goes_every_way(user, there, here):
    theirs, mine = (eval(FORMS[name]) for name in (there, here))
    torch.save(theirs.state_dict(), "layer.pth")
    Path("layer.py").write_text(f"import torch\n\n\ndef build():\n    return {FORMS[here]}\n")
    user.types("ckptool transfer layer.pth layer.py -o made.pth")
    x = torch.rand(5, 3)
    torch.testing.assert_close(loads("made.pth", mine)(x), theirs(x))


def test_16_an_optimizer_is_resumed_after_a_head_was_dropped(user):
    model = net()
    first, second = [model.conv1, model.bn1], [model.mlp_module, model.fc]
    optimizer = torch.optim.AdamW([
        {"params": [one for module in first for one in module.parameters()]},
        {"params": [one for module in second for one in module.parameters()], "lr": 0.1},
    ])  # fmt: skip
    model(torch.rand(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    on_device("cuda:0", {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                         "rng": torch.get_rng_state()}, "resume.pt")  # fmt: skip
    Path("net.py").write_text(NET_PY)
    user.types("ckptool convert resume.pt cut.pt --drop fc --model net.py -m cpu")
    found = torch.load("cut.pt")
    body = Net()
    del body.fc
    body.load_state_dict(found["model"], strict=True)
    resumed = torch.optim.AdamW([{"params": [*body.conv1.parameters(), *body.bn1.parameters()]},
                                 {"params": [*body.mlp_module.parameters()]}])  # fmt: skip
    resumed.load_state_dict(found["optimizer"])
    last = body.mlp_module[2].bias
    assert torch.equal(resumed.state[last]["exp_avg"], optimizer.state[model.mlp_module[2].bias]["exp_avg"])
    assert resumed.param_groups[1]["lr"] == 0.1
    for parameter in body.parameters():
        parameter.grad = torch.ones_like(parameter)
    resumed.step()
    error = "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
    assert same(loads(user.cures("resume.pt", error=error)).state_dict(), model.state_dict())
    text = user.types("ckptool convert resume.pt unnamed.pt --drop fc -m cpu").text
    assert "no longer fits" in text
