"""Needs about names: prefixes, wrappers, envelopes, keys that a model does not ask for."""

import json
from collections import OrderedDict
from pathlib import Path

import torch
from typing_user import NET_PY, Net, error_of, loads, net, same


def prefixed(prefix, weights):
    return OrderedDict((f"{prefix}{key}", value) for key, value in weights.items())


def test_01_the_prefix_of_data_parallel_is_taken_off_and_put_on(user):
    model = net()
    torch.save(torch.nn.DataParallel(model).state_dict(), "dp.pth")
    error = error_of(loads, "dp.pth")
    assert 'Unexpected key(s) in state_dict: "module.' in str(error)
    assert same(loads(user.cures("dp.pth", error=error)).state_dict(), model.state_dict())
    plain = user.cures("dp.pth", says="'module.' is in 13 of 13 keys")
    assert same(torch.load(plain), model.state_dict())  # the order, and mlp_module whole
    assert torch.load(plain)._metadata == model.state_dict()._metadata
    wrapped = torch.nn.DataParallel(Net())
    back = user.cures(plain, error=error_of(loads, plain, wrapped))
    assert same(loads(back, wrapped).module.state_dict(), model.state_dict())
    user.types("ckptool strip-prefix dp.pth one.pth")
    user.types("ckptool add-prefix one.pth two.pth")
    assert same(torch.load("two.pth"), torch.load("dp.pth"))
    assert user.tries("ckptool strip-prefix one.pth three.pth").code == 2  # there is none to take off


def test_01_half_of_the_keys_with_the_prefix_are_seen_without_the_model(user):
    weights = net().state_dict()
    torch.save({(f"module.{key}" if n < 5 else key): weights[key] for n, key in enumerate(weights)}, "part.pth")
    out = user.cures("part.pth", says="'module.' begins 5 of 13 keys")
    assert same(loads(out).state_dict(), weights)


def test_06_a_load_that_loaded_nothing_is_told_from_its_message(user):
    model = net()
    torch.save({"state_dict": prefixed("encoder.model.", model.state_dict())}, "noop.ckpt")
    told = Net().load_state_dict(torch.load("noop.ckpt")["state_dict"], strict=False)
    out = user.cures("noop.ckpt", error=str(told), says="nothing was loaded")
    assert same(loads(out).state_dict(), model.state_dict())
    Path("net.py").write_text(NET_PY)
    assert "0 of 13 keys, 0 %" in user.tries("ckptool verify noop.ckpt --fits net.py").text
    out = user.follows(user.asks("ckptool doctor noop.ckpt net.py", says="0 of 13 keys, 0 %"))
    assert same(loads(out).state_dict(), model.state_dict())


def test_10_names_of_torch_compile_go_from_weights_and_optimizer(user):
    model = net()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.Adam(compiled.named_parameters())
    compiled(torch.rand(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    assert "_orig_mod.fc.weight" in optimizer.state_dict()["param_groups"][0]["param_names"]
    torch.save({"model": compiled.state_dict(), "optimizer": optimizer.state_dict()}, "compiled.pth")
    user.types("ckptool convert compiled.pth plain.pth --unwrap")
    found = torch.load("plain.pth")
    fresh = Net()
    fresh.load_state_dict(found["model"], strict=True)
    resumed = torch.optim.Adam(fresh.named_parameters())
    assert found["optimizer"]["param_groups"][0]["param_names"] == [name for name, _ in fresh.named_parameters()]
    resumed.load_state_dict(found["optimizer"])
    assert torch.equal(resumed.state[fresh.fc.bias]["exp_avg"], optimizer.state[model.fc.bias]["exp_avg"])
    for name in ("_orig_mod.module.", "module._orig_mod."):
        torch.save(prefixed(name, model.state_dict()), "both.pth")
        assert same(loads(user.cures("both.pth")).state_dict(), model.state_dict())
        Path("both-fixed.pth").unlink()
    inside = {key.replace("mlp_module.", "mlp_module._orig_mod."): v for key, v in model.state_dict().items()}
    torch.save(inside, "inside.pth")
    assert same(loads(user.cures("inside.pth", error=error_of(loads, "inside.pth"))).state_dict(), model.state_dict())


def test_12_weights_are_found_under_whatever_key_they_are(user):
    weights = net().state_dict()
    beside = {"epoch": 3, "best_prec1": 0.7}
    for number, root in enumerate([
        {"net": weights, **beside},
        {"weight": weights},
        {"model_state_dict": weights, "optimizer": torch.optim.Adam(Net().parameters()).state_dict()},
        {"models": {"net": weights}, **beside},
        {"model": [weights], "opt": {}},
    ]):  # fmt: skip
        torch.save(root, f"env{number}.pth.tar")
        out = user.cures(f"env{number}.pth.tar", error=error_of(loads, f"env{number}.pth.tar"))
        assert out == f"env{number}-fixed.pth.tar"
        assert same(loads(out).state_dict(), weights)
    generator, critic = net(), net(classes=1)
    torch.save({"G": generator.state_dict(), "D": critic.state_dict()}, "gan.pth")
    seen = user.asks("ckptool doctor gan.pth", says="2 state dicts: G, D")
    assert same(loads(user.follows(seen, 0)).state_dict(), generator.state_dict())
    assert same(loads(user.follows(seen, 1), Net(classes=1)).state_dict(), critic.state_dict())


def test_12_weights_are_put_under_the_key_that_a_script_asks_for(user):
    weights = net().state_dict()
    torch.save(weights, "bare.pth")
    error = error_of(lambda: torch.load("bare.pth")["state_dict"])
    out = user.cures("bare.pth", error=error)
    assert same(torch.load(out)["state_dict"], weights)
    torch.save({"net": weights, "epoch": 1}, "other.pth")
    error = error_of(lambda: torch.load("other.pth")["state_dict"])
    assert same(torch.load(user.cures("other.pth", error=error))["state_dict"], weights)


def test_24_buffers_that_came_and_went_with_versions_are_dropped_and_filled(user):
    model = net()
    weights = model.state_dict()
    old = OrderedDict((key, value) for key, value in weights.items() if "num_batches" not in key)
    old._metadata = weights._metadata
    torch.save(old, "nobn.pth")
    error = error_of(loads, "nobn.pth")
    assert "num_batches_tracked" in str(error)
    loaded = loads(user.cures("nobn.pth", error=error)).state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in old.items())
    assert int(loaded["bn1.num_batches_tracked"]) == 0
    torch.save({**weights, "embeddings.position_ids": torch.arange(8)[None]}, "ids.pth")
    error = error_of(loads, "ids.pth")
    assert same(loads(user.cures("ids.pth", error=error)).state_dict(), weights)


def test_36_what_lightning_saved_becomes_a_plain_model_beside_a_weighted_loss(user):
    model = net()
    weights = {**prefixed("net.", model.state_dict()), "loss.weight": torch.ones(3)}
    torch.save({
        "state_dict": weights, "epoch": 4, "global_step": 80, "pytorch-lightning_version": "2.6.0",
        "hyper_parameters": {"lr": 0.1}, "optimizer_states": [], "lr_schedulers": [], "loops": {}, "callbacks": {},
    }, "last.ckpt")  # fmt: skip
    error = error_of(lambda: Net().load_state_dict(torch.load("last.ckpt")["state_dict"]))
    assert same(loads(user.cures("last.ckpt", error=error)).state_dict(), model.state_dict())
    Path("net.py").write_text(NET_PY)
    assert same(loads(user.cures("last.ckpt", "net.py")).state_dict(), model.state_dict())
    seen = user.tries("ckptool convert last.ckpt mine.pth --extract --strip-prefix net.")
    assert seen.code == 2
    user.takes_the_hint(seen)
    assert same(loads("mine.pth").state_dict(), model.state_dict())
    assert json.loads(user.types("ckptool inspect last.ckpt --settings").text) == {"hyper_parameters": {"lr": 0.1}}
    seen = user.tries("ckptool inspect mine.pth --settings")
    assert (seen.code, "holds no settings" in seen.text) == (2, True)
