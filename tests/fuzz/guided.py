"""Fuzzing that is guided by coverage, with atheris: `python -m tests.fuzz.guided zip --seconds 60`.

Three targets, each with a law that holds for all bytes:

    pickle       whatever the reader of pickles accepts, the one of the scanner follows, and it names all that is named
    zip          records of an archive that is accepted are where Python's zipfile finds them
    safetensors  a file that is accepted has the tensors that the safetensors library finds in it

All else is a `CheckpointError`. atheris runs until the time is over or something else is raised, and keeps that input.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

import atheris

with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["ckptool"]):
    import ckptool
    from ckptool.disk.files import Buffer, File
    from ckptool.formats import plain_pickle, safetensors, torch_zip, torchscript
    from ckptool.formats._torch import StorageForm, TorchReader
    from ckptool.formats.zip.archive import open_archive
    from ckptool.reports.scanning.following import Recorder
    from ckptool.reports.scanning.scan import scan
    from ckptool.tensor import Storage

from . import seeds
from .mutants import Mutants

ROOT = Path(__file__).parents[2]
_MOST_BYTES = 16 << 10
_MOST_SECONDS = 10
_MOST_MEGABYTES = 2048
_RECORD = 1 << 20


def no_bytes(key: str, form: StorageForm):
    """A storage of the size that a pickle asks for, if it is a small one."""
    if form.nbytes > _RECORD:
        raise ckptool.Malformed("is larger than this file", where="the pickle")
    return Storage(Buffer(bytes(form.nbytes)), form.location, key=key, dtype=form.dtype)


def follow_pickle(data, place):
    file = written(data, place)
    try:
        scan(place)
        if plain_pickle.sniff(data):
            plain_pickle.open_pickle(file)
    except ckptool.CheckpointError:
        pass
    reader = TorchReader(data, "the pickle", no_bytes)
    try:
        reader.load()
    except ckptool.CheckpointError:
        return
    follower = Recorder(data, complete=True, total=len(data))
    follower.load()
    missed = {str(one) for one in reader.named} - {str(one) for one in follower.named}
    assert not missed, f"the scanner does not see {missed}"
    assert follower.position == reader.position, "the pickle has two ends"


def read_archive(data, place):
    file = written(data, place)
    try:
        scan(place)
        for format_ in (torch_zip, torchscript):
            format_.FORMAT.open(file)
    except ckptool.CheckpointError:
        pass
    try:
        archive = open_archive(file, any_layout=True)
        payloads = {}
        for name in archive.members:
            with contextlib.suppress(ckptool.CheckpointError):
                payloads[name] = archive.read(name, _RECORD)
    except ckptool.CheckpointError:
        return
    try:
        with zipfile.ZipFile(place) as other:
            found = {info.filename: info for info in other.infolist() if not info.is_dir()}
            for name, member in archive.members.items():
                info = found.get(name)  # zipfile reads names that are not said to be UTF-8 in another way
                if info is None:
                    continue
                assert (info.header_offset, info.file_size) == (member.header, member.size), f"{name} is elsewhere"
                if name in payloads and member.crc:
                    assert other.read(info) == payloads[name], f"{name} has other bytes"
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error):
        pass  # what zipfile does not read, it does not read in another way


def read_safetensors(data, place):
    from safetensors import SafetensorError, deserialize

    file = written(data, place)
    try:
        scan(place)
        ckpt = safetensors.open_safetensors(file)
        ours = {name: (t.shape, bytes(t.source().read(0, t.nbytes))) for name, t in ckpt.root.entries}
    except ckptool.CheckpointError:
        return
    try:
        theirs = {name: (tuple(said["shape"]), bytes(said["data"])) for name, said in deserialize(data)}
    except SafetensorError:
        return  # which of the two is right is for the table of differences
    assert ours == theirs, "they read different tensors"


def written(data, place):
    place.write_bytes(data)
    return File(place)


TARGETS = {"pickle": follow_pickle, "zip": read_archive, "safetensors": read_safetensors}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seeds", type=Path, default=ROOT / "build/fuzz/seeds")
    parser.add_argument("--corpus", type=Path, default=ROOT / "build/fuzz/corpus", help="kept from run to run")
    parser.add_argument("--findings", type=Path, default=ROOT / "build/fuzz/findings")
    parser.add_argument("--input", type=Path, help="ask of this file alone")
    given = parser.parse_args()
    memory = Path("/dev/shm")
    work = Path(tempfile.mkdtemp(prefix="ckptool-fuzz-", dir=memory if memory.is_dir() else None))
    place = work / "in"

    def ask(data):
        TARGETS[given.target](data, place)

    if given.input:
        ask(given.input.read_bytes())
        print("nothing found")
        return
    corpus = given.corpus / given.target
    begin(given, corpus)
    given.findings.mkdir(parents=True, exist_ok=True)
    flags = (
        f"-max_total_time={given.seconds}",
        f"-timeout={_MOST_SECONDS}",
        f"-rss_limit_mb={_MOST_MEGABYTES}",
        f"-max_len={_MOST_BYTES}",
        f"-artifact_prefix={given.findings}/guided-{given.target}-",
        "-print_final_stats=1",
        "-verbosity=0",
    )
    log = given.findings / f"guided-{given.target}.log"
    if child := os.fork():  # atheris ends the process
        _, status = os.waitpid(child, 0)
        shutil.rmtree(work, ignore_errors=True)
        told(given, log, os.waitstatus_to_exitcode(status))
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
    os.dup2(2, 1)
    atheris.Setup([sys.argv[0], *flags, str(corpus)], ask)
    atheris.Fuzz()


def told(given, log, status):
    """Say in a line or two what came of it, and end as it ended."""
    said = log.read_text(errors="replace")
    done = (re.findall(r"stat::number_of_executed_units: *(\d+)", said) or [0])[0]
    kept = len(list((given.corpus / given.target).iterdir()))
    print(f"{given.target}: {int(done):,} inputs in {given.seconds:,} s, guided by coverage; {kept:,} kept")
    if status:
        print(
            f"FINDING, see {log}:\n"
            + "".join(f"  | {line}\n" for line in said.splitlines()[-40:] if "Uses:" not in line)
        )
        for made in re.findall(r"Test unit written to (\S+)", said):
            print(f"  again: .venv-fuzz/bin/python -m tests.fuzz.guided {given.target} --input {made}")
    sys.exit(status)


def begin(given, corpus):
    """The valid files of the target and some mutants of theirs, where no run has left any."""
    corpus.mkdir(parents=True, exist_ok=True)
    if any(corpus.iterdir()):
        return
    found = seeds.read(given.seeds, given.target)
    mutants = Mutants(given.target, found, seed=0)
    raw = [files[""] for _, files in found] + [mutants[number][1][""] for number in range(300)]
    if given.target == "pickle":
        raw = [one for one in raw if one[:2] != b"PK"] + mutants.pickles
    for number, data in enumerate(raw):
        if len(data) <= _MOST_BYTES:
            (corpus / f"seed-{number:04}").write_bytes(data)


if __name__ == "__main__":
    main()
