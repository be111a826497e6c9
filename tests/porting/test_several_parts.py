"""Files that keep apart what a model holds as one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ckptool

nn = torch.nn


class Coder(nn.Module):  # type: ignore[misc]
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Whole(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Coder(4, 8, 8), Coder(8, 8, 3)

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


def saved(model: Any, path: Path) -> Path:
    wrapped = {f"module.{key}": value for key, value in model.encoder.state_dict().items()}
    torch.save({"epoch": 3, "nets": {"enc": wrapped, "dec": model.decoder.state_dict()}}, path)
    return path


def test_a_model_is_filled_from_the_state_dicts_of_its_parts(tmp_path: Path) -> None:
    import ckptool

    theirs, ours = Whole(), Whole()
    account = ckptool.load_into(ours, saved(theirs, tmp_path / "parts.pth"))
    assert {entry.status for entry in account.entries} == {"mapped"}
    assert str(account["decoder.layers.1.weight"].expr) == "nets/dec/layers.1.weight"
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))


def test_a_mapping_over_several_parts_is_read_back_and_replayed(tmp_path: Path) -> None:
    import ckptool

    theirs, path = Whole(), tmp_path / "parts.pth"
    mapping = ckptool.transfer(saved(theirs, path), Whole())
    mapping.save(tmp_path / "m.yaml")
    again = ckptool.read_mapping(tmp_path / "m.yaml").apply(path)
    ckptool.save(again, tmp_path / "out.pth")
    found = torch.load(tmp_path / "out.pth")
    assert all(torch.equal(value, found[key]) for key, value in theirs.state_dict().items())


def test_complex_weights_of_any_part_are_refused_for_real_tensors() -> None:
    parts = {name: dict(getattr(Whole(), name).state_dict()) for name in ("encoder", "decoder")}
    parts["decoder"]["layers.1.weight"] = parts["decoder"]["layers.1.weight"].to(torch.complex64)
    with pytest.raises(ckptool.CannotCarry, match=r"decoder\.layers\.1\.weight is float32 in the model, and complex"):
        ckptool.transfer({"enc": parts["encoder"], "dec": parts["decoder"]}, Whole())


def test_a_part_that_fits_as_it_is_takes_nothing_from_the_others(tmp_path: Path) -> None:
    import ckptool

    theirs = Whole()
    mapping = ckptool.transfer(saved(theirs, tmp_path / "parts.pth"), Coder(8, 8, 3))
    assert mapping.at == "nets/dec"
    assert {str(entry.expr) for entry in mapping.entries} == set(theirs.decoder.state_dict())


def test_copies_of_one_model_are_not_put_together(tmp_path: Path) -> None:
    import ckptool

    model = Whole()
    torch.save({"model": model.state_dict(), "ema": model.state_dict()}, tmp_path / "copies.pth")
    mapping = ckptool.transfer(tmp_path / "copies.pth", Whole())
    assert mapping.at == "model"
    assert all("/" not in key for entry in mapping.entries for key in entry.sources)


class Normed(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = Coder(4, 8, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("std", torch.ones(4))

    def forward(self, x: Any) -> Any:
        return self.body((x - self.mean) / self.std)


@pytest.mark.parametrize("names", [["model"], ["model", "ema"]], ids=["alone", "with a copy"])
def test_numbers_beside_a_state_dict_fill_what_the_model_calls_so(tmp_path: Path, names: list[str]) -> None:
    import ckptool

    body, held = Coder(4, 8, 3).state_dict(), {"data_std": torch.rand(4) + 1, "data_mean": torch.rand(4)}
    torch.save({"epoch": 3, **dict.fromkeys(names, body), **held}, tmp_path / "normed.pth")
    ours = Normed()
    account = ckptool.load_into(ours, tmp_path / "normed.pth")
    assert (str(account["mean"].expr), str(account["std"].expr)) == ("data_mean", "data_std")
    assert str(account["body.layers.0.weight"].expr) == "model/layers.0.weight"
    assert torch.equal(ours.mean, held["data_mean"])
    assert torch.equal(ours.std, held["data_std"])
    assert all(torch.equal(value, body[key]) for key, value in ours.body.state_dict().items())


class Agent(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.online = Coder(4, 8, 3)

    def forward(self, x: Any) -> Any:
        return self.online(x)


class TargetNet(Coder):
    pass


@pytest.mark.parametrize(
    ("model", "at"), [(Agent(), "online_net"), (TargetNet(4, 8, 3), "target_net"), (Coder(4, 8, 3), None)]
)
def test_of_copies_the_model_takes_the_one_whose_word_is_its_own(tmp_path: Path, model: Any, at: str | None) -> None:
    import ckptool

    path = tmp_path / "dqn.pth"
    torch.save({"target_net": Coder(4, 8, 3).state_dict(), "online_net": Coder(4, 8, 3).state_dict()}, path)
    mapping = ckptool.transfer(path, model)
    statuses = {entry.status for entry in mapping.entries}
    assert (mapping.at, statuses) == (at, {"mapped"}) if at else statuses == {"guessed"}


@pytest.mark.parametrize("name", ["net_A", "net_B"])
def test_of_nets_with_names_alike_the_model_takes_the_one_that_all_its_keys_begin_with(
    tmp_path: Path, name: str
) -> None:
    import ckptool

    nets = {f"net_{letter}": Coder(4, 8, 3).state_dict() for letter in "BA"}
    torch.save({"nets": nets}, tmp_path / "cycle.pth")
    model = nn.Module()
    model.add_module(name, Coder(4, 8, 3))
    mapping = ckptool.transfer(tmp_path / "cycle.pth", model)
    assert (mapping.at, {entry.status for entry in mapping.entries}) == (f"nets/{name}", {"mapped"})


def test_beside_a_new_head_the_model_takes_the_copy_whose_name_is_that_of_its_part(tmp_path: Path) -> None:
    import ckptool

    nets = {name: Coder(4, 8, 3).state_dict() for name in ("encoder", "target_encoder")}
    torch.save(nets, tmp_path / "copies.pth")
    model = nn.ModuleDict({"target_encoder": Coder(4, 8, 3), "head": nn.Linear(3, 9)})
    mapping = ckptool.transfer(tmp_path / "copies.pth", model)
    assert mapping.at == "target_encoder"
    assert {entry.status for entry in mapping.entries if entry.expr is not None} == {"mapped"}


def test_a_word_that_any_model_has_chooses_no_copy(tmp_path: Path) -> None:
    import ckptool

    class Model(Coder):
        pass

    torch.save({"model": Coder(4, 3).state_dict(), "ema": Coder(4, 3).state_dict()}, tmp_path / "copies.pth")
    mapping = ckptool.transfer(tmp_path / "copies.pth", Model(4, 3))
    assert {entry.status for entry in mapping.entries} == {"guessed"}


class Deep(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        convs = [nn.Conv2d(1, 4, 3), *(nn.Conv2d(4, 4, 3) for _ in range(11))]
        self.convs = nn.Sequential(*convs)
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.norm(self.convs(x).mean((2, 3))))


def test_modules_that_a_framework_of_functions_keeps_by_their_names_are_one_model(tmp_path: Path) -> None:
    import ckptool

    theirs, ours = Deep(), Deep()
    params = {
        f"net/~/conv2_d_{n}" if n else "net/~/conv2_d": {"w": conv.weight.permute(2, 3, 1, 0), "b": conv.bias}
        for n, conv in enumerate(theirs.convs)
    }
    params["net/~/layer_norm"] = {"scale": theirs.norm.weight, "offset": theirs.norm.bias}
    params["net/~/linear"] = {"w": theirs.out.weight.t(), "b": theirs.out.bias}
    held = {name: {k: v.detach().contiguous() for k, v in params[name].items()} for name in sorted(params)}
    torch.save(held, tmp_path / "params.pth")
    account = ckptool.load_into(ours, tmp_path / "params.pth")
    assert {entry.status for entry in account.entries} == {"mapped"}
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))


def test_another_state_dict_that_fits_may_have_a_path_with_braces() -> None:
    model = torch.nn.Linear(3, 2)
    state = model.state_dict()
    other = {key: value + 1 for key, value in state.items()}
    entry = ckptool.transfer(ckptool.from_torch({"a": state, "b{x}": other}), model)["weight"]
    assert [str(option) for option in entry.questions[0].options] == ["b{x}/weight"]


@pytest.mark.parametrize(("name", "status"), [("Mixer", "mapped"), ("mixer", "mapped"), ("other", "unmapped")])
def test_a_small_part_is_taken_with_the_others_if_it_is_called_as_a_module_of_the_model(
    tmp_path: Path, name: str, status: str
) -> None:
    class Mixed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mixer = nn.Module()
            self.mixer.weights = nn.Parameter(torch.randn(4))
            self.upstream, self.body = nn.Linear(9, 9), Coder(8, 8, 8)

        def forward(self, x: Any) -> Any:
            return self.body(torch.einsum("kbn,k->bn", x, self.mixer.weights.softmax(0)))

    theirs, path = Mixed(), tmp_path / "parts.pth"
    torch.save({"Body": theirs.body.state_dict(), name: theirs.mixer.state_dict()}, path)
    mapping = ckptool.transfer(path, Mixed())
    assert mapping["mixer.weights"].status == status
    assert mapping["body.layers.0.weight"].status == "mapped"
