"""A run of several processes for the tests: `python ranks_that_load.py FOLDER PORT WORLD`.

Each rank does every check below and notes in FOLDER/RANK.json what came of it: null, what it saw, or what went wrong.
What torch does is the judge: `set_model_state_dict` with the whole state dict of the first rank, `distribute_tensor`.
"""

import gc
import importlib
import json
import os
import sys
import traceback
import warnings
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ckptool


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """Sizes that no number of ranks divides, fewer rows than ranks, a tie, a buffer, and a number that is no float."""

    def __init__(self, words=21, width=6, hidden=13, layers=2):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, hidden) for _ in range(layers))
        self.few = nn.Linear(width, 1)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.arange(3.0))
        self.register_buffer("steps", torch.tensor(7))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) + self.few(x)


def saved_values():
    """A state dict of a model whose every number is another one."""
    torch.manual_seed(3)
    model = Model()
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(1 + 0.1 * torch.randn(tensor.shape))
    return model.state_dict()


# ------------------------------------------------------------------------------------------- ways to share a model


def by_rows(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def by_columns(model):
    """The second dimension where the ranks divide it, as FSDP wants it."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def place(parameter):
        even = parameter.ndim == 2 and parameter.shape[1] % dist.get_world_size() == 0
        return Shard(1) if even else Shard(0)

    return fully_shard(model, mesh=mesh, shard_placement_fn=place)


def in_two_groups(model):
    """HSDP: each of two groups of ranks holds the whole."""
    return fully_shard(
        model, mesh=init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "fsdp"))
    )


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def tensor_parallel(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        parallelize_module(layer, mesh, PLAN)
    return model


def both(model):
    """FSDP over tensor parallelism: strided shards."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("fsdp", "parallel"))
    for layer in model.layers:
        parallelize_module(layer, mesh["parallel"], PLAN)
        fully_shard(layer, mesh=mesh["fsdp"])
    return fully_shard(model, mesh=mesh["fsdp"])


WAYS = [by_rows, by_columns, in_two_groups, tensor_parallel, both]


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def expected_of(model, values):
    """What torch puts into each tensor of this rank."""
    found = {}
    for key, tensor in model.state_dict().items():
        whole = values[key].to(tensor.dtype)
        if not isinstance(tensor, DTensor):
            found[key] = whole
            continue
        found[key] = part_of(whole, tensor)
    return found


def part_of(whole, like):
    """This rank's part: cut by tensor parallelism first and by FSDP then, as they do it; else by distribute_tensor."""
    strided = [p for p in like.placements if hasattr(p, "split_factor")]
    if not strided:
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None).to_local()
    for number in (1, 0):
        dim, at = like.placements[number].dim, like.device_mesh.get_coordinate()[number]
        parts = whole.chunk(like.device_mesh.size(number), dim)
        whole = parts[at] if at < len(parts) else whole.narrow(dim, 0, 0)
    return whole


def require_equal(model, values):
    expected = expected_of(model, values)
    for key, tensor in model.state_dict().items():
        held = local(tensor)
        assert not held.is_meta, f"{key} has no memory"
        assert held.dtype == expected[key].dtype, key
        assert torch.equal(held.reshape(expected[key].shape), expected[key]), key


def shared(way, device="cpu", dtype=None):
    with torch.device(device):
        model = Model()
    model = way(model.to(dtype) if dtype else model)
    if device == "cpu":
        for parameter in model.parameters():
            nn.init.constant_(local(parameter), -1.0)
    return model


# --------------------------------------------------------------------------------------------------------- checks


def each_way_and_format(folder):
    values = saved_values()
    for way in WAYS:
        for name in ("w.pth", "w.safetensors", "shards", "dcp"):
            model = shared(way)
            account = ckptool.load_into(model, f"{folder}/{name}")
            assert account.is_sure, account
            require_equal(model, values)


def as_set_model_state_dict_does(folder):
    values = saved_values()
    for way in (by_rows, in_two_groups, tensor_parallel):
        judge, model = shared(way), shared(way)
        full = {key: value.clone() for key, value in values.items()} if dist.get_rank() == 0 else {}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=True)
        set_model_state_dict(judge, full, options=options)
        ckptool.load_into(model, f"{folder}/shards")
        for (key, one), other in zip(judge.state_dict().items(), model.state_dict().values(), strict=True):
            assert torch.equal(local(one), local(other)), key


def on_the_meta_device(folder):
    values = saved_values()
    for way in WAYS:
        model = shared(way, "meta")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ckptool.load_into(model, f"{folder}/shards")
        require_equal(model, values)
        if way is not tensor_parallel:  # where embeddings are plain parameters, as with to_empty
            held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            assert held == {id(parameter) for parameter in model.parameters()}
        assert model.head.weight is model.embed.weight


def a_model_that_was_loaded_runs(folder):
    """On the meta device first; all ranks compute what one process does."""
    plain = Model()
    plain.load_state_dict(saved_values())
    words = torch.arange(10).reshape(2, 5)
    for way in (by_rows, in_two_groups):
        model = shared(way, "meta")
        ckptool.load_into(model, f"{folder}/w.pth")
        assert torch.allclose(model(words), plain(words), atol=1e-6)


def into_another_type(folder):
    values = saved_values()
    for way in (by_rows, both):
        model = shared(way, dtype=torch.bfloat16)
        ckptool.load_into(model, f"{folder}/shards")
        require_equal(model, values)


def by_a_mapping(folder):
    """Under other names, transposed, joined, cut, and computed from several tensors."""
    values = saved_values()
    other = {f"net.{key}": value for key, value in values.items()}
    other["net.layers.0.down.weight"] = values["layers.0.down.weight"].T.contiguous()
    rows = values["layers.1.up.weight"]
    other["net.first"], other["net.rest"] = rows[:4].clone(), rows[4:].clone()
    del other["net.layers.1.up.weight"]
    low = torch.ones(13, 2), torch.ones(2, 6)
    other["net.a"], other["net.b"] = low[1], low[0]
    if dist.get_rank() == 0:
        torch.save(other, f"{folder}/other.pth")
    dist.barrier()
    text = {key: f"net.{key}" for key in values}
    text["layers.0.down.weight"] = "transpose(net.layers.0.down.weight)"
    text["layers.1.up.weight"] = "cat(0, net.first, net.rest)"
    text["layers.0.up.weight"] = "lora(net.layers.0.up.weight, net.a, net.b, 0.5)"
    path = f"{folder}/mapping-{dist.get_rank()}.yaml"
    lines = [f"  {key}: {value}" for key, value in text.items()]
    with open(path, "w") as file:
        file.write("\n".join([*MAPPING_HEAD, *lines, ""]))
    mapping = ckptool.read_mapping(path)
    expected = {**values, "layers.0.up.weight": values["layers.0.up.weight"] + 0.5 * low[0] @ low[1]}
    for way in (by_rows, by_columns, both):
        model = shared(way)
        ckptool.load_into(model, f"{folder}/other.pth", mapping=mapping)
        require_equal(model, expected)


MAPPING_HEAD = ["ckptool-mapping: 1", "mapping:"]


def like_another(folder):
    values = saved_values()
    for way in WAYS:
        for device in ("cpu", "meta"):
            like = shared(way, device).state_dict()
            for name in ("shards", "dcp", "w.pth"):
                made = ckptool.load(f"{folder}/{name}", like=like)
                assert list(made) == list(like)
                for key, tensor in made.items():
                    assert type(tensor) is type(like[key]), key
                    if isinstance(tensor, DTensor):
                        assert tensor._spec == like[key]._spec, key
                    assert tensor.shape == like[key].shape, key
                model = shared(way, device)
                model.load_state_dict(made, assign=True)
                require_equal(model, values)


def like_a_training_checkpoint(folder):
    """Nested, with tensors that are placed as nothing else is."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(60.0).reshape(6, 10)
    if dist.get_rank() == 0:
        torch.save(
            {"model": {"w": whole, "b": whole[0].clone()}, "ema": {"w": whole + 1}, "epoch": 3}, f"{folder}/t.pth"
        )
    dist.barrier()
    like = {
        "ema": {"w": distribute_tensor(torch.zeros(6, 10), mesh, [Shard(1)])},
        "model": {"w": distribute_tensor(torch.zeros(6, 10, dtype=torch.float64), mesh, [Replicate()])},
        "epoch": 0,
    }
    made = ckptool.load(f"{folder}/t.pth", like=like)
    assert list(made) == ["ema", "model", "epoch"]
    assert made["epoch"] == 3
    assert torch.equal(made["ema"]["w"].full_tensor(), whole + 1)
    assert torch.equal(made["model"]["w"].to_local(), whole.double())


def refused(folder):
    """What is wrong is said by all ranks alike, and the model is as it was."""
    lines = []
    values = saved_values()
    missing = {key: value for key, value in values.items() if key != "few.weight"}
    larger = {**values, "few.weight": torch.zeros(2, 6)}
    for wrong in (missing, larger):
        model = shared(by_rows)
        lines.append(said(partial(ckptool.load_into, model, wrong)))
        lines.append(said(partial(ckptool.load, ckptool.from_torch(wrong), like=model.state_dict())))
        assert all((local(parameter) == -1).all() for parameter in model.parameters())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    term = DTensor.from_local(torch.zeros(2), mesh, [Partial()], run_check=False)
    lines.append(said(partial(ckptool.load, ckptool.from_torch({"w": torch.zeros(2)}), like={"w": term})))
    model = shared(by_rows, "meta")
    lines.append(said(partial(ckptool.load_into, model, missing, partial=["few.*"])))
    assert model.few.weight.is_meta
    assert model.embed.weight.is_meta
    return lines


def one_that_cannot_read(folder):
    """The file of the last rank becomes shorter after it was opened."""
    last = dist.get_rank() == dist.get_world_size() - 1
    path = f"{folder}/cut-{dist.get_rank()}.pth"
    torch.save(saved_values(), path)
    source = ckptool.open(path)
    if last:
        os.truncate(path, 3000)
    return said(partial(ckptool.load_into, shared(by_rows), source))


def said(load):
    """What a call was refused with, or None."""
    try:
        load()
    except ckptool.CheckpointError as error:
        return str(error)
    return None


def bounded(folder):
    """Bytes that are read, and memory, of a model of 96 MB: the part of the rank."""
    world = dist.get_world_size()
    values = {"weight": torch.arange(24 << 20, dtype=torch.float32).reshape(4096, 6144)}
    if dist.get_rank() == 0:
        ckptool.save(values, f"{folder}/large.safetensors")
    del values
    dist.barrier()
    with torch.device("meta"):
        model = nn.Linear(6144, 4096, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    source = ckptool.open(f"{folder}/large.safetensors")
    like = {
        "weight": distribute_tensor(
            torch.empty(4096, 6144, device="meta"), init_device_mesh("cpu", (world,)), [Shard(1)]
        )
    }
    share = 4 * (24 << 20) // world
    taken = []
    for load in (lambda: ckptool.load_into(model, source), lambda: ckptool.load(source, like=like)):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        began, read = status("VmHWM"), int(of("/proc/self/io")["rchar"])
        made = load()
        taken.append([(status("VmHWM") - began) * 1024 - share, int(of("/proc/self/io")["rchar"]) - read - share])
    assert torch.equal(
        local(made["weight"])[-1].double(), (torch.arange(6144.0) + 4095 * 6144).double().chunk(world)[dist.get_rank()]
    )
    return taken


def of(path):
    with open(path) as file:
        return dict(line.split(":", 1) for line in file)


def status(name):
    return int(of("/proc/self/status")[name].split()[0])


CHECKS = [
    each_way_and_format,
    as_set_model_state_dict_does,
    on_the_meta_device,
    a_model_that_was_loaded_runs,
    into_another_type,
    by_a_mapping,
    like_another,
    like_a_training_checkpoint,
    refused,
    one_that_cannot_read,
    bounded,
]


def run(rank, world, folder, port, checks):
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    found = {}
    for check in checks:
        try:
            found[check.__name__] = check(folder)
        except BaseException:
            found[check.__name__] = traceback.format_exc()
        dist.barrier()
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


def files_to_load(folder):
    """The same values in several formats; the DCP folder by torch, from all ranks."""
    if dist.get_rank() == 0:
        values = saved_values()
        torch.save(values, f"{folder}/w.pth")
        ckptool.save(values, f"{folder}/w.safetensors")
        ckptool.save(values, f"{folder}/shards", format="sharded-safetensors", max_shard_size="1KB")
    model = by_columns(Model())
    placed = {key: like(value, model.state_dict()[key]) for key, value in saved_values().items()}
    model.load_state_dict(placed, assign=True)
    dcp.save(model.state_dict(), checkpoint_id=f"{folder}/dcp")
    dist.barrier()


def like(value, other):
    if not isinstance(other, DTensor):
        return value
    return distribute_tensor(value, other.device_mesh, other.placements, src_data_rank=None)


def start(checks):
    """Let so many ranks as the command line says do CHECKS. They are forked, so that torch is imported once.

    So is what the first FSDP model and the first file would import, in each of them, in another second or two.
    """
    for name in ("torch._dynamo", "ckptool.formats.saving", "ckptool.formats.loading", "ckptool.porting"):
        importlib.import_module(name)
    gc.freeze()
    size = int(sys.argv[3])
    given = size, sys.argv[1], int(sys.argv[2]), checks
    mp.start_processes(run, args=given, nprocs=size, start_method="fork")


if __name__ == "__main__":
    start([files_to_load, *CHECKS])
