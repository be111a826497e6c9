"""Changing a file where it stands: what a journal beside it promises, also when the run is killed at any write."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from faulty import COMMANDS, Bench, Command
from hypothesis import given
from hypothesis import strategies as st
from strategies import state_dict_of, tensor_of

import ckptool
from ckptool.cli import main
from ckptool.disk.files import File
from ckptool.disk.journals import as_it_was, journal_name
from ckptool.disk.patching import settle
from ckptool.tree import Dict

CALLS = ["open", "write", "pwrite", "fsync", "unlink", "link", "rename", "replace"]


class Killed(BaseException):
    """The run ends here, and does nothing more."""


class Killing:
    """Ends the run at the N-th call that writes, perhaps with a half of what it writes; counts the calls."""

    def __init__(self, monkeypatch, work):
        self.count, self.at, self.half, self.work = 0, -1, False, os.fspath(work)
        for name in CALLS:
            if hasattr(os, name):
                monkeypatch.setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name, real):
        def call(*args, **options):
            reads = name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            streams = name == "write" and args[0] in (1, 2)
            if reads or streams or not os.getcwd().startswith(self.work):
                return real(*args, **options)
            self.count += 1
            if 0 < self.at <= self.count:
                if self.count == self.at and self.half and name == "pwrite":
                    real(args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:])
                raise Killed
            return real(*args, **options)

        return call


PATCHES = {
    "zip": Command("strip-prefix out.pt --prefix old. --in-place --patch", in_place=True),
    "remap": Command("remap out.pt -m cuda:1 --in-place --patch", in_place=True),
    "safetensors": Command(
        "strip-prefix out.safetensors --prefix old. --in-place --patch", "out.safetensors", in_place=True
    ),
}


def content(path):
    """The bytes of a file as ckptool reads it."""
    file = as_it_was(File(path))
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def seen(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("half", [False, True], ids=["before", "amid"])
@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_that_is_killed_at_any_write_can_be_read_and_is_taken_back_or_complete(
    tmp_path, monkeypatch, capfd, name, half
):
    bench = Bench(tmp_path, PATCHES[name], old=True)
    path = bench.work / PATCHES[name].target
    old, states = (bench.source / path.name).read_bytes(), set()
    with monkeypatch.context() as patched:
        killing = Killing(patched, bench.work)
        bench.begin()
        killing.count = 0
        assert bench.run() == 0
        new, calls = path.read_bytes(), killing.count
        assert calls > 6
        assert old != new
        for at in range(1, calls + 1):
            bench.begin()
            killing.count, killing.at, killing.half = 0, at, half
            with pytest.raises(Killed):
                bench.run()
            killing.at = -1
            capfd.readouterr()
            assert content(path) in (old, new)
            before = seen(bench.work)
            main_quietly(f"inspect {path} --json")
            journal = journal_name(path.name)
            assert seen(bench.work) == before
            assert (journal in capfd.readouterr().out) == (journal in before)
            states.add((path.read_bytes() in (old, new), journal in before))
            if at % 2:
                assert main_quietly(f"doctor {path} --recover") == 0
                assert path.read_bytes() == (new if before[path.name] == new else old)
                assert sorted(seen(bench.work)) == sorted(bench.inputs | {path.name: ""})
            if path.read_bytes() != new or journal in seen(bench.work):
                assert bench.run() == (0 if before[path.name] != new else 2) or name == "remap"
            assert path.read_bytes() == new
            assert sorted(seen(bench.work)) == sorted(bench.inputs | {path.name: ""})
    assert (True, False) in states
    assert (True, True) in states
    assert not half or (False, True) in states


def main_quietly(words):
    try:
        main(words.split())
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def saved(path, prefix="module.", **options):
    tensors = {f"{prefix}layer.{n}.weight": tensor_of("float32", (64, 64)) for n in range(4)}
    ckptool.save(state_dict_of(tensors), path, **options)
    return path


@pytest.fixture
def cut_off(tmp_path, monkeypatch):
    """A file whose patch was cut off amid a write, with its journal; the bytes before, and now."""
    path = saved(tmp_path / "a.pt")
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        real, count = os.pwrite, []

        def pwrite(fd, data, at):
            if os.fstat(fd).st_ino == path.stat().st_ino:
                count.append(at)
                if len(count) > 1:
                    raise Killed
                data = memoryview(data)[: len(data) // 2]
            return real(fd, data, at)

        patched.setattr(os, "pwrite", pwrite)
        with pytest.raises(Killed):
            main(["strip-prefix", str(path), "--in-place", "--patch", "-q"])
    assert path.read_bytes() != before
    assert (tmp_path / journal_name("a.pt")).exists()
    return path, before, path.read_bytes()


def test_every_command_that_reads_names_a_journal_reads_through_it_and_changes_nothing(cut_off, capfd):
    path, before, now = cut_off
    there = seen(path.parent)
    for command in ("inspect --json", "verify --json", "doctor --json"):
        main_quietly(f"{command} {path}")
        assert "a patch of it was cut off, and it is read as it was before" in capfd.readouterr().out, command
    assert list(ckptool.open(path).state_dict()) == [f"module.layer.{n}.weight" for n in range(4)]
    assert main_quietly(f"strip-prefix {path} {path.parent / 'b.pt'}") == 0
    assert "a patch of it was cut off" in capfd.readouterr().err
    (path.parent / "b.pt").unlink()
    assert main_quietly(f"strip-prefix {path} --in-place --dry-run") == 0
    assert seen(path.parent) == there
    assert now != before


def test_a_scan_does_not_call_a_file_safe_that_others_see_amid_a_patch(cut_off, capfd):
    path, _, _ = cut_off
    found = ckptool.scan(path)
    assert found.verdict == "unknown"
    assert any("cut off" in line for line in found.problems)


def test_torch_tensors_come_from_what_was_there_before(cut_off, torch):
    path, _, _ = cut_off
    for mmap in (False, True):
        loaded = ckptool.load(path, mmap=mmap)
        assert next(iter(loaded)) == "module.layer.0.weight"


@pytest.mark.parametrize("how", ["--in-place", "--in-place --patch"])
def test_a_command_that_writes_the_file_takes_the_patch_back_first(cut_off, capfd, how):
    path, _, _ = cut_off
    assert main_quietly(f"strip-prefix {path} {how}") == 0
    assert "a patch was cut off before: it is as it was before the patch" in capfd.readouterr().err
    assert list(ckptool.open(path).state_dict()) == [f"layer.{n}.weight" for n in range(4)]
    assert [one.name for one in path.parent.iterdir()] == ["a.pt"]


def test_doctor_recovers_and_says_so_once(cut_off, capfd):
    path, before, _ = cut_off
    assert main_quietly(f"doctor {path} --recover") == 0
    assert "it is as it was before the patch that was cut off" in capfd.readouterr().out
    assert path.read_bytes() == before
    assert main_quietly(f"doctor {path} --recover --json") == 0
    assert json.loads(capfd.readouterr().out)["recovered"] is None


def copied(path, journal):
    shutil.copy2(path, path.with_name("copy.pt"))
    shutil.copy2(journal, journal.with_name(journal_name("copy.pt")))
    return path.with_name("copy.pt")


def replaced(path, journal):
    data = path.read_bytes()
    path.rename(path.with_name("keeps-the-inode"))
    path.write_bytes(data)
    return path


def linked(path, journal):
    os.link(journal, journal.with_name("second"))
    return path


def behind_a_link(path, journal):
    journal.rename(journal.with_name("elsewhere"))
    journal.symlink_to("elsewhere")
    return path


def planted(path, journal):
    data = journal.read_bytes()
    journal.rename(journal.with_name("keeps-the-inode"))
    journal.write_bytes(data)
    return path


def damaged(path, journal):
    data = bytearray(journal.read_bytes())
    data[-1] ^= 1
    journal.write_bytes(data)
    return path


def of_another_time(path, journal):
    data = bytearray(path.read_bytes())
    at = json.loads(journal.read_bytes().split(b"\n")[0])["ranges"][0][0]
    data[at] ^= 0x55
    path.write_bytes(data)
    return path


def a_folder(path, journal):
    journal.unlink()
    journal.mkdir()
    return path


@pytest.mark.parametrize(
    "spoil", [copied, replaced, linked, behind_a_link, planted, damaged, of_another_time, a_folder]
)
def test_a_journal_that_is_not_of_this_file_is_named_and_left_alone(cut_off, capfd, spoil):
    path, _, _ = cut_off
    path = spoil(path, path.with_name(journal_name(path.name)))
    journal = path.with_name(journal_name(path.name))
    before = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
    assert main_quietly(f"doctor {path} --recover") == 2
    told = capfd.readouterr().err
    assert journal.name in told
    assert "left alone" in told
    assert {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()} == before
    if spoil in (copied, replaced, linked, planted):
        with pytest.raises(ckptool.Unreadable, match="holds a part of a patch"):
            as_it_was(File(path))
        return
    file = as_it_was(File(path))
    assert file.read(0, file.size) == before[path.name]
    assert "is left alone" in file.notes[0]


def test_a_patch_goes_no_way_around_a_strange_journal(tmp_path, capfd):
    path = saved(tmp_path / "a.pt")
    before = path.read_bytes()
    (tmp_path / journal_name("a.pt")).write_text("something of somebody")
    assert main_quietly(f"strip-prefix {path} --in-place --patch") == 2
    assert "is in the way" in capfd.readouterr().err
    assert path.read_bytes() == before
    assert (tmp_path / journal_name("a.pt")).read_text() == "something of somebody"


def test_two_runs_do_not_patch_a_file_at_once(tmp_path, capfd):
    import fcntl

    path = saved(tmp_path / "a.pt")
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main_quietly(f"strip-prefix {path} --in-place --patch") == 2
    assert "another run of ckptool" in capfd.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_a_patched_file_is_the_same_file_with_the_bytes_of_a_plain_rewrite(tmp_path, name):
    path = saved(tmp_path / name)
    path.chmod(0o640)
    ckptool.save(ckptool.strip_prefix(ckptool.open(path)), tmp_path / f"plain-{name}")
    number = path.stat().st_ino
    receipt = ckptool.save(ckptool.strip_prefix(ckptool.open(path)), path, overwrite=True, patch=True)
    assert receipt.path == path
    assert path.read_bytes() == (tmp_path / f"plain-{name}").read_bytes()
    assert path.stat().st_ino == number
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([name, f"plain-{name}"])
    assert ckptool.verify(path).sound


def test_a_link_is_followed_and_the_file_that_it_names_is_patched(tmp_path):
    (tmp_path / "blobs").mkdir()
    path = saved(tmp_path / "blobs" / "a.pt")
    link = tmp_path / "link.pt"
    link.symlink_to(path)
    ckptool.save(ckptool.strip_prefix(ckptool.open(link)), link, overwrite=True, patch=True)
    assert link.is_symlink()
    assert next(iter(ckptool.open(path).state_dict())) == "layer.0.weight"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("add-prefix a.pt --prefix a.very.much.longer.prefix. --in-place --patch", "does not fit into its place"),
        ("strip-prefix a.pt --in-place --patch --backup .bak", "with a backup the file is written anew"),
        ("strip-prefix linked.pt --in-place --patch", "has 2 names (hard links)"),
        ("convert a.pt --in-place --patch -t safetensors", "does not fit into its place"),
        ("convert shards --in-place --patch --strip-prefix module.", "and not a folder"),
        ("strip-prefix a.pt b.pt --patch", "--patch goes with --in-place"),
    ],
)
def test_what_cannot_be_patched_is_refused_with_the_plain_command(tmp_path, monkeypatch, capfd, words, told):
    saved(tmp_path / "a.pt")
    saved(tmp_path / "linked.pt")
    os.link(tmp_path / "linked.pt", tmp_path / "second.pt")
    saved(tmp_path / "shards", max_shard_size=20_000)
    monkeypatch.chdir(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main_quietly(words) == 2
    said = capfd.readouterr().err
    assert told in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    if "goes with" not in told:
        hint = said.rpartition("Hint: ")[2].split(" writes a new file")[0]
        assert hint == f"ckptool {words.replace(' --patch', '')}"
        if "linked" not in words and "-t" not in words:
            assert main_quietly(hint.removeprefix("ckptool ")) == 0


def test_a_patch_whose_disk_fails_is_taken_back_at_once(tmp_path, monkeypatch, capfd):
    path = saved(tmp_path / "a.pt")
    before, real, count = path.read_bytes(), os.pwrite, []

    def pwrite(fd, data, at):
        if os.fstat(fd).st_ino == path.stat().st_ino:
            count.append(at)
            if len(count) == 2:
                raise OSError(5, "Input/output error")
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    assert main_quietly(f"strip-prefix {path} --in-place --patch") == 2
    assert "input/output error" in capfd.readouterr().err
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["a.pt"]


def test_longer_names_fit_into_the_room_that_convert_leaves_in_a_header(tmp_path):
    tensors = {f"layer.{n}.weight": tensor_of("float32", (512, 512)) for n in range(12)}
    path = tmp_path / "a.safetensors"
    ckptool.save(state_dict_of(tensors), path)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 4096 == 4088
    data = path.read_bytes()[-(12 << 20) :]
    for _ in range(2):
        ckptool.save(ckptool.add_prefix(ckptool.open(path), "module."), path, overwrite=True, patch=True)
    assert list(ckptool.open(path).state_dict())[3] == "module.module.layer.3.weight"
    assert path.read_bytes()[-(12 << 20) :] == data


def test_the_safetensors_library_reads_a_header_with_room(tmp_path, torch):
    safetensors = pytest.importorskip("safetensors")
    tensors = {f"l{n}": tensor_of("float32", (512, 512)) for n in range(4)}
    path = tmp_path / "a.safetensors"
    ckptool.save(state_dict_of(tensors), path)
    ckptool.save(ckptool.add_prefix(ckptool.open(path), "module."), path, overwrite=True, patch=True)
    with safetensors.safe_open(path, "pt") as opened:
        assert sorted(opened.keys()) == [f"module.l{n}" for n in range(4)]
        assert opened.metadata()["format"] == "pt"
        assert opened.get_tensor("module.l0").shape == (512, 512)


NAMES = st.lists(st.text("abλ.", min_size=1, max_size=12), min_size=1, max_size=6, unique=True)


@given(names=NAMES, short=st.booleans(), suffix=st.sampled_from([".pt", ".safetensors"]))
def test_whatever_is_patched_holds_what_a_plain_rewrite_holds(tmp_path_factory, torch, names, short, suffix):
    folder = tmp_path_factory.mktemp("patched")
    path, plain = folder / f"a{suffix}", folder / f"b{suffix}"
    values = {f"module.{name}": torch.arange(7.0) + n for n, name in enumerate(names)}
    if suffix == ".pt":
        torch.save(values, path)
    else:
        ckptool.save(values, path)
    done = ckptool.strip_prefix(ckptool.open(path)) if short else ckptool.add_prefix(ckptool.open(path), "x.")
    ckptool.save(done, plain)
    before = path.read_bytes()
    if plain.stat().st_size != path.stat().st_size:
        with pytest.raises(ckptool.RuleError, match="does not fit"):
            ckptool.save(done, path, overwrite=True, patch=True)
        assert path.read_bytes() == before
        return
    ckptool.save(done, path, overwrite=True, patch=True)
    assert path.read_bytes() == plain.read_bytes()
    loaded = torch.load(path) if suffix == ".pt" else ckptool.load(path)
    head = "" if short else "x.module."
    assert list(loaded) == [head + name for name in names]
    for n, value in enumerate(loaded.values()):
        assert torch.equal(value, torch.arange(7.0) + n)
    shutil.rmtree(folder)


def test_the_command_of_the_table_of_faults_patches():
    assert "--patch" in COMMANDS["patch"].words


def test_settling_a_file_without_a_journal_does_nothing(tmp_path):
    assert settle(saved(tmp_path / "a.pt")) is None


@pytest.mark.parametrize("count", [4095, 4096])
def test_the_journal_tells_as_many_ranges_as_a_patch_may_have(tmp_path, monkeypatch, count):
    """The header is one, and every other tensor one more. A run that is killed amid the longest journal is taken back;
    a longer one is refused before a byte changes.
    """
    path = tmp_path / "a.safetensors"
    ckptool.save(state_dict_of({f"{n:05}": tensor_of("float32", (2,)) for n in range(2 * count)}), path)
    before = path.read_bytes()
    opened = ckptool.open(path)
    entries = [
        (key, tensor_of("float32", (2,), bytes(8)) if n % 2 else value)
        for n, (key, value) in enumerate(opened.root.entries)
    ]
    changed = replace(opened, root=Dict(entries, ordered=True))
    if count > 4095:
        with pytest.raises(ckptool.RuleError, match=r"4,097 ranges would change; 4,096 is the limit"):
            ckptool.save(changed, path, overwrite=True, patch=True)
        assert path.read_bytes() == before
        return
    killing = Killing(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    killing.at = 10_000  # the journal takes 8,190 writes, and the file 4,096
    with pytest.raises(Killed):
        ckptool.save(changed, path, overwrite=True, patch=True)
    monkeypatch.undo()
    assert path.read_bytes() != before
    settle(path)
    assert path.read_bytes() == before
