"""Porting in loading code: `transfer` and `load_into` on models as people have them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool


def chain(*, classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(16 * 16, classes)
    )


class Named(nn.Module):
    """The same as `chain`, under names."""

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.norm, self.body = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3)
        self.head = nn.Linear(16 * 16, classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(self.norm(self.stem(x)).relu()).flatten(1))


@pytest.fixture
def old(tmp_path: Path) -> nn.Module:
    torch.manual_seed(0)
    made = chain()
    made(torch.randn(4, 3, 8, 8))  # so that statistics and counters are not what they are at first
    return made.eval()


class Broken(Named):
    """A model whose forward pass cannot run."""

    def forward(self, x: Any) -> Any:
        raise RuntimeError("not here")


def test_a_model_that_cannot_be_run_is_said_to_be_matched_without_its_order_of_execution(old: nn.Module) -> None:
    said = "the forward pass of the model could not be followed"
    assert any(note.startswith(said) for note in ckptool.transfer(old.state_dict(), Broken()).notes)
    assert not any(note.startswith(said) for note in ckptool.transfer(old.state_dict(), Named()).notes)
    assert not any(note.startswith(said) for note in ckptool.transfer(Named().state_dict(), Broken()).notes)


def same_function(left: nn.Module, right: nn.Module) -> bool:
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        return torch.equal(left.eval()(x), right.eval()(x))


def wrapped_in_data_parallel(model: nn.Module) -> nn.Module:
    return nn.DataParallel(model)


def wrapped_in_data_parallel_twice(model: nn.Module) -> nn.Module:
    return nn.DataParallel(nn.DataParallel(model))


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def compiled_and_parallel(model: nn.Module) -> nn.Module:
    return nn.DataParallel(torch.compile(model, backend="eager"))  # type: ignore[arg-type]


WRAPPERS = [lambda m: m, wrapped_in_data_parallel, wrapped_in_data_parallel_twice, compiled, compiled_and_parallel]


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("how", ["file", "state dict", "module."])
def test_a_model_is_filled_as_it_is(old: nn.Module, tmp_path: Path, wrap: Any, how: str) -> None:
    source: Any = old.state_dict()
    if how == "file":
        torch.save({"model": source, "epoch": 1}, tmp_path / "x.pth")
        source = tmp_path / "x.pth"
    elif how == "module.":
        source = {f"module.{key}": value for key, value in source.items()}
    own = Named()
    account = ckptool.load_into(wrap(own), source)
    assert same_function(own, old)
    assert account.is_sure
    assert [entry.target for entry in account.entries] == list(own.state_dict())


@pytest.fixture
def one_process(tmp_path: Path) -> Any:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_distributed_model_is_filled_as_it_is(old: nn.Module, one_process: None) -> None:
    own = Named()
    wrapped = nn.parallel.DistributedDataParallel(own)
    account = ckptool.load_into(wrapped, old.state_dict())
    assert same_function(own, old)
    assert account.is_sure
    wrapped(torch.randn(2, 3, 8, 8)).sum().backward()
    assert own.stem.weight.grad is not None


def test_a_wrapped_model_inside_of_another_is_filled_as_it_is(old: nn.Module, one_process: None) -> None:
    class Trainer(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> Any:
            return self.net(x)

    own = Named()
    outer = Trainer(nn.parallel.DistributedDataParallel(own))
    account = ckptool.load_into(outer, old.state_dict())
    assert same_function(own, old)
    assert [entry.target for entry in account.entries] == list(outer.state_dict())
    again = Trainer(nn.parallel.DistributedDataParallel(Named()))
    ckptool.load_into(again, own.state_dict())
    assert same_function(again, old)


def test_parameters_stay_the_same_objects_so_that_optimizers_keep_them(old: nn.Module) -> None:
    own = Named()
    before = {name: id(p) for name, p in own.named_parameters()}
    ckptool.load_into(own, old.state_dict())
    assert {name: id(p) for name, p in own.named_parameters()} == before
    assert all(p.requires_grad and p.grad is None for p in own.parameters())


def test_values_take_the_type_of_the_model(old: nn.Module) -> None:
    own = Named().half()
    ckptool.load_into(own, old.state_dict())
    assert own.stem.weight.dtype == torch.float16
    assert torch.equal(own.stem.weight, old[0].weight.half())  # type: ignore[index,union-attr,operator]


def test_a_model_that_does_not_fit_is_left_as_it_was(old: nn.Module) -> None:
    own = Named(classes=3)
    before = {key: value.clone() for key, value in own.state_dict().items()}
    with pytest.raises(ckptool.Doubtful, match=r"2 keys without a source; nothing was loaded") as raised:
        ckptool.load_into(own, old.state_dict())
    assert all(torch.equal(before[key], value) for key, value in own.state_dict().items())
    assert "partial=['head.*']" in str(raised.value)


@pytest.mark.parametrize("kind", ["bits8", "complex64"])
def test_values_that_torch_does_not_convert_are_refused_before_any_is_loaded(old: nn.Module, kind: str) -> None:
    own = Named()
    before = {key: value.clone() for key, value in own.state_dict().items()}
    state = Named().state_dict()
    bias = torch.zeros(10, dtype=torch.uint8) if kind == "bits8" else torch.ones(10)
    state["head.bias"] = bias.view(torch.bits8) if kind == "bits8" else bias.to(torch.complex64)
    with pytest.raises(ckptool.CannotCarry, match=r"head\.bias"):
        ckptool.load_into(own, state)
    assert all(torch.equal(before[key], value) for key, value in own.state_dict().items())


@pytest.mark.parametrize("partial", [True, "head.*", ["head"], ["head.weight", "head.bias"]])
def test_what_is_missing_is_allowed_by_pattern(old: nn.Module, partial: Any) -> None:
    own = Named(classes=3)
    head = own.head.weight.clone()
    account = ckptool.load_into(own, old.state_dict(), partial=partial)
    assert torch.equal(own.head.weight, head)
    assert torch.equal(own.stem.weight, old[0].weight)  # type: ignore[index]
    assert [entry.target for entry in account.having("unmapped")] == ["head.weight", "head.bias"]


def test_a_mapping_can_be_inspected_edited_saved_and_used_again(old: nn.Module, tmp_path: Path) -> None:
    from dataclasses import replace

    mapping = ckptool.transfer(old.state_dict(), Named())
    assert str(mapping["stem.weight"].expr) == "0.weight"
    assert mapping.coverage["keys"] == [len(mapping.entries)] * 2
    mapping.save(tmp_path / "m.yaml")
    read = ckptool.read_mapping(tmp_path / "m.yaml")
    own = Named()
    ckptool.load_into(own, old.state_dict(), mapping=read)
    assert same_function(own, old)
    for one in (mapping, read):
        ckptool.save(one.apply(old.state_dict()), tmp_path / "ported.pth", overwrite=True)
        own = Named()
        own.load_state_dict(torch.load(tmp_path / "ported.pth"))
        assert same_function(own, old)
    edited = mapping.with_entries([replace(e, expr=None) for e in mapping.entries])
    assert edited.coverage["keys"][0] == 0
    assert set(edited.unused) == set(old.state_dict())


def test_a_mapping_is_read_like_a_dict_from_keys_of_the_model_to_entries(old: nn.Module) -> None:
    mapping = ckptool.transfer(old.state_dict(), Named())
    assert list(mapping) == list(Named().state_dict()) == [entry.target for entry in mapping.entries]
    assert len(mapping) == len(mapping.entries)
    assert dict(mapping) == {entry.target: entry for entry in mapping.entries}
    assert "head.weight" in mapping
    assert "nope" not in mapping
    assert mapping.get("nope") is None
    with pytest.raises(KeyError, match="nope"):
        mapping["nope"]


def test_the_weights_of_a_mapping_are_taken_from_where_the_caller_says(old: nn.Module, tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = chain()
    mapping = ckptool.transfer(old.state_dict(), Named())
    torch.save({"old": old.state_dict(), "other": other.state_dict()}, tmp_path / "both.pth")
    own = Named()
    assert ckptool.load_into(own, tmp_path / "both.pth", at="other", mapping=mapping).at == "other"
    assert torch.equal(own.stem.weight, other[0].weight)  # type: ignore[index]


def test_a_mapping_for_another_model_is_refused(old: nn.Module) -> None:
    mapping = ckptool.transfer(old.state_dict(), Named())
    with pytest.raises(ckptool.RuleError, match="does not have"):
        ckptool.load_into(chain(), old.state_dict(), mapping=mapping)
    with pytest.raises(ckptool.RuleError, match=r"head.weight wants \[3, 256\]"):
        ckptool.load_into(Named(classes=3), old.state_dict(), mapping=mapping)


def test_a_model_on_the_meta_device_can_be_asked_and_is_not_filled(old: nn.Module) -> None:
    with torch.device("meta"):
        own = Named()
    assert ckptool.transfer(old.state_dict(), own).is_sure
    with pytest.raises(ckptool.CannotCarry, match="meta device"):
        ckptool.load_into(own, old.state_dict())
    own.to_empty(device="cpu")
    ckptool.load_into(own, old.state_dict())
    assert same_function(own, old)


def test_asking_changes_nothing(old: nn.Module) -> None:
    own = Named()
    own.train()
    state = torch.get_rng_state()
    before = {key: value.clone() for key, value in own.state_dict().items()}
    ckptool.transfer(old.state_dict(), own)
    assert own.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[key], value) for key, value in own.state_dict().items())


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 4)
            self.head = nn.Linear(4, 20, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            return self.head(self.embed(ids))

    torch.manual_seed(0)
    source = {"wte.weight": torch.randn(20, 4)}
    own = Tied()
    account = ckptool.load_into(own, source)
    assert own.head.weight is own.embed.weight
    assert torch.equal(own.head.weight, source["wte.weight"])
    assert account.is_sure


def test_an_output_layer_that_the_file_left_out_is_a_guess_where_the_code_does_not_tie_it() -> None:
    class Untied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body, self.head = nn.Embedding(20, 4), nn.Linear(4, 4), nn.Linear(4, 20, bias=False)

        def forward(self, ids: Any) -> Any:
            return self.head(self.body(self.embed(ids)))

    source = {"embed.weight": torch.randn(20, 4), "body.weight": torch.randn(4, 4), "body.bias": torch.randn(4)}
    mapping = ckptool.transfer(source, Untied())
    assert (mapping["head.weight"].status, str(mapping["head.weight"].expr)) == ("guessed", "embed.weight")
    with pytest.raises(ckptool.Doubtful):
        ckptool.load_into(Untied(), source)
    ckptool.load_into(Untied(), source, accept_guesses="head.*")


def test_extra_state_and_hooks_of_a_model_do_not_matter(old: nn.Module) -> None:
    class Extra(Named):
        def get_extra_state(self) -> Any:
            return {"version": 3}

        def set_extra_state(self, state: Any) -> None:
            raise AssertionError("nothing of the kind is in the file")

    own = Extra()
    ckptool.load_into(own, old.state_dict())
    assert same_function(own, old)


def test_what_cannot_be_run_is_matched_by_names_and_order(old: nn.Module) -> None:
    class Silent(Named):
        def forward(self, x: Any, *, secret: Any) -> Any:
            raise RuntimeError("only on the cluster")

    own = Silent()
    ckptool.load_into(own, old.state_dict())
    assert torch.equal(own.head.weight, old[5].weight)  # type: ignore[index]


@pytest.mark.parametrize(
    ("model", "says"),
    [(Named, "Named makes a model and is none itself"), ("old.pth", "'old.pth' is not a torch.nn.Module")],
)
def test_what_is_no_model_is_named(old: nn.Module, model: Any, says: str) -> None:
    with pytest.raises(ckptool.RuleError) as raised:
        ckptool.load_into(model, old.state_dict())
    assert raised.value.what == says
    if model is Named:
        assert raised.value.hint == "Named()"
        with pytest.raises(ckptool.RuleError, match="makes a model"):
            ckptool.transfer(old.state_dict(), Named)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"by": "foo"}, "by: 'foo' is not evidence or position"),
        ({"by": "position", "first": -1}, "first: -1 is not a number from 1 on"),
        ({"by": "position", "start": -1}, "start: -1 is not a number from 0 on"),
        ({"input_channels": "foo"}, "input_channels: 'foo' is not repeat or sum or mean or zeros or first"),
    ],
)
def test_an_argument_that_says_nothing_is_refused_also_where_it_does_not_matter(
    old: nn.Module, more: dict[str, Any], says: str
) -> None:
    for model in (Named(), chain()):
        with pytest.raises(ckptool.RuleError) as raised:
            ckptool.transfer(old.state_dict(), model, **more)
        assert str(raised.value) == f"{says}."
        if "input_channels" in more:
            with pytest.raises(ckptool.RuleError, match=says):
                ckptool.load_into(model, old.state_dict(), **more)


def test_one_hint_is_given_as_a_text() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    state = {f"{name}.{leaf}": torch.randn(*size) for name in "ab" for leaf, size in LINEAR.items()}
    model = Two()
    ckptool.load_into(model, state, hints="b=left")  # against the order of both
    assert torch.equal(model.left.weight, state["b.weight"])


LINEAR = {"weight": (4, 4), "bias": (4,)}


def test_a_hint_is_for_the_names_of_the_file_however_long_they_are() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.left(x) + self.right(x * 2)

    deep = ".inner" * 72
    source = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)}).state_dict()
    state = {f"{key[0]}{deep}{key[1:]}": value for key, value in source.items()}
    mapping = ckptool.transfer(state, Model(), hints=[f"b{deep}=left", f"a{deep}=right"])
    assert str(mapping["left.weight"].expr) == f"b{deep}.weight"
    assert str(mapping["right.bias"].expr) == f"a{deep}.bias"
    assert mapping.is_sure
    assert not mapping.unused


def test_printed_an_account_is_the_report_and_shown_it_is_one_line(old: nn.Module) -> None:
    account = ckptool.load_into(Named(), old.state_dict())
    assert repr(account) == f"<Mapping the source -> Named: {len(account.entries)} mapped, 0 guessed, 0 unmapped>"
    assert "stem. <- 0." in " ".join(str(account).split())


def test_a_model_of_which_a_part_has_no_memory_stays_as_it_is(old: nn.Module) -> None:
    model = Named()
    model.head.to("meta")
    before = model.stem.weight.clone()
    with pytest.raises(ckptool.CannotCarry, match="meta"):
        ckptool.load_into(model, old.state_dict())
    assert torch.equal(model.stem.weight, before)


@pytest.mark.parametrize("number", ["9" * 5_000, "0" * 5_000, "٣" * 5_000])
@pytest.mark.parametrize("name", ["{}", "a.{}", "layer{}.weight"])
def test_a_number_that_is_too_long_to_read_is_refused(old: nn.Module, tmp_path: Path, name: str, number: str) -> None:
    path = tmp_path / "old.pth"
    torch.save({**old.state_dict(), name.format(number): torch.ones(3)}, path)
    with pytest.raises(ckptool.NotFound, match="a number of 5,000 digits"):
        ckptool.load_into(Named(), path)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_transfer_leaves_the_garbage_collector_as_it_was(frozen: bool) -> None:
    seen = set()

    class Watching(nn.Linear):
        def forward(self, x: Any) -> Any:
            seen.add((gc.isenabled(), gc.get_freeze_count() > 0))
            return super().forward(x)

    model = Watching(3, 2)
    gc.unfreeze()
    try:
        if frozen:
            gc.freeze()
        ckptool.transfer(model.state_dict(), model)
        assert seen == {(False, True)}  # it waits for the end of the pass
        assert (gc.isenabled(), gc.get_freeze_count() > 0) == (True, frozen)
    finally:
        gc.freeze()  # as the tests run


def test_a_mapping_that_transfer_made_is_used_again_with_the_counters_that_the_model_makes_itself() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn = nn.Linear(3, 4), nn.BatchNorm1d(4)

    state = {
        key.replace("fc", "lin"): value for key, value in Normed().state_dict().items() if "num_batches" not in key
    }
    mapping = ckptool.transfer(state, Normed())
    again = ckptool.transfer(state, Normed(), mapping=mapping)
    assert [entry.status for entry in again.entries] == [entry.status for entry in mapping.entries]
    model = Normed()
    ckptool.load_into(model, state, mapping=mapping)
    assert torch.equal(model.fc.weight, state["lin.weight"])


def test_a_parameter_does_not_keep_its_initial_value_because_a_mapping_says_so_of_a_buffer() -> None:
    class Scaled(nn.Module):
        def __init__(self, learned: bool) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 4)
            if learned:
                self.scale_table = nn.Parameter(torch.randn(4))
            else:
                self.register_buffer("scale_table", torch.arange(4.0))

    state = {"lin.weight": torch.randn(4, 3), "lin.bias": torch.randn(4)}
    mapping = ckptool.transfer(state, Scaled(learned=False))
    assert mapping["scale_table"].status == "mapped"
    again = ckptool.transfer(state, Scaled(learned=True), mapping=mapping)
    assert again["scale_table"].status == "unmapped"
