"""Casts held against torch: every value of every pair of types that torch converts, NaN comparing as NaN."""

import itertools

import pytest

np = pytest.importorskip("numpy")

from ckptool.casting import FLOATING, Tally, convert, floating, numpy_type
from ckptool.errors import RuleError

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
    after, before = wide(convert(values, floating(new), tally)), wide(values)
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
        with pytest.raises(RuleError, match="no floating point type that torch casts to; there are float64"):
            floating(name)
