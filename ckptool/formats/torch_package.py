"""torch-package: what torch.package.PackageExporter writes: pickles, texts and code in one zip archive. Read only.

    TOP/PACKAGE/RESOURCE         whatever was saved: pickles (protocol 3), texts, bytes, source code
    TOP/.data/KEY.storage        storages; persistent ids are ('storage', class, KEY as a number, location, numel)
    TOP/.data/extern_modules     modules that the package imports from outside
    TOP/.data/python_version, TOP/.data/version

Objects that rebuild themselves by code of the package have the persistent id ('reduce_package', number, function,
arguments); they are shown as that call.
"""

from __future__ import annotations

from typing import Any

from ..checkpoint import Checkpoint
from ..disk.files import File, FileRange
from ..errors import Malformed, printable
from ..inert.decode import check_all
from ..tree import Dict, Global, Object
from ._records import is_big_endian, read_pickle, storages_of
from ._torch import TorchReader
from .base import Format
from .zip.archive import Archive, holds_record, open_archive

SEALED = "is a torch.package archive: its pickles belong to the code that is packed with them"


class _PackageReader(TorchReader):
    """Reads a pickle of a package."""

    reduced: dict[Any, Object]

    def _storage(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) >= 2 and pid[0] == "reduce_package" and isinstance(pid[1], int):
            if pid[1] not in self.reduced:
                function, args = (*pid[2:], None, None)[:2]
                callee = function if isinstance(function, Global | Object) else Global("torch.package", "reduce")
                self.reduced[pid[1]] = Object("reduce", callee, args if isinstance(args, tuple) else (args,))
            return self.reduced[pid[1]]
        return super()._storage(pid)


def open_package(file: File) -> Checkpoint:
    """Open a package: every pickle in it is read; storages, code and other resources are not."""
    archive = open_archive(file)
    where = file.path
    storage = storages_of(archive, ".data/{}.storage", big_endian=is_big_endian(archive))
    shared: dict[str, Any] = {}
    entries: list[tuple[Any, Any]] = []
    others: list[Any] = []
    warnings: list[str] = []
    for name, member in archive.members.items():
        if name.startswith(".data/") or name in ("byteorder", "version"):
            continue
        if not _looks_pickled(archive, name):
            entries.append((name, f"{member.size} bytes"))
            continue
        reader = _PackageReader(read_pickle(archive, name), where, storage)
        reader.storages, reader.reduced = shared, {}
        try:
            entries.append((name, reader.load()))
        except Malformed as error:  # any resource may begin like a pickle
            entries.append((name, f"{member.size} bytes"))
            warnings.append(f"{printable(name, 80)} begins like a pickle and is none: {error.what}")
        others += reader.others
    return Checkpoint(
        Dict(entries),
        "torch-package",
        where,
        file.size,
        warnings=(*check_all(others, where), *warnings),
        sealed=SEALED,
    )


def _looks_pickled(archive: Archive, name: str) -> bool:
    member = archive.members[name]
    if member.size < 4 or name.endswith((".py", ".txt", ".json")):
        return False
    source = archive.source(name)
    # Of a compressed one the first piece: its middle is had by inflating it whole, which may be without end.
    head = source.read(0, 2) if isinstance(source, FileRange) else next(iter(source.chunks()), b"")[:2]
    return len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5


FORMAT = Format(
    name="torch-package",
    aliases=("package",),
    suffixes=(),
    summary="what torch.package.PackageExporter writes: pickles with the code that they need",
    carries="every pickle as an entry under its name, whole models as state dicts; code is listed only",
    pickles=True,
    sniff=lambda head, file: holds_record(file, ".data/extern_modules"),
    open=open_package,
    loader="other",
    checksums=True,
)
