"""A patch in place beside other runs, other users and other disks: who waits, who is refused, and what they read."""

import contextlib
import errno
import fcntl
import os
import threading

import pytest
from strategies import state_dict_of, tensor_of

import ckptool
from ckptool.cli import main
from ckptool.disk import door, patching
from ckptool.disk.files import File
from ckptool.disk.journals import as_it_was, journal_name


class Killed(BaseException):
    """The run ends here, and does nothing more."""


def status_of(words):
    try:
        main(words.split())
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def saved(path):
    tensors = {f"module.layer.{n}.weight": tensor_of("float32", (64, 64)) for n in range(4)}
    ckptool.save(state_dict_of(tensors), path)
    return path


def content(path):
    file = as_it_was(File(path))
    with contextlib.closing(file):
        return file.read(0, file.size)


def writes_to(path, monkeypatch, before_second):
    """Call BEFORE_SECOND before the second write into the file at PATH."""
    real, count = os.pwrite, []

    def pwrite(fd, data, at):
        if os.fstat(fd).st_ino == path.stat().st_ino:
            count.append(at)
            if len(count) == 2:
                before_second()
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)


@pytest.fixture
def cut_off(tmp_path, monkeypatch):
    """A file whose patch was cut off between two writes, and its bytes before."""

    def die():
        raise Killed

    path = saved(tmp_path / "a.pt")
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        writes_to(path, patched, die)
        with pytest.raises(Killed):
            main(["strip-prefix", str(path), "--in-place", "--patch", "-q"])
    assert path.read_bytes() != before
    return path, before


def test_nothing_is_recovered_while_another_run_holds_the_file(cut_off, capfd):
    path, before = cut_off
    there = path.read_bytes()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert status_of(f"doctor {path} --recover") == 2
        assert "another run of ckptool" in capfd.readouterr().err
        assert path.read_bytes() == there
        assert path.with_name(journal_name("a.pt")).exists()
    assert status_of(f"doctor {path} --recover") == 0
    assert path.read_bytes() == before


def test_two_recoveries_at_once_do_not_take_back_what_came_after_the_first(cut_off, monkeypatch):
    path, _ = cut_off
    done = []
    real = patching.find_journal

    def other_run():
        try:
            patching.settle(path)
            ckptool.save(ckptool.strip_prefix(ckptool.open(path)), path, overwrite=True, patch=True)
        except ckptool.CheckpointError:
            done.append(2)
        else:
            done.append(0)

    def found(*args):
        """The second recovery begins when the first has read the journal; after it the file is patched."""
        answer = real(*args)
        if not done:
            done.append(-1)
            other = threading.Thread(target=other_run)
            other.start()
            other.join()
        return answer

    monkeypatch.setattr(patching, "find_journal", found)
    first = status_of(f"doctor {path} --recover")
    names = [key.partition(".")[0] for key in ckptool.open(path).state_dict()]
    assert names == ["layer" if done[1] == 0 else "module"] * 4
    assert 0 in (first, done[1])
    assert ckptool.verify(path).sound


def test_a_reader_who_looks_at_a_journal_as_it_is_made_does_not_keep_the_run_from_locking_it(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.pt")
    journal = path.with_name(journal_name("a.pt"))
    seen, real = [], door.Directory.create

    def create(self, name, mode=0o666):
        fd = real(self, name, mode)
        if name == journal.name:
            looked = journal.open("rb")
            fcntl.flock(looked, fcntl.LOCK_SH)
            threading.Timer(0.1, looked.close).start()
        return fd

    def look():
        with journal.open("rb") as looked:
            seen.append(door.lock(looked.fileno(), shared=True))

    monkeypatch.setattr(door.Directory, "create", create)
    writes_to(path, monkeypatch, look)
    assert status_of(f"strip-prefix {path} --in-place --patch -q") == 0
    assert seen == [False]


def test_a_journal_on_a_disk_that_may_only_be_read_is_read_through(cut_off, monkeypatch):
    path, before = cut_off
    real = os.open

    def read_only(name, flags, *args, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        return real(name, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert content(path) == before


@pytest.mark.parametrize("other", [False, True], ids=["of the file's owner", "of another user"])
def test_a_journal_counts_for_everybody_if_the_owner_of_the_file_made_it(cut_off, monkeypatch, other):
    path, before = cut_off
    there = path.read_bytes()
    if os.geteuid() == 0 and other:
        os.chown(path.with_name(journal_name("a.pt")), 12345, 12345)
    elif os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        os.chown(path.with_name(journal_name("a.pt")), 12345, 12345)
    elif other:
        pytest.skip("only root gives files to others")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if other:
        with pytest.raises(ckptool.Unreadable, match="holds a part of a patch"):
            content(path)
        assert path.read_bytes() == there
    else:
        assert content(path) == before


def test_whoever_may_read_the_file_may_read_its_journal(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.pt")
    path.chmod(0o640)
    modes = []
    writes_to(path, monkeypatch, lambda: modes.append(path.with_name(journal_name("a.pt")).stat().st_mode & 0o777))
    mask = os.umask(0)
    try:
        assert status_of(f"strip-prefix {path} --in-place --patch -q") == 0
    finally:
        os.umask(mask)
    assert modes == [0o640]


def test_a_checkpoint_that_was_opened_before_a_patch_still_holds_what_it_held(tmp_path, torch):
    path = tmp_path / "a.safetensors"
    values = {f"l{n}": torch.randn(512, 512).bfloat16() for n in range(2)}
    ckptool.save(values, path)
    opened = ckptool.open(path)
    ckptool.save(ckptool.cast(opened, "float16"), path, overwrite=True, patch=True)
    assert torch.equal(ckptool.load(path)["l0"], values["l0"].half())
    ckptool.save(opened, tmp_path / "b.safetensors")
    for name, value in ckptool.load(tmp_path / "b.safetensors").items():
        assert torch.equal(value, values[name])
    assert torch.equal(opened["l0"].torch(), values["l0"])
    ckptool.save(opened, path, overwrite=True)
    assert torch.equal(ckptool.load(path)["l1"], values["l1"])


def test_a_checkpoint_that_was_read_through_a_journal_is_saved_over_its_own_file(cut_off, capfd):
    path, _ = cut_off
    opened = ckptool.open(path)
    keys = list(opened.state_dict())
    assert keys[0] == "module.layer.0.weight"
    ckptool.save(opened, path, overwrite=True)
    assert status_of(f"inspect {path}") == 0
    assert "patch" not in capfd.readouterr().out
    again = ckptool.open(path).state_dict()
    assert list(again) == keys
    before = opened.state_dict()
    assert all((again[key].numpy() == before[key].numpy()).all() for key in keys)


@pytest.mark.parametrize("within", [False, True], ids=["elsewhere", "where the patch wrote"])
def test_what_another_program_wrote_behind_a_journal_is_not_saved(cut_off, within):
    path, before = cut_off
    opened = ckptool.open(path)
    there = path.read_bytes()
    at = next(n for n, (old, new) in enumerate(zip(before, there, strict=True)) if old != new) if within else 20_000
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"another program")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ckptool.CheckpointError, match="changed while it was being copied"):
        ckptool.save(opened, path, overwrite=True)
    assert b"another program" in path.read_bytes()


@pytest.mark.parametrize("command", ["inspect {}", "verify {}", "scan {}", "convert {} {}.pt", "diff {} {}"])
def test_a_file_that_was_copied_amid_a_patch_is_refused_and_not_read_as_it_stands(cut_off, capfd, command):
    path, _ = cut_off
    place = path.parent / "elsewhere"
    place.mkdir()
    for name in ("a.pt", journal_name("a.pt")):
        (place / name).write_bytes((path.parent / name).read_bytes())
    assert status_of(command.replace("{}", str(place / "a.pt"))) in (1, 2)
    assert "holds a part of a patch" in "".join(capfd.readouterr())
    assert sorted(one.name for one in place.iterdir()) == sorted([journal_name("a.pt"), "a.pt"])


@pytest.mark.parametrize("which", ["old", "new"])
def test_a_whole_file_is_read_whatever_journal_was_copied_beside_it(cut_off, which):
    path, before = cut_off
    place = path.parent / "elsewhere"
    place.mkdir()
    (place / "a.pt").write_bytes(before)
    if which == "new":
        ckptool.save(ckptool.strip_prefix(ckptool.open(place / "a.pt")), place / "a.pt", overwrite=True)
    (place / journal_name("a.pt")).write_bytes((path.parent / journal_name("a.pt")).read_bytes())
    assert content(place / "a.pt") == (place / "a.pt").read_bytes()


def test_a_patch_is_taken_back_after_a_restart_that_gives_the_disk_another_number(cut_off, monkeypatch):
    path, before = cut_off

    def renumbered(real):
        def status(*args, **options):
            kind, (numbers, more) = real(*args, **options).__reduce__()
            return kind((*numbers[:2], numbers[2] + 7, *numbers[3:]), more)

        return status

    for name in ("stat", "fstat", "lstat"):
        monkeypatch.setattr(os, name, renumbered(getattr(os, name)))
    assert content(path) == before
    assert status_of(f"doctor {path} --recover") == 0
    assert path.read_bytes() == before
    assert not path.with_name(journal_name("a.pt")).exists()


@pytest.mark.parametrize("give", [os.rename, os.link])
@pytest.mark.parametrize(
    "command", ["inspect {}", "verify {}", "doctor --recover {}", "add-prefix {} --prefix a. {}.pt"]
)
def test_a_file_that_got_another_name_amid_a_patch_is_refused_with_the_name_that_recovers_it(
    cut_off, capfd, give, command
):
    path, before = cut_off
    other = path.with_name("b.pt")
    give(path, other)
    assert status_of(command.replace("{}", str(other))) == 2
    told = capfd.readouterr().err
    assert "under the name a.pt" in told
    assert f"mv -n {other} {path}" in told
    if not path.exists():
        os.rename(other, path)
    assert content(path) == before
    assert status_of(f"doctor {path} --recover") == 0
    assert path.read_bytes() == before


def test_files_beside_one_that_is_amid_a_patch_are_read(cut_off):
    path, _ = cut_off
    other = saved(path.with_name("b.pt"))
    assert content(other) == other.read_bytes()


def test_a_journal_that_lost_its_end_after_the_file_changed_does_not_say_that_nothing_was_changed(cut_off, capfd):
    path, _ = cut_off
    there, journal = path.read_bytes(), path.with_name(journal_name("a.pt"))
    whole = journal.read_bytes()
    line = whole.index(b"\n") + 1
    for spoilt in [
        *(whole[:length] for length in range(line, len(whole), 97)),
        whole[: line - 1] + b"!" + whole[line:],
    ]:
        with journal.open("r+b") as opened:
            opened.truncate(0)
            opened.write(spoilt)
        assert status_of(f"doctor {path} --recover") == 2
        assert "left alone" in capfd.readouterr().err
        assert journal.read_bytes() == spoilt
        assert path.read_bytes() == there
