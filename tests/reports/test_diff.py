"""`ckptool.diff`: what differs is found, and how much; what is equal is equal in every container."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.reports.comparing import numbers as values
from ckptool.reports.comparing.renames import rename_command
from ckptool.tensor import LazyTensor, Storage, contiguous_stride
from ckptool.tree import Dict

FLOAT = BY_NAME["float32"]


def tensor(array, location="cpu", dtype=None):
    array = np.ascontiguousarray(array)
    kind = BY_NAME[dtype or array.dtype.name]
    storage = Storage(Buffer(array.tobytes()), location, kind if kind.storage else None)
    return LazyTensor(storage, kind, array.shape, contiguous_stride(array.shape))


def saved(path, entries, **options):
    ckptool.save(Checkpoint(Dict(list(entries.items()), True)), path, **options)
    return path


@pytest.fixture
def weights():
    rng = np.random.default_rng(3)
    shapes = {"conv.weight": (4, 3), "conv.bias": (4,), "head.weight": (2, 4), "steps": ()}
    return {name: tensor(rng.standard_normal(shape).astype("float32")) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", ["b.pth", "b.safetensors"])
def test_the_same_weights_are_the_same_in_every_container(tmp_path, weights, name):
    left = saved(tmp_path / "a.pth", weights, format="legacy")
    right = saved(tmp_path / name, dict(reversed(weights.items())))
    found = ckptool.diff(left, right)
    assert found.same
    assert found.count("equal") == 4
    assert any("order" in line for line in found.form)
    assert not ckptool.diff(left, right, strict=True).same


def test_an_envelope_is_looked_through_and_what_else_is_in_it_counts(tmp_path, weights):
    inner = Dict(list(weights.items()), True)
    moment = tensor(np.ones(3, "float32"))
    left = saved(tmp_path / "a.ckpt", {"epoch": 3, "state_dict": inner, "optimizer": Dict([("m", moment)])})
    right = saved(tmp_path / "b.safetensors", weights)
    found = ckptool.diff(left, right)
    assert (found.count("equal"), found.count("only left"), found.same) == (4, 1, False)
    assert found.entries == [("epoch", "3", None)]
    assert ckptool.diff(left, right, weights=True).same


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda w: {**w, "conv.bias": tensor(w["conv.bias"].numpy() + 1)}, "values"),
        (lambda w: {**w, "conv.bias": tensor(w["conv.bias"].numpy().astype("float64"))}, "type"),
        (lambda w: {**w, "conv.bias": tensor(np.zeros(5, "float32"))}, "shape"),
        (lambda w: {k: v for k, v in w.items() if k != "conv.bias"}, "only left"),
        (lambda w: {**w, "new": tensor(np.zeros(5, "float32"))}, "only right"),
    ],
)
def test_each_kind_of_difference_has_its_status(tmp_path, weights, change, status):
    left, right = saved(tmp_path / "a.pth", weights), saved(tmp_path / "b.pth", change(weights))
    found = ckptool.diff(left, right)
    assert not found.same
    assert found.pairs[0].status == status  # what differs comes first
    assert sum(found.count(one) for one in ("equal", status)) == len(found.pairs)
    assert "same" in found.as_json()


def test_devices_ties_and_metadata_are_form_and_count_when_asked(tmp_path, weights):
    on_gpu = {k: t.changed(storage=t.storage.changed(location="cuda:1")) for k, t in weights.items()}
    left = saved(tmp_path / "a.pth", on_gpu)
    right = saved(tmp_path / "b.pth", {**weights, "steps": weights["steps"]})
    found = ckptool.diff(left, right)
    assert found.same
    assert found.form == ["4 tensors on cuda:1 at the left, on cpu at the right"]
    assert not ckptool.diff(left, right, strict=True).same
    tied = saved(tmp_path / "c.pth", {"a": weights["steps"], "b": weights["steps"]})
    apart = saved(tmp_path / "d.pth", {"a": weights["steps"], "b": tensor(weights["steps"].numpy())})
    assert ckptool.diff(tied, apart).form == ["tied at the left only: a = b"]


def test_tensors_under_another_name_are_found_by_their_content(tmp_path, weights):
    left = saved(tmp_path / "a.pth", {f"module.{key}": t for key, t in weights.items()})
    right = saved(tmp_path / "b.pth", weights)
    assert ckptool.diff(left, right).count("only left") == 4
    found = ckptool.diff(left, right, detect_renames=True)
    assert {(p.left.name, p.right.name) for p in found.pairs} == {(f"module.{k}", k) for k in weights}
    assert {p.status for p in found.pairs} == {"moved"}


def test_tensors_that_were_trained_on_are_paired_by_shape_and_order_and_called_a_guess(tmp_path, weights):
    left = saved(tmp_path / "a.pth", {f"old.{key}": t for key, t in weights.items()})
    right = saved(tmp_path / "b.pth", {key: tensor(t.numpy() * 1.1) for key, t in weights.items()})
    found = ckptool.diff(left, right, detect_renames=True)
    assert {p.status for p in found.pairs} == {"perhaps moved"}
    assert all(p.left.name == f"old.{p.right.name}" for p in found.pairs)


@pytest.mark.parametrize(
    ("renamed", "command"),
    [
        ({"module.a.w": "a.w", "module.b": "b"}, "strip-prefix in.pth in-renamed.pth --prefix module."),
        ({"a.w": "net.a.w", "b": "net.b"}, "add-prefix in.pth in-renamed.pth --prefix net."),
        ({"x._orig_mod.w": "x.w"}, "convert in.pth in-renamed.pth --unwrap"),
        ({"a.0.w": "b.0.w", "a.1.w": "b.1.w"}, "rename in.pth in-renamed.pth --rename a=b"),
    ],
)
def test_a_renaming_becomes_the_shortest_command_that_says_it(renamed, command):
    others = [] if "prefix" in command else ["other.weight"]
    assert rename_command("in.pth", [*renamed, *others], renamed) == f"ckptool {command}"


def test_a_renaming_that_no_few_rules_say_has_no_command():
    assert rename_command("in.pth", [f"a{n}" for n in range(40)], {f"a{n}": f"b{n * 7}" for n in range(40)}) is None


# -- numbers

NUMBERS = st.lists(
    st.tuples(st.floats(width=32), st.floats(width=32)) | st.floats(width=32).map(lambda x: (x, x)), min_size=1
)


def difference(a, b, **tolerance):
    return values.total(part() for part in values.compare(tensor(a), tensor(b), **tolerance))


@given(NUMBERS, st.sampled_from([0.0, 1e-3]), st.sampled_from([0.0, 0.1]))
def test_differences_are_those_that_numpy_computes(pairs, rtol, atol):
    a, b = (np.array(side, "float32") for side in zip(*pairs, strict=True))
    found = difference(a, b, rtol=rtol, atol=atol)
    x, y = a.astype("float64"), b.astype("float64")
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    finite = np.isfinite(x) & np.isfinite(y)
    with np.errstate(all="ignore"):
        distance, bound = np.abs(x - y), atol + rtol * np.abs(y)
    assert found.elements == len(a)
    assert found.different == np.count_nonzero(~equal)
    assert found.unmatched == np.count_nonzero(~equal & ~finite)
    assert found.beyond == np.count_nonzero(~(equal | (finite & (distance <= bound))))
    apart = np.abs(x[finite] - y[finite])
    assert found.max_abs == apart.max(initial=0.0)
    assert found.mean_abs == pytest.approx(apart.mean() if apart.size else 0.0)
    largest = np.maximum(np.abs(x), np.abs(y))[finite]
    relative = np.divide(apart, largest, out=np.zeros_like(apart), where=largest > 0)
    assert found.max_rel == pytest.approx(relative.max(initial=0.0))
    assert found.mean_rel == pytest.approx(relative.mean() if relative.size else 0.0)
    assert 0 <= found.max_rel <= 2
    assert math.isnan(found.cosine) or -1 <= found.cosine <= 1


@pytest.mark.parametrize("name", ["float64", "int64", "uint8", "bool", "complex64", "bfloat16", "float8_e4m3fn"])
def test_every_type_of_number_is_compared(name):
    kind = BY_NAME[name]
    raw = [bytes([fill]) * (4 * kind.itemsize) for fill in (0, 1)]
    one, other = (LazyTensor(Storage(Buffer(data)), kind, (4,), (1,)) for data in raw)
    found = values.total(part() for part in values.compare(one, other))
    assert found.different == (8 if kind.is_complex else 4)
    assert found.max_abs > 0


def test_strided_tensors_are_compared_by_their_values(tmp_path):
    array = np.arange(12, dtype="float32").reshape(3, 4)
    flat = tensor(array)
    turned = LazyTensor(tensor(array.T).storage, FLOAT, (3, 4), (1, 3))
    left, right = saved(tmp_path / "a.pth", {"w": flat}), saved(tmp_path / "b.pth", {"w": turned})
    assert ckptool.diff(left, right).same


def test_equal_numbers_of_other_bits_are_equal(tmp_path):
    nan = np.array([0x7FC00000, 0x7FC00001, 0], "uint32").view("float32")
    other = np.array([0x7FC00009, 0x7FC00001, 0x80000000], "uint32").view("float32")
    assert ckptool.diff(
        saved(tmp_path / "a.pth", {"w": tensor(nan)}), saved(tmp_path / "b.pth", {"w": tensor(other)})
    ).same


def test_a_small_difference_is_found_at_the_end_of_a_large_tensor():
    a = np.zeros(3_000_001, "float32")
    b = a.copy()
    b[-1] = 1e-3
    found = difference(a, b)
    assert (found.different, found.elements) == (1, 3_000_001)
    assert found.max_abs == pytest.approx(1e-3)


def test_the_digest_of_a_tensor_depends_on_its_values_type_and_shape_only():
    array = np.arange(12, dtype="float32").reshape(3, 4)
    turned = LazyTensor(tensor(array.T, "cuda:3").storage, FLOAT, (3, 4), (1, 3))
    assert values.digest(tensor(array)) == values.digest(turned)
    others = [array.reshape(4, 3), array.astype("float64"), array + 1]
    assert len({values.digest(tensor(x)) for x in [array, *others]}) == 4


def test_numbers_agree_with_torch(torch, tmp_path):
    torch.manual_seed(0)
    a, b = torch.randn(300, 40), torch.randn(300, 40)
    torch.save({"w": a}, tmp_path / "a.pth")
    torch.save({"w": b.to(torch.bfloat16)}, tmp_path / "b.pth")
    found = ckptool.diff(tmp_path / "a.pth", tmp_path / "b.pth").pairs[0]
    x, y = a.double(), b.to(torch.bfloat16).double()
    assert found.status == "type"
    assert found.values.max_abs == pytest.approx(float((x - y).abs().max()))
    assert found.values.mean_abs == pytest.approx(float((x - y).abs().mean()))
    cosine = torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), 0)
    assert found.values.cosine == pytest.approx(float(cosine))
    assert found.values.distance == pytest.approx(float((x - y).norm() / y.norm()))


def test_a_tensor_that_few_bytes_make_endless_is_refused(tmp_path):
    endless = LazyTensor(Storage(Buffer(b"\0" * 4), "cpu", FLOAT), FLOAT, (1 << 40, 1 << 20), (0, 0))
    path = saved(tmp_path / "a.pth", {"w": endless})
    with pytest.raises(ckptool.CannotCarry, match="expands 4 stored bytes"):
        ckptool.diff(path, path)


@pytest.fixture
def made_by_torch(tmp_path):
    torch = pytest.importorskip("torch")

    def write(name, value):
        torch.save({"w": value, "v": torch.ones(2)}, tmp_path / name)
        return tmp_path / name

    return torch, write


@pytest.mark.filterwarnings("ignore")  # quantized tensors are deprecated
def test_a_scale_and_sizes_beside_equal_numbers_are_differences(made_by_torch):
    torch, write = made_by_torch
    x, at = torch.arange(8.0), torch.tensor([[0], [0]])
    pairs = [
        [torch.quantize_per_tensor(x * n, 0.1 * n, 0, torch.qint8) for n in (1, 2)],
        [torch.sparse_coo_tensor(at, [1.0], (n, n)) for n in (3, 9)],
    ]
    for one, other in pairs:
        left, right, again = write("a.pth", one), write("b.pth", other), write("c.pth", one)
        assert ckptool.diff(left, again).same
        assert not ckptool.diff(left, right).same
        assert ckptool.verify(left, digest=True).digest != ckptool.verify(right, digest=True).digest
        assert ckptool.verify(left, digest=True).digest == ckptool.verify(again, digest=True).digest


@pytest.mark.parametrize("value", [[], set()])
def test_an_entry_that_is_empty_is_an_entry(tmp_path, value):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(2), "callbacks": value}, tmp_path / "a.pth")
    torch.save({"w": torch.ones(2)}, tmp_path / "b.pth")
    assert not ckptool.diff(tmp_path / "a.pth", tmp_path / "b.pth").same


def test_an_open_checkpoint_is_compared_as_it_is(tmp_path, weights):
    path = saved(tmp_path / "a.pth", {f"module.{key}": value for key, value in weights.items()})
    plain = saved(tmp_path / "b.pth", weights)
    stripped = ckptool.strip_prefix(ckptool.open(path), "module.")
    assert ckptool.verify(stripped, against=plain).sound
    assert not ckptool.verify(stripped, against=path).sound


def test_every_byte_is_read_beside_an_empty_tensor(tmp_path):
    path = tmp_path / "a.safetensors"
    ckptool.save({"w": np.full(1000, np.nan, "f4"), "ids": np.zeros(0, "i8")}, path)
    found = ckptool.verify(path)
    assert found.read == 4000
    assert any("NaN" in line for line in found.doubts)


def test_whole_models_with_other_layers_or_settings_are_not_the_same(tmp_path):
    """Equal weights, and another eps, or another class: they compute something else."""
    torch = pytest.importorskip("torch")
    norm = torch.nn.Sequential(torch.nn.LayerNorm(4, eps=1e-5), torch.nn.ReLU())
    other = torch.nn.Sequential(torch.nn.LayerNorm(4, eps=1e-3), torch.nn.GELU())
    for name, model in (("a", norm), ("b", other), ("c", norm.eval())):
        torch.save(model, tmp_path / f"{name}.pth")
    found = ckptool.diff(tmp_path / "a.pth", tmp_path / "b.pth")
    assert ('"0"/eps', "1e-05", "0.001") in found.entries
    assert any(path == '"1"/@class' and "GELU" in right for path, _, right in found.entries)
    assert ckptool.diff(tmp_path / "a.pth", tmp_path / "b.pth", weights=True).same
    assert ckptool.diff(tmp_path / "a.pth", tmp_path / "c.pth").same
    torch.save(norm.state_dict(), tmp_path / "state.pth")
    assert ckptool.diff(tmp_path / "a.pth", tmp_path / "state.pth").same
