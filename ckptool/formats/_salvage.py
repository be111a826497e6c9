"""What can be saved of a file that does not open: other layouts of zip archives, lost directories, cut files.

Nothing is guessed: a tensor counts as whole if all bytes that it needs are there and agree with their checksum, where
one was recorded. What is not whole is left out and named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..disk.checksums import crc32_of
from ..disk.composing import nested
from ..disk.door import Directory, scratch_directory
from ..disk.files import File, FileRange, shell_path
from ..errors import CannotCarry, CheckpointError, Malformed, NotFound, UnknownFormat, counted, printable
from ..inert.decode import check_all
from ..tensor import LazyTensor, Storage
from ..tree import Aside, Dict, address, children, rebuild, walk
from . import torch_legacy
from ._records import is_big_endian, read_pickle
from ._torch import StorageForm, TorchReader
from .flat import safetensors
from .foreign import describe
from .zip.archive import Archive, open_archive
from .zip.carve import by_directory, carve, told_checksums
from .zip.ends import find_end
from .zip.structure import DEFLATED, Member, looks_like_zip

#: Records of archives that hold a program with its weights, and what these are.
_PROGRAMS = {
    "constants.pkl": "a TorchScript archive",
    ".data/extern_modules": "a torch.package archive",
    "archive_format": "an exported program",
}
_INNER = (".pth", ".pt", ".bin", ".ckpt", ".safetensors", ".tar", ".pkl")
_DEEPEST = 3


class NothingLeft(Malformed):
    """What says what the tensors are is lost, so that no repair can help."""


@dataclass(frozen=True, slots=True)
class Salvage:
    """What was saved of a file.

    Attributes:
        checkpoint: the checkpoint without what is lost, which counts as a loss of content when it is written.
        wrong: what was wrong with the file, a line each.
        lost: (path, why) of every entry that is lost.
        kept: how many tensors are whole.
        tensors: how many tensors there were.
        unseen: what nothing in the file could show, a line each.
    """

    checkpoint: Checkpoint
    wrong: tuple[str, ...]
    lost: tuple[tuple[str, str], ...]
    kept: int
    tensors: int
    unseen: tuple[str, ...] = ()

    @property
    def hopeless(self) -> bool:
        """Whether no tensor of any kind is left."""
        return not self.kept and not any(self.checkpoint.other_tensors())


def salvage(file: File, depth: int = 0) -> Salvage:
    """Read what is whole of a file, however damaged the rest is.

    Raises:
        UnknownFormat: it is no checkpoint.
        Malformed: what says which tensors there are is itself damaged or lost, so nothing can be saved.
    """
    head = file.read(0, min(4096, file.size))
    broken: dict[int, str] = {}
    wrong: list[str] = []
    unseen: list[str] = []
    found: Checkpoint | Salvage | None = None
    if looks_like_zip(head) or head[2:4] == b"\3\4":
        found = _zip(file, broken, wrong, depth)
    elif torch_legacy.sniff(head):
        found = torch_legacy.open_legacy(file, broken)
        unseen = ["legacy files have no checksums: bytes that changed within a tensor do not show"]
        wrong += _wrong_length(file, found) if broken else []
    elif safetensors.sniff(head) or file.path.suffix == ".safetensors":
        found = safetensors.open_safetensors(file, broken)
        unseen = ["nothing in a safetensors file could tell whether bytes in the middle are missing or changed"]
        wrong += _wrong_length(file, found)
    elif _ends_like_zip(file):
        found = _zip(file, broken, wrong, depth)
    else:
        what, hint = describe(head, file.size, file.path)
        raise UnknownFormat(f"nothing can be saved: {what}", where=file.path, hint=hint)
    if isinstance(found, Salvage):
        return found
    ckpt = found
    unknown = sum(s.crc is None and s.nbytes > 0 and id(s) not in broken for s in ckpt.storages())
    if unknown and not unseen:
        unseen = [f"the checksums of {counted(unknown, 'storage')} were not recorded: changed bytes do not show"]
    total = sum(1 for _ in ckpt.tensors())
    rest, lost = without(ckpt, broken)
    steps = tuple(dict.fromkeys(wrong))
    told = tuple(f"{printable(path, 80)}: {why}" for path, why in lost)
    history = (*(f"repaired: {line}" for line in steps), *(f"note: {line}" for line in unseen))
    rest = replace(rest, lost_content=(*rest.lost_content, *told), history=history)
    return Salvage(rest, steps, lost, sum(1 for _ in rest.tensors()), total, tuple(unseen))


def _wrong_length(file: File, ckpt: Checkpoint) -> list[str]:
    """How far the file is from ending where its last tensor does, in words."""
    parts = (part for storage in ckpt.storages() for part in nested(storage.source))
    ends = [part.offset + part.length for part in parts if isinstance(part, FileRange)]
    far = file.size - max(ends, default=file.size)
    if far > 0:
        return [f"{far:,} bytes follow the last tensor"]
    return [f"{-far:,} bytes of its tensors are missing"] if far else []


# -- zip


def _ends_like_zip(file: File) -> bool:
    try:
        find_end(file, headless=True)
    except Malformed:
        return False
    return True


def _zip(file: File, broken: dict[int, str], wrong: list[str], depth: int) -> Checkpoint | Salvage:
    try:
        archive = open_archive(file, any_layout=True)
    except CheckpointError as error:
        if not isinstance(error, Malformed):
            raise
        wrong.append("; ".join([error.what.rstrip(":"), *error.evidence[:1]]))
        return _zip_in_pieces(file, broken, wrong, depth)
    return _inside(archive, set(), broken, wrong, depth)


def _zip_in_pieces(file: File, broken: dict[int, str], wrong: list[str], depth: int) -> Checkpoint | Salvage:
    """A damaged archive by the account of its directory and by that of its local headers: the one that saves more."""
    best: tuple[int, dict[int, str], list[str], Checkpoint | Salvage] | None = None
    refused: CheckpointError | None = None
    readings: tuple[Callable[[File], tuple[Archive, set[str], list[str]]], ...] = (_by_directory, _carved)
    for reading in readings:
        lost: dict[int, str] = {}
        try:
            archive, cut, told = reading(file)
            if reading is _carved and len(other := _contradicted(archive, cut, told_checksums(file))) > 1:
                two = (
                    f"records of two saves lie in it, one over the other: {counted(len(other), 'record')} "
                    f"({printable(other[0], 40)}, …) have other checksums in the directory at its end"
                )
                if best is None:
                    raise NothingLeft(f"nothing can be saved: {two}", where=file.path)
                best[2].append(f"{two}; those that agree with the directory are kept")
                break
            found = _inside(archive, cut, lost, told, depth)
        except CheckpointError as error:
            refused = error
            continue
        number = len(found.lost) if isinstance(found, Salvage) else len(lost)
        if best is None or number < best[0]:
            best = (number, lost, told, found)
        if not number:
            break
    if best is None:
        assert refused is not None
        raise refused
    broken |= best[1]
    wrong += best[2]
    return best[3]


def _contradicted(carved: Archive, cut: set[str], told: dict[str, int]) -> list[str]:
    """Whole records whose own checksum is not that of the directory. One may be a damaged directory; several are those
    of a save that was written over another one and did not reach its end.
    """
    return [
        name
        for name, member in carved.members.items()
        if name not in cut and member.crc and told.get(name, 0) not in (0, member.crc)
    ]


def _by_directory(file: File) -> tuple[Archive, set[str], list[str]]:
    archive, wrong = by_directory(file)
    more = [f"and {len(wrong) - 3:,} more"] if len(wrong) > 3 else []
    return archive, set(), [*wrong[:3], *more]


def _carved(file: File) -> tuple[Archive, set[str], list[str]]:
    members: dict[str, Member] = {}
    cut: set[str] = set()
    for member, whole in carve(file):
        if member.name not in members and not member.name.endswith("/"):
            members[member.name] = member
            cut |= set() if whole else {member.name}
    return Archive(file, "", members, file.size), cut, []


def _inside(
    archive: Archive, cut: set[str], broken: dict[int, str], wrong: list[str], depth: int
) -> Checkpoint | Salvage:
    """The checkpoint in an archive some of whose records may be CUT."""
    _require_no_program(archive)
    folder = _folder(archive, wrong)
    if folder is None:
        return _inner(archive, wrong, depth)
    inside = {name[len(folder) :]: m for name, m in archive.members.items() if name.startswith(folder)}
    cut = {name[len(folder) :] for name in cut if name.startswith(folder)}
    if "data.pkl" in cut:
        raise NothingLeft(
            "nothing can be saved: its pickle, which says what the tensors are, is cut short", where=archive.file.path
        )
    if any(member.method == DEFLATED for member in inside.values()):
        wrong.append("its records are compressed, so that torch cannot map it")
    return _open(replace(archive, members=inside), cut, broken)


def _require_no_program(archive: Archive) -> None:
    """Refuse an archive of a program: what repair would find in it are objects or example inputs, not its weights."""
    for name in archive.members:
        found = next((kind for record, kind in _PROGRAMS.items() if f"/{name}".endswith(f"/{record}")), None)
        if found or "data/weights/" in name:
            raise CannotCarry(
                f"is {found or _PROGRAMS['archive_format']}, which cannot be repaired",
                where=archive.file.path,
                hint=f"ckptool verify {shell_path(archive.file.path)} says whether it is whole; if not, copy it again",
            )


def _folder(archive: Archive, wrong: list[str]) -> str | None:
    """The folder that the records of torch are in, with its slash, or None if there is none."""
    names = archive.members
    folders = [name[: -len("data.pkl")] for name in names if name.rpartition("/")[2] == "data.pkl"]
    folders = [folder for folder in folders if not folder.startswith("__MACOSX")]
    if any(name.startswith("__MACOSX/") or name.endswith("/.DS_Store") for name in names):
        wrong.append("it was zipped again by macOS, which added files of its own")
    if not folders:
        return None
    if len(folders) > 1:
        shown = ", ".join(printable(folder, 40) for folder in folders[:4])
        raise Malformed(f"holds {len(folders)} checkpoints: {shown}; unpack it first", where=archive.file.path)
    folder = folders[0]
    if not folder:
        wrong.append("its records are not in a folder, as torch.save puts them")
    elif folder.count("/") > 1:
        wrong.append(f"its records are in a folder within a folder, {printable(folder, 60)}")
    if f"{folder}version" not in names and f"{folder}.data/version" not in names:
        wrong.append("its record 'version' is missing")
    return folder


def _inner(archive: Archive, wrong: list[str], depth: int) -> Salvage:
    """A zip archive that somebody put a checkpoint into."""
    names = [name for name in archive.members if name.endswith(_INNER) and not name.startswith("__MACOSX")]
    if len(names) != 1 or depth >= _DEEPEST:
        what = counted(len(names), "checkpoint") if names else "neither data.pkl nor a checkpoint"
        hint = "unpack it first" if names else None
        raise NotFound(f"is a zip archive that holds {what}", where=archive.file.path, hint=hint)
    inner = salvage(_unpacked(archive, names[0]), depth + 1)
    told = f"it is a zip archive with a checkpoint in it, {printable(names[0], 60)}"
    steps = (*wrong, told, *inner.wrong)
    history = (*(f"repaired: {line}" for line in steps), *(f"note: {line}" for line in inner.unseen))
    ckpt = replace(inner.checkpoint, path=archive.file.path, origin=None, history=history)
    return replace(inner, checkpoint=ckpt, wrong=steps)


def _unpacked(archive: Archive, name: str) -> File:
    """A record as a file of its own that vanishes when it is closed."""
    inside = f"inside{Path(name).suffix}"
    with scratch_directory() as folder, Directory.at(folder) as made:
        with os.fdopen(made.create(inside), "wb") as out:
            out.writelines(archive.source(name).chunks())
        return File(folder / inside)


def _open(archive: Archive, cut: set[str], broken: dict[int, str]) -> Checkpoint:
    """The checkpoint in an archive some of whose records may be missing or cut."""
    where = archive.file.path
    big_endian = is_big_endian(archive)

    def storage(key: str, form: StorageForm) -> Storage:
        name = f"data/{key}"
        member = archive.members.get(name)
        problem = _problem(archive, name, member, name in cut, form.nbytes)
        if member is None or problem:
            made = Storage(FileRange(_file(archive), 0, form.nbytes), form.location, form.dtype, key)
            broken[id(made)] = problem
            return made
        crc = member.crc if member.crc or not member.size else None
        return Storage(archive.source(name), form.location, form.dtype, key, crc, big_endian)

    reader = TorchReader(read_pickle(archive, "data.pkl"), where, storage)
    root = reader.load()
    return Checkpoint(
        root,
        "torch-zip",
        where,
        archive.file.size,
        warnings=tuple(check_all([node for node in reader.others if not _uses(node, broken)], where)),
        lost_content=reader.lost_content(),
    )


def _file(archive: Archive) -> File:
    assert isinstance(archive.file, File)
    return archive.file


def _problem(archive: Archive, name: str, member: Member | None, cut: bool, nbytes: int) -> str:
    """Why the record of a storage is not whole, or ""."""
    if member is None:
        return "its record is not in the file"
    if cut:
        if member.size >= nbytes:
            return "its checksum and what follows it are lost"
        return f"is cut short: {member.size:,} of {nbytes:,} bytes are there"
    if member.size != nbytes:
        return f"its record has {member.size:,} bytes, {nbytes:,} are needed"
    try:
        if member.crc and crc32_of(archive.source(name)) != member.crc:
            return "its checksum does not match"
    except CheckpointError as error:
        return error.what
    return ""


# -- leaving out what is lost


def without(ckpt: Checkpoint, broken: dict[int, str]) -> tuple[Checkpoint, tuple[tuple[str, str], ...]]:
    """A checkpoint without the entries that need a broken storage, and what was left out and why.

    An entry is one of a dict; if a tensor is in a list or an object, the entry that holds the whole of that goes.

    Raises:
        Malformed: everything would go.
    """
    if not broken:
        return ckpt, ()
    lost: list[tuple[str, str]] = []
    instead: dict[int, Any] = {}
    for trail, node in walk(ckpt.root):
        if not isinstance(node, Dict):
            continue
        kept = []
        for (key, value), (part, _) in zip(node.entries, _parts(node), strict=False):
            why = _uses(value, broken)
            if why:
                lost.append((address((trail, part)), why))
            else:
                kept.append((key, value))
        if len(kept) < len(node.entries):
            instead[id(node)] = Dict(kept, node.ordered, node.attributes)
    root = rebuild(ckpt.root, instead=instead)
    if any(_broken(node, broken) for _, node in walk(root)):
        raise Malformed("nothing can be saved: what is left is in no dict", where=ckpt.where)
    return replace(ckpt, root=root, origin=None), tuple(lost)


def _parts(node: Dict) -> Iterable[tuple[Any, Any]]:
    """The path component of each entry."""
    parts = [(part, child) for part, child in children(node) if not (isinstance(part, Aside) and part.endswith("@key"))]
    return parts[: len(node.entries)]


def _broken(node: Any, broken: dict[int, str]) -> str:
    storage = node.storage if isinstance(node, LazyTensor) else node
    return broken.get(id(storage), "") if isinstance(storage, Storage) else ""


def _uses(value: Any, broken: dict[int, str]) -> str:
    """Why VALUE is not whole, not counting what is in dicts below it, whose entries go alone."""
    pending, seen = [value], set()
    while pending:
        node = pending.pop()
        why = _broken(node, broken)
        if why:
            return why
        if isinstance(node, Dict) or id(node) in seen:
            continue
        seen.add(id(node))
        pending.extend(child for _, child in children(node))
    return ""
