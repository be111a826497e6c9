"""Several ranks write one target: the same bytes as one would, whole or not at all."""

import json
import os
import struct
import threading

import pytest
from several import as_ranks, succeeded
from strategies import state_dict_of, tensor_of

import ckptool
from ckptool import formats
from ckptool.disk import parts as parts_module
from ckptool.disk import together
from ckptool.disk.files import Buffer, File, FileRange
from ckptool.disk.together import write_together
from ckptool.errors import CannotCarry, Malformed, OutputExists, Unwritable
from ckptool.ranks import RankFailed, group


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts_module, "_LEAST", 4096)
    monkeypatch.setattr(group, "_LOOK", 0.02)


def filled(size, value):
    """A tensor of SIZE times VALUE."""
    return tensor_of("float32", (size,), struct.pack("<f", value) * size)


def weights(count=12, size=3000):
    return state_dict_of({f"{n}.weight": filled(size, n) for n in range(count)})


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.pth"
    ckptool.save(weights(), path)
    return path


def written_by(ranks, path, make, **options):
    """Let RANKS write what MAKE gives, each from its own checkpoint."""
    return as_ranks(ranks, lambda one: formats.write(formats.plan(make(), path, **options), ranks=one))


def content(path):
    if path.is_dir():
        return {name: (path / name).read_bytes() for name in sorted(os.listdir(path))}
    return path.read_bytes()


PASSES = {
    "copied": (lambda path: ckptool.open(path), {"format": "torch-zip"}),
    "a new archive with checksums": (
        lambda path: ckptool.add_prefix(ckptool.open(path), "x."),
        {"format": "torch-zip"},
    ),
    "another container": (lambda path: ckptool.open(path), {"format": "safetensors"}),
    "legacy": (lambda path: ckptool.open(path), {"format": "torch-legacy"}),
    "cast": (lambda path: ckptool.cast(ckptool.open(path), "bf16"), {"format": "torch-zip"}),
    "the mean": (lambda path: ckptool.average([ckptool.open(path)] * 2), {"format": "safetensors"}),
    "shards": (lambda path: ckptool.open(path), {"format": "sharded-safetensors", "max_shard_size": "40KB"}),
    "distributed": (lambda path: ckptool.open(path), {"format": "dcp"}),
}


@pytest.mark.parametrize("name", PASSES)
def test_ranks_write_the_bytes_that_one_process_writes(tmp_path, source, name):
    make, options = PASSES[name]
    formats.write(formats.plan(make(source), tmp_path / "alone", **options))
    succeeded(written_by(3, tmp_path / "together", lambda: make(source), **options))
    assert content(tmp_path / "together") == content(tmp_path / "alone")


def test_ranks_write_archives_from_files_without_checksums(tmp_path, source):
    plain = tmp_path / "in.safetensors"
    ckptool.save(ckptool.open(source), plain)
    formats.write(formats.plan(ckptool.open(plain), tmp_path / "alone.pth"))
    succeeded(written_by(4, tmp_path / "together.pth", lambda: ckptool.open(plain)))
    assert content(tmp_path / "together.pth") == content(tmp_path / "alone.pth")


def test_more_ranks_than_parts_do_no_harm(tmp_path):
    ckptool.save(weights(1, 5), tmp_path / "in.pth")
    succeeded(written_by(7, tmp_path / "out.safetensors", lambda: ckptool.open(tmp_path / "in.pth")))
    assert list(ckptool.open(tmp_path / "out.safetensors").state_dict()) == ["0.weight"]


def test_a_file_may_be_replaced_in_place(tmp_path, source):
    before = source.stat()
    plan = lambda: formats.plan(ckptool.add_prefix(ckptool.open(source), "x."), source)  # noqa: E731
    source.chmod(0o640)
    succeeded(as_ranks(3, lambda one: formats.write(plan(), overwrite=True, backup=".old", ranks=one)))
    assert next(iter(ckptool.open(source).state_dict())) == "x.0.weight"
    assert (tmp_path / "in.pth.old").stat().st_ino == before.st_ino
    assert source.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["in.pth", "in.pth.old"]


def test_ranks_say_how_fast_they_were_and_all_hear_what_casts_did(tmp_path):
    ckptool.save(state_dict_of({"a": filled(50_000, 1e30)}), tmp_path / "in.pth")
    notes = succeeded(
        written_by(3, tmp_path / "out.safetensors", lambda: ckptool.cast(ckptool.open(tmp_path / "in.pth"), "f16"))
    )
    for lines in notes:
        assert any(line.startswith("3 ranks: ") for line in lines)
        assert "50,000 values beyond the range of the new type: a (50,000)" in lines


def test_a_target_that_exists_is_refused_on_all_ranks(tmp_path, source):
    (tmp_path / "out.pth").write_bytes(b"mine")
    first, *others = written_by(3, tmp_path / "out.pth", lambda: ckptool.open(source))
    assert isinstance(first, OutputExists)
    assert all(isinstance(error, RankFailed) for error in others)
    assert (tmp_path / "out.pth").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["in.pth", "out.pth"]


def test_ranks_that_see_other_sizes_or_bytes_do_not_begin(tmp_path, source):
    other = tmp_path / "there"
    other.mkdir()
    ckptool.save(ckptool.open(source), tmp_path / "in.safetensors")
    ckptool.save(ckptool.open(source), other / "in.safetensors")
    raw = bytearray((other / "in.safetensors").read_bytes())
    raw[-100_000:] = bytes(b ^ 1 for b in raw[-100_000:])
    (other / "in.safetensors").write_bytes(raw)

    def work(ranks):
        path = (other if ranks.rank == 1 else tmp_path) / "in.safetensors"
        return formats.write(formats.plan(ckptool.open(path), tmp_path / "out.pth"), ranks=ranks)

    for error in as_ranks(3, work):
        assert isinstance(error, CannotCarry)
        assert "rank 1 sees other inputs than rank 0" in str(error)
        assert "other bytes on rank 0 than on rank 1" in str(error)
    assert not (tmp_path / "out.pth").exists()


def test_a_rank_on_another_disk_is_found_out_before_anything_is_written(tmp_path, source, monkeypatch):
    monkeypatch.setattr(together, "_SHOWS_UP", 0.2)
    (tmp_path / "other").mkdir()
    (tmp_path / "shared").mkdir()

    def work(ranks):
        target = tmp_path / ("other" if ranks.rank == 2 else "shared") / "out.pth"
        return formats.write(formats.plan(ckptool.open(source), target), ranks=ranks)

    for error in as_ranks(3, work):
        assert "rank 2 on " in str(error)
        assert "is on a disk that this rank does not share" in str(error)
    assert os.listdir(tmp_path / "shared") == os.listdir(tmp_path / "other") == []


def test_a_damaged_input_is_named_and_nothing_stays(tmp_path, source):
    raw = bytearray(source.read_bytes())
    raw[20_000] ^= 1
    source.write_bytes(raw)
    first, *others = written_by(3, tmp_path / "out.safetensors", lambda: ckptool.open(source))
    assert isinstance(first, Malformed)
    assert "their checksum does not match" in str(first)
    assert all(isinstance(error, RankFailed) for error in others)
    assert os.listdir(tmp_path) == ["in.pth"]


def test_damage_that_is_allowed_is_listed(tmp_path, source):
    raw = bytearray(source.read_bytes())
    raw[20_000] ^= 1
    source.write_bytes(raw)
    plans = {}

    def work(ranks):
        plans[ranks.rank] = formats.plan(ckptool.open(source), tmp_path / "out.safetensors", allow_loss=True)
        formats.write(plans[ranks.rank], ranks=ranks)

    succeeded(as_ranks(3, work))
    assert len(plans[0].damaged) == 1


def test_an_input_that_changes_meanwhile_stops_all(tmp_path, source):
    def work(ranks):
        plan = formats.plan(ckptool.open(source), tmp_path / "out.safetensors")
        if ranks.exchange(None) and ranks.rank == 1:
            os.utime(source, ns=(1, 1))
        ranks.exchange(None)
        return formats.write(plan, ranks=ranks)

    for error in as_ranks(2, work):
        assert "changed while it was being copied" in str(error)
    assert not (tmp_path / "out.safetensors").exists()


# -- a run that was cut off


class _Cut(BaseException):
    """As a signal."""


def cut_off(monkeypatch, ranks, after, path, make, **options):
    """Let a run end when some parts are written down, the hard way: nobody clears up."""
    lock = threading.Lock()
    seen = []
    taken = together._Lead.take

    def take(self, rank, post):
        taken(self, rank, post)
        with lock:
            seen.extend(post)
        if len(seen) >= after:
            raise _Cut

    monkeypatch.setattr(together._Lead, "take", take)
    return written_by(ranks, path, make, **options)


@pytest.mark.parametrize("name", ["another container", "shards", "a new archive with checksums", "cast"])
def test_any_number_of_ranks_goes_on_from_finished_parts(tmp_path, source, name, monkeypatch, bytes_read):
    make, options = PASSES[name]
    target = tmp_path / "out"
    formats.write(formats.plan(make(source), tmp_path / "alone", **options))
    with monkeypatch.context() as patched:
        patched.setattr(parts_module, "_LEAST", 4096)
        cut_off(patched, 3, 4, target, lambda: make(source), **options)
    assert not target.exists()
    (work,) = [name for name in os.listdir(tmp_path) if name.endswith(".ckptool-tmp")]
    record = (tmp_path / work / "record").read_text().splitlines()
    assert sum("part" in json.loads(line) for line in record) >= 4
    monkeypatch.setattr(parts_module, "_LEAST", 4096)
    notes = succeeded(written_by(2, target, lambda: make(source), **options))
    assert any("went on from a run that was cut off" in line for line in notes[0])
    assert content(target) == content(tmp_path / "alone")
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".ckptool-tmp")]


def test_one_process_takes_a_folder_up_too(tmp_path, source, monkeypatch):
    make, options = PASSES["shards"]
    target = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(parts_module, "_LEAST", 4096)
        cut_off(patched, 3, 4, target, lambda: make(source), **options)
    formats.write(formats.plan(make(source), target, **options))
    formats.write(formats.plan(make(source), tmp_path / "alone", **options))
    assert content(target) == content(tmp_path / "alone")


def test_a_file_that_is_not_as_it_was_made_begins_anew(tmp_path, source, monkeypatch):
    make, options = PASSES["another container"]
    target = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(parts_module, "_LEAST", 4096)
        cut_off(patched, 3, 4, target, lambda: make(source), **options)
    (work,) = [name for name in os.listdir(tmp_path) if name.endswith(".ckptool-tmp")]
    os.truncate(tmp_path / work / "new", 1000)
    monkeypatch.setattr(parts_module, "_LEAST", 4096)
    succeeded(written_by(2, target, lambda: make(source), **options))
    formats.write(formats.plan(make(source), tmp_path / "alone", **options))
    assert content(target) == content(tmp_path / "alone")


def test_a_part_that_nobody_wrote_keeps_the_target_from_appearing(tmp_path, source, monkeypatch):
    written = together._write
    monkeypatch.setattr(together, "_write", lambda w, p, mine, r: written(w, p, mine[1:] if r.rank else mine, r))
    first, *_ = written_by(2, tmp_path / "out.safetensors", lambda: ckptool.open(source))
    assert isinstance(first, AssertionError)
    assert not (tmp_path / "out.safetensors").exists()


def test_a_disk_that_is_full_on_one_rank_ends_all(tmp_path, source, monkeypatch):
    written = together.write_part

    def full(out, pieces, wanted, at, progress=None):
        if threading.current_thread().name.startswith("Thread") and at > 20_000:
            raise OSError(28, "No space left on device")
        return written(out, pieces, wanted, at, progress)

    monkeypatch.setattr(together, "write_part", full)
    found = written_by(3, tmp_path / "out.safetensors", lambda: ckptool.open(source))
    assert any("o space left on device" in str(error) for error in found)
    assert all(isinstance(error, Exception) for error in found)
    assert not (tmp_path / "out.safetensors").exists()


def test_plain_pieces_can_be_written_together(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(os.urandom(50_000))

    def work(ranks):
        file = File(path)
        pieces = [Buffer(b"head"), FileRange(file, 0, 50_000)]
        notes, shares = write_together(tmp_path / "out", {None: pieces}, ranks, inputs=[file])
        return notes, sum(share.bytes for share in shares)

    assert succeeded(as_ranks(4, work)) == [([], 50_004)] * 4
    assert (tmp_path / "out").read_bytes() == b"head" + path.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_a_folder_that_does_not_exist_is_refused(tmp_path, source):
    first, *_ = written_by(2, tmp_path / "no" / "out.pth", lambda: ckptool.open(source))
    assert isinstance(first, Unwritable)
    assert "the folder no does not exist" in str(first)
