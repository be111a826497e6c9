"""Mixtures of experts that DeepSpeed trained with ZeRO: float32 weights out of the files of all ranks."""

import made_by_zero
import pytest
from made_by_zero import by_torch, change, optimizer_in

import ckptool
from ckptool.errors import Malformed

torch = pytest.importorskip("torch")
runs, copied = made_by_zero.runs, made_by_zero.copied


def test_experts_are_in_files_of_their_own(runs):
    found, rank_0 = ckptool.load(runs / "experts"), by_torch(runs / "experts" / "expected.pt")
    assert all(torch.equal(found[key].to(value.dtype), value) for key, value in rank_0.items())
    experts = sorted(key for key in found if "deepspeed_experts" in key)
    assert [key.split(".")[4] for key in experts] == ["0", "0", "1", "1"]


#: Run -> the first expert of each rank: two ranks have the same experts.
EXPERTS = {"experts-four-ranks": [0, 2, 0, 2], "experts-data-first": [0, 0, 2, 2]}


def in_the_model(name, first):
    """What a parameter of a rank whose first expert is FIRST is called in the whole model."""
    before, _, behind = name.partition("deepspeed_experts.")
    number, _, rest = behind.partition(".")
    return f"{before}deepspeed_experts.{int(number) + first}.{rest}" if behind else name


@pytest.mark.parametrize("name", EXPERTS)
def test_float32_weights_of_experts_are_those_that_deepspeed_has_in_memory(runs, name):
    """As `safe_get_full_fp32_param` gave them on each rank, before the run ended."""
    found, seen = ckptool.load(runs / name), set()
    for rank, first in enumerate(EXPERTS[name]):
        for key, value in by_torch(runs / name / f"masters-{rank}.pt").items():
            whole = in_the_model(key, first)
            assert found[whole].dtype == torch.float32
            assert torch.equal(found[whole], value), whole
            seen.add(whole)
    assert set(found) - seen == {"scale", "frozen.weight", "frozen.bias"}
    assert all(value.dtype == torch.float32 for value in found.values())
    assert torch.equal(found["frozen.weight"], by_torch(runs / name / "expected.pt")["frozen.weight"].float())


@pytest.mark.parametrize("name", EXPERTS)
def test_states_of_experts_stand_where_their_weights_do(runs, name):
    """In the files of ranks, a state of an element has the place of the element in the flat group."""
    found = ckptool.load(ckptool.open(runs / name, with_optimizer=True))
    teams = [[n for n, first in enumerate(EXPERTS[name]) if first == team] for team in (0, 2)]
    flat = {key: [] for key in ("weight", "exp_avg", "exp_avg_sq")}
    for ranks in teams:
        for rank in ranks:
            path = runs / name / f"global_step3/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            optimizer = optimizer_in(path)
            flat["weight"].append(optimizer["single_partition_of_fp32_groups"][1])
            for key in ("exp_avg", "exp_avg_sq"):
                state = optimizer["base_optimizer_state"]["state"][1][key]
                flat[key].append(state[: flat["weight"][-1].numel()])
    whole = {key: torch.cat(parts) for key, parts in flat.items()}
    experts = [key for key in found["module"] if "deepspeed_experts" in key]
    assert len(experts) == 8
    for key in experts:
        place = (whole["weight"] == found["module"][key].flatten()[0]).nonzero().item()
        for state in ("exp_avg", "exp_avg_sq"):
            value = found["optimizer"]["state"][key][state]
            assert torch.equal(value.flatten(), whole[state][place : place + value.numel()]), key
    assert found["optimizer"]["param_groups"][1]["params"] == experts


def test_masters_that_do_not_round_to_the_weights_are_not_taken(copied, tmp_path):
    """Then nothing proves whose they are; all weights stay in the type of training, and a line says why."""
    run, save = copied("experts-four-ranks")
    path = save / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"
    change(path, lambda state: state["single_partition_of_fp32_groups"][1].data.add_(1))
    opened = ckptool.open(run)
    assert {tensor.dtype.name for key, tensor in opened.tensors() if key != "scale"} == {"bfloat16"}
    for lines in (opened.warnings, opened.lost_form):
        (line,) = [line for line in lines if "weights are in the type of training" in line]
        assert "of 2 parameters" in line
        assert "deepspeed_experts.3.weight" in line
    ckptool.save(opened, tmp_path / "x.safetensors")
    expert = by_torch(save / "layer_0_expert_3_mp_rank_00_model_states.pt")
    found = ckptool.load(tmp_path / "x.safetensors")
    assert all(torch.equal(found[key], value) for key, value in expert.items())


def test_teams_of_ranks_that_are_taken_for_others_are_noticed(copied):
    """Without the settings that say so, ranks of one team are taken for those of two."""
    run, save = copied("experts-data-first")
    for path in save.glob("*_optim_states.pt"):
        change(path, lambda _: None, config={})
    with pytest.raises(Malformed, match="is not the part that its name says"):
        ckptool.open(run)


def test_an_expert_that_the_optimizer_has_and_no_file_is_noticed(copied):
    run, save = copied("experts-four-ranks")
    for path in save.glob("layer_0_expert_*"):
        torch.save({f"{key}_old": value for key, value in by_torch(path).items()}, path)
    (line,) = [line for line in ckptool.open(run).warnings if "weights are in the type of training" in line]
    assert "which no file of weights has" in line


def test_an_expert_that_is_missing_is_named(copied):
    run, save = copied("experts")
    (save / "layer_0_expert_1_mp_rank_00_model_states.pt").unlink()
    with pytest.raises(Malformed, match="files of 1 expert, and the model has 2"):
        ckptool.open(run)
