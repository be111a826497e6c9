"""What every format has to keep. Its test class inherits `FormatContract` and says how it is made and compared."""

import os
import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same import graph
from strategies import ALL, state_dict_of, tensor_of

import ckptool
from ckptool.checkpoint import Checkpoint, settle_ties
from ckptool.disk.files import CHUNK, File, FileRange
from ckptool.dtypes import UINT8
from ckptool.errors import CheckpointError
from ckptool.formats import FOLDERS, find_format, write
from ckptool.formats import FORMATS as ALL_FORMATS
from ckptool.tensor import LazyTensor, Storage, is_permutation
from ckptool.tree import Dict, descend

#: Those that hold whatever a state dict of torch has; arrays of numpy and GGUF do not, and have laws of their own.
FORMATS = [format_ for format_ in ALL_FORMATS if format_.draft and format_.name not in ("npz", "gguf")]
#: One temporary folder for all examples of a test: each overwrites the file of the one before.
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])


@dataclass(frozen=True)
class Hole:
    """As many zero bytes as a large model has, of which none is ever written."""

    length: int

    def read(self, offset, length):
        return bytes(length)

    def chunks(self):
        for at in range(0, self.length, CHUNK):
            yield bytes(min(CHUNK, self.length - at))


@dataclass(frozen=True)
class Broken:
    """A source that fails with ERROR after some bytes, as a disk, a network or an impatient user does."""

    length: int
    error: BaseException

    def read(self, offset, length):
        raise self.error

    def chunks(self):
        yield bytes(self.length // 2)
        raise self.error


def write_sparsely(path, draft):
    """Write a draft, leaving holes in the file where it has `Hole`s."""
    if draft.folder:
        os.mkdir(path)
    for name, pieces in draft.folder.items() or [("", draft.pieces)]:
        with open(os.path.join(path, name) if name else path, "wb") as out:
            for piece in pieces:
                if isinstance(piece, Hole):
                    out.seek(piece.length, os.SEEK_CUR)
                else:
                    out.write(b"".join(piece.chunks()))
            out.truncate(sum(piece.length for piece in pieces))


def files_at(path):
    """The file at PATH, or all files in it, in order."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def bytes_at(path):
    """What is in the file at PATH, or in all files in it."""
    return {file.name: file.read_bytes() for file in files_at(path)} if path.is_dir() else path.read_bytes()


def everything_in(ckpt):
    """Read all that a checkpoint refers to."""
    return [bytes(tensor.source().read(0, tensor.nbytes)) for _, tensor in ckpt.tensors()]


def weights_of(ckpt):
    """What any format keeps of a state dict: values in order, permuted strides, ties and `_metadata`."""
    weights = settle_ties(ckpt).state_dict()
    values = [
        (
            key,
            t.dtype,
            t.shape,
            bytes(t.source().read(0, t.nbytes)),
            t.stride if t.numel and not t.is_contiguous and is_permutation(t.shape, t.stride) else None,
        )
        for key, t in weights.tensors.items()
    ]
    return values, weights.ties(), weights.metadata


def sample():
    """A checkpoint that every format can hold."""
    weight = tensor_of("float32", (4, 3), bytes(range(48)))
    entries = {
        "module.conv.weight": weight,
        "module.conv.bias": tensor_of("float64", (3,)),
        "module.head.weight": weight,
        "module.steps": tensor_of("int64", ()),
        "module.none": tensor_of("float32", (0, 3)),
    }
    return state_dict_of(entries, {"": 1, "module": 1, "module.conv": 2})


class FormatContract:
    """Laws of a format.

    Attributes:
        name: of the format.
        checkpoints: strategy of checkpoints that it can hold whole.
        dtypes: element types that it can hold.
    """

    name: str
    checkpoints: st.SearchStrategy
    dtypes = tuple(ALL)

    def held(self, ckpt):
        """The part of a checkpoint that survives in this format, in a form that can be compared."""
        return graph(ckpt.root)

    @property
    def format(self):
        return find_format(self.name)

    def save(self, ckpt, path, **options):
        return ckptool.save(ckpt, path, format=self.name, overwrite=True, **options)

    def may_be_left(self, path):
        """What a write to PATH that was cut off may leave behind."""
        return set()

    # -- what is written comes back

    @in_one_folder
    @given(data=st.data())
    def test_what_is_written_is_read_back_the_same(self, tmp_path, data):
        ckpt = data.draw(self.checkpoints)
        self.save(ckpt, tmp_path / "x")
        back = ckptool.open(tmp_path / "x")
        assert back.format == self.name
        assert self.held(back) == self.held(ckpt)

    @in_one_folder
    @given(data=st.data())
    def test_what_was_read_is_written_again_byte_for_byte(self, tmp_path, data):
        self.save(data.draw(self.checkpoints), tmp_path / "x")
        self.save(ckptool.open(tmp_path / "x"), tmp_path / "y")
        assert bytes_at(tmp_path / "y") == bytes_at(tmp_path / "x")

    @in_one_folder
    @given(data=st.data())
    def test_the_plan_states_the_exact_size(self, tmp_path, data):
        planned = self.save(data.draw(self.checkpoints), tmp_path / "x")
        assert sum(file.stat().st_size for file in files_at(tmp_path / "x")) == planned.nbytes

    def test_the_same_checkpoint_gives_the_same_bytes(self, tmp_path):
        for name in "xy":
            self.save(sample(), tmp_path / name)
        assert bytes_at(tmp_path / "x") == bytes_at(tmp_path / "y")

    def test_progress_adds_up_to_the_plan(self, tmp_path):
        seen = []
        planned = self.save(sample(), tmp_path / "x", progress=seen.append)
        assert min(seen) > 0
        assert sum(seen) == planned.nbytes

    @pytest.mark.parametrize("dtype", ALL, ids=str)
    def test_every_element_type_keeps_its_shape_and_its_bytes(self, tmp_path, dtype):
        if dtype not in self.dtypes:
            pytest.skip(f"{self.name} has no such tensor")
        for number, shape in enumerate([(0,), (0, 3), (1,), (2, 6), *([()] if dtype.packed == 1 else [])]):
            tensor, path = tensor_of(dtype, shape), tmp_path / str(number)
            self.save(state_dict_of({"x": tensor}), path)
            back = ckptool.open(path).state_dict()["x"]
            assert (back.dtype, back.shape, back.stride) == (dtype, shape, tensor.stride)
            assert bytes(back.source().read(0, back.nbytes)) == tensor.storage.source.data, shape

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "a" * 100_000,
            "層.0.重み",
            "🔥",
            "\x00",
            "\n\r\t",
            '"quoted"',
            "a/b",
            "\u202eevil",
            "__metadata",
            "ckptool",
        ],
        ids=lambda key: ascii(key[:12]),
    )
    def test_any_text_can_be_a_key(self, tmp_path, key):
        self.save(state_dict_of({key: tensor_of("float32")}), tmp_path / "x")
        assert list(ckptool.open(tmp_path / "x").state_dict()) == [key]

    def test_keys_stay_in_the_order_in_which_they_were_registered(self, tmp_path):
        keys = [f"layer.{n}" for n in (10, 9, 1, 0, 2)] + ["z", "a"]
        dtypes = ["int8", "float64", "float32", "bool", "float16", "int64", "float32"]
        entries = {key: tensor_of(dtype) for key, dtype in zip(keys, dtypes, strict=True)}
        self.save(state_dict_of(entries), tmp_path / "x")
        back = ckptool.open(tmp_path / "x")
        assert back.order_preserved
        assert list(back.state_dict()) == keys

    def test_tied_tensors_stay_tied(self, tmp_path):
        self.save(sample(), tmp_path / "x")
        assert ckptool.open(tmp_path / "x").state_dict().ties() == [["module.conv.weight", "module.head.weight"]]

    def test_the_metadata_of_modules_comes_back(self, tmp_path):
        self.save(sample(), tmp_path / "x")
        versions = {"": {"version": 1}, "module": {"version": 1}, "module.conv": {"version": 2}}
        assert ckptool.open(tmp_path / "x").state_dict().metadata == versions

    # -- what it costs

    def test_opening_a_large_file_reads_its_headers_only(self, tmp_path, bytes_read):
        kind = tensor_of("float32").dtype
        storages = [Storage(Hole(1 << 27), "cpu", kind, crc=1) for _ in range(8)]
        entries = {f"w{i}": LazyTensor(s, kind, (1 << 25,), (1,)) for i, s in enumerate(storages)}
        path = tmp_path / "large"
        write_sparsely(path, ckptool.plan(state_dict_of(entries), path, format=self.name).draft)
        ckpt = ckptool.open(path)
        assert ckpt.nbytes > 1 << 30
        assert sum(bytes_read) < 1 << 20
        assert sum(tensor.nbytes for _, tensor in ckpt.tensors()) == 1 << 30

    def test_opening_imports_neither_torch_nor_numpy(self, tmp_path, in_new_python):
        self.save(sample(), tmp_path / "x")
        program = """
import sys, ckptool
ckpt = ckptool.open(sys.argv[1])
print(len(ckpt.state_dict()))
ckptool.plan(ckpt, "y")
print(*{"torch", "numpy", "ml_dtypes", "click", "rich", "yaml", "safetensors"} & set(sys.modules))
"""
        assert in_new_python(program, tmp_path / "x") == "5"

    # -- damage

    def test_a_file_that_is_cut_short_anywhere_is_refused(self, tmp_path):
        self.save(sample(), tmp_path / "x")
        for path in files_at(tmp_path / "x"):
            whole = path.read_bytes()
            end = len(whole)
            # Not everywhere: where a reader takes what comes next at its word is asked of mutants by `make fuzz`, too.
            lengths = {*range(0, end, max(end // 100, 1)), *range(max(end - 60, 0), end)}
            for length in sorted(lengths, reverse=True):
                os.truncate(path, length)
                with pytest.raises((ckptool.Malformed, ckptool.UnknownFormat)) as caught:
                    ckptool.open(tmp_path / "x")
                assert str(tmp_path / "x") in str(caught.value)
            path.write_bytes(whole)

    def test_flipped_bytes_end_in_our_errors_or_in_a_checkpoint(self, tmp_path):
        self.save(sample(), tmp_path / "x")
        files = {file: file.read_bytes() for file in files_at(tmp_path / "x")}
        chance = random.Random(20)
        refused = []
        for number in range(600):
            path = list(files)[number % len(files)]
            damaged = bytearray(files[path])
            for _ in range(chance.choice([1, 1, 1, 2, 8])):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            with open(path, "r+b") as file:  # in place: much faster than a new file
                file.write(damaged)
            try:
                ckpt = ckptool.open(tmp_path / "x")
                everything_in(ckpt)
                target = FORMATS[number // len(files) % len(FORMATS)]  # another one for each damage, all of each file
                ckptool.plan(ckpt, tmp_path / "y", format=target.name, allow_loss=True, keep_objects=True)
            except CheckpointError as error:
                refused.append(str(error))
            with open(path, "r+b") as file:
                file.write(files[path])
        assert 0 < len(refused) < 600
        assert not [message for message in refused if "\x1b" in message]

    def test_bytes_that_other_formats_write_are_not_taken_for_this_one(self, tmp_path):
        for format_ in FORMATS:
            ckptool.save(sample(), tmp_path / format_.name, format=format_.name)
            head = (tmp_path / format_.name).read_bytes()[:4096]
            assert self.format.sniff(head, File(tmp_path / format_.name)) == (format_.name == self.name)
            assert ckptool.detect(tmp_path / format_.name) == format_.name

    # -- the target

    def test_the_source_can_be_the_target(self, tmp_path):
        path = tmp_path / "x"
        self.save(sample(), path)
        before = bytes_at(path)
        ckpt = ckptool.open(path)
        values = everything_in(ckpt)
        for _ in range(2):
            ckpt = ckptool.strip_prefix(ckpt, "module.") if "module.steps" in ckpt.state_dict() else ckpt
            self.save(ckpt, path)
        assert bytes_at(path) != before
        back = ckptool.open(path)
        assert list(back.state_dict()) == ["conv.weight", "conv.bias", "head.weight", "steps", "none"]
        assert everything_in(back) == values == everything_in(ckpt)

    @pytest.mark.parametrize(
        "error", [OSError(5, "Input/output error"), KeyboardInterrupt(), RuntimeError("boom")], ids=repr
    )
    def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(self, tmp_path, error):
        path = tmp_path / "x"
        self.save(sample(), path)
        before = bytes_at(path)
        source = Broken(1 << 20, error)
        tensor = LazyTensor(Storage(source, "cpu", UINT8, crc=1), UINT8, (1 << 20,), (1,))
        with pytest.raises(ckptool.Unwritable if isinstance(error, OSError) else type(error)):
            self.save(state_dict_of({"x": tensor}), path)
        assert bytes_at(path) == before
        assert set(tmp_path.iterdir()) - self.may_be_left(path) == {path}

    def test_an_interruption_at_any_moment_leaves_the_old_file_and_nothing_else(self, tmp_path):
        path = tmp_path / "x"
        self.save(sample(), path)
        before = bytes_at(path)
        ckpt = ckptool.add_prefix(ckptool.open(path), "another.prefix.")
        for moment in range(1000):
            countdown = iter(range(moment))

            def interrupt(_, countdown=countdown):
                if next(countdown, None) is None:
                    raise KeyboardInterrupt

            try:
                self.save(ckpt, path, progress=interrupt)
            except KeyboardInterrupt:
                assert bytes_at(path) == before
                assert set(tmp_path.iterdir()) - self.may_be_left(path) == {path}
            else:
                break
        assert 0 < moment < 1000
        assert weights_of(ckptool.open(path)) == weights_of(ckpt)

    def test_a_tensor_far_inside_a_large_file_is_read_at_its_place(self, tmp_path):
        with open(tmp_path / "data", "wb") as out:
            out.seek(10 << 20)
            out.write(b"\1\2\3\4")
        file = File(tmp_path / "data")
        source = FileRange(file, 10 << 20, 4)
        tensor = LazyTensor(Storage(source, "cpu", UINT8), UINT8, (4,), (1,))
        padding = tensor_of(UINT8, (100_000,))
        self.save(state_dict_of({"pad": padding, "x": tensor}), tmp_path / "x")
        assert everything_in(ckptool.open(tmp_path / "x"))[1] == b"\1\2\3\4"

    def test_a_checkpoint_that_went_through_every_other_format_is_the_same(self, tmp_path):
        self.save(sample(), tmp_path / "x")
        first = ckptool.open(tmp_path / "x")
        for format_ in FORMATS:
            ckptool.save(first, tmp_path / "y", format=format_.name, overwrite=True)
            self.save(ckptool.open(tmp_path / "y"), tmp_path / "z")
            back = ckptool.open(tmp_path / "z")
            assert weights_of(back) == weights_of(first)

    def test_big_endian_values_are_turned_round_or_carried_as_they_are(self, tmp_path):
        tensor = tensor_of("float32", (2,), b"\x3f\x80\0\0\x40\0\0\0")  # 1.0 and 2.0
        ckpt = state_dict_of({"x": tensor.changed(storage=tensor.storage.changed(big_endian=True))})
        self.save(ckpt, tmp_path / "x")
        assert everything_in(ckptool.open(tmp_path / "x")) == [b"\0\0\x80\x3f\0\0\0\x40"]


class PickleContract(FormatContract):
    """Laws of the formats that hold a pickle: they hold everything."""

    def test_what_no_tensor_is_lies_beside_the_tensors(self, tmp_path):
        root = Dict([("model", sample().root), ("epoch", 3), ("name", "résumé"), (7, None), ("raw", b"\0\xff")])
        self.save(Checkpoint(root), tmp_path / "x")
        back = ckptool.open(tmp_path / "x").root
        assert [key for key, _ in back.entries] == ["model", "epoch", "name", 7, "raw"]
        assert [descend(back, path) for path in ("epoch", "name", "7", "raw")] == [3, "résumé", None, b"\0\xff"]

    def test_locations_stay_where_they_are(self, tmp_path):
        tags = ["cpu", "cuda:0", "cuda:7", "mps", "meta", "xpu:1"]
        self.save(state_dict_of({tag: tensor_of("float32", location=tag) for tag in tags}), tmp_path / "x")
        assert [t.location for t in ckptool.open(tmp_path / "x").state_dict().values()] == tags


class FolderContract(FormatContract):
    """Laws of the formats that are directories. What is not divided yet is divided into small files."""

    def divided(self, ckpt):
        """The options that divide a checkpoint among files, where it is not divided already."""
        return {} if ckpt.format == self.name else {"max_shard_size": 24}

    def save(self, ckpt, path, **options):
        return super().save(ckpt, path, **self.divided(ckpt), **options)

    def may_be_left(self, path):
        return set(path.parent.glob(f".{path.name}.*.ckptool-tmp"))

    def test_bytes_that_other_formats_write_are_not_taken_for_this_one(self, tmp_path):
        for format_ in (*FORMATS, *(one for one in FOLDERS if one.draft)):
            ckptool.save(sample(), tmp_path / format_.name, format=format_.name)
            assert (ckptool.detect(tmp_path / format_.name) == self.name) == (format_.name == self.name)

    def test_a_run_that_was_cut_off_is_taken_up_where_it_stopped(self, tmp_path):
        self.save(sample(), tmp_path / "x")
        ckpt = ckptool.add_prefix(ckptool.open(tmp_path / "x"), "new.")
        whole = self.save(ckpt, tmp_path / "y").nbytes
        half = iter(range(whole))

        def interrupt(count):
            if sum(next(half, -1) >= 0 for _ in range(count)) and next(half, 0) > whole // 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.save(ckpt, tmp_path / "z", progress=interrupt)
        (left,) = tmp_path.glob(".z.*.ckptool-tmp")
        finished = {file.name: file.stat().st_ino for file in (left / "new").iterdir()}
        assert finished
        assert not (tmp_path / "z").exists()
        notes = write(ckptool.plan(ckpt, tmp_path / "z", format=self.name, **self.divided(ckpt)))
        assert "went on from a run that was cut off" in notes[0]
        assert bytes_at(tmp_path / "z") == bytes_at(tmp_path / "y")
        assert not left.exists()
        now = {file.name: file.stat().st_ino for file in files_at(tmp_path / "z")}
        assert finished.items() <= now.items()

    def test_another_plan_begins_anew_and_names_what_is_left(self, tmp_path):
        ckpt = sample()
        seen = []

        def interrupt(count):
            seen.append(count)
            if len(seen) > 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.save(ckpt, tmp_path / "x", progress=interrupt)
        (left,) = tmp_path.glob(".x.*.ckptool-tmp")
        other = ckptool.drop(ckpt, "module.head")
        notes = write(ckptool.plan(other, tmp_path / "x", format=self.name, **self.divided(other)))
        assert len(notes) == 1
        assert left.name in notes[0]
        assert f"ckptool doctor {tmp_path} --remove-leftovers" in notes[0]
        assert left.is_dir()
        self.save(other, tmp_path / "y")
        assert bytes_at(tmp_path / "x") == bytes_at(tmp_path / "y")
