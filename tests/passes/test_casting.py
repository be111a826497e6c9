"""Casts compared with torch: every value of every pair of types that torch converts, NaN comparing as NaN."""

import itertools

import pytest

np = pytest.importorskip("numpy")

import ckptool
from ckptool.dtypes import ALL, BY_NAME
from ckptool.errors import CannotCarry, RuleError
from ckptool.passes.casting import FLOATING, Tally, convert, floating, numpy_type

NAMES = [dtype.name for dtype in FLOATING]
INTEGERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def patterns(dtype):
    """Every value of a narrow type; of a wide one those around every place where a narrower one begins or ends."""
    size = dtype.itemsize
    if size < 4:
        return np.arange(1 << 8 * size, dtype=INTEGERS[size])
    chance = np.random.default_rng(0)
    high = np.arange(1 << 16, dtype="uint32") << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001], "uint32")
    single = np.concatenate([(high[:, None] | low).ravel(), chance.integers(0, 1 << 32, 1 << 16, dtype="uint32")])
    if size == 4:
        return single
    with np.errstate(all="ignore"):
        double = single.view("float32").astype("float64").view("uint64")
    return np.concatenate([double, double + 1, double - 1, chance.integers(0, 1 << 63, 1 << 16, dtype="uint64") * 2])


def wide(values):
    with np.errstate(all="ignore"):
        return values.astype("float32" if values.itemsize < 4 else values.dtype).astype("float64")


@pytest.mark.parametrize("old", NAMES)
def test_every_value_is_cast_as_torch_does_it(torch, old):
    bits = patterns(floating(old))
    ours = bits.view(numpy_type(floating(old)))
    theirs = torch.from_numpy(bits.view(f"int{8 * bits.itemsize}").copy()).view(getattr(torch, old))
    for new in NAMES:
        expected = theirs.to(getattr(torch, new)).contiguous()
        expected = expected.view(getattr(torch, f"int{8 * expected.element_size()}")).numpy()
        found = convert(ours, floating(new))
        same = found.view(expected.dtype) == expected
        if not same.all():
            other = expected.view(numpy_type(floating(new)))
            same |= np.isnan(wide(found)) & np.isnan(wide(other))
        assert same.all(), (old, new, ours[~same][:5], found[~same][:5])


@pytest.mark.parametrize(("old", "new"), list(itertools.product(["float64", "float32", "float16", "bfloat16"], NAMES)))
def test_what_is_lost_is_counted(old, new):
    values = patterns(floating(old)).view(numpy_type(floating(old)))
    tally = Tally()
    after, before = wide(convert(values, floating(new), tally.add)), wide(values)
    finite = np.isfinite(before)
    expected = {
        "nan": np.isnan(before).sum(),
        "underflow": ((before != 0) & (after == 0)).sum(),
        "overflow": (finite & ~np.isfinite(after)).sum(),
    }
    if new == "float8_e4m3fn":  # has no infinity: its largest value stands for all beyond
        with np.errstate(all="ignore"):
            expected["overflow"] = (np.abs(before.astype("float32")) > 464).sum()
    if old == new:
        expected = {"nan": tally.nan, "underflow": 0, "overflow": 0}
    assert {name: getattr(tally, name) for name in expected} == expected
    assert tally.values == (0 if old == new == "float64" else values.size)


def test_names_of_types():
    assert floating("bf16").name == floating("torch.bfloat16").name == "bfloat16"
    assert floating("half").name == "float16"
    for name in ("int8", "bfloat61", "", "float4_e2m1fn_x2"):
        with pytest.raises(RuleError, match="is not a floating point dtype of torch; choose from float64"):
            floating(name)


# -- whole tensors: every type, lazily negated or conjugated or not, in every kind of view

VIEWS = {
    "whole": lambda t: t,
    "transposed": lambda t: t.view(-1, 2).t(),
    "every third": lambda t: t[1::3],
    "expanded": lambda t: t[:5].expand(3, 5),
    "overlapping": lambda t: t.as_strided((4, 5), (2, 1), 1),
    "scalar": lambda t: t[2],
    "empty": lambda t: t[:0],
    "channels last": lambda t: t[:24].view(1, 2, 3, 4).contiguous().permute(0, 2, 3, 1),
}
FLAGS = [(neg, conj) for neg in (False, True) for conj in (False, True)]


def numbers(torch, dtype):
    """Numbers of a type, both zeros, NaN and infinities among them; of a type of one byte all that there are."""
    size = dtype.itemsize
    chance = np.random.default_rng(7)
    raw = np.arange(256, dtype="uint8") if size == 1 else chance.integers(0, 256, 96 * size, dtype="uint8")
    if dtype.name == "bool":
        raw &= 1
    made = torch.from_numpy(raw.copy()).view(getattr(torch, dtype.name))
    odd = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e9, -1e-9, 3.5], dtype=torch.float64)
    if dtype.is_floating or dtype.is_complex:
        made[:8] = odd.to(torch.complex64).to(made.dtype) if dtype.is_complex else odd.to(made.dtype)
    return made


def lazily(torch, values, neg, conj):
    values = torch._conj(values) if conj else values
    return torch._neg_view(values) if neg else values


def can_be_negated(dtype):
    return dtype.is_complex or (dtype.numpy and dtype.name not in ("bool", "float8_e8m0fnu"))


def every_tensor(torch):
    """name -> (tensor as saved, the same without lazy flags): of each type, flag and view."""
    made = {}
    for dtype in ALL:
        if not (dtype.numpy or dtype.is_complex):
            continue
        plain = numbers(torch, dtype)
        for (neg, conj), (view, look) in itertools.product(FLAGS, VIEWS.items()):
            if (conj and not dtype.is_complex) or (neg and not can_be_negated(dtype)):
                continue
            if neg and conj and dtype.name == "complex32":  # which torch itself cannot resolve
                continue
            name = f"{dtype.name}.{view}{' negated' * neg}{' conjugated' * conj}"
            base = plain if view in ("whole", "every third") else plain.clone()  # both flags over one storage
            made[name] = lazily(torch, look(base), neg, conj), resolved(torch, look(base), dtype, neg, conj)
    return made


def resolved(torch, plain, dtype, neg, conj):
    """The values by torch; of types that it cannot negate through one that it can."""
    if neg and dtype.name.startswith("float8"):
        return (-plain.float()).to(plain.dtype)
    if neg and dtype.name.startswith("uint") and dtype.itemsize > 1:
        signed = getattr(torch, dtype.name[1:])
        return (-plain.view(signed)).view(plain.dtype)
    return lazily(torch, plain, neg, conj).resolve_conj().resolve_neg()


def same_values(torch, found, expected):
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    neg, conj = found.is_neg(), found.is_conj()
    dtype = BY_NAME[str(found.dtype).removeprefix("torch.")]
    found = resolved(torch, lazily(torch, found, neg, conj), dtype, neg, conj)
    if found.dtype.is_complex:
        # torch negates a complex 0 as 0 - x where it has several at once, so the sign of its zeros means nothing
        found, expected = (torch.view_as_real(values) + 0.0 for values in (found, expected))
    bits = getattr(torch, f"int{8 * found.element_size()}")
    found, expected = found.contiguous(), expected.contiguous()
    equal = found.view(bits) == expected.view(bits)
    if found.dtype.is_floating_point:
        equal |= found.double().isnan() & expected.double().isnan()
    return bool(equal.all())


@pytest.mark.filterwarnings("ignore:.*ComplexHalf:UserWarning")
@pytest.mark.parametrize("format_", ["torch-zip", "torch-legacy", "safetensors"])
@pytest.mark.parametrize("new", [None, *NAMES])
def test_a_cast_gives_the_values_of_torch_whatever_the_type_the_flags_and_the_view(torch, tmp_path, new, format_):
    tensors = every_tensor(torch)
    torch.save({name: saved for name, (saved, _) in tensors.items()}, tmp_path / "in.pt")
    ckpt = ckptool.open(tmp_path / "in.pt")
    ckpt = ckptool.cast(ckpt, new) if new else ckpt
    expected = {
        name: values.to(getattr(torch, new)) if new and values.dtype.is_floating_point else values
        for name, (_, values) in tensors.items()
    }
    if format_ == "safetensors":  # has no types for these
        absent = ("complex128", "complex32")
        ckpt = ckptool.drop(ckpt, [f"re:^{name}" for name in absent])
        expected = {name: values for name, values in expected.items() if not name.startswith(absent)}
    elif format_ == "torch-legacy":
        typed = {name for name, values in expected.items() if floating_or_old(values)}
        expected = {name: values for name, values in expected.items() if name in typed}
        ckpt = ckptool.select(ckpt, sorted(typed)) if typed else None
        if ckpt is None:
            return
    ckptool.save(ckpt, tmp_path / "out", format=format_)
    if format_ == "safetensors":
        found = pytest.importorskip("safetensors.torch").load_file(tmp_path / "out")
    else:
        found = torch.load(tmp_path / "out", weights_only=True)
    assert found.keys() == expected.keys()
    wrong = [name for name, values in expected.items() if not same_values(torch, found[name], values)]
    assert not wrong
    if new:
        assert not [name for name, values in found.items() if values.dtype.is_floating_point and values.is_neg()]


def floating_or_old(values):
    """Whether a legacy file can hold a tensor of this type."""
    return BY_NAME[str(values.dtype).removeprefix("torch.")].storage is not None


def test_a_negated_tensor_of_a_type_without_negative_numbers_is_refused(torch, tmp_path):
    powers = torch.ones(4).to(torch.float8_e8m0fnu)
    torch.save({"w": torch._neg_view(powers)}, tmp_path / "in.pt")
    ckpt = ckptool.open(tmp_path / "in.pt")
    with pytest.raises(CannotCarry, match="lazily negated tensor of float8_e8m0fnu"):
        ckptool.cast(ckpt, "float32")
    with pytest.raises(CannotCarry, match="lazily negated tensor of float8_e8m0fnu"):
        ckptool.plan(ckpt, tmp_path / "out.safetensors")


def test_negated_and_plain_views_of_one_storage_share_what_has_one_sign(torch, tmp_path):
    base = torch.arange(6.0)
    views = {"a": base, "b": base[2:], "c": torch._neg_view(base), "d": torch._neg_view(base)[1:]}
    torch.save(views, tmp_path / "in.pt")
    ckpt = ckptool.cast(ckptool.open(tmp_path / "in.pt"), "float16")
    assert ckpt.history[-1] == "note: 2 lazily negated tensors are stored as their values"
    found = ckptool.load(ckpt)
    shared = {key: value.untyped_storage().data_ptr() for key, value in found.items()}
    assert shared["a"] == shared["b"] != shared["c"] == shared["d"]
    assert all(torch.equal(found[key], value.half()) for key, value in views.items())
