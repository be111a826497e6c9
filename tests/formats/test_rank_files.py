"""Folders in which each rank of a run saved a file of its own: put together, they are what the run had in memory."""

import pickle
import random
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
from accounting import account, stored_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptool
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import Ambiguous, CannotCarry, CheckpointError, Malformed
from ckptool.formats.trainers.flat import as_tensor
from ckptool.formats.trainers.placement import part_of, placed_in
from ckptool.reports.verify import verify

torch = pytest.importorskip("torch")


def same(one, other):
    """Whether two trees of dicts, lists and tensors are equal."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def rewritten(path, change):
    """Write a file of torch.save anew, its pickle as CHANGE makes it."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, raw in members.items():
            archive.writestr(member, change(raw) if member.endswith("data.pkl") else raw)


@pytest.fixture
def copied(ranks, tmp_path):
    """A copy of a folder of the run, to be damaged."""

    def copy(world, name):
        return shutil.copytree(ranks[world] / name, tmp_path / name)

    return copy


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_weights_are_those_of_the_run(ranks, world):
    expected = torch.load(ranks[world] / "full.pth", weights_only=False)["model"]
    assert same(expected, ckptool.load(ranks[world] / "files"))


@pytest.mark.parametrize("world", [2, 4])
def test_with_the_optimizer_its_state_is_put_together_too(ranks, world):
    expected = torch.load(ranks[world] / "full.pth", weights_only=False)
    found = ckptool.load(ckptool.open(ranks[world] / "files", with_optimizer=True))
    assert same(expected["model"], found["model"])
    assert same(expected["optimizer"], found["optim"])


@pytest.mark.parametrize("name", ["hybrid", "crossed"])
def test_two_dimensions_of_ranks(ranks, name):
    """FSDP over tensor parallelism cuts what that has cut: the rows do not stand in the order of the ranks."""
    expected = torch.load(ranks[4] / "before.pth", weights_only=True)
    assert same(dict(expected), dict(ckptool.load(ranks[4] / name)))


def test_the_order_of_ranks_would_be_wrong_for_crossed_ones(ranks):
    """So that the test above is none that anything passes."""
    import torch.distributed.tensor

    parts = [
        torch.load(ranks[4] / "crossed" / f"model_world_size_4_rank_{n}.pt", weights_only=False)["0.weight"]
        for n in range(4)
    ]
    joined = torch.cat([part._local_tensor for part in parts])
    assert not torch.equal(joined, torch.load(ranks[4] / "before.pth", weights_only=True)["0.weight"])


def test_shards_of_fsdp_1(ranks):
    expected = torch.load(ranks[2] / "before.pth", weights_only=True)
    assert same(dict(expected), dict(ckptool.load(ranks[2] / "fsdp1")))


class TestFlatParameters:
    """FSDP 1 under LOCAL_STATE_DICT."""

    @pytest.mark.parametrize("name", ["local", "views", "inner"])
    def test_with_notes_they_are_read_as_the_parameters_that_they_hold(self, ranks, name):
        expected = torch.load(ranks[2] / "before.pth", weights_only=True)
        found = ckptool.load(ranks[2] / f"fsdp1-{name}-noted")["model"]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], value) for key, value in expected.items())

    @pytest.mark.parametrize("name", ["local", "views", "inner", "parameters"])
    def test_without_notes_a_plan_says_their_sizes(self, ranks, name):
        expected = torch.load(ranks[2] / "before.pth", weights_only=True)
        before = "_fsdp_wrapped_module." if name == "parameters" else ""
        plan = {before + key: list(value.shape) for key, value in expected.items()}
        found = ckptool.load(ckptool.open(ranks[2] / f"fsdp1-{name}", parts=plan))
        assert found.keys() == plan.keys()
        assert all(torch.equal(found[before + key], value) for key, value in expected.items())

    def test_what_fills_up_between_them_is_left_out_and_counted(self, ranks):
        """Parameters begin at multiples of 4 elements: 35 and 5 of the second layer, 15 and 3 of the third."""
        opened = ckptool.open(ranks[2] / "fsdp1-views-noted")
        assert any("of 58 elements" in line for line in opened.lost_form)
        assert any(line.startswith("6 elements of padding") for line in opened.lost_form)

    @pytest.mark.parametrize(("name", "what"), [("local", "which names and sizes"), ("views", "the sizes of 4 param")])
    def test_without_notes_and_plan_they_are_read_flat_and_not_written_as_if_that_were_all(
        self, ranks, tmp_path, name, what
    ):
        opened = ckptool.open(ranks[2] / f"fsdp1-{name}")
        assert any(what in line and "--parts" in line for line in opened.warnings)
        with pytest.raises(CannotCarry) as caught:
            ckptool.save(opened, tmp_path / "x.pth")
        assert any(what in line for line in caught.value.evidence)
        assert list(tmp_path.iterdir()) == []

    def test_views_are_read_as_all_of_their_elements(self, ranks):
        expected = torch.load(ranks[2] / "before.pth", weights_only=True)
        found = ckptool.load(ranks[2] / "fsdp1-views")
        assert all(torch.equal(found[key], value.reshape(-1)) for key, value in expected.items())

    def test_sizes_that_do_not_add_up_are_refused(self, ranks):
        expected = torch.load(ranks[2] / "before.pth", weights_only=True)
        plan = {key: list(value.shape) for key, value in expected.items()} | {"1.bias": [4]}
        with pytest.raises(Malformed, match="has 58 elements, and its 4 parameters need 59"):
            ckptool.open(ranks[2] / "fsdp1-local", parts=plan)
        with pytest.raises(Malformed, match=r"1\.bias has 3 elements, and its sizes are said to be \[4\]"):
            ckptool.open(ranks[2] / "fsdp1-views", parts=plan)

    def test_notes_that_contradict_each_other_are_refused(self, copied):
        folder = copied(2, "fsdp1-local-noted")
        path = folder / "model_world_size_2_rank_1.pt"
        noted = pickle.dumps((29, 34), 2)[2:-3]  # the first and last element of the weight that rank 1 has
        rewritten(path, lambda raw: raw.replace(noted, pickle.dumps((28, 34), 2)[2:-3]))
        with pytest.raises(Malformed, match="leave a gap"):
            ckptool.open(folder)


def test_every_element_is_accounted_for(ranks):
    opened = ckptool.open(ranks[4] / "hybrid")
    expected = torch.load(ranks[4] / "before.pth", weights_only=True)
    divided = sum(
        t.numel() for key, t in expected.items() if not key.startswith("1.running") and "num_batches" not in key
    )
    assert any(f"of {divided} elements" in line for line in opened.lost_form)
    assert any("that other ranks hold as well" in line for line in opened.lost_form)


@pytest.mark.parametrize("name", ["4/hybrid", "4/crossed", "2/fsdp1", "2/fsdp1-views-noted", "2/fsdp1-local"])
def test_every_byte_that_is_stored_is_used_or_left_behind(ranks, name):
    folder = ranks[4].parent / name
    stored, used, _ = account(folder)
    assert stored == stored_in(folder.iterdir())
    found = ckptool.load(folder)
    assert used == sum(value.numel() * value.itemsize for value in found.get("model", found).values())


def test_half_of_the_files_suffice_where_ranks_repeat_each_other(copied, ranks):
    folder = copied(4, "hybrid")
    for rank in (0, 3):  # of each pair one
        (folder / f"model_world_size_4_rank_{rank}.pt").unlink()
    opened = ckptool.open(folder)
    assert same(dict(torch.load(ranks[4] / "before.pth", weights_only=True)), dict(ckptool.load(opened)))
    assert any("none of what they hold is missing" in line for line in opened.warnings)


def test_a_rank_that_is_missing_is_named(copied):
    folder = copied(4, "crossed")
    (folder / "model_world_size_4_rank_2.pt").unlink()
    with pytest.raises(Malformed, match="lacks the files of 1 rank of 4: 2"):
        ckptool.open(folder)


def test_a_rank_that_is_there_twice_is_named(copied):
    folder = copied(4, "crossed")
    shutil.copy(folder / "model_world_size_4_rank_1.pt", folder / "model_world_size_4_rank_2.pt")
    with pytest.raises(Malformed, match="two files of rank 1, as what is in them says") as caught:
        ckptool.open(folder)
    assert list(caught.value.evidence) == ["model_world_size_4_rank_1.pt", "model_world_size_4_rank_2.pt"]


def test_files_of_two_runs_are_told_apart(copied, ranks):
    folder = copied(4, "files")
    shutil.copy(ranks[2] / "files" / "model_world_size_2_rank_0.pt", folder)
    with pytest.raises(Ambiguous, match="2 series of files"):
        ckptool.open(folder)


def test_values_that_replicas_disagree_about_are_refused(copied):
    folder = copied(4, "hybrid")
    path = folder / "model_world_size_4_rank_2.pt"
    state = torch.load(path, weights_only=False)
    with torch.no_grad():
        state["0.weight"]._local_tensor.add_(1)
    torch.save(state, path)
    with pytest.raises(Malformed, match="other values"):
        ckptool.open(folder)


def test_plain_parts_are_refused_since_nothing_says_how_they_go_together(tmp_path):
    for rank in range(2):
        torch.save({"w": torch.full((2, 3), float(rank))}, tmp_path / f"model_rank_{rank}.pt")
    with pytest.raises(CannotCarry, match="the files do not say which part of the whole each has"):
        ckptool.open(tmp_path)


def test_whole_copies_on_every_rank_are_one(tmp_path):
    for rank in range(2):
        torch.save({"w": torch.arange(6.0)}, tmp_path / f"model_rank_{rank}.pt")
    assert torch.equal(ckptool.load(tmp_path)["w"], torch.arange(6.0))


def test_a_dict_that_stands_in_many_places_is_joined_once(tmp_path):
    """As many places as 4**24, which a pickle of a few hundred bytes makes of 24 dicts."""
    node = {"weight": torch.ones(2)}
    for _ in range(24):
        node = dict.fromkeys("abcd", node)
    for rank in range(2):
        torch.save(node, tmp_path / f"model_rank_{rank}.pt")
    root = ckptool.open(tmp_path).root
    assert dict(root.entries)["a"] is dict(root.entries)["d"]


def test_what_differs_between_ranks_is_refused_also_where_training_state_shares_it(tmp_path):
    for rank in range(2):
        shared = {"weight": torch.full((2,), float(rank))}
        torch.save({"optimizer": shared, "model": shared}, tmp_path / f"model_rank_{rank}.pt")
    with pytest.raises(CannotCarry, match="model/weight is not the same on all ranks"):
        ckptool.open(tmp_path)


def test_ranks_with_different_keys_are_refused(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "model_rank_0.pt")
    torch.save({"b": torch.ones(1)}, tmp_path / "model_rank_1.pt")
    with pytest.raises(CannotCarry, match="different keys"):
        ckptool.open(tmp_path)


@pytest.mark.parametrize("told", ["_rank", "_coordinate_on_dim"])
@pytest.mark.parametrize("rank", range(4))
def test_a_mesh_that_is_a_tensor_gives_the_same_places(ranks, rank, told):
    """As torch wrote it before 2.9, with one of the two: layout from source, never seen."""
    opened = ckptool.open(ranks[4] / "crossed" / f"model_world_size_4_rank_{rank}.pt")
    nodes = list(placed_in(opened.root))
    before = [part_of(node) for node in nodes]
    listed = as_tensor(Buffer(struct.pack("<4q", 0, 1, 2, 3)), BY_NAME["int64"], (2, 2), "mesh")
    for node in nodes:
        mesh = node.args[3][1].get("_spec").state.get("mesh").state
        flat = len(mesh.get("_coordinate_on_dim")) == 1
        if not flat:
            mesh.entries[:] = [("mesh", listed), (told, mesh.get(told))]
    after = [part_of(node) for node in nodes]
    assert any(len(part.ranks) == 4 for part in after)
    for one, other in zip(before, after, strict=True):
        assert [offsets for offsets, _ in one.boxes] == [offsets for offsets, _ in other.boxes]
        assert (one.rank, one.ranks) == (other.rank, other.ranks)


class TestOneFileAlone:
    def test_it_is_read_and_says_what_it_is(self, ranks):
        opened = ckptool.open(ranks[4] / "crossed" / "model_world_size_4_rank_2.pt")
        (line,) = [line for line in opened.warnings if "rank 2 of 4" in line]
        assert f"ckptool convert {ranks[4] / 'crossed'}" in line

    @pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
    def test_it_is_not_written_as_if_it_were_the_whole(self, ranks, tmp_path, name):
        opened = ckptool.open(ranks[4] / "crossed" / "model_world_size_4_rank_2.pt")
        with pytest.raises(CannotCarry) as caught:
            ckptool.save(opened, tmp_path / name, keep_objects=True)
        assert any("rank 2 of 4" in line for line in caught.value.evidence)
        assert not (tmp_path / name).exists()

    def test_that_of_a_run_of_one_rank_is_the_whole(self, ranks):
        opened = ckptool.open(ranks[1] / "files" / "model_world_size_1_rank_0.pt")
        assert not any("parts of larger ones" in line for line in opened.warnings)


@pytest.mark.parametrize("target", ["out.safetensors", "out.pth"])
def test_what_is_written_is_what_was_read(ranks, tmp_path, target):
    ckptool.save(ckptool.open(ranks[4] / "crossed"), tmp_path / target)
    expected = torch.load(ranks[4] / "before.pth", weights_only=True)
    assert same(dict(expected), dict(ckptool.load(tmp_path / target)))


def test_the_file_that_several_ranks_wrote_over_each_other_is_named(ranks, tmp_path):
    """What HuggingFaceStorageWriter does without save_distributed: two ranks, one name."""
    import json

    from safetensors.torch import save_file

    noted = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [0, 0]}})}
    save_file({"w": torch.ones(2, 3)}, tmp_path / "model-00001-of-00001.safetensors", metadata=noted)
    index = {"metadata": {"total_size": 48}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Malformed, match="written by several ranks at once"):
        ckptool.open(tmp_path)
    index["metadata"]["total_size"] = 24
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(ckptool.load(tmp_path)["w"], torch.ones(2, 3))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30), name=st.sampled_from(["4/crossed", "4/hybrid", "2/fsdp1-inner-noted"]))
def test_changed_pickles_give_an_error_of_ours_or_none(ranks, tmp_path_factory, seed, name):
    chosen = random.Random(seed)
    folder = Path(shutil.copytree(ranks[4].parent / name, tmp_path_factory.mktemp("fuzz") / "run"))
    path = chosen.choice(sorted(folder.iterdir()))

    def changed(raw):
        raw = bytearray(raw)
        for _ in range(chosen.randint(1, 3)):
            raw[chosen.randrange(len(raw))] ^= 1 << chosen.randrange(8)
        return bytes(raw)

    rewritten(path, changed)
    try:
        for _, tensor in ckptool.open(folder).tensors():
            tensor.source().read(0, min(8, tensor.nbytes))
    except CheckpointError:
        pass


def test_an_optimizer_file_that_is_missing_is_named(copied, ranks):
    """The weights are whole without it; with --with-optimizer, or for `verify`, it is missing."""
    folder = copied(2, "files")
    (lost,) = folder.glob("optim*rank_1*")
    lost.unlink()
    opened = ckptool.open(folder)
    assert same(ckptool.load(opened), ckptool.load(ranks[2] / "files"))
    assert any("lacks the optim files of 1 rank (1)" in line for line in opened.warnings)
    with pytest.raises(Malformed, match=r"lacks the optim files of 1 rank \(1\)"):
        ckptool.open(folder, with_optimizer=True)
    assert any("no file of rank 1" in line for line in verify(folder).damage)
    assert not verify(ranks[2] / "files").damage
