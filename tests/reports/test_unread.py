"""`ckptool.verify` of the folder of a run reads the files that no weight is made of, too."""

import shutil
import zipfile
from pathlib import Path

import pytest

import ckptool

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: The folder of a run, and one of its files of which no weight is made.
RUNS = {
    "deepspeed/zero2-bf16-universal/global_step3_universal": "zero/emb.weight/exp_avg_sq.pt",
    "deepspeed/experts": "global_step3/mp_rank_00_model_states.pt",
    "deepspeed/zero3-bf16": "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "deepspeed/pipeline-zero1": "global_step3/layer_00-model_states.pt",
    "megatron/adam": "iter_0000001/mp_rank_01/model_optim_rng.pt",
    "megatron/adam-distributed": "iter_0000001/mp_rank_01/distrib_optim.pt",
}


def files_of(folder):
    """The files of the save, of all ranks."""
    beside = ("expected", "zero_to_fp32", "masters", "common")
    return [path for path in folder.rglob("*.pt") if not path.name.startswith(beside)]


@pytest.mark.parametrize("name", [*RUNS, "deepspeed/experts-four-ranks", "deepspeed/zero0-bf16", "megatron/adam-fp32"])
def test_every_record_of_every_file_is_read(trainer_runs, name):
    files = files_of(trainer_runs / name)
    stored = records = 0
    for path in files:
        with zipfile.ZipFile(path) as archive:
            stored += sum(info.file_size for info in archive.infolist())
            records += len(archive.infolist())
    found = ckptool.verify(trainer_runs / name)
    assert found.sound
    assert found.read >= stored  # parts of ranks are read again as what they are together
    assert found.checksums[0] >= records
    assert not found.checksums[1]
    assert found.bytes == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("name", RUNS)
def test_a_changed_byte_is_noticed_in_any_of_them(trainer_runs, tmp_path, name):
    folder = shutil.copytree(trainer_runs / name, tmp_path / "run")
    path = folder / RUNS[name]
    with zipfile.ZipFile(path) as archive:
        info = max((i for i in archive.infolist() if "/data/" in i.filename), key=lambda i: i.file_size)
    raw = bytearray(path.read_bytes())
    name_length, extra = (int.from_bytes(raw[info.header_offset + at :][:2], "little") for at in (26, 28))
    raw[info.header_offset + 30 + name_length + extra] ^= 1
    path.write_bytes(raw)
    (line,) = ckptool.verify(folder).damage
    assert path.name in line
    assert "its CRC-32 is" in line


def test_a_file_that_was_cut_short_is_named(trainer_runs, tmp_path):
    folder = shutil.copytree(trainer_runs / "megatron/adam-distributed", tmp_path / "run")
    path = folder / RUNS["megatron/adam-distributed"]
    path.write_bytes(path.read_bytes()[:5000])
    found = ckptool.verify(folder)
    assert not found.sound
    assert found.damage[0].startswith(f"{RUNS['megatron/adam-distributed']}: ")


def test_the_states_in_a_distributed_checkpoint_are_read(trainer_runs, tmp_path):
    folder = shutil.copytree(trainer_runs / "megatron/adam/dist", tmp_path / "dist")
    whole = ckptool.open(folder, with_optimizer=True)
    states = [
        bytes(t.source().read(0, 32)) for path, t in whole.tensors() if path.endswith("exp_avg") and t.nbytes > 31
    ]
    holding = [(values, [p for p in folder.glob("*.distcp") if values in p.read_bytes()]) for values in states]
    values, (place,) = next((values, places) for values, places in holding if len(places) == 1)
    raw = bytearray(place.read_bytes())
    raw[raw.index(values)] ^= 1
    place.write_bytes(raw)
    assert not ckptool.verify(folder).sound


def test_files_in_the_old_format_of_torch_are_read_as_a_whole(tmp_path):
    torch = pytest.importorskip("torch")
    for rank in range(2):
        for stem in ("model", "optim"):
            torch.save({"w": torch.ones(4)}, tmp_path / f"{stem}_rank_{rank}.pt", _use_new_zipfile_serialization=False)
    found = ckptool.verify(tmp_path)
    assert found.sound
    assert found.bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert any("optim_rank_0.pt, optim_rank_1.pt" in note for note in found.notes)
    (tmp_path / "optim_rank_1.pt").write_bytes((tmp_path / "optim_rank_1.pt").read_bytes()[:-9])
    assert any(line.startswith("optim_rank_1.pt: ") for line in ckptool.verify(tmp_path).damage)
