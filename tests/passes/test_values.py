import json
import zipfile
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from strategies import flat_checkpoints, state_dict_of, tensor_of

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.formats import plan, write
from ckptool.tensor import LazyTensor, Storage
from ckptool.tree import Dict, Global, Object

np = pytest.importorskip("numpy")


def floats(*values, dtype="float32", **flags):
    data = np.array(values, dtype).tobytes()
    return tensor_of(dtype, (len(values),), data, **flags)


def everything_in(ckpt):
    return [bytes(tensor.source().read(0, tensor.nbytes)) for _, tensor in ckpt.tensors()]


def read(tensor):
    return tensor.numpy().astype("float64").tolist()


# -- cast


def test_floating_point_tensors_are_cast_and_nothing_else():
    entries = {
        "w": floats(1, 2.5, 3),
        "half": floats(1, 2, dtype="float16"),
        "steps": tensor_of("int64", ()),
        "mask": tensor_of("bool", (3,)),
        "wave": tensor_of("complex64", (2,)),
        "norm.weight": floats(1, 2),
    }
    done = ckptool.cast(state_dict_of(entries), "bf16", keep="norm")
    found = done.state_dict()
    assert {key: value.dtype.name for key, value in found.items()} == {
        "w": "bfloat16",
        "half": "bfloat16",
        "steps": "int64",
        "mask": "bool",
        "wave": "complex64",
        "norm.weight": "float32",
    }
    assert read(found["w"]) == [1, 2.5, 3]
    assert done.history == ("cast to bfloat16: 2 of 6 tensors, 51 bytes -> 45; 1 kept",)


def test_what_stands_around_the_weights_is_not_cast():
    tree = Checkpoint(Dict([("state_dict", Dict([("w", floats(1))])), ("optimizer", Dict([("m", floats(2))]))]))
    done = ckptool.cast(tree, "fp16")
    assert done.state_dict()["w"].dtype.name == "float16"
    assert done.root.get("optimizer").get("m").dtype.name == "float32"


def test_ties_and_views_stay_and_keeping_one_keeps_the_others():
    storage = Storage(Buffer(np.arange(12, dtype="float32").tobytes()), "cuda:0", BY_NAME["float32"])
    whole = LazyTensor(storage, BY_NAME["float32"], (3, 4), (4, 1))
    column = LazyTensor(storage, BY_NAME["float32"], (3,), (4,), 1)
    ckpt = state_dict_of({"a": whole, "b": whole, "c": column})
    found = ckptool.cast(ckpt, "bf16").state_dict()
    assert found.ties() == [["a", "b"]]
    assert found["a"].storage is found["c"].storage
    assert read(found["c"]) == [1, 5, 9]
    assert found["c"].location == "cuda:0"
    kept = ckptool.cast(ckpt, "bf16", keep="c").state_dict()
    assert {value.dtype.name for value in kept.values()} == {"float32"}


def test_patterns_that_fit_nothing_and_types_that_are_none_are_refused():
    ckpt = state_dict_of({"w": floats(1)})
    with pytest.raises(ckptool.NoMatch, match="no key matches 'norm'"):
        ckptool.cast(ckpt, "bf16", keep="norm")
    assert ckptool.cast(ckpt, "bf16", keep="norm", missing="ok").state_dict()["w"].dtype.name == "bfloat16"
    with pytest.raises(ckptool.RuleError, match="'int8' is not a floating point dtype of torch"):
        ckptool.cast(ckpt, "int8")


@pytest.mark.parametrize("path", ["x.pth", "x.safetensors", "x/"])
def test_what_casting_lost_is_said_when_it_is_written(tmp_path, path):
    ckpt = ckptool.cast(state_dict_of({"w": floats(1e6, -1e5, 1e-9, float("nan"), 1, float("inf"))}), "fp16")
    notes = write(plan(ckpt, str(tmp_path) + "/" + path, format="shards" if path == "x/" else None))
    assert notes == [
        "2 values beyond the range of the new type: w (2)",
        "1 value too small for it, now 0: w (1)",
        "1 value NaN, as before: w (1)",
    ]
    assert ckptool.open(tmp_path / path).state_dict()["w"].dtype.name == "float16"


def test_a_large_cast_is_divided_among_threads_and_its_checksum_is_right(tmp_path):
    values = np.random.default_rng(0).standard_normal(6_000_000).astype("float32")
    ckpt = state_dict_of({f"w{n}": tensor_of("float32", (len(values),), values.tobytes()) for n in range(2)})
    ckptool.save(ckptool.cast(ckpt, "bf16"), tmp_path / "x.pth")
    assert zipfile.ZipFile(tmp_path / "x.pth").testzip() is None
    found = ckptool.open(tmp_path / "x.pth").state_dict()["w1"].numpy()
    assert (np.abs(found.astype("float32") - values) <= np.abs(values) / 256).all()


def test_a_cast_into_a_folder_is_taken_up_where_it_stopped(tmp_path):
    entries = {f"w{n}": floats(*range(n, n + 200)) for n in range(6)}
    ckptool.save(state_dict_of(entries), tmp_path / "in.safetensors")
    options = {"format": "shards", "max_shard_size": 400}

    def done():
        return ckptool.cast(ckptool.open(tmp_path / "in.safetensors"), "bf16")

    seen = []

    def interrupt(count):
        seen.append(count)
        if sum(seen) > 1500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ckptool.save(done(), tmp_path / "out", progress=interrupt, **options)
    assert not (tmp_path / "out").exists()
    notes = write(plan(done(), tmp_path / "out", **options))
    assert "went on from a run that was cut off" in notes[0]
    found = ckptool.open(tmp_path / "out").state_dict()
    assert [read(found[key])[:2] for key in found] == [[n, n + 1] for n in range(6)]
    other = ckptool.cast(ckptool.open(tmp_path / "in.safetensors"), "fp16")
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        ckptool.save(done(), tmp_path / "two", progress=interrupt, **options)
    notes = write(plan(other, tmp_path / "two", **options))
    (left,) = tmp_path.glob(".two.*.ckptool-tmp")
    assert notes[0].startswith(f"a run that was cut off left {left.name} (")


@dataclass(frozen=True)
class Broken:
    """Bytes that cannot be read."""

    length: int

    def read(self, offset, length):
        raise OSError("lost the disk")

    def chunks(self):
        yield self.read(0, self.length)


def test_an_error_while_values_are_computed_ends_the_write_and_leaves_nothing(tmp_path):
    storage = Storage(Broken(64 << 20), "cpu", BY_NAME["float32"])
    tensor = LazyTensor(storage, BY_NAME["float32"], (16 << 20,), (1,))
    with pytest.raises(ckptool.Unwritable, match="lost the disk"):
        ckptool.save(ckptool.cast(state_dict_of({"w": tensor}), "bf16"), tmp_path / "x.pth")
    assert not list(tmp_path.iterdir())


# -- untie, compact


def test_untied_keys_have_tensors_of_their_own(tmp_path):
    tensor = floats(1, 2)
    done = ckptool.untie(state_dict_of({"a": tensor, "b": tensor, "c": floats(3)}))
    assert done.state_dict().ties() == []
    assert done.history == ("untie: 2 keys in 1 tie",)
    ckptool.save(done, tmp_path / "x.pth")
    assert ckptool.open(tmp_path / "x.pth").state_dict().ties() == []


def test_a_slice_no_longer_brings_its_storage_along(tmp_path):
    storage = Storage(Buffer(bytes(range(256)) * 4), "cpu", BY_NAME["uint8"])
    part = LazyTensor(storage, BY_NAME["uint8"], (10,), (1,), 100)
    other = LazyTensor(storage, BY_NAME["uint8"], (4,), (1,), 105)
    far = LazyTensor(storage, BY_NAME["uint8"], (3,), (2,), 1000)
    ckpt = state_dict_of({"a": part, "b": other, "c": far, "d": floats(1)})
    done = ckptool.compact(ckpt)
    found = done.state_dict()
    assert everything_in(done) == everything_in(ckpt)
    assert found["a"].storage is found["b"].storage
    assert found["a"].storage.nbytes < 20
    assert found["c"].storage.nbytes < 20
    assert found["c"].stride == (2,)
    assert found["d"].storage is ckpt.state_dict()["d"].storage
    assert done.history[0].startswith("compact: 1 of 2 storages, 1,028 bytes -> ")


@given(flat_checkpoints())
def test_compacting_changes_no_value_and_no_tie(ckpt):
    done = ckptool.compact(ckpt)
    assert everything_in(done) == everything_in(ckpt)
    assert done.state_dict().ties() == ckpt.state_dict().ties()
    assert [t.stride for t in done.state_dict().values()] == [t.stride for t in ckpt.state_dict().values()]
    assert sum(s.nbytes for s in done.storages()) <= sum(s.nbytes for s in ckpt.storages())
    again = ckptool.compact(done)
    assert [s.nbytes for s in again.storages()] == [s.nbytes for s in done.storages()]


# -- average


def test_the_mean_of_floats_and_the_integers_of_the_last():
    one = state_dict_of({"w": floats(1, 2), "n": tensor_of("int64", (1,), bytes([1] + [0] * 7))})
    two = state_dict_of({"w": floats(3, 6), "n": tensor_of("int64", (1,), bytes([9] + [0] * 7))})
    mean = ckptool.average([one, two])
    assert read(mean.state_dict()["w"]) == [2, 4]
    assert read(mean.state_dict()["n"]) == [9]
    assert mean.state_dict()["w"].dtype.name == "float32"
    weighted = ckptool.average([one, two], ratios=[3, 1])
    assert read(weighted.state_dict()["w"]) == [1.5, 3]


def test_a_mean_is_summed_in_float64_and_rounded_once():
    values = [0.1, 0.2, 0.7, 1e8, -1e8]
    mean = ckptool.average([state_dict_of({"w": floats(value)}) for value in values])
    singles = np.array(values, "float32").astype("float64")
    assert read(mean.state_dict()["w"]) == [float(np.float32(sum(v * 0.2 for v in singles)))]
    halves = ckptool.average([state_dict_of({"w": floats(v, dtype="float16")}) for v in (60000, 60000)])
    assert read(halves.state_dict()["w"]) == [60000]  # no overflow on the way


def test_ties_are_kept_where_all_have_them():
    def tied(value):
        tensor = floats(value)
        return state_dict_of({"a": tensor, "b": tensor})

    assert ckptool.average([tied(1), tied(3)]).state_dict().ties() == [["a", "b"]]
    apart = state_dict_of({"a": floats(1), "b": floats(5)})
    mean = ckptool.average([apart, tied(3)]).state_dict()
    assert mean.ties() == []
    assert [read(mean[key]) for key in "ab"] == [[2], [4]]


def test_only_the_weights_of_a_training_checkpoint_are_averaged():
    tree = Checkpoint(Dict([("epoch", 3), ("model", Dict([("w", floats(1))]))]))
    mean = ckptool.average([tree, tree])
    assert list(mean.state_dict()) == ["w"]
    assert mean.root.get("w") is not None
    assert any("left behind: epoch" in line for line in mean.history)


def test_models_that_differ_are_refused_with_what_differs():
    one = replace(state_dict_of({"w": floats(1, 2), "x": floats(1)}), path="one.pth")
    two = replace(state_dict_of({"w": floats(1), "y": floats(1)}), path="two.pth")
    with pytest.raises(ckptool.CannotCarry) as caught:
        ckptool.average([one, two])
    assert str(caught.value).startswith("one.pth: is not of the same model as two.pth")
    assert "w: float32 [2] and float32 [1]" in caught.value.evidence
    assert "lacks y" in caught.value.evidence
    for ratios in ([1], [1, -1], [float("inf"), 1]):
        with pytest.raises(ckptool.RuleError):
            ckptool.average([one, one], ratios=ratios)


ODD = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e308, 5e-324)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex64", "complex128"])
def test_a_ratio_of_0_leaves_a_file_out_whatever_it_holds(dtype):
    kind = np.dtype({"bfloat16": "float32"}.get(dtype, dtype))
    with np.errstate(all="ignore"):
        odd = tensor_of("float32", (7,), np.array(ODD, "float32").tobytes())
        raw = np.array(ODD[::-1]).astype(kind).tobytes()
    size = tensor_of(dtype, (7,)).nbytes
    one = state_dict_of({"w": tensor_of(dtype, (7,), (raw * 2)[:size]), "n": floats(1)})
    two = state_dict_of({"w": tensor_of(dtype, (7,), (odd.storage.source.data * 4)[:size]), "n": floats(2)})
    for ratios, left in (([0, 1], two), ([1, 0], one), ([0.0, -3, 0], one)):
        mean = ckptool.average([two, one, two] if len(ratios) == 3 else [one, two], ratios=ratios).state_dict()
        for key in ("w", "n"):
            made, wanted = mean[key].source(), left.state_dict()[key].source()
            assert made.read(0, made.length) == wanted.read(0, wanted.length)
    assert ckptool.average([one, two], ratios=[0, 1]).history[-1] == "note: 1 checkpoint with a ratio of 0 left out"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex64", "complex128"])
def test_the_mean_of_odd_numbers_is_what_arithmetic_gives_without_a_warning(dtype):
    pairs = np.array([(a, b) for a in ODD for b in ODD])
    with np.errstate(all="ignore"):
        kind = np.dtype(dtype)
        one, two = ((column + 1j * column[::-1] if kind.kind == "c" else column).astype(kind) for column in (pairs.T))
        parts = [values.view(kind.type(0).real.dtype).astype("float64") for values in (one, two)]
        expected = (0.5 * parts[0] + 0.5 * parts[1]).astype(parts[0].dtype if kind.itemsize == 16 else one.real.dtype)
    ckpts = [state_dict_of({"w": tensor_of(dtype, (len(pairs),), values.tobytes())}) for values in (one, two)]
    found = ckptool.average(ckpts).state_dict()["w"].numpy()
    found = found.view(one.real.dtype)
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(np.signbit(found)[~np.isnan(found)], np.signbit(expected)[~np.isnan(found)])


# -- slim


def holding(**entries):
    return Checkpoint(Dict(list(entries.items())))


def weights(value, prefix=""):
    return Dict([(f"{prefix}w", floats(value)), (f"{prefix}b", floats(value))])


@pytest.mark.parametrize(
    ("averaged", "raw"),
    [
        ("state_dict_ema", "state_dict"),
        ("ema", "model"),
        ("model_ema", "model"),
        ("params_ema", "params"),
        ("g_ema", "g"),
        ("g_ema", "G"),
        ("ema_state_dict", "state_dict"),
        ("ema_state_dict", "model_state_dict"),
        ("ema_model", "model"),
        ("averaged_model", "model"),
        ("netG_swa", "netG"),
    ],
)
def test_the_average_and_the_raw_weights_are_told_apart_by_their_places(averaged, raw):
    ckpt = holding(**{averaged: weights(1), raw: weights(2), "epoch": 3})
    assert read(ckptool.slim(ckpt, weights="ema").state_dict()["w"]) == [1]
    done = ckptool.slim(ckpt, weights="raw")
    assert read(done.state_dict()["w"]) == [2]
    assert list(done.state_dict()) == ["w", "b"]
    assert done.history[-1] == f"slim: raw weights at {raw}, not {averaged}"
    with pytest.raises(ckptool.Ambiguous) as caught:
        ckptool.slim(ckpt)
    assert caught.value.evidence == (f"ema: {averaged}", f"raw: {raw}")


def test_so_they_are_where_both_are_deeper_in_the_file():
    ckpt = holding(state_dicts=Dict([("model", weights(2)), ("ema_model", weights(1))]), epoch=3)
    done = ckptool.slim(ckpt, weights="ema")
    assert read(done.state_dict()["w"]) == [1]
    assert done.history[-1] == "slim: moving average at state_dicts/ema_model, not state_dicts/model"


def test_a_pickled_model_beside_its_average_is_taken_by_its_place():
    module = Object(
        "newobj",
        Global("net", "Block"),
        (),
        [("state", Dict([("_parameters", weights(2)), ("_buffers", Dict([])), ("_modules", Dict([]))]))],
    )
    ckpt = holding(model=module, ema=weights(1))
    assert read(ckptool.slim(ckpt, weights="ema").state_dict()["w"]) == [1]
    with pytest.raises(ckptool.Ambiguous):
        ckptool.slim(ckpt)


def test_one_object_under_both_names_is_found():
    one = weights(1)
    assert read(ckptool.slim(holding(model=one, model_ema=one), weights="ema").state_dict()["w"]) == [1]


def test_a_name_that_says_it_comes_before_places_that_frameworks_have():
    ckpt = holding(state_dict=weights(1), model=weights(2), model_ema=weights(3))
    assert read(ckptool.slim(ckpt, weights="raw").state_dict()["w"]) == [2]


@pytest.mark.parametrize(
    "entries",
    [
        {name: weights(n) for n, name in enumerate(("netG", "netD", "netG_ema", "netD_ema"))},
        {part: Dict([("model", weights(1)), ("model_ema", weights(2))]) for part in ("actor", "critic")},
    ],
    ids=["beside each other", "in dicts of their own"],
)
@pytest.mark.parametrize("which", ["ema", "raw", None])
def test_of_several_averages_none_is_taken_alone(entries, which):
    with pytest.raises(ckptool.Ambiguous) as caught:
        ckptool.slim(holding(**entries), weights=which)
    assert len(caught.value.evidence) == 2


def test_mmengine_swaps_the_two():
    swapped = {"meta": Dict([("mmengine_version", "0.10")]), "message_hub": Dict([])}
    ckpt = holding(**swapped, state_dict=weights(1), ema_state_dict=weights(2, "module."))
    assert read(ckptool.slim(ckpt, weights="ema").state_dict()["w"]) == [1]
    assert read(ckptool.slim(ckpt, weights="raw").state_dict()["module.w"]) == [2]


def test_latent_diffusion_keeps_the_average_in_the_same_state_dict():
    entries = [
        ("model.a.w", floats(2)),
        ("model.b", floats(3)),
        ("first.w", floats(9)),
        ("model_ema.aw", floats(1)),
        ("model_ema.b", floats(4)),
        ("model_ema.decay", floats(0.999)),
    ]
    ckpt = holding(state_dict=Dict(entries), epoch=3)
    averaged = ckptool.slim(ckpt, weights="ema").state_dict()
    assert {key: read(value) for key, value in averaged.items()} == {"model.a.w": [1], "model.b": [4], "first.w": [9]}
    raw = ckptool.slim(ckpt, weights="raw").state_dict()
    assert {key: read(value) for key, value in raw.items()} == {"model.a.w": [2], "model.b": [3], "first.w": [9]}


def test_an_average_that_is_none_is_noted_and_one_that_is_not_there_refused():
    equal = ckptool.slim(holding(ema=weights(1), model=weights(1)), weights="ema")
    assert equal.history[-1] == "note: the moving average and the raw weights are equal"
    with pytest.raises(ckptool.NotFound, match="no moving average \\(EMA\\) at a place that ckptool knows"):
        ckptool.slim(holding(model=weights(1), epoch=3), weights="ema")
    assert list(ckptool.slim(holding(model=weights(1), epoch=3)).state_dict()) == ["w", "b"]


def test_a_moving_average_alone_is_not_given_as_raw_weights(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"model_ema": {"a.w": torch.ones(2)}, "epoch": 3}, tmp_path / "e.pth")
    ckpt = ckptool.open(tmp_path / "e.pth")
    with pytest.raises(ckptool.NotFound, match=r"holds a moving average \(EMA\) alone, at model_ema"):
        ckptool.slim(ckpt, weights="raw")
    assert list(ckptool.slim(ckpt, weights="ema").state_dict()) == ["a.w"]


def test_tensors_that_are_no_longer_tied_keep_their_own_means(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    note = {"ckptool": json.dumps({"ties": {"b": "a"}})}
    for n in (1, 2):
        values = {"a": torch.full((2,), float(n)), "b": torch.full((2,), 10.0 * n)}
        save_file(values, tmp_path / f"{n}.safetensors", note)
    mean = ckptool.average([ckptool.open(tmp_path / f"{n}.safetensors") for n in (1, 2)])
    ckptool.save(mean, tmp_path / "m.safetensors")
    made = load_file(tmp_path / "m.safetensors")
    assert (made["a"].tolist(), made["b"].tolist()) == ([1.5, 1.5], [15.0, 15.0])
