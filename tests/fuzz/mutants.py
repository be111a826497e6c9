"""The mutant of each number: always the same one, given the seeds."""

import contextlib
import random
import zipfile
import zlib

from . import pickles, streams, texts, zips
from . import seeds as seeds_of
from .bytes import anyhow

MOST_BYTES = 4 << 20


class Mutants:
    """The mutants of one family.

    Args:
        family: its name.
        seeds: [(name, files)], as `seeds.read` gives them.
        seed: the number that everything random follows from.
    """

    def __init__(self, family, seeds, seed=1):
        self.family, self.seeds, self.seed = family, seeds, seed
        self.pickles = [part for _, files in seeds for data in files.values() for part in _pickles_in(data)]

    def __getitem__(self, number):
        """(name of the seed, files, random numbers for whoever asks) of a mutant."""
        rng = random.Random(f"{self.seed}:{self.family}:{number}")
        name, files = rng.choice(self.seeds)
        while True:
            made = self._mutated(rng, name, files)
            if sum(map(len, made.values())) <= MOST_BYTES:
                return name, made, rng

    def _mutated(self, rng, name, files):
        if self.family in seeds_of.FOLDERS:
            return _folder(rng, self.family, files, self.pickles)
        (inner, data), *_ = files.items()
        return {inner: _file(rng, self.family, name, data, self.pickles)}


def _pickles_in(data):
    if data[:2] == b"PK":
        return [raw for _, raw in zips.records_of(data) if raw[:1] == b"\x80"]
    found = streams.pickles_in(data)
    return [data[begin:end] for begin, end in found if end - begin > 20]


def _file(rng, family, name, data, others):
    if family == "pickle":
        if data[:2] == b"PK":
            return zips.contents(rng, data, others, wanted=lambda record: record.endswith("data.pkl"))
        return pickles.mutated(rng, data, others) if rng.random() < 0.95 else anyhow(rng, data)
    if family == "hdf5" and (data[:2] != b"PK" or rng.random() < 0.3):
        return anyhow(rng, data)
    if family == "frameworks":
        return pickles.mutated(rng, data, others) if data[:1] == b"\x80" and rng.random() < 0.7 else anyhow(rng, data)
    if family == "npz" and rng.random() < 0.5:
        return anyhow(rng, data)
    if family == "safetensors":
        return texts.safetensors(rng, data)
    if family == "legacy":
        return streams.legacy(rng, data, others)
    if family == "tar":
        return streams.tar(rng, data, others)
    if family in ("torchscript", "pt2", "package") and rng.random() < 0.6:
        return zips.contents(rng, data, others)
    return zips.zip_archive(rng, data, others)


#: Files that say where things are in a folder.
_TELLING = (".metadata", ".zarray", "_METADATA", "manifest.ocdbt")


def _folder(rng, family, files, others):
    """A folder with one file changed, lost, renamed or exchanged. What says where things are is changed most."""
    made = dict(files)
    told = [
        name
        for name in made
        if name.rpartition("/")[2] in _TELLING or name.endswith((".json", ".index", "_model_states.pt"))
    ]
    name = rng.choice(told) if told and rng.random() < 0.7 else rng.choice(list(made))
    way = rng.random()
    if way < 0.06:
        del made[name]
    elif way < 0.12:
        made[rng.choice((*made, "x.bin", "model-00001-of-00002.safetensors", "__1_0.distcp"))] = made.pop(name)
    elif way < 0.16:
        made[name] = made[rng.choice(list(made))]
    else:
        made[name] = _part(rng, name, made[name], others)
    if rng.random() < 0.15:
        other = rng.choice(list(made or files))
        made[other] = _part(rng, other, made.get(other, files.get(other, b"")), others)
    return made


def _part(rng, name, data, others):
    if name.endswith((".json", ".zarray", "_METADATA")) and rng.random() < 0.9:
        return texts.json_text(rng, data)
    if name == ".metadata":
        return pickles.mutated(rng, data, others) if rng.random() < 0.95 else anyhow(rng, data)
    if name.endswith(".safetensors") and len(data) > 8:
        return texts.safetensors(rng, data)
    if name.endswith(".pt") and rng.random() < 0.7:
        with contextlib.suppress(zipfile.BadZipFile, zlib.error, StopIteration, IndexError):
            return zips.contents(rng, data, others, wanted=lambda record: record.endswith("data.pkl"))
    if name.endswith((".bin", ".pt")):
        with contextlib.suppress(zipfile.BadZipFile, zlib.error):  # it may be a mutant already
            return zips.zip_archive(rng, data, others)
    return anyhow(rng, data)
