import io
import pickletools
import warnings
import zipfile

import numpy as np
import pytest
from strategies import QUANTIZED

from ckptool.dtypes import ALL, BY_NAME, BY_SAFETENSORS, BY_STORAGE

SAVED = [dtype for dtype in ALL if dtype not in QUANTIZED]


def test_names_storages_and_codes_are_unique():
    for table, field in ((BY_NAME, "name"), (BY_STORAGE, "storage"), (BY_SAFETENSORS, "safetensors")):
        assert len(table) == sum(getattr(dtype, field) is not None for dtype in ALL)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_sizes_and_kinds_are_those_of_torch(torch, dtype):
    theirs = getattr(torch, dtype.name)
    assert dtype.itemsize == theirs.itemsize
    assert dtype.is_floating == theirs.is_floating_point
    assert dtype.is_complex == theirs.is_complex


@pytest.mark.parametrize("dtype", SAVED, ids=str)
def test_the_storage_is_pickled_as_torch_pickles_it(torch, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.empty(0, dtype=getattr(torch, dtype.name))
        torch.save(tensor, saved := io.BytesIO())
    with zipfile.ZipFile(saved) as archive:
        names = [arg for op, arg, _ in pickletools.genops(archive.read("archive/data.pkl")) if op.name == "GLOBAL"]
    if dtype.storage:
        assert f"torch {dtype.storage}" in names
        assert "torch._utils _rebuild_tensor_v2" in names
    else:
        assert "torch.storage UntypedStorage" in names
        assert "torch._utils _rebuild_tensor_v3" in names
        assert f"torch {dtype.name}" in names


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_quantized_storages_have_their_class_in_torch(torch, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert getattr(torch, dtype.storage).dtype == getattr(torch, dtype.name)


def test_every_dtype_of_torch_that_can_be_saved_is_in_the_table(torch):
    saved = set()
    for value in vars(torch).values():
        if isinstance(value, torch.dtype):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    torch.save(torch.empty(0, dtype=value), io.BytesIO())
                except (KeyError, RuntimeError, NotImplementedError):
                    continue
            saved.add(str(value).removeprefix("torch."))
    assert saved - set(BY_NAME) == set()


def test_codes_of_safetensors_are_those_of_its_own_library(torch):
    theirs = pytest.importorskip("safetensors.torch")._TYPES
    ours = {code: getattr(torch, dtype.name) for code, dtype in BY_SAFETENSORS.items()}
    assert {code: kind for code, kind in ours.items() if code in theirs} == theirs
    assert set(ours) - set(theirs) <= {"F4", "F8_E8M0", "C64"}  # of these its `load` gives none, its `safe_open` does


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL if dtype.numpy], ids=str)
def test_numpy_types_have_the_same_size(dtype):
    import ml_dtypes

    kind = getattr(np, dtype.numpy, None) if dtype.numpy != "bool" else np.bool_
    assert np.dtype(kind or getattr(ml_dtypes, dtype.numpy)).itemsize == dtype.itemsize


def test_a_packed_type_counts_twice():
    assert {dtype.name for dtype in ALL if dtype.packed != 1} == {"float4_e2m1fn_x2"}
