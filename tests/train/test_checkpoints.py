"""What is written is whole or not there: full disks, closed folders, files of another run; and the curves."""

import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from runs import SAME, Keeper, limit_files, run_in_forks

import ckptool
from ckptool.disk.door import Directory
from ckptool.disk.work import Work
from ckptool.errors import CannotCarry, CheckpointError, NotInstalled, OutputExists, TrainingFailed, Unwritable
from ckptool.train import Save, checkpoints, run

SMALL = replace(SAME, samples=30, batch_size=8, epochs=1)
ALL = ("wrapped", "wrapped:legacy", "wrapped:safetensors", "full", "full:legacy", "model", "dcp")


@contextmanager
def full_disk(room=2048):
    """No file can grow beyond ROOM bytes. (A fixture would hold for the report of the test, too.)"""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("save", ALL)
def test_a_full_disk_leaves_nothing_half_written(tmp_path, save):
    with full_disk(), pytest.raises(Unwritable) as caught:
        run(replace(SMALL, out=tmp_path, save=(save,)))
    assert caught.value.where == str(tmp_path / Save.parse(save).name("housing", "single"))
    assert caught.value.what == "file too large"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("save", ALL)
def test_a_full_disk_leaves_what_was_saved_before_as_it_was(tmp_path, save):
    run(replace(SMALL, out=tmp_path, save=(save,)))
    before = contents(tmp_path)
    with full_disk(), pytest.raises(Unwritable):
        run(replace(SMALL, epochs=2, out=tmp_path, save=(save,), overwrite=True))
    assert contents(tmp_path) == before


def test_a_full_disk_under_a_rank_is_one_line_that_names_it(tmp_path, forks):
    room = 6144  # torch's report of a failed rank is a file, too
    with pytest.raises(TrainingFailed) as caught:
        run_in_forks(
            forks,
            replace(SMALL, strategy="ddp", nproc=2, out=tmp_path, save=("full", "dcp")),
            first=partial(limit_files, room),
        )
    assert caught.value.what == f"rank 0 failed: {tmp_path}/housing-ddp-full.pth: file too large"
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_said_as_it_is(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(Unwritable, match="no space left on device"):
        run(replace(SMALL, out=tmp_path, save=("full",)))
    assert list(tmp_path.iterdir()) == []


def test_what_another_run_left_is_not_replaced_unasked(tmp_path):
    run(replace(SMALL, out=tmp_path, save=("full", "dcp")))
    before = contents(tmp_path)
    for save in ("full", "dcp"):
        with pytest.raises(OutputExists) as caught:
            run(replace(SMALL, out=tmp_path, save=(save,)))
        assert caught.value.hint == "add --overwrite, or choose another --out"
    assert contents(tmp_path) == before
    run(replace(SMALL, epochs=2, out=tmp_path, save=("full", "dcp"), resume=tmp_path / "housing-single-full.pth"))
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    assert ckptool.load(tmp_path / "housing-single-full.pth")["epoch"] == 2


@pytest.mark.parametrize("how", ["a file in the way", "a file above"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, how):
    (tmp_path / "taken").touch()
    out = tmp_path / "taken" if how == "a file in the way" else tmp_path / "taken" / "deeper"
    with pytest.raises(Unwritable):
        run(replace(SMALL, out=out))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(Unwritable, match="no permission to write into the folder"):
        run(replace(SMALL, out=tmp_path))


def test_what_a_killed_rank_left_of_a_file_is_cleared(tmp_path):
    config = replace(SMALL, out=tmp_path, save=("full", "dcp"))
    keep = [
        tmp_path / "housing-single-full.pth",
        tmp_path / ".housing-single-full.pth.mine",
        tmp_path / "other.ckptool-tmp",
    ]
    for path in keep:
        path.touch()
    with Directory.at(tmp_path) as parent:
        for work, name in [
            (Work.start(parent, "housing-single-full.pth"), None),
            (Work.start(parent, "housing-single-dcp", names=["__0_0.distcp"]), "__0_0.distcp"),
        ]:
            work.create(name).close()
            work.close()
    checkpoints.clear(config)
    assert sorted(tmp_path.iterdir()) == sorted(keep)


def test_a_model_that_cannot_be_pickled_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(CannotCarry, match="cannot be pickled"):
        checkpoints.write({"hook": lambda: None}, tmp_path / "x.pth", Save("model"))
    assert list(tmp_path.iterdir()) == []


def test_every_n_epochs_and_at_the_end_files_are_written(tmp_path):
    class Sees(Keeper):
        def begin_epoch(self, number, epochs, steps):
            path = self.out / "housing-single-full.pth"
            self.say(str(ckptool.load(path)["epoch"] if path.exists() else None))

    run(replace(SMALL, epochs=5, save_every=2, save=("full",), out=tmp_path), Sees(tmp_path))
    assert (tmp_path / "told").read_text().split() == ["None", "None", "2", "2", "4"]
    assert ckptool.load(tmp_path / "housing-single-full.pth")["epoch"] == 5


# -- curves


def test_the_curves_are_a_picture(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    sizes = {}
    for task in ("housing", "cnn"):
        done = run(
            replace(SMALL, task=task, classes=2, epochs=2, lr_groups={}, curves=True, save=("wrapped",), out=tmp_path)
        )
        assert done.files[-1].name == f"{task}-single-curves.png"
        with Image.open(done.files[-1]) as image:
            sizes[task] = image.size
            assert len(image.convert("RGB").getcolors(1 << 20)) > 20
    assert sizes["cnn"][0] > 1.5 * sizes["housing"][0]  # the accuracy stands beside the loss


def test_the_logs_of_tensorboard_hold_every_epoch(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for epochs in (2, 3):  # the second run resumes the first, and writes the logs anew
        resume = tmp_path / "cnn-single-full.pth" if epochs == 3 else None
        options = {
            "task": "cnn",
            "classes": 2,
            "lr_groups": {},
            "tensorboard": True,
            "save": ("full",),
            "resume": resume,
        }
        done = run(replace(SMALL, epochs=epochs, out=tmp_path, **options))
    logs = EventAccumulator(str(tmp_path / "cnn-single-tensorboard")).Reload()
    assert sorted(logs.Tags()["scalars"]) == ["accuracy", "loss/test", "loss/training", "rate"]
    shown = [(event.step, event.value) for event in logs.Scalars("loss/training")]
    assert shown == [(epoch.number, pytest.approx(epoch.loss)) for epoch in done.history]
    assert len(shown) == 3


def test_without_their_libraries_curves_are_left_out_and_logs_refused(tmp_path, monkeypatch):
    for package in ("matplotlib", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)  # which makes importing it fail
    told = []
    watcher = Keeper(tmp_path)
    watcher.say = told.append
    done = run(replace(SMALL, curves=True, out=tmp_path, save=("wrapped",)), watcher)
    assert "matplotlib is not installed, so the curves are not drawn (pip install 'ckptool[train]')" in told
    assert [path.name for path in done.files] == ["housing-single-wrapped.pth"]
    with pytest.raises(NotInstalled, match="needs tensorboard, which is not installed"):
        run(replace(SMALL, tensorboard=True, out=tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    with pytest.raises(TrainingFailed) as caught:
        run(replace(SMALL, lr=1e30, lr_groups={}, epochs=9, out=tmp_path, save_every=0))
    assert caught.value.what.startswith("the loss is ")
    assert caught.value.hint == "--lr 1e+29"
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_is_never_full_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="24 samples are less than one batch"):
        run(replace(SMALL, batch_size=32, out=tmp_path))
