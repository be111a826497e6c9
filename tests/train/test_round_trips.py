"""What training saves, through ckptool and back into models: every strategy, kind of file and container.

The files are those of `fixtures/trained`, which the pipeline made (tests/test_trained.py makes them again).
"""

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import safetensors.torch
from same import graph
from torch import nn

import ckptool
from ckptool.train.config import CONTAINERS, SAVES, WEIGHTS_ONLY
from ckptool.train.models import HousingNet
from ckptool.train.ways import WAYS

TRAINED = Path(__file__).resolve().parents[2] / "fixtures" / "trained"
NEVER = {("fsdp", "model"), ("fsdp", "ema")}  # refused, see ckptool.train.config
#: Everything but the whole model in a legacy file, into which torch writes the path of its code.
MATRIX = [
    (strategy, kind, container)
    for strategy in WAYS
    for kind in SAVES
    if kind != "full-2018" and (strategy, kind) not in NEVER
    for container in (["dcp"] if kind == "dcp" else CONTAINERS)
    if container != "safetensors" or kind in WEIGHTS_ONLY
    if (kind, container) != ("model", "legacy")
]
SUFFIXES = {**CONTAINERS, "dcp": ""}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def there(strategy, kind, container):
    return TRAINED / f"housing-{strategy}-{kind}{SUFFIXES[container]}"


def given(strategy, kind, container):
    """The path of a file of the matrix; a directory of DCP becomes a file as torch makes it one."""
    path = there(strategy, kind, container)
    if kind == "dcp":
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        dcp_to_torch_save(path, "dcp.pth")
        return Path("dcp.pth")
    return path


def weights_of(path, kind):
    """The weights in a file of that kind, and nothing else."""
    ckpt = ckptool.open(path)
    return ckptool.extract(ckpt, at="model" if kind in ("full", "dcp") else None)


def torch_loads(path):
    if path.endswith(".safetensors"):
        return safetensors.torch.load_file(path)
    return torch.load(path, weights_only=True)


INPUTS = torch.randn(7, 13, generator=torch.Generator().manual_seed(0))


def outputs(model, state):
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        return model(INPUTS)


def expected(strategy, kind):
    """The outputs of the model, of weights that no code of ckptool has touched but the one that trained."""
    if kind != "ema":
        return outputs(HousingNet(), torch_loads(f"{TRAINED}/housing-{strategy}-unwrapped.pth"))
    return outputs(
        torch.optim.swa_utils.AveragedModel(HousingNet()), torch_loads(f"{TRAINED}/housing-{strategy}-ema.pth")
    )


def test_the_matrix_is_whole():
    assert Counter(strategy for strategy, *_ in MATRIX) == {s: 12 if s == "fsdp" else 16 for s in WAYS}
    for strategy, kind, container in MATRIX:
        assert there(strategy, kind, container).exists()


@pytest.mark.parametrize(("strategy", "kind", "container"), MATRIX)
def test_weights_go_strictly_into_the_plain_and_the_wrapped_model_from_any_container(strategy, kind, container):
    want = expected(strategy, kind)
    plain = ckptool.unwrap(weights_of(there(strategy, kind, container), kind), missing="ok")
    wrapped = ckptool.add_prefix(plain, "module.")
    for target in ("plain.pth", "plain.legacy.pth", "plain.safetensors"):
        form = "legacy" if "legacy" in target else None
        ckptool.save(plain, target, format=form)
        assert torch.equal(outputs(HousingNet(), torch_loads(target)), want)
        ckptool.save(wrapped, f"w-{target}", format=form)
        assert torch.equal(outputs(nn.DataParallel(HousingNet()), torch_loads(f"w-{target}")), want)
        stripped = ckptool.strip_prefix(ckptool.open(f"w-{target}"), "module.")
        ckptool.save(stripped, f"s-{target}", format=form)
        assert torch.equal(outputs(HousingNet(), torch_loads(f"s-{target}")), want)


@pytest.mark.parametrize(("strategy", "kind", "container"), MATRIX)
def test_what_is_done_and_undone_leaves_everything_as_it_was(strategy, kind, container):
    """Prefix and device, there and back: the same objects in the same order, sharing and all, by way of files."""
    path = given(strategy, kind, container)
    original = ckptool.open(path)
    at = {"full": "model", "dcp": "model"}.get(kind)
    keep = {"keep_objects": True}  # a full checkpoint holds a Namespace, a pickled model its classes
    if kind != "model":  # whose keys its code needs as they are
        ckptool.save(ckptool.add_prefix(original, "outer.", at=at), f"a{path.suffix}", **keep)
        ckptool.save(ckptool.strip_prefix(ckptool.open(f"a{path.suffix}"), "outer.", at=at), f"b{path.suffix}", **keep)
        assert graph(ckptool.open(f"b{path.suffix}").root) == graph(original.root)
    if container != "safetensors":  # which has no devices
        ckptool.save(ckptool.map_location(original, {"cpu": "cuda:1"}), f"c{path.suffix}", **keep)
        there = ckptool.open(f"c{path.suffix}")
        assert "cuda:1" in {storage.location for storage in there.storages()}
        ckptool.save(ckptool.map_location(there, {"cuda:1": "cpu"}), f"d{path.suffix}", **keep)
        assert graph(ckptool.open(f"d{path.suffix}").root) == graph(original.root)


@pytest.mark.parametrize(("strategy", "kind", "container"), [row for row in MATRIX if row[1] != "dcp"])
def test_every_container_can_become_every_other_and_come_back(strategy, kind, container):
    path = given(strategy, kind, container)
    want = expected(strategy, kind)
    for form in CONTAINERS:
        if form == "safetensors" and kind not in WEIGHTS_ONLY:
            continue
        ckptool.save(ckptool.open(path), f"there-{form}", format=form, keep_objects=True)
        ckptool.save(ckptool.open(f"there-{form}"), f"back-{form}", format=container, keep_objects=True)
        plain = ckptool.unwrap(weights_of(f"back-{form}", kind), missing="ok")
        ckptool.save(plain, f"plain-{form}.pth")
        assert torch.equal(outputs(HousingNet(), torch_loads(f"plain-{form}.pth")), want)
        if "safetensors" not in (form, container):
            assert graph(ckptool.open(f"back-{form}").root) == graph(ckptool.open(path).root)


@pytest.mark.parametrize("strategy", [s for s in WAYS if s not in ("fsdp", "ddp")])
def test_a_pickled_model_is_one_that_torch_can_use(strategy):
    """The oracle unpickles it whole, with all that it imports, and calls it."""
    model = torch.load(TRAINED / f"housing-{strategy}-model.pth", weights_only=False)
    with torch.no_grad():
        assert torch.equal(getattr(model, "module", model)(INPUTS), expected(strategy, "wrapped"))


def test_a_pickled_model_of_ddp_is_lost_without_its_process_group_but_for_its_weights():
    path = TRAINED / "housing-ddp-model.pth"
    with pytest.raises(ValueError, match="process group has not been initialized"):
        torch.load(path, weights_only=False)
    state = ckptool.load(path, "cpu")
    assert isinstance(state, ckptool.Inert)


def test_the_state_of_a_full_checkpoint_goes_strictly_into_optimizer_and_scheduler():
    import argparse

    for strategy in WAYS:
        with torch.serialization.safe_globals([argparse.Namespace]):
            root = torch.load(TRAINED / f"housing-{strategy}-full.pth", weights_only=True)
        if strategy == "fsdp":  # which names its parameters; torch's own door for that takes them
            continue
        model = HousingNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        optimizer.load_state_dict(root["optimizer"])
        assert optimizer.param_groups[0]["lr"] == 0.01
        for parameter in model.parameters():
            assert optimizer.state[parameter]["momentum_buffer"].shape == parameter.shape
