"""keras: a `.keras` archive, as `model.save` of Keras 3 writes it. Read only.

    config.json         the layers, which Keras would make objects of: not done here
    metadata.json       versions
    model.weights.h5    an HDF5 file (see `hdf5`)
    assets/…            further files

A stored archive is read where it stands; the weights of one that is compressed are inflated to an unnamed file first.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...checkpoint import Checkpoint
from ...disk.door import unnamed_file
from ...disk.files import File
from ...errors import Malformed, printable
from ...lazy import later
from ..base import Format
from ..beginnings import is_keras
from ..zip.archive import Archive, open_archive
from ..zip.structure import STORED

if TYPE_CHECKING:
    from . import hdf5
else:  # a look at the first record of an archive does not need it
    hdf5 = later(".hdf5", __package__)

_WEIGHTS = "model.weights.h5"
_LARGEST_TEXT = 1 << 28
_TEXTS = {"config.json": "keras.config", "metadata.json": "keras.metadata"}


def open_keras(file: File) -> Checkpoint:
    """Open a `.keras` archive: its configuration and the places of its weights are read, no weight is."""
    archive = open_archive(file, any_layout=True)
    if _WEIGHTS not in archive.members:
        shown = ", ".join(printable(name, 40) for name in list(archive.members)[:6])
        raise Malformed(f"is a .keras archive without {_WEIGHTS}", where=file.path, evidence=[f"it holds {shown}"])
    texts = _texts(archive)
    member = archive.members[_WEIGHTS]
    if member.method == STORED:
        held, start = file, member.start
    else:
        held, start = _inflated(archive, file), 0
    found = hdf5.contents_of(held, start, member.size)
    others = [name for name in archive.members if name not in (_WEIGHTS, *_TEXTS)]
    found.lost.extend(f"{printable(name, 80)} of the archive" for name in others)
    return hdf5.checkpoint_of(found, held if held is file else file, "keras", texts)


def configuration(file: File) -> dict[str, str]:
    """The texts of a `.keras` archive."""
    return _texts(open_archive(file, any_layout=True))


def _texts(archive: Archive) -> dict[str, str]:
    known = {key: name for name, key in _TEXTS.items() if name in archive.members}
    return {key: archive.read(name, _LARGEST_TEXT).decode("utf-8", "replace") for key, name in known.items()}


def _inflated(archive: Archive, file: File) -> File:
    """The weights, inflated to a file without a name."""
    with unnamed_file() as out:
        out.writelines(archive.inflate(archive.members[_WEIGHTS]))
        out.flush()
        return File(file.path, os.dup(out.fileno()))


FORMAT = Format(
    name="keras",
    aliases=(),
    suffixes=(),
    summary="a model of Keras 3 (.keras)",
    carries="tensors under Keras's names; the configuration as text",
    pickles=False,
    sniff=lambda head, file: is_keras(head),
    open=open_keras,
    loader="other",
    checksums=True,
)
