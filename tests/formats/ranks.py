"""A run of several processes for the tests: `python ranks.py FOLDER WORLD…`.

For each number of ranks, trains a small model with FSDP2 on the CPU and saves it in FOLDER/WORLD as
torch.distributed.checkpoint does: `dcp` with model, optimizer and other values, `hf` as safetensors files of each rank,
`hf-one` consolidated, `slices` as safetensors in `.distcp`. `full.pth` is the same whole, written by the first rank.
Then loads `ours`, which is there already, and fails unless each rank got the tensors of `ours.pth`.

Each rank saves a file of its own, too: `files` as verl names them, with weights, optimizer and more; of four ranks also
`hybrid` (HSDP) and `crossed` (FSDP over tensor parallelism), whose weights before they were divided are `before.pth`;
of two ranks `fsdp1…`.
"""

import gc
import importlib
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
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def model():
    """Sizes that no number of ranks divides; a tied weight, a buffer, and one that is not float."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 5), torch.nn.Linear(5, 3)
    )
    net[0].weight.data.copy_(torch.arange(35.0).reshape(7, 5))
    return net


def run(rank, world, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # they meet over a file: another program may take a port meanwhile
    dist.init_process_group("gloo", init_method=f"file://{folder}.meeting", rank=rank, world_size=world)
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
    save_rank_files(folder, "files", rank, world, model=weights, optim=state, extra_state={"rank": rank})
    if world == 2:
        save_fsdp1(folder, rank)
    if world == 4:
        save_crossed(folder, rank)
    load_ours(net, folder)
    dist.barrier()
    dist.destroy_process_group()


def save_rank_files(folder, name, rank, world, **what):
    os.makedirs(f"{folder}/{name}", exist_ok=True)
    for kind, value in what.items():
        torch.save(value, f"{folder}/{name}/{kind}_world_size_{world}_rank_{rank}.pt")


def save_crossed(folder, rank):
    """Two dimensions of ranks: one of them divides and the other repeats, or both divide."""
    for name, dims in (("hybrid", ("ddp", "fsdp")), ("crossed", ("fsdp", "tp"))):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=dims)
        net = model()
        if rank == 0:
            torch.save(net.state_dict(), f"{folder}/before.pth")
        if name == "crossed":
            parallelize_module(
                net, mesh["tp"], {"0": ColwiseParallel(), "2": ColwiseParallel(), "3": RowwiseParallel()}
            )
            mesh = mesh["fsdp"]
        fully_shard(net, mesh=mesh)
        save_rank_files(folder, name, rank, 4, model=net.state_dict())


def save_fsdp1(folder, rank):
    """What FullyShardedDataParallel gives: a tensor for each parameter, or all of a module as one flat one.

    `fsdp1-views` has views of the flat one beside it, as `use_orig_params` does; `…-noted` notes what is in it.
    """
    net = torch.nn.Sequential(*model()[2:])
    if rank == 0:
        torch.save(net.state_dict(), f"{folder}/before.pth")
    local = StateDictType.LOCAL_STATE_DICT
    for name, views, nested in (("local", False, False), ("views", True, False), ("inner", False, True)):
        policy = ModuleWrapPolicy({torch.nn.Linear}) if nested else None
        net = torch.nn.Sequential(*model()[2:])
        net = FullyShardedDataParallel(
            net, device_id=torch.device("cpu"), use_orig_params=views, auto_wrap_policy=policy
        )
        notes = {
            place: module._handle.shard_metadata()
            for place, module in net.named_modules()
            if isinstance(module, FullyShardedDataParallel) and module._handle is not None
        }
        with FullyShardedDataParallel.state_dict_type(net, local):
            state = net.state_dict()
        save_rank_files(folder, f"fsdp1-{name}", rank, 2, model=state)
        save_rank_files(folder, f"fsdp1-{name}-noted", rank, 2, model={"model": state, "shard_metadata": notes})
        if views:
            save_rank_files(folder, "fsdp1-parameters", rank, 2, model=dict(net.named_parameters()))
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
        save_rank_files(folder, "fsdp1", rank, 2, model=net.state_dict())


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
    # forked, so that torch is imported once, and what it imports itself for the first model that is divided
    importlib.import_module("torch._dynamo")
    gc.freeze()
    for world in map(int, sys.argv[2:]):
        mp.start_processes(run, args=(world, f"{sys.argv[1]}/{world}"), nprocs=world, start_method="fork")
