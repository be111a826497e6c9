"""One shard of several: named by commands that read, refused by those that write."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from samples import Run

import ckptool


@pytest.fixture(params=["safetensors", "bin"])
def shards(run, request):
    torch.save({f"layer{n}.weight": torch.full((8, 8), float(n)) for n in range(3)}, "m.pth")
    assert run("convert", "m.pth", "folder/", "-t", f"sharded-{request.param}", "--max-shard-size", "300").code == 0
    return sorted(str(path) for path in Path("folder").glob("*-of-*"))


@pytest.mark.parametrize("command", ["convert", "strip-prefix", "extract-weights", "clean", "remap"])
def test_writing_commands_refuse_a_shard_and_name_the_folder(run: Run, shards, command):
    options = ["-m", "cpu"] if command == "remap" else []
    ran = run(command, shards[0], "out.pth", *options)
    assert ran.code == 2
    assert "is shard 1 of 3 of a checkpoint in several files" in ran.err
    assert f"Hint: ckptool {command} folder out.pth" in ran.err
    assert not Path("out.pth").exists()


def test_the_command_of_the_hint_writes_all_of_it(run: Run, shards):
    ran = run("convert", shards[1], "out.pth")
    words = ran.err.split("Hint: ckptool ")[1].split("   # takes all of them")[0].split()
    assert run(*words).code == 0
    assert list(torch.load("out.pth")) == ["layer0.weight", "layer1.weight", "layer2.weight"]


def test_a_part_is_written_if_that_is_said(run: Run, shards):
    assert run("convert", shards[1], "out.pth", "--partial-file").code == 0
    assert list(torch.load("out.pth")) == ["layer1.weight"]


def test_a_shard_whose_others_are_not_there_says_which(run: Run, shards):
    Path(shards[2]).unlink()
    ran = run("convert", shards[0], "out.pth")
    assert ran.code == 2
    assert "1 of the others is not beside it:" in ran.err
    assert Path(shards[2]).name in ran.err
    assert "fetch the others" in ran.err


def test_average_and_transfer_refuse_a_shard(run: Run, shards):
    assert "is shard 1 of 3" in run("average", shards[0], shards[0], "-o", "out.pth").err
    Path("net.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self): super().__init__(8, 8)\n"
    )
    ran = run("transfer", shards[0], "net.py", "-o", "out.pth")
    assert ran.code == 2
    assert "is shard 1 of 3" in ran.err


@pytest.mark.parametrize("command", ["inspect", "verify", "doctor", "diff"])
def test_reading_commands_read_it_and_name_it(run: Run, shards, command):
    more = [shards[0]] if command == "diff" else []
    ran = run(command, shards[0], *more)
    assert ran.code in (0, 1), ran.err
    assert "it is shard 1 of 3 of a checkpoint in several files" in " ".join((ran.out + ran.err).split())


def test_one_shard_of_one_is_the_whole(run: Run):
    ckptool.save({"w": torch.ones(2)}, "model-00001-of-00001.safetensors")
    assert run("convert", "model-00001-of-00001.safetensors", "out.pth").code == 0


def test_the_file_of_one_rank_of_megatron_is_a_part(run: Run):
    for rank in range(2):
        place = Path(f"run/iter_0000001/mp_rank_0{rank}")
        place.mkdir(parents=True)
        model = {"embedding.word_embeddings.weight": torch.full((2, 3), float(rank))}
        torch.save({"model": model, "iteration": 1}, place / "model_optim_rng.pt")
    file = "run/iter_0000001/mp_rank_01/model_optim_rng.pt"
    ran = run("extract-weights", file, "out.pth")
    assert ran.code == 2
    assert "is one rank of 2 of a run of Megatron" in ran.err
    assert not Path("out.pth").exists()
    words = ran.err.split("Hint: ckptool ")[1].split("   # takes all of them")[0].split()
    assert run(*words).code == 0
    assert torch.load("out.pth")["embedding.word_embeddings.weight"].shape == (4, 3)
    assert run("extract-weights", file, "part.pth", "--partial-file").code == 0
    assert torch.load("part.pth")["embedding.word_embeddings.weight"].shape == (2, 3)


def test_the_file_of_one_rank_of_deepspeed_is_a_part(run: Run):
    group = {"zero_stage": 2, "partition_count": [2], "single_partition_of_fp32_groups": [torch.ones(4)]}
    Path("run").mkdir()
    torch.save({"optimizer_state_dict": group}, "run/zero_pp_rank_0_mp_rank_00_optim_states.pt")
    ran = run("convert", "run/zero_pp_rank_0_mp_rank_00_optim_states.pt", "out.pth")
    assert ran.code == 2
    assert "is what one rank of 2 of a DeepSpeed run has of the weights and the optimizer" in ran.err
    assert "Hint: ckptool convert run out.pth   # takes all of them; --partial-file" in ran.err
    assert run("convert", "run/zero_pp_rank_0_mp_rank_00_optim_states.pt", "out.pth", "--partial-file").code == 0


def test_asking_for_the_optimizer_makes_no_shard_the_whole(run: Run, shards):
    ran = run("convert", shards[0], "out.pth", "--with-optimizer")
    assert ran.code == 2
    assert "is shard 1 of 3 of a checkpoint in several files" in ran.err
    assert not Path("out.pth").exists()
