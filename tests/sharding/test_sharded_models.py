"""Models that several processes share, loaded and saved in runs of two and of four of them (see ranks_that_*.py)."""

import json
import socket
import sys

import pytest

pytest.importorskip("torch.distributed.fsdp", exc_type=ImportError)


def run(forks, program, world, folder):
    """For each rank, what came of each check of a program, which finds torch imported."""
    if sys.platform != "linux":
        pytest.skip("processes are forked, and their memory is looked at as Linux shows it")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said = folder / "said"
    assert forks.run(program, [folder, port, world], folder, said) == 0, said.read_text()[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module", params=[2, 4])
def found(request, forks, tmp_path_factory):
    return run(forks, "ranks_that_load", request.param, tmp_path_factory.mktemp("load"))


@pytest.fixture(scope="module", params=[2, 4])
def saved(request, forks, tmp_path_factory):
    return run(forks, "ranks_that_save", request.param, tmp_path_factory.mktemp("save"))


@pytest.mark.parametrize(
    "check",
    """each_way_and_format as_set_model_state_dict_does on_the_meta_device a_model_that_was_loaded_runs
    into_another_type by_a_mapping like_another like_a_training_checkpoint""".split(),
)
def test_every_rank_gets_its_part(found, check):
    assert [one[check] for one in found] == [None] * len(found)


def test_all_ranks_refuse_alike_what_does_not_fit(found):
    lines = found[0]["refused"]
    assert [one["refused"] for one in found] == [lines] * len(found)
    missing, lacks, larger, sizes, term, hollow = lines
    assert missing.startswith("Model: 2 keys without a source; nothing was loaded.\n    few.weight [1, 6]: no tensor")
    assert lacks.startswith("1 key of `like` is not in it.\n    few.weight")
    assert "few.weight [1, 6]: in its place the source has few.weight with sizes [2, 6]" in larger
    assert sizes.startswith("few.weight is to be [1, 6], and the source has [2, 6]")
    assert term.startswith("w is a sum of which each rank holds one term (")
    assert hollow.startswith("few.weight is on the meta device and has no memory, and nothing in the source goes there")


def test_a_rank_that_cannot_read_says_which_it_is(found):
    *others, last = (one["one_that_cannot_read"] for one in found)
    assert others == [None] * len(others)
    assert f"became shorter while it was being read (by rank {len(found) - 1})." in last


def test_a_rank_reads_its_share_and_has_little_more_in_memory(found):
    for one in found:
        for memory, read in one["bounded"]:
            assert read < 1 << 20
            assert memory < 48 << 20


@pytest.mark.parametrize("check", ["as_one_process_writes", "torch_loads_it", "a_training_checkpoint"])
def test_ranks_write_what_one_process_would(saved, check):
    assert [one[check] for one in saved] == [None] * len(saved)


def test_what_ranks_would_not_write_alike_is_refused_before_a_byte_is(saved):
    term, sizes, values, names, there = saved[0]["refused"]
    assert term.startswith("w is a sum of which each rank holds one term (")
    assert sizes == "rank 1 has other tensors than rank 0.\n    x [2] float32 on rank 0\n    x [3] float32 on rank 1"
    assert values.startswith(
        "not all ranks would write the same.\nHint: what is not a tensor (an epoch, a text) has to be"
    )
    assert names.startswith("rank 1 names another target than rank 0.\n    refused-0.pth on rank 0\n    refused-1.pth")
    assert "there.safetensors: exists already." in there
    for one in saved[1:]:
        first = [f"rank 0 failed: {line.splitlines()[0]}" for line in (sizes, values, names, there)]
        assert one["refused"] == [term, *first]


def test_a_target_that_a_rank_does_not_see_is_refused_before_a_byte_is_written(saved):
    for one in saved:
        assert one["on_several_disks"][0].startswith(f"rank {len(saved) - 1} on ")
        assert "is on a disk that this rank does not share" in one["on_several_disks"][0]


def test_a_rank_that_fails_ends_all_and_the_old_target_stays(saved):
    *others, last = (one["one_that_fails"] for one in saved)
    assert last == ["/there: no room is left.", ["kept.safetensors"]]
    assert others == [[f"rank {len(saved) - 1} failed: /there: no room is left.", ["kept.safetensors"]]] * len(others)


def test_a_rank_writes_its_share_and_needs_no_memory_for_it(saved):
    for one in saved:
        memory, written = one["bounded"]
        assert memory < 48 << 20
        assert abs(written) < 1 << 20
