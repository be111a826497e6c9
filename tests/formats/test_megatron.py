"""Folders of Megatron-LM, with what megatron-core gave for them (`fixtures/megatron`), and plans for other names."""

import argparse
import re
import shutil
from pathlib import Path

import pytest
from accounting import account, stored_in
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptool
from ckptool.errors import CannotCarry, Malformed, RuleError

torch = pytest.importorskip("torch")
#: What Megatron's distributed format calls what the state dict calls otherwise.
OTHER_NAMES = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}


@pytest.fixture(scope="session")
def runs(trainer_runs):
    return trainer_runs / "megatron"


@pytest.fixture
def copied(runs, tmp_path):
    def copy(name):
        return Path(shutil.copytree(runs / name, tmp_path / name))

    return copy


def of_one_rank(runs):
    path = runs / "tp1pp1/iter_0000001/mp_rank_00/model_optim_rng.pt"
    model = torch.load(path, weights_only=True)["model"]
    return {key: value for key, value in model.items() if value is not None}


def test_two_ranks_are_what_one_rank_saves(runs):
    """Query groups, gated layers, rows of the vocabulary, columns, biases."""
    expected, found = of_one_rank(runs), ckptool.load(runs / "tp2pp1")
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_joining_the_gated_layer_plainly_would_be_wrong(runs):
    """So that the test above is none that anything passes."""
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    place = runs / "tp2pp1/iter_0000001"
    parts = [torch.load(place / f"mp_rank_0{n}/model_optim_rng.pt", weights_only=True)["model"][name] for n in (0, 1)]
    assert not torch.equal(torch.cat(parts), of_one_rank(runs)[name])


def test_stages_count_their_layers_from_0_and_the_whole_does_not(runs):
    """Held against Megatron's own distributed format of the same run."""
    found, dist = ckptool.load(runs / "tp2pp2"), ckptool.load(runs / "tp2pp2/dist")
    assert set(found) == set(of_one_rank(runs))
    for key, value in found.items():
        assert torch.equal(value, dist[as_the_distributed_format_says(key)]), key


@pytest.mark.parametrize("name", ["tp1pp1", "tp2pp2"])
def test_the_distributed_format_has_a_tensor_for_each_layer(runs, tmp_path, name):
    """What torch makes of it has all layers in one."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(runs / name / "dist", tmp_path / "whole.pth")
    expected = torch.load(tmp_path / "whole.pth", weights_only=False)
    found = ckptool.load(runs / name / "dist")
    for key, value in expected.items():
        if isinstance(value, torch.Tensor) and ".layers." in key:
            before, _, behind = key.partition("layers.")
            assert [torch.equal(value[n], found[f"{before}layers.{n}.{behind}"]) for n in range(2)] == [True] * 2
    ckptool.save(ckptool.open(runs / name / "dist"), tmp_path / "out.safetensors")
    assert "decoder.layers.1.mlp.linear_fc2.weight" in ckptool.load(tmp_path / "out.safetensors")


def test_the_receipt_says_what_was_done(runs):
    lines = "\n".join(ckptool.open(runs / "tp2pp2").lost_form)
    assert "2 tensor-parallel ranks, 2 stages" in lines
    assert "the vocabulary has 16 rows" in lines
    assert "args, checkpoint_version, iteration" in lines


@pytest.mark.parametrize("name", ["mp_rank_01_000", "mp_rank_00_001"])
def test_a_rank_that_is_missing_is_named(copied, name):
    run = copied("tp2pp2")
    shutil.rmtree(run / "iter_0000001" / name)
    tensor, stage = (int(n) for n in re.findall(r"\d+", name))
    with pytest.raises(Malformed, match=f"lacks the files of 1 rank: tensor-parallel {tensor} of stage {stage}"):
        ckptool.open(run)


def test_files_of_two_steps_are_noticed(copied):
    run = copied("tp2pp1")
    path = run / "iter_0000001/mp_rank_01/model_optim_rng.pt"
    torch.save({**torch.load(path, weights_only=True), "iteration": 2}, path)
    with pytest.raises(Malformed, match="two steps"):
        ckptool.open(run)


def test_a_name_that_says_nothing_needs_a_plan(copied):
    run = copied("tp2pp1")
    for rank in range(2):
        path = run / f"iter_0000001/mp_rank_0{rank}/model_optim_rng.pt"
        whole = torch.load(path, weights_only=True)
        whole["model"]["odd.weight"] = torch.full((2, 3), float(rank))
        torch.save(whole, path)
    with pytest.raises(CannotCarry, match=r"'odd\.weight' is not the same on all ranks") as caught:
        ckptool.open(run)
    assert '"odd.weight": 0' in caught.value.hint
    found = ckptool.load(ckptool.open(run, parts={"odd.*": 1}))["odd.weight"]
    assert torch.equal(found, torch.tensor([[0.0] * 3 + [1.0] * 3] * 2))


@pytest.mark.parametrize(("version", "runs_of_rows"), [(None, 3), (0, 3), (1.0, 1), (2.0, 1), (3.0, 1)])
def test_projections_of_old_versions_are_put_together_in_three_runs(tmp_path, version, runs_of_rows):
    """Before 1.0, each rank has the queries of its heads, then their keys, then their values. Megatron takes a file
    that has no checkpoint_version for 0.
    """
    name = "language_model.encoder.layers.0.self_attention.query_key_value.weight"
    whole = torch.arange(24.0).reshape(12, 2)
    parts = [torch.cat([run.chunk(2)[rank] for run in whole.chunk(runs_of_rows)]) for rank in range(2)]
    for rank, part in enumerate(parts):
        place = tmp_path / f"iter_0000001/mp_rank_{rank:02}"
        place.mkdir(parents=True)
        noted = {} if version is None else {"checkpoint_version": version}
        torch.save({"model": {name: part}, "iteration": 1, **noted}, place / "model_optim_rng.pt")
    opened = ckptool.open(tmp_path)
    assert torch.equal(ckptool.load(opened)[name], whole)
    assert any("three runs" in line for line in opened.lost_form) == (runs_of_rows == 3)


def test_dicts_that_unfold_into_too_many_names_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ckptool.formats.trainers.megatron._MOST_NAMES", 10_000)  # a million take long to count
    model = {"weight": torch.ones(2)}
    for _ in range(15):
        model = dict.fromkeys("abcd", model)
    place = tmp_path / "iter_0000001" / "mp_rank_00"
    place.mkdir(parents=True)
    torch.save({"model": model, "iteration": 1}, place / "model_optim_rng.pt")
    with pytest.raises(CannotCarry, match=r"more than 10,000 names"):
        ckptool.open(tmp_path)


def test_two_values_of_one_name_are_refused(tmp_path):
    place = tmp_path / "iter_0000001" / "mp_rank_00"
    place.mkdir(parents=True)
    model = {"layer.weight": torch.ones(2), "layer": {"weight": torch.zeros(2)}}
    torch.save({"model": model, "iteration": 1}, place / "model_optim_rng.pt")
    with pytest.raises(Malformed, match=r"two values of the name 'layer\.weight'"):
        ckptool.open(tmp_path)


def as_the_distributed_format_says(name):
    for ours, theirs in OTHER_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def test_interleaved_chunks_of_layers_are_put_in_their_order(runs):
    """The first chunk of each stage, then the second: 0 2 on the first stage, 1 3 on the second."""
    found, dist = ckptool.load(runs / "interleaved"), ckptool.load(runs / "interleaved/dist")
    assert {key.split(".")[2] for key in found if ".layers." in key} == {"0", "1", "2", "3"}
    assert all(torch.equal(value, dist[as_the_distributed_format_says(key)]) for key, value in found.items())
    assert len(found) == len(dist)


def test_chunks_of_layers_that_are_not_numbered_through_are_refused(copied):
    run = copied("interleaved")
    for path in run.glob("iter_*/*/*.pt"):
        whole = torch.load(path, weights_only=False)
        whole["model3"] = whole.pop("model1")
        torch.save(whole, path)
    with pytest.raises(Malformed, match="not numbered through: model0, model3"):
        ckptool.open(run)


def test_experts_of_all_ranks_are_numbered_through(runs):
    """The folders have two numbers, as those of stages have; the embedding on both tells that they are of experts."""
    name = "experts-tp2"
    found, dist = ckptool.load(runs / name), ckptool.load(runs / name / "dist")
    experts = 0
    for key, value in found.items():
        before, _, behind = key.partition("local_experts.")
        number, _, layer = behind.partition(".")
        place = f"{before}experts.{layer}" if behind else as_the_distributed_format_says(key)
        assert torch.equal(value, dist[place][int(number)] if behind else dist[place]), key
        experts += bool(behind)
    assert experts == 2 * 4 * 2
    assert any("8 experts in 2 places numbered through" in line for line in ckptool.open(runs / name).lost_form)


def test_an_expert_parallel_rank_that_is_missing_is_named(copied):
    run = copied("experts-tp2")
    shutil.rmtree(run / "iter_0000001/mp_rank_01_000")
    with pytest.raises(Malformed, match="1 rank: tensor-parallel 1 and expert-parallel 0 of stage 0"):
        ckptool.open(run)


def test_the_arguments_of_the_run_tell_experts_from_stages(copied):
    run = copied("adam-experts")
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2, "expert_model_parallel_size": 1}
    for path in run.glob("iter_*/*/*.pt"):
        torch.save(torch.load(path, weights_only=False) | {"args": argparse.Namespace(**sizes)}, path)
    assert "decoder.layers.3.mlp.router.weight" in ckptool.load(run)


def test_folders_that_the_arguments_of_the_run_contradict_are_refused(copied):
    run = copied("tp2pp1")
    for path in run.glob("iter_*/*/*.pt"):
        args = argparse.Namespace(tensor_model_parallel_size=4, pipeline_model_parallel_size=1)
        torch.save(torch.load(path, weights_only=False) | {"args": args}, path)
    with pytest.raises(Malformed, match="says tensor_model_parallel_size 4, and holds the folders of 2"):
        ckptool.open(run)


def test_experts_with_a_tensor_parallelism_of_their_own_are_refused(copied):
    run = copied("experts-tp2")
    for name in ("mp_rank_00_001", "mp_rank_01_000"):
        shutil.rmtree(run / "iter_0000001" / name)
    sizes = {"pipeline_model_parallel_size": 1, "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}
    for path in run.glob("iter_*/*/*.pt"):
        torch.save(torch.load(path, weights_only=False) | {"args": argparse.Namespace(**sizes)}, path)
    with pytest.raises(CannotCarry, match="experts were divided among 1 tensor-parallel ranks and the rest among 2"):
        ckptool.open(run)


def test_experts_that_are_one_tensor_are_refused(copied):
    run = copied("adam-experts")
    for path in run.glob("iter_*/*/*.pt"):
        whole = torch.load(path, weights_only=False)
        whole["model"]["decoder.layers.0.mlp.experts.weight1"] = torch.ones(8, 48)
        torch.save(whole, path)
    with pytest.raises(CannotCarry, match="several experts in one tensor"):
        ckptool.open(run)


@pytest.mark.parametrize("name", ["tp2pp2", "interleaved", "experts-tp2", "adam", "adam-distributed"])
def test_every_byte_that_is_stored_is_used_or_left_behind(runs, name):
    files = list((runs / name).glob("iter_*/*/*.pt"))
    made = sum(value.numel() * value.itemsize for value in ckptool.load(runs / name).values())
    stored, used, _ = account(runs / name)
    assert stored == stored_in(path for path in files if path.name != "distrib_optim.pt")
    assert used == made
    stored, used, _ = account(runs / name, with_optimizer=True)
    assert stored == stored_in(files)
    assert used > made or not name.startswith("adam")


class TestOptimizer:
    def whole(self, folder):
        return ckptool.load(ckptool.open(folder, with_optimizer=True))

    def test_its_states_have_the_names_that_the_distributed_format_gives_them(self, runs):
        found, dist = self.whole(runs / "adam"), self.whole(runs / "adam/dist")
        count = 0
        for key, states in found["optimizer"]["state"].items():
            for state in {*states} - {"step"}:
                expected = dist["optimizer"]["state"][as_the_distributed_format_says(key)][state]
                assert torch.equal(states[state], expected), (key, state)
                count += 1
            assert states["step"] == 1
        assert count == len(found["model"]) * 3
        assert [group["wd_mult"] for group in found["optimizer"]["param_groups"]] == [1.0, 0.0]

    @pytest.mark.parametrize(
        ("name", "plain"), [("adam-distributed", "adam"), ("adam-experts-distributed", "adam-experts")]
    )
    def test_the_distributed_optimizer_has_the_states_of_the_plain_one(self, runs, name, plain):
        """The same gradients for the same model. Nothing in its file says where a parameter begins."""
        one, other = self.whole(runs / name), self.whole(runs / plain)
        assert one["model"].keys() == other["model"].keys() == one["optimizer"]["state"].keys()
        for key, states in one["optimizer"]["state"].items():
            assert states.keys() == {"fp32_param", "exp_avg", "exp_avg_sq"}
            assert all(torch.equal(value, other["optimizer"]["state"][key][s]) for s, value in states.items()), key

    @pytest.mark.parametrize("name", ["adam", "adam-experts", "adam-experts-distributed", "adam-interleaved"])
    def test_float32_weights_round_to_those_of_the_model(self, runs, name):
        found = self.whole(runs / name)
        assert found["optimizer"]["state"].keys() == found["model"].keys()
        for key, states in found["optimizer"]["state"].items():
            assert torch.equal(states["fp32_param"].bfloat16(), found["model"][key]), key

    def test_the_steps_of_the_distributed_format_are_those_of_each_parameter(self, runs):
        """common.pt has one number for all. Each gets memory of its own, since an optimizer adds to it in place."""
        states = self.whole(runs / "adam/dist")["optimizer"]["state"].values()
        assert [float(values["step"]) for values in states] == [1.0] * len(states)
        assert len({values["step"].data_ptr() for values in states}) == len(states)

    @pytest.mark.parametrize("name", ["adam", "adam-distributed"])
    def test_what_stands_beside_the_states_is_kept(self, copied, name):
        run = copied(name)
        for path in run.glob("iter_*/*/model_optim_rng.pt"):
            whole = torch.load(path, weights_only=False)
            torch.save({**whole, "optimizer": {**whole["optimizer"], "grad_scaler": {"scale": 4.0}}}, path)
        assert self.whole(run)["optimizer"]["grad_scaler"] == {"scale": 4.0}

    def test_several_optimizers_of_the_distributed_format_keep_their_settings(self, copied):
        """Of experts and of the rest, under their numbers, as ChainedOptimizer writes them."""
        path = copied("adam") / "dist/common.pt"
        whole = torch.load(path, weights_only=False)
        one = {**whole["optimizer"], "grad_scaler": {"scale": 4.0}}
        torch.save({**whole, "optimizer": {0: one, 1: whole["optimizer"]}}, path)
        found = self.whole(path.parent)["optimizer"]
        groups = whole["optimizer"]["optimizer"]["param_groups"]
        assert found[0] == {"param_groups": groups, "grad_scaler": {"scale": 4.0}}
        assert found[1] == {"param_groups": groups}

    def test_states_that_no_group_has_are_refused(self, copied):
        run = copied("adam-fp32")
        path = run / "iter_0000001/mp_rank_00/model_optim_rng.pt"
        whole = torch.load(path, weights_only=False)
        whole["optimizer"]["state"][99] = whole["optimizer"]["state"][0]
        torch.save(whole, path)
        with pytest.raises(CannotCarry, match="its states have 99, which no group has"):
            ckptool.open(run, with_optimizer=True)

    def test_without_asking_it_is_left_behind_and_named(self, runs):
        for folder in (runs / "adam", runs / "adam/dist", runs / "adam-distributed"):
            opened = ckptool.open(folder)
            assert any("left behind: the optimizer's state" in line for line in opened.lost_form)
            assert any("--with-optimizer" in line for line in opened.lost_form)
            assert not any("exp_avg" in key for key, _ in opened.root.entries)

    def test_what_the_distributed_optimizer_fills_up_is_counted(self, runs):
        """Of each of two ranks 1,664 elements or so: parameters begin at multiples of 64, in three tensors."""
        found = torch.load(runs / "adam-distributed/iter_0000001/mp_rank_00/distrib_optim.pt", weights_only=False)
        stored = next(iter(found[0].values()))["numel_unpadded"]
        model = torch.load(runs / "adam-distributed/iter_0000001/mp_rank_00/model_optim_rng.pt", weights_only=False)
        used = sum(value.numel() for value in model["model"].values() if value is not None)
        (line,) = [
            line
            for line in ckptool.open(runs / "adam-distributed", with_optimizer=True).lost_form
            if line.startswith("the optimizer's states")
        ]
        assert f"{2 * 3 * (stored - used):,} of padding" in line

    def test_parameters_in_another_order_are_noticed(self, copied):
        """Two weights of the same sizes, exchanged: only the float32 values tell."""
        run = copied("adam")
        for path in run.glob("iter_*/*/*.pt"):
            whole = torch.load(path, weights_only=False)
            names = [f"decoder.layers.{n}.mlp.linear_fc2.weight" for n in (0, 1)]
            whole["model"][names[0]], whole["model"][names[1]] = (whole["model"][name] for name in reversed(names))
            torch.save(whole, path)
        with pytest.raises(CannotCarry, match=r"float32 values that would be .* are not those of the model"):
            ckptool.open(run, with_optimizer=True)
        assert ckptool.open(run)

    def test_a_file_of_the_distributed_optimizer_from_another_step_is_noticed(self, copied):
        run = copied("adam-distributed")
        path = run / "iter_0000001/mp_rank_01/distrib_optim.pt"
        whole = torch.load(path, weights_only=False)
        next(iter(whole[0].values()))["param"].mul_(1.5)
        torch.save(whole, path)
        with pytest.raises(CannotCarry, match=r"no float32 values in distrib_optim\.pt are those of"):
            ckptool.open(run, with_optimizer=True)

    def test_groups_that_do_not_add_up_are_refused(self, copied):
        run = copied("adam-fp32")
        path = run / "iter_0000001/mp_rank_00/model_optim_rng.pt"
        whole = torch.load(path, weights_only=False)
        whole["optimizer"]["param_groups"][0]["params"].pop()
        torch.save(whole, path)
        with pytest.raises(CannotCarry, match="cannot be told to be of which parameter: group 0 has"):
            ckptool.open(run, with_optimizer=True)


def test_what_is_not_divided_is_beside_the_weights_of_the_distributed_format(runs):
    found = ckptool.load(ckptool.open(runs / "adam/dist", with_optimizer=True))
    assert found["iteration"] == 1
    assert [group["wd_mult"] for group in found["optimizer"]["param_groups"]] == [1.0, 0.0]
    lines = ckptool.open(runs / "adam/dist").lost_form
    assert any(line.startswith("left behind of common.pt: ") for line in lines)


def test_the_weights_of_the_distributed_format_are_written_without_loss(runs, tmp_path):
    ckptool.save(ckptool.open(runs / "adam/dist"), tmp_path / "x.safetensors")
    found, expected = ckptool.load(tmp_path / "x.safetensors"), ckptool.load(runs / "adam")
    assert len(found) == len(expected)
    assert all(torch.equal(found[as_the_distributed_format_says(key)], value) for key, value in expected.items())


class TestPlan:
    @settings(max_examples=30, deadline=None)
    @given(
        shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        dim=st.integers(0, 2),
        runs=st.integers(1, 3),
        world=st.integers(1, 4),
    )
    def test_parts_are_put_together_as_it_says(self, tmp_path_factory, shape, dim, runs, world):
        folder = tmp_path_factory.mktemp("parts")
        dim %= len(shape)
        shape[dim] *= runs * world
        whole = torch.randn(shape)
        each = [
            torch.cat([run.chunk(world, dim)[rank] for run in whole.chunk(runs, dim)], dim) for rank in range(world)
        ]
        for rank, part in enumerate(each):
            torch.save({"w": part.contiguous(), "b": torch.ones(2)}, folder / f"model_rank_{rank}.pt")
        found = ckptool.load(ckptool.open(folder, parts={"w": f"{dim}/{runs}", "*": "same"}))
        assert torch.equal(found["w"], whole)
        assert torch.equal(found["b"], torch.ones(2))

    @pytest.mark.parametrize("said", ["first", -1, 1.5, None, True, "0/", [-1], ["a"], [True], {}])
    def test_what_is_no_dimension_is_refused(self, tmp_path, said):
        torch.save({"w": torch.ones(2)}, tmp_path / "model_rank_0.pt")
        with pytest.raises(RuleError, match="it can be a dimension"):
            ckptool.open(tmp_path, parts={"w": said})

    def test_sizes_that_do_not_go_together_are_refused(self, tmp_path):
        for rank, shape in enumerate([(2, 3), (2, 4)]):
            torch.save({"w": torch.ones(shape)}, tmp_path / f"model_rank_{rank}.pt")
        with pytest.raises(Malformed, match="do not go together along dimension 0"):
            ckptool.open(tmp_path, parts={"w": 0})
        assert ckptool.open(tmp_path, parts={"w": 1}).root.get("w").shape == (2, 7)


def test_each_list_of_layers_counts_its_stages_apart(copied):
    """An encoder of pictures on the first stage alone, beside the decoder of all stages."""
    run = copied("tp2pp2")
    before = ckptool.open(run).state_dict()
    for path in run.glob("iter_*/mp_rank_*_000/*.pt"):
        whole = torch.load(path, weights_only=False)
        whole["model"] |= {f"vision.layers.{n}.norm.weight": torch.full((4,), float(n)) for n in range(5)}
        torch.save(whole, path)
    for path in run.glob("iter_*/mp_rank_*_001/*.pt"):
        whole = torch.load(path, weights_only=False)
        whole["model"] |= {"mtp.layers.0.norm.weight": torch.ones(4)}
        torch.save(whole, path)
    found = set(ckptool.open(run).state_dict())
    new = {f"vision.layers.{n}.norm.weight" for n in range(5)} | {"mtp.layers.0.norm.weight"}
    assert found == set(before) | new
