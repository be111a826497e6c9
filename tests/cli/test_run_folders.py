"""Folders of runs on the command line: what it says, and what it writes."""

import shutil
from pathlib import Path

import pytest

import ckptool

torch = pytest.importorskip("torch")
SINGLE = Path(__file__).parents[2] / "fixtures" / "trained" / "cnn-ddp-full.pth"


@pytest.fixture(scope="module")
def zero(trainer_runs):
    """A run of ZeRO stage 3, in bfloat16, of three ranks."""
    return trainer_runs / "deepspeed" / "zero3-three-ranks"


def test_convert_accounts_for_all_that_was_there(run, zero, tmp_path):
    done = run("convert", zero, tmp_path / "out.safetensors")
    assert done.code == 0
    for words in ("weights out of 3 ranks", "elements of padding left out", "left behind: the optimizer's state"):
        assert words in done.err
    expected = torch.load(zero / "zero_to_fp32.pt", weights_only=True)
    assert all(torch.equal(ckptool.load(tmp_path / "out.safetensors")[key], value) for key, value in expected.items())


def test_with_optimizer_keeps_its_state(run, zero, tmp_path):
    assert run("convert", zero, tmp_path / "out.pth", "--with-optimizer").code == 0
    whole = torch.load(tmp_path / "out.pth", weights_only=True)
    assert whole["optimizer"]["state"]["norm.weight"]["exp_avg"].shape == (5,)
    refused = run("convert", zero, tmp_path / "out.safetensors", "--with-optimizer")
    assert refused.code == 2
    assert "optimizer" in refused.err


def test_a_name_without_a_suffix_is_a_folder_of_shards(run, zero, tmp_path):
    assert run("convert", zero, tmp_path / "out").code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]


def test_a_folder_of_a_run_is_not_written_over(run, zero):
    before = sorted(path.name for path in zero.iterdir())
    assert run("convert", zero, "--in-place").code == 2
    assert sorted(path.name for path in zero.iterdir()) == before


def test_refusals_write_nothing(run, zero, tmp_path):
    folder = shutil.copytree(zero, tmp_path / "run")
    (folder / "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    refused = run("convert", folder, tmp_path / "out.safetensors")
    assert refused.code == 2
    assert "lacks the optimizer's state of 1 rank of 3: 1" in refused.err
    assert not (tmp_path / "out.safetensors").exists()


def test_doctor_names_the_rank_that_is_missing(run, zero, tmp_path):
    folder = shutil.copytree(zero, tmp_path / "run")
    (folder / "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    done = run("doctor", folder)
    assert done.code == 1
    assert "lacks the optimizer's state of 1 rank of 3: 1" in " ".join(done.out.split())


@pytest.mark.parametrize("command", ["inspect", "verify", "doctor", "scan"])
def test_reading_commands_take_the_folder(run, zero, command):
    done = run(command, zero)
    assert done.code in (0, 1)
    assert "ZeRO stage 3" in done.out or command in ("doctor", "scan")


def test_two_folders_are_compared(run, zero):
    assert run("diff", zero, zero / "global_step3").code == 0


def test_one_file_says_where_the_whole_is(run, zero):
    done = run("inspect", zero / "global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt")
    assert f"ckptool convert {zero / 'global_step3'}" in " ".join(done.out.split())
    assert "--extract" not in done.out


def test_inspect_names_the_command_for_the_folder(run, zero):
    assert f"ckptool convert {zero} {zero}-whole.safetensors" in run("inspect", zero).out


def test_a_plan_of_parts_is_read_from_a_file(run, tmp_path):
    for rank in range(2):
        torch.save({"w": torch.full((1, 2), float(rank))}, tmp_path / f"model_rank_{rank}.pt")
    refused = run("convert", tmp_path, tmp_path / "out.safetensors")
    assert refused.code == 2
    assert '"w": 0' in refused.err
    (tmp_path / "parts.yaml").write_text('"w": 0\n')
    assert run("convert", tmp_path, tmp_path / "out.safetensors", "--parts", tmp_path / "parts.yaml").code == 0
    assert torch.equal(ckptool.load(tmp_path / "out.safetensors")["w"], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))


@pytest.fixture
def parted(tmp_path):
    """A folder of two ranks with halves of a layer, a plan that says so, and the layer as code and as a file."""
    for rank in range(2):
        half = {"w.weight": torch.full((1, 2), rank + 1.0), "w.bias": torch.full((1,), float(rank))}
        (tmp_path / "run").mkdir(exist_ok=True)
        torch.save(half, tmp_path / f"run/model_rank_{rank}.pt")
    whole = {"w.weight": torch.tensor([[1.0, 1.0], [2.0, 2.0]]), "w.bias": torch.tensor([0.0, 1.0])}
    torch.save(whole, tmp_path / "whole.pth")
    (tmp_path / "parts.yaml").write_text('"*": 0\n')
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.w = nn.Linear(2, 2)\n\n"
        "    def forward(self, x):\n        return self.w(x)\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("inspect run", "ckptool convert run run-whole.safetensors --parts parts.yaml"),
        ("verify run", "sound"),
        ("verify run --fits net.py", "sound"),
        ("diff run whole.pth --weights", "same"),
        ("doctor run", "ckptool convert run run-whole.safetensors --parts parts.yaml"),
        ("transfer run net.py -o out.pth", "2 of 2 keys"),
        ("convert run out.pth", ""),
    ],
)
def test_every_command_that_opens_such_a_folder_takes_the_plan(run, parted, monkeypatch, command, shown):
    monkeypatch.chdir(parted)
    words = command.split()
    refused = run(*words)
    assert refused.code in (1, 2)
    assert not (parted / "out.pth").exists()
    assert "--parts" in refused.out + refused.err
    done = run(*words, "--parts", "parts.yaml")
    assert done.code == (1 if words[0] == "doctor" else 0), done.err
    assert shown in done.out
    assert "--parts" not in done.err
    if "out.pth" in words:
        found = ckptool.load(parted / "out.pth")
        assert all(torch.equal(found[key], value) for key, value in ckptool.load(parted / "whole.pth").items())


def test_an_adapter_is_merged_into_a_base_in_parts(run, parted, monkeypatch):
    monkeypatch.chdir(parted)
    (parted / "adapter").mkdir()
    (parted / "adapter/adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["w"]}'
    )
    pair = {"lora_A": torch.ones(1, 2), "lora_B": torch.ones(2, 1)}
    torch.save(
        {f"base_model.model.w.{key}.weight": value for key, value in pair.items()}, parted / "adapter/adapter_model.bin"
    )
    words = ("merge-lora", "run", "adapter", "out.pth")
    refused = run(*words)
    assert refused.code == 2
    assert "--parts" in refused.err
    assert run(*words, "--parts", "parts.yaml").code == 0
    assert torch.equal(ckptool.load("out.pth")["w.weight"], torch.tensor([[2.0, 2.0], [3.0, 3.0]]))


def test_parts_of_a_single_file_are_checked_and_said_to_have_no_effect(run, tmp_path):
    (tmp_path / "parts.yaml").write_text('"*.weight": 0\n')
    (tmp_path / "wrong.yaml").write_text('"*.weight": sideways\n')
    done = run("verify", SINGLE, "--parts", tmp_path / "parts.yaml")
    assert done.code == 0
    assert "had no effect: no input is a folder in which each rank of a run wrote a file" in done.err
    refused = run("verify", SINGLE, "--parts", tmp_path / "wrong.yaml")
    assert refused.code == 2
    assert "wrong.yaml: says 'sideways' of '*.weight'" in refused.err


def test_the_library_refuses_parts_of_a_single_file():
    with pytest.raises(ckptool.RuleError, match="is one file"):
        ckptool.open(SINGLE, parts={"*": 0})
