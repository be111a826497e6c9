"""Going on from a checkpoint: of another strategy, number of processes or kind; and from hostile files."""

import pickle
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from runs import SAME, Keeper, run_in_forks

import ckptool
from ckptool.errors import CannotCarry, CheckpointError, Malformed, TrainingFailed, Unreadable
from ckptool.train import run
from ckptool.train.strategies import STRATEGIES

TRAINED = Path(__file__).resolve().parents[2] / "fixtures" / "trained"
DISTRIBUTED = ("average-gradients", "ddp", "fsdp")
ONE_EPOCH = replace(SAME, samples=30, batch_size=8, epochs=1, lr_groups={}, schedule="none", lr=0.01, weight_decay=0.0)


class Told(list):
    """A watcher that is the list of what it was told."""

    say = list.append

    def begin_epoch(self, number, epochs, steps):
        pass

    def step(self, loss):
        pass

    def end_epoch(self, epoch):
        pass


def goes_on(trained, source, kind, config, watcher, run=run):
    """Let CONFIG resume the run of SOURCE after its second epoch; it must come to where that came undisturbed."""
    whole = trained(source)
    name = f"housing-{source}-{kind}" + (".pth" if kind == "full" else "")
    done = run(replace(config, resume=whole / "after-2" / name, save=("unwrapped",)), watcher)
    expected = ckptool.load(whole / f"housing-{source}-full.pth")["history"]
    assert [epoch.number for epoch in done.history] == [1, 2, 3]
    assert [epoch.loss for epoch in done.history] == pytest.approx([epoch["loss"] for epoch in expected], abs=1e-5)
    assert [epoch.rate for epoch in done.history] == pytest.approx([0.05, 0.04, 0.032])
    undisturbed = ckptool.load(whole / f"housing-{source}-unwrapped.pth")
    for key, value in ckptool.load(done.files[0]).items():
        torch.testing.assert_close(value, undisturbed[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "dcp"])
@pytest.mark.parametrize("source", STRATEGIES)
@pytest.mark.parametrize("strategy", ["single", "data-parallel", "functional", "manual"])
def test_one_process_goes_on_where_any_strategy_was(trained, tmp_path, source, kind, strategy):
    told = Told()
    goes_on(
        trained,
        source,
        kind,
        replace(SAME, strategy=strategy, nproc=2 if strategy == "manual" else None, out=tmp_path),
        told,
    )
    assert "continuing after epoch 2" in told
    rng = [line for line in told if "random number states" in line]
    if source in DISTRIBUTED:
        assert rng == [
            "the checkpoint has random number states of 2 ranks, this run has 1: they are not restored, so dropout and "
            "augmentation draw other numbers"
        ]
    else:
        assert rng == []


@pytest.mark.parametrize(
    ("strategy", "source", "kind", "options", "line"),
    [
        ("ddp", "fsdp", "dcp", {"accumulate": 2}, None),
        ("fsdp", "ddp", "full", {}, None),
        ("average-gradients", "single", "dcp", {}, "the checkpoint has random number states of 1 rank, this run has 2"),
    ],
)
def test_several_processes_go_on_where_another_strategy_was(
    trained, forks, tmp_path, strategy, source, kind, options, line
):
    config = replace(SAME, strategy=strategy, nproc=2, out=tmp_path, **options)
    goes_on(trained, source, kind, config, Keeper(tmp_path), partial(run_in_forks, forks))
    told = (tmp_path / "told").read_text().splitlines()
    assert told[:2] == ["no GPU: 2 processes on the CPU, joined by gloo", "continuing after epoch 2"]
    assert told[-1].startswith("epoch 3 of 3: ")
    assert len(told) == (4 if line else 3)  # with as many ranks as before, their random numbers go on
    assert line is None or told[2].startswith(line)


def test_dropout_draws_the_numbers_that_it_would_have_drawn(tmp_path):
    vgg = replace(SAME, task="vgg", width=0.015625, samples=20, classes=3, lr_groups={}, init="kaiming", save=("full",))
    whole = run(replace(vgg, out=tmp_path / "whole"), Keeper(tmp_path / "whole"))
    went_on = run(replace(vgg, out=tmp_path / "on", resume=tmp_path / "whole/after-2/vgg-single-full.pth"))
    assert [epoch.loss for epoch in went_on.history] == [epoch.loss for epoch in whole.history]
    left, right = (ckptool.load(done.files[0])["model"] for done in (whole, went_on))
    assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *(
            (
                f"housing-ddp-{kind}",
                "starting from the weights of the checkpoint; it holds no optimizer state, no epoch",
            )
            for kind in ("wrapped.pth", "wrapped.legacy.pth", "unwrapped.safetensors", "compiled.pth", "ema.pth")
        ),
        ("housing-ddp-model.pth", "starting from the weights of the checkpoint; it holds no optimizer state, no epoch"),
        ("housing-data-parallel-full-2018.pth", "continuing after epoch 2; it holds no optimizer state"),
    ],
)
def test_from_weights_alone_a_run_starts_and_says_what_is_missing(tmp_path, name, line):
    told = Told()
    still = replace(ONE_EPOCH, epochs=3, lr=1e-30, save=("unwrapped",))  # so that the weights stay what they are
    done = run(replace(still, out=tmp_path, resume=TRAINED / name), told)
    assert told[0] == line
    start = ckptool.load(TRAINED / ("housing-ddp-unwrapped.pth" if "model" in name else name))
    start = start.get("model", start)
    for key, value in ckptool.load(done.files[0]).items():
        assert torch.equal(value, next(v for k, v in start.items() if k.endswith(key)))


def test_what_a_run_needs_and_the_checkpoint_has_not_is_named(tmp_path):
    told = Told()
    source = TRAINED / "housing-single-full.pth"
    run(replace(ONE_EPOCH, epochs=3, schedule="cosine", amp="fp16", out=tmp_path, resume=source), told)
    assert told[0] == "continuing after epoch 2; it holds no scheduler, no gradient scaler"


def test_settings_of_the_checkpoint_go_on_and_that_is_said(tmp_path):
    told = Told()
    options = {"lr": 0.5, "momentum": 0.5, "weight_decay": 0.1}
    done = run(replace(ONE_EPOCH, epochs=3, out=tmp_path, resume=TRAINED / "housing-ddp-full.pth", **options), told)
    assert told[1:4] == [
        "its rate of 0.01 goes on; 0.5 was asked for",
        "its momentum of 0.9 goes on; 0.5 was asked for",
        "its weight decay of 0 goes on; 0.1 was asked for",
    ]
    assert done.history[-1].rate == 0.01


def test_nothing_left_to_train_is_said(tmp_path):
    with pytest.raises(TrainingFailed) as caught:
        run(replace(ONE_EPOCH, epochs=2, out=tmp_path, resume=TRAINED / "housing-ddp-full.pth"))
    assert caught.value.what == "the checkpoint has 2 epochs behind it; there is nothing left to train"
    assert caught.value.hint == "--epochs 4"


@pytest.mark.parametrize(
    ("options", "name", "what"),
    [
        ({"optimizer": "adam"}, "housing-single-full.pth", "its optimizer is another one"),
        ({"optimizer": "adam"}, "housing-fsdp-dcp", "its optimizer is another one"),
        ({"lr_groups": {"fc1.": 0.1}}, "housing-single-full.pth", "its optimizer has groups of 6 parameters"),
        ({"task": "lenet"}, "housing-single-full.pth", "its weights are not those of this task's network"),
        ({"task": "lenet"}, "housing-single-dcp", "its weights are not those of this task's network"),
        (
            {"schedule": "step:1", "task": "cnn", "optimizer": "adamw"},
            "cnn-ddp-full.pth",
            "its scheduler is another one",
        ),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_in_a_line(tmp_path, options, name, what):
    config = replace(ONE_EPOCH, epochs=3, out=tmp_path, resume=TRAINED / name, **options)
    with pytest.raises(CheckpointError) as caught:
        run(config)
    assert caught.value.what.startswith(what)
    assert "\n" not in caught.value.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("none.pth", Unreadable),
        ("empty.pth", CheckpointError),
        ("folder", CheckpointError),
        ("cut.pth", CheckpointError),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path, name, raised):
    (tmp_path / "empty.pth").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut.pth").write_bytes((TRAINED / "housing-single-full.pth").read_bytes()[:3000])
    with pytest.raises(raised):
        run(replace(ONE_EPOCH, out=tmp_path / "out", resume=tmp_path / name))
    assert list((tmp_path / "out").iterdir()) == []


class Touches:
    """What unpickles to a call that makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def copied_directory(tmp_path):
    return Path(shutil.copytree(TRAINED / "housing-fsdp-dcp", tmp_path / "dcp"))


def refused_without_running(tmp_path, resume):
    with pytest.raises((CannotCarry, Malformed)) as caught:
        run(replace(ONE_EPOCH, epochs=3, out=tmp_path / "out", resume=resume))
    assert not (tmp_path / "ran").exists()
    return caught.value


def test_nothing_in_a_hostile_file_runs(tmp_path):
    path = tmp_path / "evil.pth"
    torch.save({"model": Touches(tmp_path / "ran"), "optimizer": {}}, path)
    with pytest.raises(CheckpointError):
        run(replace(ONE_EPOCH, out=tmp_path / "out", resume=path))
    state = ckptool.load(TRAINED / "housing-single-unwrapped.pth")
    torch.save({"model": state, "optimizer": Touches(tmp_path / "ran"), "x": Touches(tmp_path / "ran")}, path)
    with pytest.raises(Malformed, match="what it holds beside the weights is nothing that training goes on from"):
        run(replace(ONE_EPOCH, out=tmp_path / "out", resume=path))
    assert not (tmp_path / "ran").exists()


def test_nothing_in_a_hostile_metadata_runs(tmp_path):
    folder = copied_directory(tmp_path)
    (folder / ".metadata").write_bytes(pickle.dumps(Touches(tmp_path / "ran")))
    error = refused_without_running(tmp_path, folder)
    assert error.what == "has no Metadata where torch writes one"


@pytest.mark.parametrize("protocol", [2, 4])
def test_metadata_reaches_no_module_through_the_names_of_torchs_records(tmp_path, protocol):
    """torch.distributed.checkpoint.metadata imports os, so that a name with dots in it could reach os.system."""
    folder = copied_directory(tmp_path)
    module, name = "torch.distributed.checkpoint.filesystem", "os.mkdir"
    argument = str(tmp_path / "ran").encode()
    text = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(t)]) + t for t in (module.encode(), name.encode())) + b"\x93"
    if protocol == 2:
        text = b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n"
    evil = text + b"X" + len(argument).to_bytes(4, "little") + argument + b"\x85R."
    if protocol == 4:
        pickle.loads(evil)  # the oracle: it would
        (tmp_path / "ran").rmdir()
    (folder / ".metadata").write_bytes(evil)
    refused_without_running(tmp_path, folder)


def test_values_in_a_hostile_directory_do_not_run(tmp_path):
    """Entries that are no tensors are pickles of their own inside the parts, torch.save'd."""
    from torch.distributed.checkpoint import save

    folder = tmp_path / "evil"
    state = ckptool.load(TRAINED / "housing-single-unwrapped.pth")
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        save(
            {"model": state, "optimizer": {"param_groups": Touches(tmp_path / "ran")}},
            checkpoint_id=folder,
            no_dist=True,
        )
    error = refused_without_running(tmp_path, folder)
    assert error.what == "what it holds beside the weights is nothing that training goes on from"
