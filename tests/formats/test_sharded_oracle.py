"""Shards checked against huggingface_hub: the same split, names, index and sizes; it reads ours and we read its."""

import json
import os

import pytest

torch = pytest.importorskip("torch")
hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("safetensors")

from contract import in_one_folder
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool.formats.flat import sharded

SIZES = st.integers(0, 40)


@st.composite
def state_dicts(draw):
    """Tensors of some sizes; some are slices of others, some are others again, some are empty."""
    made = [torch.arange(draw(SIZES), dtype=draw(st.sampled_from([torch.float32, torch.int8]))) for _ in range(4)]
    values = draw(
        st.lists(
            st.sampled_from(made)
            | st.sampled_from(made).map(lambda t: t[: len(t) // 2])
            | SIZES.map(lambda n: torch.zeros(n)),
            min_size=1,
            max_size=12,
        )
    )
    return {f"k{n}.w": value for n, value in enumerate(values)}


@pytest.mark.parametrize(
    ("kind", "pattern"), [("safetensors", "model{suffix}.safetensors"), ("bin", "pytorch_model{suffix}.bin")]
)
@in_one_folder
@given(tensors=state_dicts(), most=st.integers(1, 200))
def test_the_split_is_that_of_huggingface_hub(kind, pattern, tmp_path, tensors, most):
    theirs = hub.split_torch_state_dict_into_shards(tensors, filename_pattern=pattern, max_shard_size=most)
    planned = ckptool.plan(
        tensors,
        tmp_path / "out",
        format=sharded.SAFETENSORS.name if kind == "safetensors" else "bin",
        max_shard_size=most,
    )
    names = [name for name in planned.draft.folder if not name.endswith(".json")]
    assert names == list(theirs.filename_to_tensors)
    if theirs.is_sharded:
        index = planned.draft.folder[f"{pattern.format(suffix='')}.index.json"][0].data
        expected = {"metadata": theirs.metadata, "weight_map": theirs.tensor_to_filename}
        assert json.loads(bytes(index)) == expected


def test_the_files_are_those_of_huggingface_hub(tmp_path):
    tensors = {f"layer.{n}.weight": torch.rand(8, n + 1) for n in (3, 1, 9, 2, 2)}
    for safe, format_ in ((True, "shards"), (False, "bin")):
        theirs, ours = tmp_path / f"theirs-{format_}", tmp_path / f"ours-{format_}"
        theirs.mkdir()
        hub.save_torch_state_dict(tensors, theirs, max_shard_size=200, safe_serialization=safe)
        ckptool.save(tensors, ours, format=format_, max_shard_size=200)
        assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
        index = next(name for name in os.listdir(ours) if name.endswith(".json"))
        assert (ours / index).read_bytes() == (theirs / index).read_bytes()
        for name in os.listdir(ours):
            if name != index:
                mine, other = (hub.load_state_dict_from_file(folder / name, safe=safe) for folder in (ours, theirs))
                assert mine.keys() == other.keys()
                assert all(torch.equal(mine[key], other[key]) for key in mine)


@pytest.mark.parametrize("safe", [True, False])
def test_what_huggingface_hub_saves_is_read(tmp_path, safe):
    tensors = {f"layer.{n}.weight": torch.rand(8, n + 1) for n in (3, 1, 9, 2, 2)}
    hub.save_torch_state_dict(tensors, tmp_path, max_shard_size=200, safe_serialization=safe)
    loaded = ckptool.load(tmp_path)
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[key], value) for key, value in tensors.items())


def test_huggingface_hub_loads_what_we_write(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4), torch.nn.Linear(4, 8))
    model[2].weight = model[0].weight
    ckptool.save(model.state_dict(), tmp_path / "out", format="shards", max_shard_size=100)
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4), torch.nn.Linear(4, 8))
    hub.load_torch_model(other, tmp_path / "out", strict=True)
    assert all(torch.equal(other.state_dict()[key], value) for key, value in model.state_dict().items())
    assert ckptool.open(tmp_path / "out").state_dict().ties() == [["0.weight", "2.weight"]]
