"""Folders of Megatron-LM, with what megatron-core gave for them (`fixtures/megatron`), and plans for other names."""

import re
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptool
from ckptool.errors import CannotCarry, Malformed, RuleError

torch = pytest.importorskip("torch")
PACKED = Path(__file__).parents[2] / "fixtures" / "megatron" / "runs.tar.xz"
#: What Megatron's distributed format calls what the state dict calls otherwise.
OTHER_NAMES = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("megatron")
    with tarfile.open(PACKED) as packed:
        packed.extractall(root, filter="data")
    return root


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
        name = key
        for ours, theirs in OTHER_NAMES.items():
            name = name.replace(ours, theirs)
        assert torch.equal(value, dist[name]), key


@pytest.mark.parametrize("name", ["tp1pp1", "tp2pp1", "tp2pp2"])
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
    ckptool.save(ckptool.open(runs / name / "dist"), tmp_path / "out.safetensors", allow_loss=True)
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


def test_dicts_that_unfold_into_too_many_names_are_refused(tmp_path):
    model = {"weight": torch.ones(2)}
    for _ in range(15):
        model = dict.fromkeys("abcd", model)
    place = tmp_path / "iter_0000001" / "mp_rank_00"
    place.mkdir(parents=True)
    torch.save({"model": model, "iteration": 1}, place / "model_optim_rng.pt")
    with pytest.raises(CannotCarry, match=r"more than .* names"):
        ckptool.open(tmp_path)


def test_two_values_of_one_name_are_refused(tmp_path):
    place = tmp_path / "iter_0000001" / "mp_rank_00"
    place.mkdir(parents=True)
    model = {"layer.weight": torch.ones(2), "layer": {"weight": torch.zeros(2)}}
    torch.save({"model": model, "iteration": 1}, place / "model_optim_rng.pt")
    with pytest.raises(Malformed, match=r"two values of the name 'layer\.weight'"):
        ckptool.open(tmp_path)


def test_expert_parallel_ranks_are_refused(copied):
    run = copied("tp2pp1")
    shutil.copytree(run / "iter_0000001/mp_rank_00", run / "iter_0000001/mp_rank_00_000_001")
    with pytest.raises(CannotCarry, match="expert-parallel"):
        ckptool.open(run)


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
