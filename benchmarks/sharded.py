"""Load and save a model that several ranks share: ckptool beside the ways of torch, in turn.

    python -m benchmarks.sharded [--ranks 2] [--runs 5] [--cores 1] [--dir DIR] [--small]

A model of 1 GB in float32 (258 million parameters in 169 tensors), cut by `fully_shard` on gloo ranks. Every way runs
in new processes; the clock runs from a barrier before it to one behind it. Memory is the peak of the resident memory of
each rank above what it had at the first barrier, of which its own part of the model is the least for loading. After
loading, each rank compares all that it has with the file; after saving, the first compares the target.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

SIZES = {"words": 32000, "width": 1024, "hidden": 2816, "layers": 15}
SMALL = {"words": 3200, "width": 256, "hidden": 704, "layers": 4}
LOADING = {
    "set_model_state_dict": "`load_file` on rank 0, `set_model_state_dict(broadcast_from_rank0=True)`",
    "dcp_reader": "`dcp.load`, `HuggingFaceStorageReader`",
    "load_into": "`ckptool.load_into(model, folder)`",
    "load_into_meta": "`ckptool.load_into(model, folder)`, model on the meta device",
    "load_like": "`ckptool.load(folder, like=model.state_dict())`",
}
SAVING = {
    "gather": "`get_model_state_dict(full_state_dict=True)`, `save_torch_state_dict` on rank 0",
    "dcp_writer": "`dcp.save`, `HuggingFaceStorageWriter`, consolidated",
    "dcp": "`dcp.save`",
    "save_shards": "`ckptool.save(model, folder)`, safetensors",
    "save_dcp": '`ckptool.save(model, folder, format="dcp")`',
}


def build(sizes, device):
    """A language model, of which only the parameters matter."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width, hidden):
            super().__init__()
            self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(width), nn.LayerNorm(width)
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(self, name, nn.Linear(width, width, bias=False))
            self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
            self.down_proj = nn.Linear(hidden, width, bias=False)

    class Model(nn.Module):
        def __init__(self, words, width, hidden, layers):
            super().__init__()
            self.embed_tokens = nn.Embedding(words, width)
            self.layers = nn.ModuleList(Block(width, hidden) for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            self.lm_head = nn.Linear(width, words, bias=False)

    with torch.device(device):
        return Model(**sizes)


def make_folder(folder, sizes):
    """The model as a sharded folder in the layout of Hugging Face."""
    import torch
    from huggingface_hub import save_torch_state_dict

    torch.manual_seed(0)
    folder.mkdir(parents=True)
    state = {key: value.detach() for key, value in build(sizes, "cpu").state_dict().items()}
    save_torch_state_dict(state, folder, max_shard_size="280MB")


# ---------------------------------------------------------------------------------------------------- in a rank


def status(name):
    """Bytes that this process uses, as the system tells them."""
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(name))


def rank_of(rank, world, port, way, folder, target, sizes):
    import warnings

    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model, mesh = build(sizes, "meta"), init_device_mesh("cpu", (world,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if way not in ("load_into_meta", "load_like"):
        model.to_empty(device="cpu")
    if way in SAVING:
        for parameter in model.parameters():
            local = parameter.detach().to_local()
            local.copy_(torch.arange(local.numel(), dtype=torch.float32).reshape(local.shape))
    run = {**loading(), **saving()}[way](model, folder, target)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    dist.barrier()
    base, began, worked = status("VmRSS"), time.monotonic(), time.process_time()
    run()
    worked = time.process_time() - worked
    dist.barrier()
    found = {"seconds": time.monotonic() - began, "cpu": worked, "base": base, "above": status("VmHWM") - base}
    if way in LOADING:
        compare(model, folder, rank, world)
    elif rank == 0 and way != "dcp":
        compare_saved(Path(target), sizes, world)
    found["own"] = sum(parameter.to_local().nbytes for parameter in model.parameters())
    told = [None] * world
    dist.all_gather_object(told, found)
    if rank == 0:
        print(json.dumps(told), flush=True)
    dist.destroy_process_group()


def loading():
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    import ckptool

    # what ckptool imports when it is first used, as all of torch's is here
    for name in ("formats.loading", "model_code.building", "porting.applying", "porting.same_names"):
        import_module(f"ckptool.{name}")

    def by_rank_0(model, folder, _):
        def run():
            whole = {}
            for path in sorted(Path(folder).glob("*.safetensors")) if dist.get_rank() == 0 else ():
                whole.update(load_file(path))
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=True)
            set_model_state_dict(model, whole, options=options)

        return run

    return {
        "set_model_state_dict": by_rank_0,
        "dcp_reader": lambda model, folder, _: (
            lambda: dcp.load(model.state_dict(), storage_reader=HuggingFaceStorageReader(folder))
        ),
        "load_into": lambda model, folder, _: lambda: ckptool.load_into(model, folder),
        "load_into_meta": lambda model, folder, _: lambda: ckptool.load_into(model, folder),
        "load_like": lambda model, folder, _: (
            lambda: model.load_state_dict(ckptool.load(folder, like=model.state_dict()), assign=True)
        ),
    }


def saving():
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    import ckptool

    def gather(model, _, target):
        def run():
            from huggingface_hub import save_torch_state_dict

            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            whole = get_model_state_dict(model, options=options)
            if dist.get_rank() == 0:
                os.makedirs(target)
                save_torch_state_dict(whole, target, max_shard_size="280MB")
                subprocess.run(["sync", target], check=True)

        return run

    def consolidated(model, _, target):
        def run():
            writer = HuggingFaceStorageWriter(target, save_distributed=True, enable_consolidation=True)
            dcp.save(model.state_dict(), storage_writer=writer)

        return run

    def ours(**options):
        return lambda model, _, target: lambda: ckptool.save(model, target, max_shard_size="280MB", **options)

    return {
        "gather": gather,
        "dcp_writer": consolidated,
        "dcp": lambda model, _, target: lambda: dcp.save(model.state_dict(), checkpoint_id=target),
        "save_shards": ours(format="sharded-safetensors"),
        "save_dcp": ours(format="dcp"),
    }


def compare(model, folder, rank, world):
    """Every parameter with the rows that the file has for this rank."""
    import torch
    from safetensors import safe_open

    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - no dict
                local = model.state_dict()[key].to_local()
                rows = -(-model.state_dict()[key].shape[0] // world)
                assert torch.equal(local, file.get_slice(key)[rank * rows : rank * rows + len(local)]), key


def compare_saved(target, sizes, world):
    """Every tensor with the numbers that the ranks had."""
    import torch

    import ckptool

    found = ckptool.load(target)
    for key, value in build(sizes, "meta").state_dict().items():
        parts = [torch.arange(part.numel(), dtype=torch.float32).reshape(part.shape) for part in value.chunk(world)]
        assert torch.equal(found[key], torch.cat(parts)), key


# ------------------------------------------------------------------------------------------------- all of them


def one_run(way, folder, target, options):
    """Start the ranks of one way, and return what each has found."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["sync"], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "benchmarks.sharded",
        "--way",
        way,
        "--port",
        str(port),
        "--dir",
        str(folder.parent),
    ]
    command += ["--ranks", str(options.ranks), *(["--small"] if options.small else [])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["OMP_NUM_THREADS"] = "1"
    if options.cores:
        command = ["taskset", "-c", ",".join(map(str, range(options.cores))), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def report(ways, beside, folder, options):
    """Run WAYS in turn, and print a table; ratios are to the way BESIDE, within one round."""
    rounds = []
    for number in range(options.runs + 1):
        found = {way: one_run(way, folder, folder.parent / "saved", options) for way in ways}
        if number:  # the first one fills the caches
            rounds.append(found)
    print(f"| way | time | ratio | CPU, each rank | memory above the start, each rank | its part |\n{'|---' * 6}|")
    for way, shown in ways.items():
        times = [one[way][0]["seconds"] for one in rounds]
        ratios = sorted(one[way][0]["seconds"] / one[beside][0]["seconds"] for one in rounds)
        cpu = statistics.median(sum(one["cpu"] for one in found[way]) / options.ranks for found in rounds)
        above = [max(one[way][rank]["above"] for one in rounds) for rank in range(options.ranks)]
        own = rounds[0][way][0]["own"]
        print(
            f"| {shown} | {statistics.median(times):.2f} s | {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} – {ratios[-1]:.2f}) | {cpu:.2f} s | {', '.join(f'{n / 1e6:,.0f}' for n in above)} MB "
            f"| {own / 1e6:,.0f} MB |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5, help="counted rounds")
    parser.add_argument("--cores", type=int, default=0, help="take so many cores only")
    parser.add_argument("--dir", type=Path, help="where to write; on the disk that matters (default: a temporary one)")
    parser.add_argument("--small", action="store_true", help="a model of 12 MB, to see that it runs")
    parser.add_argument("--only", choices=["loading", "saving"])
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--port", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = SMALL if options.small else SIZES
    if options.way:
        import torch.multiprocessing as mp

        folder = options.dir
        given = options.ranks, options.port, options.way, str(folder / "model"), str(folder / "saved"), sizes
        mp.start_processes(rank_of, args=given, nprocs=options.ranks, start_method="fork")
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        folder = Path(place) / "model"
        make_folder(folder, sizes)
        if options.only != "saving":
            report(LOADING, "dcp_reader", folder, options)
        if options.only != "loading":
            report(SAVING, "gather", folder, options)


if __name__ == "__main__":
    main()
