"""What a run makes beside its target, and what may be removed of it."""

import errno
import json
import os
import shutil
import signal
import time
import tracemalloc
import zipfile

import pytest
from strategies import state_dict_of, tensor_of

import ckptool
from ckptool.disk.door import Directory
from ckptool.disk.files import Buffer
from ckptool.disk.folders import fingerprint, new_folder, replacing_folder
from ckptool.disk.runs import SUFFIX, find
from ckptool.disk.targets import replacing
from ckptool.disk.work import Work, remove
from ckptool.errors import OutputExists, Unwritable
from ckptool.formats.saving import plan


@pytest.fixture
def here(tmp_path):
    with Directory.at(tmp_path) as directory:
        yield directory


def half(here, target="out", names=("a", "b"), plan=None):
    """The work of a run that was killed with one file finished and one begun."""
    work = Work.start(here, target, names=names, plan=plan)
    for name in names[:2]:
        with work.create(name) as out:
            out.write(b"half")
    work.note_finished(names[0])
    work.close()
    return work.path


def shards(prefix=""):
    return state_dict_of({f"{prefix}a": tensor_of("float32", (2,)), f"{prefix}b": tensor_of("float32")})


# -- names


@pytest.mark.parametrize("name", ["x" * 255, "模" * 80, "é" * 120, "\udcff" * 200, "a.b", " "])
def test_a_temporary_name_holds_that_of_its_target_and_fits(tmp_path, name):
    with replacing(tmp_path / name) as out:
        (made,) = os.listdir(tmp_path)
        assert len(os.fsencode(made)) <= 255
        assert made.startswith(f".{name.encode('utf-8', 'ignore').decode()[:20]}")
        assert made.endswith(SUFFIX)
        out.write(b"new")
    assert os.listdir(tmp_path) == [name]


def test_two_runs_have_different_temporary_names(tmp_path):
    with replacing(tmp_path / "x"), replacing(tmp_path / "y"):
        first = set(os.listdir(tmp_path))
    with replacing(tmp_path / "x", overwrite=True), replacing(tmp_path / "y", overwrite=True):
        assert not first & set(os.listdir(tmp_path))


# -- what is planted


def test_a_planted_link_is_not_followed_and_nothing_behind_it_is_removed(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "a.txt").write_text("precious")
    (tmp_path / "dl").mkdir()
    for name in (f".out{SUFFIX}", f".out.00000000{SUFFIX}", f".out.old{SUFFIX}"):
        (tmp_path / "dl" / name).symlink_to("../victim")
    ckptool.save(shards(), tmp_path / "dl" / "out", format="shards")
    ckptool.save(shards("new."), tmp_path / "dl" / "out", format="shards", overwrite=True)
    assert os.listdir(victim) == ["a.txt"]
    assert not (tmp_path / "dl" / "out").is_symlink()


@pytest.mark.parametrize(
    "record", ["a link", "a pipe", "a second name", "copied", "nonsense", "nothing", "another version", "of nowhere"]
)
def test_a_record_that_is_not_of_this_machine_and_user_counts_for_nothing(tmp_path, here, record):
    path = half(here)
    (tmp_path / "precious").write_text("{}")
    at = path / "record"
    if record == "copied":  # as out of an archive: another directory, the same words
        shutil.copytree(path, tmp_path / "copy")
        shutil.rmtree(path)
        os.rename(tmp_path / "copy", path)
    elif record == "another version":
        at.write_text(json.dumps({**json.loads(at.read_text().splitlines()[0]), "ckptool": 1}) + "\n")
    elif record == "of nowhere":
        at.write_text('{"ckptool": 2, "target": "out", "names": []}\n')
    else:
        at.unlink()
        if record == "a link":
            at.symlink_to("../precious")
        elif record == "a pipe":
            os.mkfifo(at)
        elif record == "a second name":
            os.link(tmp_path / "precious", at)
        elif record == "nonsense":
            at.write_text("[[[")
    (left,) = find(here)
    assert not left.own
    assert remove(left)
    assert (path / "new" / "a").exists()
    assert (tmp_path / "precious").read_text() == "{}"
    ckptool.save(shards(), tmp_path / "out", format="shards")
    assert (path / "new" / "a").exists()


def record_of(path, **changes):
    """The record in a directory, of the directory itself, with other words."""
    first = {**json.loads((path / "record").read_text().splitlines()[0]), **changes}
    return json.dumps({key: value for key, value in first.items() if value is not ...}) + "\n"


@pytest.mark.parametrize("key", ["ckptool", "made", "target", "plan", "new", "names"])
def test_a_record_in_which_something_is_missing_counts_for_nothing(tmp_path, here, key):
    path = half(here)
    (path / "record").write_text(record_of(path, **{key: ...}))
    (left,) = find(here)
    assert not left.own
    assert remove(left)
    ckptool.save(shards(), tmp_path / "out", format="shards")
    assert (path / "new" / "a").exists()


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "", ".", "..", "a\0b", "\ud800", None, 5, [], {}])
@pytest.mark.parametrize("where", ["target", "names"])
def test_a_record_names_plain_names_only(here, where, name):
    path = half(here)
    (path / "record").write_text(record_of(path, **{where: [name] if where == "names" else name}))
    (left,) = find(here)
    assert not left.own
    assert remove(left)
    assert (path / "new" / "a").exists()


def test_of_a_record_of_another_directory_only_the_beginning_is_read(here):
    path = half(here)
    (path / "record").write_text(record_of(path, made=[0, 0], more=[[]] * 1_000_000))
    tracemalloc.start()
    (left,) = find(here)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not left.own
    assert peak < 1_000_000


def test_what_no_record_names_is_kept_and_the_rest_removed(tmp_path, here):
    path = half(here)
    (path / "new" / "thesis.txt").write_text("precious")
    (left,) = find(here)
    assert left.own
    assert remove(left) == ["thesis.txt"]
    assert os.listdir(path / "new") == ["thesis.txt"]


def test_a_run_does_not_go_on_where_something_strange_is(tmp_path):
    files = {"a": [Buffer(b"one")], "b": [Buffer(b"two")]}
    seen = []

    def interrupt(count):
        seen.append(count)
        if len(seen) > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replacing_folder(tmp_path / "out", files, progress=interrupt)
    (left,) = tmp_path.glob(f".out.*{SUFFIX}")
    (left / "new" / "strange").write_text("precious")
    assert replacing_folder(tmp_path / "out", files) == []
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "b"]
    assert (left / "new" / "strange").read_text() == "precious"


@pytest.mark.parametrize("change", ["longer", "a link", "a second name", "another file"])
def test_a_finished_file_that_changed_is_written_again(tmp_path, here, change):
    path = half(here, plan="P")
    file = path / "new" / "a"
    (tmp_path / "other").write_bytes(b"half")
    if change == "longer":
        file.write_bytes(b"half and more")
    else:
        file.unlink()
        if change == "a link":
            file.symlink_to(tmp_path / "other")
        elif change == "a second name":
            os.link(tmp_path / "other", file)
        else:
            file.write_bytes(b"HALF")
    work = Work.resume(here, "out", "P")
    assert work is not None
    assert work.finished == {}
    assert (tmp_path / "other").read_bytes() == b"half"
    work.discard()


def test_the_last_line_of_a_record_may_be_cut_off(here):
    path = half(here, plan="P")
    with open(path / "record", "ab") as record:
        record.write(b'{"finished": {"b": [4,')
    work = Work.resume(here, "out", "P")
    assert list(work.finished) == ["a"]
    work.discard()


# -- what runs


def test_of_a_run_that_lives_nothing_is_removed(here):
    work = Work.start(here, "out", names=["a"])
    (left,) = find(here)
    assert left.lives
    assert remove(left)
    assert work.path.is_dir()
    assert work.discard() == []
    assert find(here) == []


def test_only_the_work_of_the_same_target_is_found(here):
    for target in ("out", "out.b", "outer"):
        Work.start(here, target).close()
    assert [left.target for left in find(here, "out")] == ["out"]
    assert sorted(left.target for left in find(here)) == ["out", "out.b", "outer"]
    for left in find(here):
        assert remove(left) == []
    assert find(here) == []


# -- what appears or changes meanwhile


def meanwhile(path, what):
    """A progress that does something to the folder when the first bytes are written."""
    done = []

    def progress(_):
        if not done:
            done.append(what(path))

    return progress


CHANGES = {
    "a new file": lambda path: (path / "last.ckpt").write_text("theirs"),
    "a new folder": lambda path: (path / "logs").mkdir(),
    "a changed file": lambda path: (path / "model.safetensors").write_text("theirs"),
    "a file less": lambda path: (path / "model.safetensors").unlink(),
    "a link": lambda path: (path / "config.json").symlink_to("/etc/hostname"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backup", [None, ".bak"])
@pytest.mark.parametrize("exchanged", [True, False])
def test_what_appears_or_changes_in_a_folder_stops_its_replacement(tmp_path, monkeypatch, change, backup, exchanged):
    if not exchanged:
        monkeypatch.setattr(Directory, "exchange", lambda *_: False)
    ckptool.save(shards(), tmp_path / "out", format="shards")
    step = meanwhile(tmp_path / "out", CHANGES[change])
    with pytest.raises(OutputExists, match="was changed by somebody else"):
        ckptool.save(shards("new."), tmp_path / "out", format="shards", overwrite=True, backup=backup, progress=step)
    after = {path.name for path in (tmp_path / "out").iterdir()}
    assert (
        after
        == {
            "a new file": {"model.safetensors", "last.ckpt"},
            "a new folder": {"model.safetensors", "logs"},
            "a changed file": {"model.safetensors"},
            "a file less": set(),
            "a link": {"model.safetensors", "config.json"},
        }[change]
    )
    if change == "a new file":
        assert (tmp_path / "out" / "last.ckpt").read_text() == "theirs"


@pytest.mark.parametrize("exchanged", [True, False])
def test_what_appears_at_the_very_last_moment_survives_too(tmp_path, monkeypatch, exchanged):
    """Between the look at the old folder and the exchange."""
    ckptool.save(shards(), tmp_path / "out", format="shards")
    real = Work._require_same

    def late(work, target, old):
        real(work, target, old)
        (tmp_path / "out" / "last.ckpt").write_text("theirs")

    monkeypatch.setattr(Work, "_require_same", late)
    if not exchanged:
        monkeypatch.setattr(Directory, "exchange", lambda *_: False)
    with pytest.raises(OutputExists, match="somebody else"):
        ckptool.save(shards("new."), tmp_path / "out", format="shards", overwrite=True)
    assert (tmp_path / "out" / "last.ckpt").read_text() == "theirs"


def test_what_comes_into_the_old_folder_after_the_exchange_is_kept_and_named(tmp_path, monkeypatch):
    ckptool.save(shards(), tmp_path / "out", format="shards")
    fd = os.open(tmp_path / "out", os.O_RDONLY)  # somebody works in it
    real = Work._clear

    def late(work):
        with open(os.open("last.ckpt", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "w") as out:
            out.write("theirs")
        monkeypatch.setattr(Work, "_clear", real)
        return real(work)

    monkeypatch.setattr(Work, "_clear", late)
    plan = ckptool.plan(shards("new."), tmp_path / "out", format="shards")
    (note, *_) = ckptool.formats.write(plan, overwrite=True)
    os.close(fd)
    assert "last.ckpt" in note
    assert list(ckptool.open(tmp_path / "out").state_dict()) == ["new.a", "new.b"]
    (kept,) = tmp_path.glob(f".out.*{SUFFIX}/*/last.ckpt")
    assert kept.read_text() == "theirs"


def test_an_old_folder_whose_name_is_taken_is_never_removed(tmp_path, monkeypatch, here):
    """On systems that cannot exchange two names: it stands aside, and neither folder can have the name."""
    monkeypatch.setattr(Directory, "exchange", lambda *_: False)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("precious")
    real = Work._rename_new

    def late(work, target):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "b").write_text("theirs")
        real(work, target)

    monkeypatch.setattr(Work, "_rename_new", late)
    with (
        pytest.raises(OutputExists, match="somebody else"),
        new_folder(tmp_path / "out", ["a"], overwrite=True) as made,
    ):
        (made / "a").write_text("new")
    for left in find(here):
        remove(left)
    assert (tmp_path / "out" / "b").read_text() == "theirs"
    assert [path.read_text() for path in tmp_path.glob(f".out.*{SUFFIX}/old/a")] == ["precious"]


def test_a_target_that_may_not_be_replaced_does_not_keep_the_work_locked(tmp_path, here):
    files = {"a": [Buffer(b"one")], "b": [Buffer(b"two")]}
    half(here, plan=fingerprint(files))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").touch()
    for _ in range(2):
        with pytest.raises(OutputExists):
            replacing_folder(tmp_path / "out", files)


@pytest.mark.parametrize("moment", ["start", "publish_folder"])
def test_a_signal_that_had_to_wait_leaves_nothing_behind(tmp_path, monkeypatch, moment):
    real = getattr(Work, moment)

    def interrupted(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return real(*args, **options)

    monkeypatch.setattr(Work, moment, interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        replacing_folder(tmp_path / "out", {"a": [Buffer(b"one")]})
    assert os.listdir(tmp_path) == ([] if moment == "start" else ["out"])
    assert not hasattr(caught.value, "left_behind")


@pytest.mark.parametrize("change", ["content", "another file", "gone"])
@pytest.mark.parametrize("backup", [None, ".bak"])
def test_a_file_that_changes_while_it_is_replaced_stays(tmp_path, change, backup):
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def interfere():
        if change != "content":
            path.unlink()
        if change != "gone":
            path.write_bytes(b"theirs")

    with pytest.raises(OutputExists, match="meanwhile"), replacing(path, overwrite=True, backup=backup):
        interfere()
    assert (path.read_bytes() if path.exists() else None) == (None if change == "gone" else b"theirs")
    assert not list(tmp_path.glob(f".*{SUFFIX}"))


def test_a_backup_that_cannot_be_copied_to_its_end_does_not_stay(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Directory, "link", refuse)  # as on a filesystem without hard links
    path = tmp_path / "x"
    path.write_bytes(b"old")
    real, calls = os.fsync, []

    def second(fd):  # the first one is for the new file
        calls.append(fd)
        return refuse() if len(calls) == 2 else real(fd)

    monkeypatch.setattr(os, "fsync", second)
    with pytest.raises(Unwritable), replacing(path, overwrite=True, backup=".bak") as out:
        out.write(b"new")
    assert len(calls) == 2
    assert os.listdir(tmp_path) == ["x"]
    assert path.read_bytes() == b"old"


def test_of_two_runs_in_place_the_second_notices_the_first(tmp_path):
    path = tmp_path / "s.pt"
    ckptool.save(shards(), path)
    first, second = ckptool.open(path), ckptool.open(path)
    ckptool.save(ckptool.add_prefix(first, "a."), path, overwrite=True)
    with pytest.raises(OutputExists, match="was replaced by another program meanwhile"):
        ckptool.save(ckptool.add_prefix(second, "b."), path, overwrite=True)
    assert list(ckptool.open(path).state_dict()) == ["a.a", "a.b"]


def test_a_file_that_another_run_is_replacing_is_refused_at_once(tmp_path):
    pytest.importorskip("fcntl")
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with replacing(path, overwrite=True) as out:
        with pytest.raises(Unwritable, match="another run of ckptool is replacing it"), replacing(path, overwrite=True):
            pass
        out.write(b"new")
    assert path.read_bytes() == b"new"


def test_an_input_that_changes_while_it_is_copied_is_refused(tmp_path):
    ckptool.save(shards(), tmp_path / "in.pt")
    ckpt = ckptool.open(tmp_path / "in.pt")
    os.utime(tmp_path / "in.pt", (1, 1))
    with pytest.raises(ckptool.CheckpointError, match="changed while it was being copied"):
        ckptool.save(ckptool.add_prefix(ckpt, "a."), tmp_path / "out.pt")
    assert sorted(os.listdir(tmp_path)) == ["in.pt"]


def test_a_checkpoint_may_be_saved_over_its_file_again_and_again(tmp_path):
    ckptool.save(shards(), tmp_path / "x.pt")
    ckpt = ckptool.open(tmp_path / "x.pt")
    for prefix in ("a.", "b."):
        ckptool.save(ckptool.add_prefix(ckpt, prefix), tmp_path / "x.pt", overwrite=True)
    assert list(ckptool.open(tmp_path / "x.pt").state_dict()) == ["b.a", "b.b"]


# -- what is said


def test_what_a_run_that_was_cut_off_left_is_named_by_the_next_one(tmp_path, here):
    path = half(here, target="out.pt")
    notes = ckptool.formats.write(ckptool.plan(shards(), tmp_path / "out.pt"))
    assert notes == [
        f"a run that was cut off left {path.name} ({find(here)[0].nbytes:,} bytes); "
        f"ckptool doctor {tmp_path} --remove-leftovers removes it"
    ]


def test_what_doctor_would_keep_is_not_called_the_rest_of_a_run(tmp_path):
    planted = tmp_path / f".out.pt.00000000{SUFFIX}"
    planted.mkdir()
    (planted / "precious").touch()
    assert ckptool.formats.write(ckptool.plan(shards(), tmp_path / "out.pt")) == []


def test_an_interruption_says_where_finished_files_stay(tmp_path):
    seen = []

    def interrupt(count):
        seen.append(count)
        if len(seen) > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        replacing_folder(tmp_path / "out", {"a": [Buffer(b"1")], "b": [Buffer(b"2")]}, progress=interrupt)
    (left,) = tmp_path.glob(f".out.*{SUFFIX}")
    assert caught.value.left_behind == f"what is finished stays in {left.name}; the same command goes on from there"


def test_without_a_finished_file_nothing_stays_and_nothing_is_said(tmp_path):
    with pytest.raises(KeyboardInterrupt) as caught:
        replacing_folder(
            tmp_path / "out", {"a": [Buffer(b"1")]}, progress=lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
        )
    assert os.listdir(tmp_path) == []
    assert not hasattr(caught.value, "left_behind")


# -- what makes a plan another one


def _deflated(path, values):
    """A torch archive that was zipped again, with compression."""
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.full((600,), float(values)), "b": torch.full((600,), float(values + 1))}, path)
    with zipfile.ZipFile(path) as old:
        records = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in records.items():
            new.writestr(name, data)
    return ckptool.open(path)


def _plan(ckpt, path):
    planned = plan(ckpt, path, format="shards", max_shard_size="2KB")
    return fingerprint(planned.draft.folder)


def test_compressed_records_of_other_files_are_another_plan(tmp_path):
    one, other = _deflated(tmp_path / "one.pth", 1), _deflated(tmp_path / "other.pth", 5)
    assert _plan(one, tmp_path / "out") == _plan(ckptool.open(tmp_path / "one.pth"), tmp_path / "out")
    assert _plan(one, tmp_path / "out") != _plan(other, tmp_path / "out")


def test_another_computation_or_another_number_is_another_plan(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(600), "v": torch.ones(600)}, tmp_path / "in.pth")
    plans = []
    for expression in ("scale(w, 0.125)", "scale(w, 0.25)", "shift(w, 0.25)", "scale(v, 0.25)"):
        (tmp_path / "m.yaml").write_text(f"ckptool-mapping: 1\nmapping:\n  q: {expression}\n")
        made = ckptool.read_mapping(tmp_path / "m.yaml").apply(tmp_path / "in.pth")
        plans.append(_plan(made, tmp_path / "out"))
    assert len(set(plans)) == len(plans)


def test_of_two_runs_over_a_compressed_archive_the_second_notices_the_first(tmp_path):
    path = tmp_path / "z.pth"
    one, other = _deflated(path, 1), ckptool.open(path)
    ckptool.save(ckptool.add_prefix(one, "module."), path, overwrite=True)
    with pytest.raises(OutputExists, match="was replaced by another program meanwhile"):
        ckptool.save(ckptool.remap(other, "cuda:0"), path, overwrite=True)


def test_files_that_wait_for_the_disk_are_few(tmp_path, monkeypatch):
    """Each is open until it is on the disk: thousands of small shards would be more than a process may open."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("open files are counted by /proc")
    real, most = os.fsync, []

    def slow(fd):
        most.append(len(os.listdir("/proc/self/fd")))
        time.sleep(0.002)
        return real(fd)

    monkeypatch.setattr(os, "fsync", slow)
    replacing_folder(tmp_path / "out", {f"{n:03}": [Buffer(b"x" * 10)] for n in range(300)})
    assert len(list((tmp_path / "out").iterdir())) == 300
    assert max(most) - min(most) <= 70
