"""Optimizers follow the weights. torch is the judge: a model made for the new names resumes and goes on alike."""

import copy
import re

import pytest

torch = pytest.importorskip("torch")

import ckptool
from ckptool.errors import CannotCarry
from ckptool.passes.by_key import add_prefix, drop, rename, select, strip_prefix, unwrap
from ckptool.passes.optimizers import misfits, name_parameters, optimizers_in
from ckptool.tree import Dict, List


class Net(torch.nn.Module):
    def __init__(self, head=True):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.bn = torch.nn.BatchNorm2d(4)
        self.mid = torch.nn.Linear(4, 4)
        if head:
            self.fc = torch.nn.Linear(4, 5)

    def forward(self, x):
        x = self.mid(self.bn(self.conv(x)).mean((2, 3)))
        return self.fc(x) if hasattr(self, "fc") else x


def halves(model):
    """The groups that are usual: weights with decay, biases and norms without."""
    parts = {True: [], False: []}
    for name, parameter in model.named_parameters():
        parts[parameter.ndim > 1].append((name, parameter))
    return [{"params": parts[True], "weight_decay": 0.1}, {"params": parts[False], "weight_decay": 0.0}]


def own_group_for_the_head(model):
    named = list(model.named_parameters())
    groups = [[one for one in named if not one[0].startswith("fc")], [one for one in named if one[0].startswith("fc")]]
    return [{"params": group, "lr": 0.1 / (n + 1)} for n, group in enumerate(groups) if group]


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.named_parameters(), lr=0.1),
    "fused groups": lambda model: torch.optim.AdamW(halves(model), lr=0.1, fused=True),
    "a group for the head": lambda model: torch.optim.SGD(own_group_for_the_head(model), lr=0.1, momentum=0.9),
}


def nameless(optimizer):
    """Its state as one that was made of `model.parameters()` has it."""
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        del group["param_names"]
    return state


def trained(kind):
    torch.manual_seed(0)
    model = Net()
    optimizer = OPTIMIZERS[kind](model)
    x = torch.randn(6, 3, 5, 5)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model, optimizer


def state_by_name(model, optimizer):
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: state for parameter, state in optimizer.state.items()}


def assert_resumes(loaded, kind, original, original_optimizer):
    model = Net(head=False)
    model.load_state_dict(loaded["model"], strict=True)
    optimizer = OPTIMIZERS[kind](model)
    optimizer.load_state_dict(loaded["optimizer"])
    mine, theirs = state_by_name(model, optimizer), state_by_name(original, original_optimizer)
    assert set(mine) == {name for name in theirs if not name.startswith("fc")}
    for name, state in mine.items():
        for slot, value in state.items():
            torch.testing.assert_close(value, theirs[name][slot], rtol=0, atol=0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_resumes_after_a_layer_was_dropped(tmp_path, kind):
    model, optimizer = trained(kind)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pth")
    done = drop(ckptool.open(tmp_path / "a.pth"), "fc")
    ckptool.save(done, tmp_path / "b.pth")
    loaded = torch.load(tmp_path / "b.pth")
    assert_resumes(loaded, kind, model, optimizer)
    assert any(re.match(r"optimizer: 6 of 8 parameters kept", line) for line in done.history)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_numbers_are_realigned_by_the_order_of_the_model(tmp_path, kind):
    model, optimizer = trained(kind)
    torch.save({"model": model.state_dict(), "optimizer": nameless(optimizer)}, tmp_path / "a.pth")
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv = torch.nn.Conv2d(3, 4, 3)\n        self.bn = torch.nn.BatchNorm2d(4)\n"
        "        self.mid = torch.nn.Linear(4, 4)\n        self.fc = torch.nn.Linear(4, 5)\n"
    )
    from ckptool.cli import main

    files = [str(tmp_path / name) for name in ("a.pth", "b.pth")]
    with pytest.raises(SystemExit) as left:
        main(["convert", *files, "--drop", "fc", "--model", str(tmp_path / "net.py")])
    assert left.value.code == 0
    loaded = torch.load(tmp_path / "b.pth")
    assert all("param_names" not in group for group in loaded["optimizer"]["param_groups"])
    assert_resumes(loaded, kind, model, optimizer)


def shapes(model):
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def saved(model, optimizer):
    return ckptool.from_torch({"model": model.state_dict(), "optimizer": optimizer})


def test_groups_that_shapes_tell_apart_are_named():
    model, optimizer = trained("fused groups")
    named = name_parameters(saved(model, nameless(optimizer)), shapes(model))
    (one,) = optimizers_in(named.root)
    assert one.names == [group["param_names"] for group in optimizer.state_dict()["param_groups"]]


def test_groups_that_shapes_do_not_tell_apart_are_not_guessed():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    optimizer = torch.optim.SGD([{"params": [model[1].weight]}, {"params": [model[0].weight]}], lr=1, momentum=0.9)
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    with pytest.raises(CannotCarry, match="can be filled in more than one way"):
        name_parameters(saved(model, optimizer.state_dict()), shapes(model))


def test_code_of_another_model_names_nothing():
    model, optimizer = trained("adam")
    with pytest.raises(CannotCarry, match=r"8 parameters in 1 group, the model 6"):
        name_parameters(saved(model, nameless(optimizer)), shapes(Net(head=False)))


def test_without_names_the_receipt_says_that_the_optimizer_no_longer_fits():
    model, optimizer = trained("adam")
    ckpt = saved(model, nameless(optimizer))
    (line,) = [line for line in drop(ckpt, "fc").history if "optimizer" in line]
    assert line.startswith("note: optimizer no longer fits the weights: it has 8 parameters by number")
    assert "--model MODEL.py" in line
    assert "--extract" in line
    assert not [line for line in drop(ckpt, "bn.num_batches_tracked").history if "optimizer" in line]
    assert not [line for line in rename(ckpt, "fc=head").history if "optimizer" in line]


PASSES = {
    "add-prefix": (lambda c: add_prefix(c, "net"), lambda name: f"net.{name}"),
    "rename": (lambda c: rename(c, "conv=stem"), lambda name: name.replace("conv.", "stem.")),
    "select": (lambda c: select(c, ["conv", "bn"]), lambda name: name if name.startswith(("conv", "bn")) else None),
    "drop": (lambda c: drop(c, "mid"), lambda name: None if name.startswith("mid") else name),
    "there and back": (lambda c: strip_prefix(add_prefix(c, "a.b"), "a.b"), lambda name: name),
    "unwrap": (lambda c: unwrap(add_prefix(c, "_orig_mod")), lambda name: name),
}


@pytest.mark.parametrize("pass_", PASSES)
def test_states_by_name_follow(pass_):
    """As FSDP and `get_optimizer_state_dict` save them."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    model, optimizer = trained("adam")
    run, new = PASSES[pass_]
    wanted = {new(name) for name, _ in model.named_parameters()} - {None}
    named = get_optimizer_state_dict(model, optimizer)
    done = run(saved(model, named)).root.get("optimizer")
    assert {key for key, _ in done.get("state").entries} == wanted
    assert set(done.get("param_groups").items[0].get("params").items) == wanted
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    done = run(saved(model, flat)).root.get("optimizer")
    assert {
        key.removeprefix("state.").rpartition(".")[0] for key, _ in done.entries if key.startswith("state.")
    } == wanted
    assert len(done.entries) == len(flat) // 8 * len(wanted)


def test_a_parameter_that_keeps_one_of_two_tied_names_stays():
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(4, 3), "head": torch.nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    optimizer = torch.optim.SGD(model.named_parameters(), lr=1, momentum=0.9)
    model["head"].weight.sum().backward()
    optimizer.step()
    done = drop(saved(model, optimizer.state_dict()), "embed")
    assert optimizers_in(done.root)[0].names == [["head.weight"]]


def test_lists_of_a_scheduler_lose_the_group_that_went():
    model, optimizer = trained("a group for the head")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "lr_scheduler": scheduler.state_dict()}
    done = drop(ckptool.from_torch(state), "fc")
    assert done.root.get("lr_scheduler").get("base_lrs").items == [0.1]
    assert "note: optimizer: group 1 has no parameter left, and is left out" in done.history


def test_of_two_networks_each_optimizer_follows_its_own():
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    made = [torch.optim.SGD(net.named_parameters(), lr=1).state_dict() for net in (one, other)]
    state = {"netG": one.state_dict(), "netD": other.state_dict(), "optimizer_G": made[0], "optimizer_D": made[1]}
    done = rename(ckptool.from_torch(state), "weight=w", at="netG")
    assert {one.path: one.names for one in optimizers_in(done.root)} == {
        "optimizer_G": [["w", "bias"]],
        "optimizer_D": [["weight", "bias"]],
    }


def test_group_sizes_are_held_against_the_model():
    model, optimizer = trained("fused groups")
    ckpt = saved(model, nameless(optimizer))
    assert list(misfits(ckpt, shapes(model))) == []
    (line,) = misfits(ckpt, shapes(Net(head=False)))
    assert line == ("optimizer has 8 parameters (3 + 5), and the model 6: an optimizer for it refuses the state")
    with pytest.raises(ValueError, match="parameter group that doesn't match"):
        OPTIMIZERS["fused groups"](Net(head=False)).load_state_dict(optimizer.state_dict())


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_dcp_resumes_after_a_layer_was_dropped(tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = trained("adam")
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "in")
    ckptool.save(drop(ckptool.open(tmp_path / "in"), "fc", at="model"), tmp_path / "out", format="dcp")
    small = Net(head=False)
    resumed = torch.optim.Adam(small.parameters(), lr=0.1)
    weights, state = get_state_dict(small, resumed)
    dcp.load({"model": weights, "optim": state}, checkpoint_id=tmp_path / "out")
    set_state_dict(small, resumed, model_state_dict=weights, optim_state_dict=state)
    theirs = state_by_name(model, optimizer)
    for name, slots in state_by_name(small, resumed).items():
        assert torch.equal(slots["exp_avg"], theirs[name]["exp_avg"])


@pytest.mark.parametrize("item", [(1, 2), b"x", 1.5, None])
def test_an_optimizer_whose_parameters_are_neither_numbers_nor_names_is_none(item):
    def tree(params):
        group = Dict([("params", List(params)), ("lr", 0.1)])
        return Dict([("optimizer", Dict([("state", Dict([])), ("param_groups", List([group]))]))])

    assert len(optimizers_in(tree([0, 1]))) == 1
    assert optimizers_in(tree([0, item])) == []
