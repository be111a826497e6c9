"""Which elements a rank holds, held against what torch gives each rank of a mesh. One process plays all of them."""

import sys
from math import prod
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool.sharding.placing import Cut, has_sharded, share, share_of

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
tensor = pytest.importorskip("torch.distributed.tensor")
placement_types = pytest.importorskip("torch.distributed.tensor.placement_types")
fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
held_module = pytest.importorskip("ckptool.sharding.held")
Held, Here, divide_among_holders = held_module.Held, held_module.Here, held_module.divide_among_holders
from torch.distributed.device_mesh import init_device_mesh

Replicate, Shard, Partial = tensor.Replicate, tensor.Shard, tensor.Partial
Strided = placement_types._StridedShard


class Playing:
    """This process as one rank of a run in which nobody else is, and nothing is sent."""

    def __init__(self, rank, *sizes):
        self.rank, self.sizes = rank, sizes

    def __enter__(self):
        self.hook = sys.excepthook  # torch puts its own around it each time
        dist.init_process_group("fake", rank=self.rank, world_size=prod(self.sizes), store=fake_pg.FakeStore())
        return init_device_mesh("cpu", self.sizes)

    def __exit__(self, *_):
        dist.destroy_process_group()
        sys.excepthook = self.hook


def numbered(shape):
    return torch.arange(prod(shape)).reshape(shape)


def taken(held, values):
    """What the slices of a share take of the whole."""
    out = values.new_full(held.local, -1)
    for one in held.slices:
        out[one.within] = values[tuple(slice(a, a + n) for a, n in zip(one.start, one.shape, strict=True))]
    return out


@st.composite
def placed(draw):
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=0, max_size=3)))
    kinds = [st.just(Replicate())]
    if shape:
        dims = st.integers(0, len(shape) - 1)
        kinds += [dims.map(Shard), st.builds(lambda dim, n: Strided(dim, split_factor=n), dims, st.integers(1, 4))]
    placements = [draw(st.one_of(kinds)) for _ in mesh]
    return mesh, shape, placements, draw(st.integers(0, prod(mesh) - 1))


@given(placed())
def test_a_rank_holds_what_torch_gives_it(case):
    """Shards of any dimensions, uneven and empty ones, replicas, strided shards; `distribute_tensor` is the judge."""
    sizes, shape, placements, rank = case
    with Playing(rank, *sizes) as mesh:
        made = tensor.distribute_tensor(numbered(shape), mesh, placements, src_data_rank=None)
        held = share_of("w", made)
    assert torch.equal(taken(held, numbered(shape)).reshape(made._local_tensor.shape), made._local_tensor)


def shares_of_all(sizes, shape, placements):
    cuts = [None if p.is_replicate() else Cut(p.dim, getattr(p, "split_factor", 1)) for p in placements]
    coordinates = torch.cartesian_prod(*(torch.arange(n) for n in sizes)).reshape(-1, len(sizes)).tolist()
    return cuts, [share(shape, sizes, coordinate, cuts) for coordinate in coordinates]


@given(placed())
def test_the_ranks_together_hold_every_element_as_often_as_there_are_copies(case):
    sizes, shape, placements, _ = case
    cuts, shares = shares_of_all(sizes, shape, placements)
    count = torch.zeros(shape, dtype=torch.int64)
    for held in shares:
        for one in held.slices:
            count[tuple(slice(a, a + n) for a, n in zip(one.start, one.shape, strict=True))] += 1
    assert (count == prod(n for n, cut in zip(sizes, cuts, strict=True) if cut is None)).all()


@given(placed(), st.booleans())
def test_the_ranks_together_write_every_byte_once(case, divided):
    """Whatever several of them hold alike: large boxes are divided among them, small ones go in turn."""
    sizes, shape, placements, _ = case
    _, shares = shares_of_all(sizes, shape, placements)
    values = numbered(shape)
    holders = [[Here(("w", shape, "int64"), taken(one, values), one.slices)] for one in shares]
    told = [[here.boxes for here in held] for held in holders]
    written = [None] * values.numel() * 8
    with mock.patch.object(held_module, "_DIVIDED", 0 if divided else 1 << 20):
        for rank, held in enumerate(holders):
            divide_among_holders(held, told, rank)
            for begin, data in Held("w", "", shape, 8, held[0]).held():
                assert written[begin : begin + len(data)] == [None] * len(data)
                written[begin : begin + len(data)] = bytes(data)
    assert bytes(written) == values.numpy().tobytes()


@pytest.mark.parametrize("size", range(1, 20))
@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (2, 3)])
def test_fsdp_cuts_what_tensor_parallelism_has_cut(size, sizes):
    """FSDP takes the piece of its rank of tensor parallelism, and cuts that, whatever the sizes: `chunk` twice."""

    def chunk(rows, count, number):
        parts = rows.chunk(count)
        return parts[number] if number < len(parts) else rows[:0]

    rows = torch.arange(size)
    for fsdp in range(sizes[0]):
        for parallel in range(sizes[1]):
            held = share((size,), sizes, (fsdp, parallel), [Cut(0, sizes[1]), Cut(0)])
            assert torch.equal(taken(held, rows), chunk(chunk(rows, sizes[1], parallel), sizes[0], fsdp))


def test_a_rank_outside_of_the_mesh_holds_nothing():
    with Playing(2, 3):
        mesh = tensor.DeviceMesh("cpu", [0, 1])
        made = tensor.DTensor.from_local(torch.zeros(0), mesh, [Shard(0)], run_check=False, shape=(4, 2), stride=(2, 1))
        assert share_of("w", made).slices == ()


def test_a_term_of_a_sum_is_refused():
    with Playing(0, 2) as mesh:
        made = tensor.DTensor.from_local(torch.zeros(2), mesh, [Partial()], run_check=False)
        with pytest.raises(ckptool.CannotCarry, match=r"layer.w is a sum of which each rank holds one term \(.*\)"):
            share_of("layer.w", made)


def test_a_part_that_no_placement_gives_is_refused():
    with Playing(0, 2) as mesh:
        made = tensor.DTensor.from_local(
            torch.zeros(3, 2), mesh, [Shard(0)], run_check=False, shape=(4, 2), stride=(2, 1)
        )
        with pytest.raises(
            ckptool.CannotCarry, match=r"of which this rank should hold \[2, 2\], and it holds \[3, 2\]"
        ):
            share_of("w", made)


def test_a_part_is_not_taken_for_the_whole():
    with Playing(0, 2) as mesh:
        made = tensor.distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)], src_data_rank=None)
        with pytest.raises(ckptool.CannotCarry, match="w is a DTensor, of which this process holds a part"):
            ckptool.from_torch({"w": made})


def test_a_part_is_found_wherever_it_is():
    """Also in lists that hold themselves, and below more lists than Python calls functions within each other."""
    with Playing(0, 2) as mesh:
        made = tensor.distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)], src_data_rank=None)
        itself, deep = [torch.zeros(1)], made
        itself.append(itself)
        for _ in range(5000):
            deep = [deep]
        assert not has_sharded({"a": itself, "b": (1, "text")})
        assert has_sharded({"a": itself, "b": deep})


def test_a_module_is_saved_as_its_state_dict_is(tmp_path):
    model = torch.nn.Linear(3, 2)
    ckptool.save(model, tmp_path / "model.safetensors")
    ckptool.save(model.state_dict(), tmp_path / "state.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "state.safetensors").read_bytes()
