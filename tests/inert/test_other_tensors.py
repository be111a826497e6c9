"""Tensors that are no dense ones: shown, carried, converted on request, and checked against torch."""

import json
import warnings
from collections import OrderedDict

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ckptool
from ckptool.reports.inspect import describe

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def coo(values=None, coalesced=True):
    made = torch.sparse_coo_tensor([[0, 2, 2, 0], [1, 0, 3, 1]], values or [1.0, 2.0, 3.0, 4.0], (3, 4))
    return made.coalesce() if coalesced else made


def plain_matrix():
    matrix = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    return matrix * (torch.arange(24).reshape(4, 6) % 3 == 0)


def batched():
    return torch.stack([plain_matrix(), plain_matrix()])


SPARSE = {
    "coo": lambda: coo(),
    "uncoalesced": lambda: coo(coalesced=False),
    "uncoalesced bfloat16": lambda: coo(coalesced=False).to(torch.bfloat16),
    "hybrid": lambda: torch.sparse_coo_tensor([[0, 4, 4]], torch.arange(6.0).reshape(3, 2), (5, 2)),
    "empty": lambda: torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (3, 4)),
    "integers": lambda: torch.eye(3, dtype=torch.int64).to_sparse(),
    "bool": lambda: torch.eye(3, dtype=torch.bool).to_sparse(),
    "csr": lambda: plain_matrix().to_sparse_csr(),
    "csc": lambda: plain_matrix().to_sparse_csc(),
    "bsr": lambda: plain_matrix().to_sparse_bsr((2, 3)),
    "bsc": lambda: plain_matrix().to_sparse_bsc((2, 3)),
    "batched csr": lambda: batched().to_sparse_csr(),
    "batched bsr": lambda: batched().to_sparse_bsr((2, 2)),
    "csr of 32-bit indices": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32), torch.tensor([1.0, 2.0])
    ),
    "sparse parameter": lambda: torch.nn.Parameter(coo()),
}
QUANTIZED = {
    "qint8": lambda: torch.quantize_per_tensor(torch.linspace(-3, 3, 20).reshape(4, 5), 0.1, 3, torch.qint8),
    "quint8": lambda: torch.quantize_per_tensor(torch.linspace(-3, 3, 20).reshape(4, 5), 0.1, 30, torch.quint8),
    "qint32": lambda: torch.quantize_per_tensor(torch.linspace(-3, 3, 20).reshape(4, 5), 1e-4, 5, torch.qint32),
    "transposed": lambda: torch.quantize_per_tensor(torch.linspace(-3, 3, 20).reshape(4, 5), 0.1, 3, torch.qint8).t(),
    "per channel": lambda: torch.quantize_per_channel(
        torch.linspace(-3, 3, 24).reshape(2, 3, 4),
        torch.tensor([0.1, 0.2, 0.3]),
        torch.tensor([1, 2, 3]),
        1,
        torch.qint8,
    ),
    "float qparams": lambda: torch.quantize_per_channel(
        torch.linspace(-3, 3, 12).reshape(2, 6), torch.tensor([0.5, 0.2]), torch.tensor([7.0, 8.5]), 0, torch.quint8
    ),
    "quint4x2": lambda: torch.quantize_per_channel(
        torch.linspace(-3, 3, 15).reshape(3, 5),
        torch.tensor([0.5, 0.2, 0.3]),
        torch.tensor([7.0, 8.0, 1.0]),
        0,
        torch.quint4x2,
    ),
    "quint2x4": lambda: torch.quantize_per_channel(
        torch.linspace(-1, 1, 15).reshape(3, 5),
        torch.tensor([0.5, 0.2, 0.3]),
        torch.tensor([1.0, 2.0, 1.0]),
        0,
        torch.quint2x4,
    ),
    "quantized parameter": lambda: torch.nn.Parameter(
        torch.quantize_per_tensor(torch.linspace(-3, 3, 20), 0.1, 3, torch.qint8), requires_grad=False
    ),
}


class Marked(torch.Tensor):
    """A class of tensors, as libraries have them."""


def with_attributes():
    parameter = torch.nn.Parameter(torch.arange(4.0))
    parameter.sharded = True
    return parameter


OTHERS = {
    "attributes": with_attributes,
    "buffer": lambda: torch.nn.Buffer(torch.arange(4.0)),
    "subclass": lambda: torch.arange(4.0).as_subclass(Marked),
    "numpy": lambda: np.arange(4.0, dtype=np.float32),
    "numpy big-endian": lambda: np.arange(4.0).astype(">f4"),
    "numpy in Fortran's order": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "numpy scalar": lambda: np.float64(1.5),
}


def saved(path, **entries):
    torch.save(OrderedDict(dense=torch.ones(2), more=torch.zeros(3), **entries), path)
    return ckptool.open(path)


def loaded(path):
    return torch.load(path, weights_only=False)


@pytest.mark.parametrize("name", [*SPARSE, *QUANTIZED, *OTHERS])
def test_every_kind_is_shown_as_a_tensor_of_the_state_dict(tmp_path, name):
    value = {**SPARSE, **QUANTIZED, **OTHERS}[name]()
    ckpt = saved(tmp_path / "x", w=value)
    assert list(ckpt.state_dict()) == ["dense", "more", "w"]
    (row,) = [row for row in describe(ckpt).tensors if row.key == "w"]
    assert row.shape == list(value.shape)
    dtype = str(value.dtype).removeprefix("torch.")
    assert row.dtype == {">f4": "float32"}.get(dtype, dtype)
    assert row.kind != "dense"


@pytest.mark.parametrize("name", [*SPARSE, *QUANTIZED])
def test_every_kind_is_carried_from_zip_to_zip_as_it_is(tmp_path, name):
    value = {**SPARSE, **QUANTIZED}[name]()
    ckpt = ckptool.rename(saved(tmp_path / "x", w=value), {"w": "a.much.longer.name"})
    ckptool.save(ckpt, tmp_path / "y.pth")
    back = torch.load(tmp_path / "y.pth", weights_only=True)["a.much.longer.name"]
    assert (type(back), back.layout, back.is_quantized) == (type(value), value.layout, value.is_quantized)
    one, other = (t.detach().dequantize() if t.is_quantized else t.detach().to_dense() for t in (value, back))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", [*SPARSE, *QUANTIZED, *sorted(set(OTHERS) - {"subclass"})])
def test_every_kind_is_loaded_as_torch_loads_it(tmp_path, name):
    saved(tmp_path / "x", w={**SPARSE, **QUANTIZED, **OTHERS}[name]())
    theirs, ours = loaded(tmp_path / "x")["w"], ckptool.load(tmp_path / "x")["w"]
    assert type(theirs) is type(ours)
    if isinstance(theirs, torch.Tensor):
        flags = "dtype layout is_quantized requires_grad shape".split()
        assert [getattr(ours, flag) for flag in flags] == [getattr(theirs, flag) for flag in flags]
        assert vars(ours) == vars(theirs)
        one, other = (t.detach().dequantize() if t.is_quantized else t.detach().to_dense() for t in (ours, theirs))
        assert torch.equal(one, other)
    else:
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
def test_a_sparse_tensor_becomes_the_dense_one_that_torch_makes(tmp_path, make):
    ckpt = saved(tmp_path / "x", w=make())
    with pytest.raises(ckptool.CannotCarry, match=r"(?s)would be lost.*sparse.* tensor: w.*--to-dense"):
        ckptool.save(ckpt, tmp_path / "y.safetensors")
    dense = ckptool.to_dense(ckpt)
    ckptool.save(dense, tmp_path / "y.safetensors")
    expected = make().detach().to_dense()
    assert torch.equal(ckptool.load(tmp_path / "y.safetensors")["w"], expected)
    ckptool.save(dense, tmp_path / "y.pth")
    assert torch.equal(torch.load(tmp_path / "y.pth", weights_only=True)["w"].detach(), expected)


@pytest.mark.parametrize("make", QUANTIZED.values(), ids=QUANTIZED)
def test_a_quantized_tensor_becomes_the_float_one_that_torch_makes(tmp_path, make):
    ckpt = saved(tmp_path / "x", w=make())
    with pytest.raises(ckptool.CannotCarry, match=r"(?s)would be lost.*quantized tensor: w.*--dequantize"):
        ckptool.save(ckpt, tmp_path / "y.safetensors")
    ckptool.save(ckptool.dequantize(ckpt), tmp_path / "y.safetensors")
    ours, theirs = ckptool.load(tmp_path / "y.safetensors")["w"], make().detach().dequantize()
    torch.testing.assert_close(ours, theirs.contiguous(), rtol=1e-6, atol=1e-7)


KINDS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


@pytest.mark.parametrize("axis", [None, 0, 1], ids=["whole", "rows", "columns"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_dequantized_values_are_those_of_torch_to_the_last_bit(tmp_path, kind, axis):
    random = torch.Generator().manual_seed(0)
    bounds = torch.iinfo(KINDS[kind])
    values = torch.randint(bounds.min, bounds.max, (61, 67), generator=random).to(KINDS[kind])
    if axis is None:
        made = torch._make_per_tensor_quantized_tensor(values, 0.0123456789, 7)
    else:
        scales = torch.rand(values.shape[axis], generator=random, dtype=torch.float64)
        zeros = torch.randint(max(bounds.min, -100), 100, scales.shape, generator=random)
        made = torch._make_per_channel_quantized_tensor(values, scales, zeros, axis)
    torch.save({"w": made}, tmp_path / "x.pt")
    ours = ckptool.dequantize(ckptool.open(tmp_path / "x.pt")).state_dict()["w"].numpy()
    assert ours.tobytes() == made.dequantize().numpy().tobytes()


def test_pieces_of_any_length_give_the_whole(tmp_path):
    for decode, make in [(ckptool.to_dense, SPARSE["bsr"]), (ckptool.dequantize, QUANTIZED["quint4x2"])]:
        tensor = decode(saved(tmp_path / decode.__name__, w=make())).state_dict()["w"]
        source = tensor.source()
        whole = b"".join(map(bytes, source.chunks()))
        for at in range(0, len(whole), 7):
            assert bytes(source.read(at, min(13, len(whole) - at))) == whole[at : at + 13]


@pytest.mark.parametrize("name", OTHERS)
def test_values_of_other_classes_reach_safetensors_and_what_is_lost_is_said(tmp_path, name):
    value = OTHERS[name]()
    ckpt = saved(tmp_path / "x", w=value)
    if name == "attributes":
        with pytest.raises(ckptool.CannotCarry, match="1 tensor with attributes: w"):
            ckptool.save(ckpt, tmp_path / "y.safetensors")
    receipt = ckptool.save(ckpt, tmp_path / "y.safetensors", allow_loss=True)
    back = ckptool.load(tmp_path / "y.safetensors")["w"]
    native = np.asarray(value.detach() if isinstance(value, torch.Tensor) else value)
    assert np.array_equal(back.numpy(), native.astype(native.dtype.newbyteorder("=")))
    words = dict.fromkeys(("numpy", "numpy big-endian"), "numpy array") | {
        "subclass": "of class test_other_tensors.Marked"
    }
    assert words.get(name, "") in " ".join(receipt.form)
    assert bool(receipt.content) == (name == "attributes")


def test_a_meta_tensor_has_no_values_to_write(tmp_path):
    ckpt = saved(tmp_path / "x", w=torch.empty(3, 2, device="meta"))
    with pytest.raises(ckptool.CannotCarry, match="1 meta tensor: w"):
        ckptool.save(ckpt, tmp_path / "y.safetensors")
    ckptool.save(ckptool.add_prefix(ckpt, "a.longer.prefix"), tmp_path / "y.pth")
    assert torch.load(tmp_path / "y.pth")["a.longer.prefix.w"].device.type == "meta"


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_carried_and_counts_as_content_elsewhere(tmp_path, layout):
    value = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=layout)
    ckpt = saved(tmp_path / "x", w=value)
    with pytest.raises(ckptool.CannotCarry, match="1 nested tensor: w"):
        ckptool.save(ckpt, tmp_path / "y.safetensors")
    ckptool.save(ckptool.add_prefix(ckpt, "a.longer.prefix"), tmp_path / "y.pth", keep_objects=True)
    back = loaded(tmp_path / "y.pth")["a.longer.prefix.w"]
    assert all(torch.equal(one, other) for one, other in zip(value.unbind(), back.unbind(), strict=True))


@pytest.fixture
def mesh(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    from torch.distributed.tensor import init_device_mesh

    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_dtensor_that_is_whole_is_its_local_tensor(tmp_path, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    value = torch.arange(8.0).reshape(4, 2)
    ckpt = saved(tmp_path / "x", w=distribute_tensor(value, mesh, [Shard(0)]))
    (row,) = [row for row in describe(ckpt).tensors if row.key == "w"]
    assert (row.kind, row.shape) == ("DTensor", [4, 2])
    receipt = ckptool.save(ckpt, tmp_path / "y.safetensors")
    assert "1 tensor of class torch.distributed.tensor.DTensor is stored as a plain tensor" in receipt.form
    assert torch.equal(ckptool.load(tmp_path / "y.safetensors")["w"], value)


def test_a_dtensor_that_is_one_part_of_a_sum_is_not_taken_for_the_whole(tmp_path, mesh):
    from torch.distributed.tensor import DTensor, Partial

    ckpt = saved(tmp_path / "x", w=DTensor.from_local(torch.ones(2, 2), mesh, [Partial()]))
    with pytest.raises(ckptool.CannotCarry, match="w"):
        ckptool.save(ckpt, tmp_path / "y.safetensors")
    assert not (tmp_path / "y.safetensors").exists()


def test_indices_are_checked_as_a_file_is_opened(tmp_path):
    good = {
        "coo": coo(),
        "csr": plain_matrix().to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(2, 3)]),
    }
    for name, value in good.items():
        torch.save({"w": value, "dense": torch.ones(1)}, tmp_path / name)
        ckpt = ckptool.open(tmp_path / name)
        (_, other), *_ = ckpt.other_tensors()
        part = {"coo": "indices", "csr": "compressed", "nested": "sizes"}[name]
        source = other.parts[part].storage.source
        with open(tmp_path / name, "r+b") as file:
            file.seek(source.offset)
            file.write((1 << 40).to_bytes(8, "little"))
        with pytest.raises(ckptool.Malformed, match=r"nested tensor has|sparse tensor has"):
            ckptool.open(tmp_path / name)


def test_a_tensor_that_only_claims_to_be_huge_is_not_made_dense(tmp_path):
    torch.save({"w": torch.sparse_coo_tensor([[1]], [1.0], (1 << 40,)), "x": torch.ones(1)}, tmp_path / "x")
    with pytest.raises(ckptool.CannotCarry, match="would be 4,398,046,511,104 bytes when dense"):
        ckptool.to_dense(ckptool.open(tmp_path / "x"))


def test_rules_for_kinds_that_are_not_there_are_errors_unless_asked(tmp_path):
    ckpt = saved(tmp_path / "x")
    with pytest.raises(ckptool.NoMatch, match="no tensor is sparse"):
        ckptool.to_dense(ckpt)
    with pytest.raises(ckptool.NoMatch, match="no tensor is quantized"):
        ckptool.dequantize(ckpt)
    assert list(ckptool.to_dense(ckpt, missing="ok").state_dict()) == ["dense", "more"]


def test_the_report_as_json_names_the_kind(tmp_path):
    document = describe(saved(tmp_path / "x", w=coo())).as_json()
    rows = {row["key"]: row for row in json.loads(json.dumps(document))["tensors"] if row["key"]}
    assert (rows["dense"]["kind"], rows["w"]["kind"], rows["w"]["storage"]) == ("dense", "sparse_coo", None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int16, torch.bfloat16, torch.uint16], ids=str)
def test_big_endian_values_are_turned_round_when_they_are_converted(tmp_path, dtype):
    import zipfile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = torch.arange(6).to(dtype).reshape(2, 3)
    torch.save({"w": value, "t": value.t()}, tmp_path / "x")
    step = value.itemsize // (2 if dtype.is_complex else 1)
    with zipfile.ZipFile(tmp_path / "x") as old, zipfile.ZipFile(tmp_path / "big", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if "/data/" in name:
                data = np.frombuffer(data, np.uint8).reshape(-1, step)[:, ::-1].tobytes()
            new.writestr(name, b"big" if name.endswith("byteorder") else data)
    ckpt = ckptool.open(tmp_path / "big")
    ckptool.save(ckpt, tmp_path / "y.safetensors")
    assert torch.equal(ckptool.load(tmp_path / "y.safetensors")["w"], value)
    assert torch.equal(ckptool.load(tmp_path / "y.safetensors")["t"], value.t())
    assert torch.equal(ckptool.load(tmp_path / "big")["w"], value)
    if dtype != torch.uint16:
        ckptool.save(ckpt, tmp_path / "y.pth", format="torch-legacy")
        assert torch.equal(torch.load(tmp_path / "y.pth")["t"], value.t())
    ckptool.save(ckptool.add_prefix(ckpt, "a.longer.prefix"), tmp_path / "copied")
    with zipfile.ZipFile(tmp_path / "copied") as archive:  # as they are, but for those that torch would not turn round
        order = b"little" if dtype == torch.uint16 else b"big"
        assert archive.read("big/byteorder" if "big/byteorder" in archive.namelist() else "x/byteorder") == order
    assert torch.equal(torch.load(tmp_path / "copied")["a.longer.prefix.t"], value.t())


def test_state_dicts_may_be_dicts_of_other_classes(tmp_path):
    from collections import defaultdict

    entries = {"module.w": torch.ones(2), "module.b": torch.zeros(3)}
    for made in (defaultdict(int, entries), Subclass(entries)):
        torch.save({"state_dict": made, "epoch": 1}, tmp_path / "x")
        ckpt = ckptool.strip_prefix(ckptool.open(tmp_path / "x"))
        assert list(ckpt.state_dict()) == ["w", "b"]
        ckptool.save(ckpt, tmp_path / "y.pth", overwrite=True, keep_objects=True)
        back = loaded(tmp_path / "y.pth")["state_dict"]
        assert (type(back), list(back)) == (type(made), ["w", "b"])


class Subclass(OrderedDict):
    """A class of dicts, as training code has them."""


def test_a_report_counts_the_bytes_of_every_kind(tmp_path):
    torch.save({"w": torch.ones(2), "s": torch.eye(3).to_sparse(), "n": np.ones(4)}, tmp_path / "x.pt")
    (one,) = describe(ckptool.open(tmp_path / "x.pt")).state_dicts
    assert one.bytes == 2 * 4 + (3 * 2 * 8 + 3 * 4) + 4 * 8
    assert one.parameters == 2 + 3 + 4
