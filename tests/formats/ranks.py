"""A run of several processes for the tests: `python ranks.py FOLDER PORT WORLD…`.

For each number of ranks, trains a small model with FSDP2 on the CPU and saves it in FOLDER/WORLD as
torch.distributed.checkpoint does: `dcp` with model, optimizer and other values, `hf` as safetensors files of each rank,
`hf-one` consolidated, `slices` as safetensors in `.distcp`. `full.pth` is the same whole, written by the first rank.
Then loads `ours`, which is there already, and fails unless each rank got the tensors of `ours.pth`.
"""

import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import FileSystemWriter, HuggingFaceStorageWriter
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


def model():
    """Sizes that no number of ranks divides; a tied weight, a buffer, and one that is not float."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 5), torch.nn.Linear(5, 3)
    )
    net[0].weight.data.copy_(torch.arange(35.0).reshape(7, 5))
    return net


def run(rank, world, folder, port):
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    net = model()
    for layer in (net[0], net[2], net[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.arange(10.0).reshape(2, 5)).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(net, optimizer)
    columns = distribute_tensor(torch.arange(60.0).reshape(6, 10), mesh, [Shard(1)])
    values = {
        "model": weights,
        "optimizer": state,
        "epoch": 3,
        "columns": columns,
        "list": [torch.arange(3), {"deep": torch.ones(2, dtype=torch.bfloat16)}],
        "texts": ["a", "b"],
        "a.b": {"c": torch.zeros((), dtype=torch.int64)},
    }
    dcp.save(values, checkpoint_id=f"{folder}/dcp")
    options = StateDictOptions(full_state_dict=True)
    full = {**values, "columns": columns.full_tensor()}
    full["model"], full["optimizer"] = get_state_dict(net, optimizer, options=options)
    if rank == 0:
        torch.save(full, f"{folder}/full.pth")
    for name, writer in {
        "hf": HuggingFaceStorageWriter(f"{folder}/hf", save_distributed=True),
        "hf-one": HuggingFaceStorageWriter(f"{folder}/hf-one", save_distributed=True, enable_consolidation=True),
        "slices": FileSystemWriter(f"{folder}/slices", serialization_format=SerializationFormat.SAFETENSORS),
    }.items():
        floats = {key: value for key, value in weights.items() if value.is_floating_point()}  # consolidation needs that
        dcp.save(floats if name == "hf-one" else weights, storage_writer=writer)
    load_ours(net, folder)
    dist.barrier()
    dist.destroy_process_group()


def load_ours(net, folder):
    """Load what ckptool wrote into tensors that are divided among the ranks."""
    for parameter in net.parameters():
        torch.nn.init.constant_(parameter, -1.0)
    wanted = torch.load(f"{folder}/ours.pth", weights_only=True)
    sharded = {"model": get_model_state_dict(net), "epoch": -1}
    dcp.load(sharded, checkpoint_id=f"{folder}/ours")
    assert sharded["epoch"] == wanted["epoch"]
    for key, value in sharded["model"].items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        assert torch.equal(whole, wanted["model"][key]), key


if __name__ == "__main__":
    # forked, so that torch is imported once
    for number, world in enumerate(map(int, sys.argv[3:])):
        place = f"{sys.argv[1]}/{world}"
        mp.start_processes(run, args=(world, place, int(sys.argv[2]) + number), nprocs=world, start_method="fork")
