"""A file whose keys and sizes are those of the model is loaded without matching."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn

import ckptool
from ckptool.porting.same_names import by_same_names


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def same(state_dict, model):
    return by_same_names(ckptool.from_torch(state_dict), model)


def test_every_key_comes_from_the_key_of_its_name():
    mapping = same(net().state_dict(), net())
    assert [(one.target, one.sources, one.status) for one in mapping.entries] == [
        (key, [key], "mapped") for key in net().state_dict()
    ]


def test_nothing_is_matched_and_no_forward_pass_is_followed(monkeypatch, tmp_path):
    source, model = net(), net()
    torch.save(source.state_dict(), tmp_path / "in.pth")
    monkeypatch.setattr("ckptool.porting.transfer", None)
    monkeypatch.setattr(model, "forward", None)
    ckptool.load_into(model, tmp_path / "in.pth")
    for key, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)


@pytest.mark.parametrize("change", ["a key less", "a key more", "another size", "another name"])
def test_whatever_differs_is_matched(change):
    state_dict = net().state_dict()
    if change == "a key less":
        del state_dict["2.bias"]
    elif change == "a key more":
        state_dict["3.bias"] = torch.zeros(1)
    elif change == "another size":
        state_dict["2.bias"] = torch.zeros(5)
    else:
        state_dict["last.bias"] = state_dict.pop("2.bias")
    assert same(state_dict, net()) is None


def test_a_model_with_state_that_is_no_tensor_is_matched():
    class Counting(nn.Linear):
        def get_extra_state(self):
            return {"steps": 1}

        def set_extra_state(self, state):
            pass

    assert same(nn.Linear(2, 2).state_dict(), Counting(2, 2)) is None


def test_types_are_converted_as_by_load_state_dict():
    model = net().to(torch.bfloat16)
    state_dict = net().state_dict()
    ckptool.load_into(model, state_dict)
    assert torch.equal(model[0].weight, state_dict["0.weight"].to(torch.bfloat16))


def test_hints_are_followed_also_where_the_names_are_the_same():
    one, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    pair = nn.ModuleDict({"a": one, "b": other})
    source = {"a.weight": torch.zeros(2, 2), "b.weight": torch.ones(2, 2)}
    ckptool.load_into(pair, source, hints=["a=b", "b=a"])
    assert torch.equal(one.weight.detach(), source["b.weight"])
