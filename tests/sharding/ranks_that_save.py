"""A run of several processes for the tests: `python ranks_that_save.py FOLDER PORT WORLD`.

Each rank does every check below and notes in FOLDER/RANK.json what came of it: null, what it saw, or what went wrong.
What one process writes from the same values, in FOLDER/one, is the judge, and torch's own writer.
"""

import os
from functools import partial

import ranks_that_load as shared
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import ckptool

OTHERS = {
    "file.safetensors": {},
    "shards": {"format": "sharded-safetensors", "max_shard_size": "1KB"},
    "dcp": {"format": "dcp", "max_shard_size": 3000},
    "file.pth": {},
    "legacy.pth": {"format": "torch-legacy"},
}


def contents(path):
    """The bytes of a file, or those of all files of a folder by name."""
    if os.path.isdir(path):
        return {name: contents(f"{path}/{name}") for name in sorted(os.listdir(path))}
    with open(path, "rb") as file:
        return file.read()


def of_one_process(folder):
    """What one process writes, from the whole."""
    if dist.get_rank() == 0:
        os.mkdir(f"{folder}/one")
        for name, options in OTHERS.items():
            ckptool.save(plain(shared.saved_values()), f"{folder}/one/{name}", **options)
    dist.barrier()


def plain(values):
    model = shared.Model()
    model.load_state_dict(values)
    return model.state_dict()


def loaded(way):
    """A model of known values, which ranks share."""
    model = shared.shared(way)
    ckptool.load_into(model, plain(shared.saved_values()))
    return model


# --------------------------------------------------------------------------------------------------------- checks


def as_one_process_writes(folder):
    """Byte for byte, whatever the way to share a model, and the format; a model, or its state dict."""
    of_one_process(folder)
    for way in shared.WAYS:
        model = loaded(way)
        for number, (name, options) in enumerate(OTHERS.items()):
            path = f"{folder}/{way.__name__}-{name}"
            ckptool.save(model if number % 2 else model.state_dict(), path, **options)
            if dist.get_rank() == 0:
                assert contents(path) == contents(f"{folder}/one/{name}"), f"{way.__name__}: {name}"
    dist.barrier()


def torch_loads_it(folder):
    """The DCP folder, by torch's own reader, into another way to share."""
    model = shared.shared(shared.by_rows)
    state = model.state_dict()
    dcp.load(state, checkpoint_id=f"{folder}/by_columns-dcp")
    shared.require_equal(model, shared.saved_values())


def a_training_checkpoint(folder):
    """Nested, with values that are no tensors, and tensors that are placed as nothing else is."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(3 << 18, dtype=torch.float64).reshape(3, -1, 2)
    numbers = distribute_tensor(torch.arange(1.0, 17.0).reshape(8, 2) * (1 + 2j), mesh, [Shard(0)])
    state = {
        "epoch": 3,
        "replicated": distribute_tensor(whole, mesh, [Replicate()]),  # so large that its holders divide it
        "middle": distribute_tensor(whole, mesh, [Shard(1)]),
        "last": distribute_tensor(whole[:, : 1 << 12].to(torch.bfloat16), mesh, [Shard(2)]),  # each number by itself
        "scalar": distribute_tensor(torch.tensor(5), mesh, [Replicate()]),
        "list": [distribute_tensor(torch.arange(3), mesh, [Shard(0)]), "text"],
        "none": distribute_tensor(torch.zeros(0, 4), mesh, [Shard(0)]),
        "complex": numbers,
        "plain": torch.arange(4.0).mul(1 + dist.get_rank()),  # that of rank 0 counts
    }
    conjugated = DTensor.from_local(numbers.to_local().conj(), mesh, [Shard(0)], run_check=False)
    ckptool.save({**state, "conjugated": conjugated}, f"{folder}/training.pth")
    expected = {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in state.items()} | {
        "conjugated": torch.arange(1.0, 17.0).reshape(8, 2) * (1 - 2j),
        "list": [torch.arange(3), "text"],
        "plain": torch.arange(4.0),
    }
    if dist.get_rank() == 0:
        ckptool.save(expected, f"{folder}/training-one.pth")
        assert contents(f"{folder}/training.pth") == contents(f"{folder}/training-one.pth")
    dist.barrier()


def refused(folder):
    """Before a byte is written, on all ranks."""
    rank, lines = dist.get_rank(), []
    model = loaded(shared.by_rows)
    state = model.state_dict()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    term = DTensor.from_local(torch.zeros(2), mesh, [Partial()], run_check=False)
    target = f"{folder}/refused.pth"
    lines.append(shared.said(partial(ckptool.save, {"w": term}, target)))
    lines.append(shared.said(partial(ckptool.save, {**state, "x": torch.zeros(2 + rank)}, target)))
    lines.append(shared.said(partial(ckptool.save, {**state, "epoch": rank}, target)))
    lines.append(shared.said(partial(ckptool.save, state, f"{folder}/refused-{rank}.pth")))
    assert not os.path.exists(f"{folder}/refused-0.pth")
    there = f"{folder}/there.safetensors"
    if rank == 0:
        torch.save(1, there)
    dist.barrier()
    lines.append(shared.said(partial(ckptool.save, state, there)))
    assert not os.path.exists(target)
    return lines


def on_several_disks(folder):
    """The last rank is given a folder of its own, as on a node that does not share the disk."""
    last = dist.get_rank() == dist.get_world_size() - 1
    own = f"{folder}/disk-of-{'last' if last else 'others'}"
    os.makedirs(own, exist_ok=True)
    model = loaded(shared.by_rows)
    from ckptool.disk import together

    together._SHOWS_UP = 0.2
    said = shared.said(partial(ckptool.save, model, f"{own}/w.safetensors"))
    dist.barrier()
    assert os.listdir(own) == []
    return [said]


def one_that_fails(folder):
    """The last rank loses the memory of its tensors on the way; there is an old target."""
    target = f"{folder}/kept.safetensors"
    model = loaded(shared.by_rows)
    if dist.get_rank() == 0:
        with open(target, "w") as file:
            file.write("old")
    dist.barrier()
    from ckptool.sharding import held

    if dist.get_rank() == dist.get_world_size() - 1:
        whole, held._runs = held._runs, failing
    said = shared.said(partial(ckptool.save, model, target, overwrite=True))
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        held._runs = whole
    assert contents(target) == b"old"
    left = [name for name in os.listdir(folder) if "kept" in name]
    dist.barrier()
    ckptool.save(model, target, overwrite=True)
    assert contents(target) == contents(f"{folder}/one/file.safetensors")
    dist.barrier()
    return [said, left]


def failing(*_):
    raise ckptool.Unwritable("no room is left", where="/there")
    yield


def bounded(folder):
    """Memory of saving a model of 96 MB: little more than there is; and each rank writes as much."""
    world = dist.get_world_size()
    model = nn.Sequential(nn.Linear(4096, 3072, bias=False), nn.Linear(3072, 4096, bias=False))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)), shard_placement_fn=lambda p: Shard(len(p) // 4096))
    dist.barrier()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    began, written = shared.status("VmHWM"), int(shared.of("/proc/self/io")["wchar"])
    ckptool.save(model, f"{folder}/large.safetensors")
    grown = (shared.status("VmHWM") - began) * 1024
    return [grown, int(shared.of("/proc/self/io")["wchar"]) - written - 2 * 4 * 4096 * 3072 // world]


CHECKS = [
    as_one_process_writes,
    torch_loads_it,
    a_training_checkpoint,
    refused,
    on_several_disks,
    one_that_fails,
    bounded,
]

if __name__ == "__main__":
    shared.start(CHECKS)
